"""Whether an error is a clear one: of a kind that callers expect, and raised on purpose by trimtab."""

from __future__ import annotations

import ast
import traceback
from functools import lru_cache
from pathlib import Path

import trimtab

PACKAGE = Path(trimtab.__file__).parent
EXPECTED = (ValueError, TypeError, RuntimeError, OSError, ImportError)


def is_clear(error: BaseException) -> bool:
    """An expected kind, raised by a `raise` of trimtab's own, with words enough to act on."""
    if not isinstance(error, EXPECTED) or len(str(error)) < 20:
        return False
    frame = traceback.extract_tb(error.__traceback__)[-1]
    path = Path(frame.filename)
    return path.is_relative_to(PACKAGE) and frame.lineno is not None and _raises(path, frame.lineno)


@lru_cache(maxsize=200)
def _lines_that_raise(path: Path) -> frozenset[int]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Raise)]
    return frozenset(line for node in nodes for line in range(node.lineno, (node.end_lineno or node.lineno) + 1))


def _raises(path: Path, line: int) -> bool:
    return line in _lines_that_raise(path)


def where(error: BaseException) -> str:
    """An error in one line: kind, words and place."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    words = " ".join(str(error).split())[:120]
    return f"{type(error).__name__}: {words} ({Path(frame.filename).name}:{frame.lineno})"
