"""Where each page stands: by what the reader wants."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["navigation", "title_of"]

SECTIONS: dict[str, tuple[str, ...]] = {
    "Start": ("index.md", "install.md", "quickstart.md", "notebooks/your_loop.md"),
    "Use": ("your-loop.md", "integrations.md", "notebooks/diffusers_pipeline.md", "constraints.md", "cli.md"),
    "Decide": ("choose-a-budget.md", "notebooks/choose_budget.md", "production.md"),
    "Understand": ("how-it-works.md", "evidence.md", "related-work.md"),
    "Reproduce": ("reproduce.md", "benchmark.md", "paper.md", "pdm.md", "reaction-flow.md", "grid.md", "molecules.md"),
    "Extend": ("contributing.md", "architecture.md", "changelog.md", "security.md", "code_of_conduct.md"),
}
REST = "Understand"  # where a page goes that is not named above
ALONE = {"api": "API"}  # folders that are sections
LINKED = ("code", "results")  # folders whose pages are reached by links only
TITLES = {"index.md": "What it is", "api/index.md": "All names"}

Entry = dict[str, "str | list[Entry]"]


def navigation(pages: Path) -> list[Entry]:
    """Return the navigation over all pages of a folder of Markdown; raise if a page named here does not exist.

    Args:
        pages: The staged pages.
    """
    there = {str(path.relative_to(pages).as_posix()) for path in pages.rglob("*.md")}
    there = {page for page in there if page.split("/")[0] not in LINKED}
    missing = [page for named in SECTIONS.values() for page in named if page not in there]
    if missing:
        raise ValueError(f"{missing} of the navigation do not exist; take them out of {Path(__file__).name}")
    named = {page for section in SECTIONS.values() for page in section}
    rest = sorted(page for page in there - named if page.split("/")[0] not in ALONE)
    sections: list[Entry] = []
    for name, wanted in SECTIONS.items():
        chosen = [*wanted, *(rest if name == REST else ())]
        sections.append({name: [{title_of(pages / page, page): page} for page in chosen]})
    for folder, name in ALONE.items():
        inside = _in_order(pages / folder)
        sections.append({name: [{title_of(pages / page, page): page} for page in inside]})
    return sections


def title_of(path: Path, page: str = "") -> str:
    """What a page is called: its first heading."""
    heading = re.search(r"^# (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    if heading is None:
        raise ValueError(f"{path.name} has no heading of the first level, by which the navigation calls it")
    return TITLES.get(page) or heading.group(1).replace("`", "").removeprefix("trimtab.").strip()


def _in_order(folder: Path) -> list[str]:
    """Pages in the order in which they were written into the folder's list."""
    order = (folder / "order.txt").read_text(encoding="utf-8").split()
    return [f"{folder.name}/{page}" for page in order]
