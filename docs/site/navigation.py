"""Where each page stands: by what the reader wants."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["navigation", "title_of"]

SECTIONS: dict[str, tuple[str, ...]] = {
    "Start": ("index.md", "quickstart.md", "notebooks/your_loop.md", "gallery.md"),
    "Wrap your loop": (
        "wrap-your-sampler.md",
        "your-loop.md",
        "integrations.md",
        "notebooks/diffusers_pipeline.md",
        "constraints.md",
    ),
    "Choose": ("choose-a-schedule.md", "quality.md", "effort.md", "notebooks/choose_budget.md", "advise.md", "cli.md"),
    "Understand": (
        "evidence.md",
        "prices.md",
        "distributions.md",
        "reliability.md",
        "related-work.md",
        "notation.md",
    ),
    "Reproduce": (
        "studies.md",
        "reproduction.md",
        "domains.md",
        "pdm.md",
        "reaction-flow.md",
        "grid.md",
        "summary.md",
        "performance.md",
    ),
    "Extend": ("contributing.md", "architecture.md", "dependencies.md"),
    "About": ("changelog.md", "security.md", "code_of_conduct.md"),
}
REST = "Understand"  # where a page goes that is not named above
ALONE = {"api": "API"}  # folders that are sections
TITLES = {"index.md": "What it is", "api/index.md": "All names"}

Entry = dict[str, "str | list[Entry]"]


def navigation(pages: Path) -> list[Entry]:
    """The navigation over all pages of a folder of Markdown; a page named here that is not there is an error.

    Args:
        pages: The staged pages. Those under `code/` are reached by links alone.
    """
    there = {str(path.relative_to(pages).as_posix()) for path in pages.rglob("*.md")}
    there = {page for page in there if not page.startswith("code/")}
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
