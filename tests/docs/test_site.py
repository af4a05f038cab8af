"""The site: what is built, and what it does in a real browser, opened from disk."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytestmark = pytest.mark.release

filelock = pytest.importorskip("filelock")
ROOT = Path(__file__).parents[2]
BUILDER = ROOT / "docs" / "site"
LAPTOP, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 844}

nbclient = pytest.importorskip("nbclient", reason="notebooks are run with nbclient: pip install 'trimtab[site]'")
nbformat = pytest.importorskip("nbformat", reason="notebooks are run with nbclient: pip install 'trimtab[site]'")
for needed in ("zensical", "mkdocstrings", "latex2mathml"):
    pytest.importorskip(needed, reason=f"the site is built with {needed}: pip install 'trimtab[site]'")


def build(project: Path, out: Path, shared: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(project / "docs" / "site"), str(out)]
    kept = os.environ | {"TRIMTAB_NOTEBOOK_CACHE": str(shared / "notebooks")}
    return subprocess.run(command, env=kept, capture_output=True, text=True, timeout=900, check=False)


@pytest.fixture(scope="session")
def site(shared: Path) -> Path:
    """The site, built once in a test run, by whichever process is first."""
    out, done = shared / "site", shared / "site-is-there"
    with filelock.FileLock(shared / "site.lock"):
        if not done.exists():
            built = build(ROOT, out, shared)
            assert built.returncode == 0, built.stdout + built.stderr
            assert "arning" not in built.stdout + built.stderr
            done.touch()
    return out


@pytest.fixture
def part(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import a module of the builder, which is a folder of scripts and not a package."""
    monkeypatch.syspath_prepend(BUILDER)

    def imported(name: str) -> ModuleType:
        monkeypatch.delitem(sys.modules, name, raising=False)
        return importlib.import_module(name)

    return imported


# ------------------------------------------------------------------ what is built


def declared() -> dict[int, tuple[str, str]]:
    """Every object that the package, a room, or a module that a room names declares public: where, and its name.

    Objects are told apart by identity, so that one that can be imported from two places counts once.
    """
    source = ROOT / "src" / "trimtab"
    rooms = sorted(p.name for p in source.iterdir() if (p / "__init__.py").exists() and p.name != "cli")
    modules = [import_module("trimtab"), *(import_module(f"trimtab.{room}") for room in rooms)]
    for room in modules[1:]:
        assert room.__all__, f"{room.__name__} does not say what is public"
    named = [(room, name) for room in modules[1:] for name in room.__all__]
    modules += [import_module(f"{room.__name__}.{name}") for room, name in named if is_module(room, name)]
    return {
        id(getattr(module, name)): (module.__name__, name)
        for module in modules
        for name in module.__all__
        if not name.startswith("__") and not is_module(module, name)
        if (module.__name__, name) != ("trimtab", "domain")  # of the lab
    }


def is_module(package: ModuleType, name: str) -> bool:
    return hasattr(package, "__path__") and find_spec(f"{package.__name__}.{name}") is not None


def test_every_public_name_is_in_the_reference_exactly_once(site: Path) -> None:
    headings = Counter(
        place
        for page in (site / "api").glob("*.html")
        for place in re.findall(r'<h2 id="(trimtab\.[^"]+)"', page.read_text(encoding="utf-8"))
    )
    assert headings
    assert set(headings.values()) == {1}
    described = {}
    for path in headings:
        module, name = path.rsplit(".", 1)
        described[id(getattr(import_module(module), name))] = path
    wanted = declared()
    assert {wanted[key] for key in wanted.keys() - described.keys()} == set()
    assert {described[key] for key in described.keys() - wanted.keys()} == set()


def test_every_page_of_the_docs_is_in_the_navigation(site: Path) -> None:
    first = (site / "index.html").read_text(encoding="utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        assert re.search(rf'href="(\./)?{page.stem}\.html"', first), (
            f"{page.name} cannot be reached from the first page"
        )


