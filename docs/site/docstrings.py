"""Read this project's docstrings as they are meant: an `Example:` is a list of examples, shown as code."""

from __future__ import annotations

import re
from typing import Any

import griffe

__all__ = ["Examples"]

HEADING = re.compile(r"^(\s*)Example:\s*$", re.MULTILINE)


class Examples(griffe.Extension):
    """Gives the section the name that the parser of Google-style docstrings knows."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rename the heading in the docstring of every object."""
        if obj.docstring is not None:
            obj.docstring.value = HEADING.sub(r"\1Examples:", obj.docstring.value)
