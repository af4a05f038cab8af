"""Folders that a build may replace: those that an earlier one made, as a mark in them says."""

from __future__ import annotations

import shutil
from pathlib import Path

__all__ = ["MARK", "clear", "mark"]

MARK = ".made-by-docs-site"
"""A file in every folder that a build makes; whatever is in such a folder can be made again."""


def mark(folder: Path) -> None:
    """Make a folder, if it is not there, and mark it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARK).touch()


def clear(*folders: Path) -> None:
    """Remove folders that were marked, or are empty; anything else is refused, and then none of them is touched."""
    there = [folder for folder in folders if folder.exists() or folder.is_symlink()]
    for folder in there:
        ours = folder.is_dir() and not folder.is_symlink() and ((folder / MARK).is_file() or not any(folder.iterdir()))
        if not ours:
            raise SystemExit(
                f"{folder} is there and was not made by a build of the site, so it is not replaced: name another, "
                "or remove it yourself"
            )
    for folder in there:
        shutil.rmtree(folder)