@pytest.mark.parametrize(
    "wrong", ["[a](nowhere.md)", "![a](images/none.png)", '<img src="none.png">', "[a](../../x.py)"]
)
def test_a_link_to_no_file_of_the_project_fails_the_build(tmp_path: Path, part: Any, wrong: str) -> None:
    page = tmp_path / "project" / "docs" / "page.md"
    page.parent.mkdir(parents=True)
    (tmp_path / "x.py").touch()
    page.write_text(f"# Page\n\n{wrong}\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"docs/page\.md: the link .* leads to no file of the project"):
        part("stage").stage(tmp_path / "project", tmp_path / "staged")


def test_a_missing_place_or_name_fails_the_build(tmp_path: Path, site: Path, shared: Path) -> None:
    project = tmp_path / "project"
    shutil.copytree(ROOT, project, ignore=shutil.ignore_patterns(".*", "__pycache__", "*.safetensors", "build", "runs"))
    page = project / "docs" / "quickstart.md"
    wrong = "[a](production.md#no-such-place) [a][trimtab.NoSuchName]"
    page.write_text(page.read_text(encoding="utf-8") + f"\n{wrong}\n", encoding="utf-8")
    done = build(project, tmp_path / "site", shared)
    assert done.returncode != 0
    said = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr)
    assert "anchor does not exist" in said
    assert "unresolved autoref" in said
    assert not (tmp_path / "site").exists()


def test_built_pages_are_checked_for_links_and_hosts(tmp_path: Path, part: Any) -> None:
    finish = part("finish")
    (tmp_path / "a.html").write_text('<a href="b.html#here">b</a><a href="b.html#gone">b</a><img src="c.png">')
    (tmp_path / "b.html").write_text('<h1 id="here">b</h1><script src="https://example.org/x.js"></script>')
    assert finish.broken_links(tmp_path) == [
        "a.html: b.html#gone leads to no place on that page",
        "a.html: c.png leads to no file",
    ]
    assert finish.hosts_asked(tmp_path) == ["b.html: https://example.org/x.js would be loaded from another host"]


@pytest.mark.parametrize("name", ["site", "site-pages"])
def test_a_folder_that_no_build_made_is_not_replaced(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "thesis.tex").write_text("years of work")
    done = build(ROOT, tmp_path / "site", tmp_path)
    assert done.returncode != 0
    assert f"{tmp_path / name} is there and was not made by a build of the site" in done.stderr
    assert (tmp_path / name / "thesis.tex").read_text() == "years of work"
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_folder_that_a_build_made_is_replaced_whole_and_an_empty_one_is_used(tmp_path: Path, part: Any) -> None:
    place = part("place")
    place.mark(tmp_path / "site")
    (tmp_path / "site" / "old.html").touch()
    (tmp_path / "empty").mkdir()
    place.clear(tmp_path / "site", tmp_path / "empty", tmp_path / "missing")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("file", "link"):
        place.mark(tmp_path / "site")
        with pytest.raises(SystemExit, match="not replaced"):
            place.clear(tmp_path / "site", tmp_path / name)
        assert (tmp_path / "site" / place.MARK).is_file()


def test_what_is_built_can_be_built_again(site: Path, part: Any) -> None:
    assert (site / part("place").MARK).is_file()
    assert (site.with_name("site-pages") / part("place").MARK).is_file()


def test_a_page_that_is_named_and_missing_is_an_error(tmp_path: Path, part: Any) -> None:
    with pytest.raises(ValueError, match=r"quickstart\.md.*do not exist"):
        part("navigation").navigation(tmp_path)


def test_notebooks_show_what_their_cells_gave(site: Path) -> None:
    pages = sorted((ROOT / "notebooks").glob("*.py"))
    assert {"your_loop", "choose_budget", "diffusers_pipeline"} == {path.stem for path in pages}
    for path in pages:
        page = (site / "notebooks" / f"{path.stem}.html").read_text(encoding="utf-8")
        assert page.count('<div class="output">') >= 3
        assert page.count('<svg viewBox="0 0 420') >= 2
        notebook = nbformat.read(site / "notebooks" / f"{path.stem}.ipynb", as_version=4)
        code = [cell for cell in notebook.cells if cell.cell_type == "code"]
        assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))


def test_an_error_in_a_notebook_is_an_error_of_the_build(tmp_path: Path, part: Any) -> None:
    path = tmp_path / "wrong.py"
    path.write_text("# %% [markdown]\n# # Wrong\n\n# %%\n1 / 0\n", encoding="utf-8")
    notebooks = part("notebooks")
    with pytest.raises(nbclient.exceptions.CellExecutionError, match="ZeroDivisionError"):
        notebooks.execute(path, tmp_path)


