"""Every snippet of the docs runs: the ```python blocks of a page, in order, in one namespace."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from trimtab.evaluation.domains import DOMAINS

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    missing = [link for link in LINK.findall(CODE.sub("", page.read_text())) if not (page.parent / link).exists()]
    assert not missing


SCRIPTS = ["site", "fit_replica.py", *(f"make_{what}.py" for what in ("choose", "domains", "gallery", "resample"))]


@pytest.mark.slow
@pytest.mark.parametrize("script", [*SCRIPTS, "make_setup_cost.py"])
def test_a_script_refuses_what_it_does_not_know(script, tmp_path):
    """It took such a word for a folder to build in, ran nothing without a word, or ended in a traceback."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / script), "--nonsense"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("usage:")
    assert not list(tmp_path.iterdir())


def test_every_domain_integration_and_example_is_in_the_gallery():
    gallery = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"\]\(\.\./(?:src/trimtab/)?([^)]+)\)", gallery))
    homes = {path.removeprefix("trimtab.").replace(".", "/") + ".py" for path in DOMAINS.values()}
    assert homes - shown == set()
    assert {f"examples/{p.name}" for p in (ROOT / "examples").glob("*.py")} - shown == set()
    helpers = {"__init__", "diffusers_schedulers", "independence", "loggers"}  # these help with a sampler, and are none
    wanted = {p for p in (ROOT / "src" / "trimtab" / "integrations").glob("*.py") if p.stem not in helpers}
    assert {f"integrations/{p.name}" for p in wanted} - shown == set()
    pictures = {p.name for p in (ROOT / "docs" / "images" / "gallery").iterdir()}
    assert set(re.findall(r"images/gallery/([^)]+)\)", gallery)) == pictures
