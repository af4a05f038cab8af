"""Every snippet of the docs runs: the ```python blocks of a page, in order, in one namespace."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
RESULTS = sorted((ROOT / "docs" / "results").glob("*.md"))
LINKING = [*PAGES, *RESULTS, *(ROOT / f"{name}.md" for name in ("CONTRIBUTING", "CHANGELOG", "SECURITY"))]
SCRIPTS = ["site", *(path.name for path in sorted((ROOT / "docs").glob("[a-z]*.py")))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"^```.*?^```|`[^`]*`", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)")


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_snippets_run(page, tmp_path, monkeypatch):
    blocks = BLOCK.findall(page.read_text())
    if not blocks:
        pytest.skip(f"{page.name} has no Python snippets")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(ROOT / "examples")
    namespace: dict[str, object] = {"__name__": "snippet"}
    for number, block in enumerate(blocks, 1):
        exec(compile(block, f"{page.name}, snippet {number}", "exec"), namespace)


@pytest.mark.parametrize("page", LINKING, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    missing = [link for link in LINK.findall(CODE.sub("", page.read_text())) if not (page.parent / link).exists()]
    assert not missing


def words(pages):
    """Count what has a letter or a digit: the strokes of tables are no words."""
    return sum(bool(re.search(r"\w", word)) for page in pages for word in page.read_text().split())


def test_readme_has_at_most_450_words():
    assert words([ROOT / "README.md"]) <= 450


def test_the_pages_have_at_most_20000_words():
    assert words((ROOT / "docs").glob("*.md")) <= 20_000


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_heading_stands_twice_on_a_page(page):
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S), re.MULTILINE)
    assert len(headings) == len(set(headings))


@pytest.mark.parametrize("page", RESULTS, ids=lambda page: page.name)
def test_results_say_first_which_command_prints_them(page):
    title, first = page.read_text().split("\n\n")[:2]
    assert title.startswith("# ")
    assert re.search(r"`(python|make|trimtab) [^`]+`", first), f"{page.name}: {first}"


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_raises_for_unknown_options(script, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(ROOT / "docs")
    monkeypatch.setattr(sys, "argv", [script, "--nonsense"])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(ROOT / "docs" / script), run_name="__main__")
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith("usage:")
    assert not list(tmp_path.iterdir())