def test_formulas_of_a_page_are_drawn_without_scripts(site: Path) -> None:
    page = (site / "how-it-works.html").read_text(encoding="utf-8")
    written = (ROOT / "docs" / "how-it-works.md").read_text(encoding="utf-8")
    assert page.count('display="block"') == written.count("\n$$\n") / 2 > 0
    assert "arithmatex" not in page
    assert "\\frac" not in page


def test_figures_are_light(site: Path) -> None:
    heavy = {path.name: path.stat().st_size for path in site.rglob("*.png") if path.stat().st_size > 250_000}
    assert not heavy


# ------------------------------------------------------------------ what it does in a browser


class Tab:
    """A page with everything it complained about, and everything it asked for elsewhere than on disk."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.asked: list[str] = []
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self.asked.append(request.url))

    def _heard(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def hosts(self) -> list[str]:
        return [url for url in self.asked if not url.startswith(("file:", "data:", "blob:"))]


@pytest.fixture
def tab(browser: Any) -> Iterator[Tab]:
    """Afterwards: no complaint on the console, and no request to any host."""
    context = browser.new_context(viewport=LAPTOP)
    tab = Tab(context.new_page())
    yield tab
    context.close()
    assert tab.complaints == []
    assert tab.hosts() == []


@pytest.mark.parametrize("size", [LAPTOP, PHONE], ids=["laptop", "phone"])
def test_pages_load_from_disk_without_complaint_and_fit_the_screen(tab: Tab, site: Path, size: dict[str, int]) -> None:
    tab.page.set_viewport_size(size)
    for page in sorted(path for path in site.rglob("*.html") if path.name != "404.html"):
        tab.page.goto(page.as_uri())
        assert tab.page.locator("h1").count() >= 1, page
        assert tab.page.evaluate("document.documentElement.scrollWidth") <= size["width"], page
    assert any(url.startswith("file:") for url in tab.asked)


def test_search_from_disk_finds_calibrate(tab: Tab, site: Path) -> None:
    tab.page.goto((site / "quickstart.html").as_uri())
    tab.page.keyboard.press("Control+k")
    tab.page.keyboard.type("calibrate")
    found = tab.page.get_by_role("option").and_(tab.page.locator("[href$='.calibrate']")).first
    found.click(timeout=30_000)
    tab.page.wait_for_url("**/api/calibration.html*")
    assert "calibrate" in tab.page.inner_text("h2:target")


def test_code_can_be_copied(tab: Tab, site: Path) -> None:
    tab.page.goto((site / "quickstart.html").as_uri())
    block = tab.page.locator("div.highlight").first
    block.hover()
    block.locator("button[data-md-type=copy]").click()
    tab.page.evaluate("document.body.append(Object.assign(document.createElement('textarea'), {id: 'pasted'}))")
    tab.page.focus("#pasted")
    tab.page.keyboard.press("Control+v")
    assert tab.page.input_value("#pasted").strip() == block.locator("code").inner_text().strip()


def test_colours_follow_the_system_and_the_button(tab: Tab, site: Path) -> None:
    def colour() -> str:
        return str(tab.page.evaluate("getComputedStyle(document.body).backgroundColor"))

    colours = {}
    for scheme in ("light", "dark"):
        tab.page.emulate_media(color_scheme=scheme)
        tab.page.goto((site / "index.html").as_uri())
        colours[scheme] = colour()
    assert colours["light"] != colours["dark"]
    tab.page.emulate_media(color_scheme="light")
    tab.page.goto((site / "index.html").as_uri())
    for _ in range(2):
        tab.page.locator("label.md-header__button[for^=__palette]:visible").click()
    assert colour() == colours["dark"]


def test_formulas_are_drawn_without_scripts(part: Any, tmp_path: Path) -> None:
    finish = part("finish")
    page = r'<span class="arithmatex">\(x_{t+1} \le 1\)</span><div class="arithmatex">\[\sum_t d(x_t)\]</div>'
    drawn = finish.FORMULA.sub(finish._mathml, page)
    assert drawn.count("<math") == 2
    assert 'display="block"' in drawn
    assert "<msub>" in drawn
    assert "\\" not in drawn
