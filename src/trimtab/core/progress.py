"""Show how far some work is, as a bar of tqdm; without tqdm, only what a long call will take."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from time import monotonic
from typing import Any, Self, TextIO

from trimtab.core.checks import check_callable

__all__ = ["Progress", "open_bar", "progress_of"]

_PATIENCE = 4.0  # seconds before a call shows anything
_FEWEST = 3  # batches before a guess: the first two are not corrected, and cheaper than most


class Progress:
    """Counts the batches of a call and shows how long the rest will take; a quick call shows nothing.

    It is called with what is being done. If the caller gave a function `progress(text)`, that is called instead, and
    nothing is shown. Used in `with`, it removes its bar at the end of the outermost call; after an error the bar stays.
    """

    def __init__(self, call: str, progress: Callable[[str], None] | None = None) -> None:
        """Start counting time; `call` is the name of the function that was called."""
        if progress is not None:
            check_callable(progress, "progress", "progress(text)")
        self.call, self.progress = call, progress
        self.done, self.expected, self.doing, self.preface = 0, 0, "", ""
        self.start = monotonic()
        self.bar: Any = None
        self._inside = 0

    def __enter__(self) -> Self:
        """Enter a call, which may be part of another."""
        self._inside += 1
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Leave a call."""
        self._inside -= 1
        if self.bar is not None and kind is None and not self._inside:
            self.bar.close()

    def __call__(self, text: str) -> None:
        """Say what is being done now."""
        self.doing = text
        if self.progress is not None:
            self.progress(text)

    def expect(self, batches: int) -> None:
        """Expect about that many more batches."""
        self.expected = self.done + batches

    def plan(self, cost: Any) -> None:
        """Say what the call will take, unless this is part of another call."""
        if self._inside > 1:
            return
        self.expect(cost.batches)
        text = f"this will take {cost}"
        if self.progress is not None:
            self.progress(text)
        else:
            self.preface = f"trimtab.{self.call}: {text}"

    def batch(self, count: int = 1) -> None:
        """Count finished batches."""
        self.done += count
        if self.progress is not None or self.done < _FEWEST or monotonic() < self.start + _PATIENCE:
            return
        if self.preface:
            print(self.preface, file=sys.stderr, flush=True)
            self.preface = ""
        if self.bar is None:
            self.bar = open_bar(f"trimtab.{self.call}", "batches", self.expected, leave=False)
        if self.bar is not None:
            self.bar.total = max(self.expected, self.done + 1)  # a guess, and never the last one
            self.bar.set_postfix_str(self.doing, refresh=False)
            self.bar.update(self.done - self.bar.n)


def progress_of(call: str, progress: Callable[[str], None] | None) -> Progress:
    """Return the progress of a call: the given one if it is part of another call, else a new one."""
    return progress if isinstance(progress, Progress) else Progress(call, progress)


def open_bar(
    name: str, unit: str, total: int, done: int = 0, *, stream: TextIO | None = None, leave: bool = True
) -> Any:
    """Return a bar of tqdm with `update(count)` and `close()`; None if tqdm is not installed.

    Args:
        name: What the bar starts with.
        unit: Of the parts, in the plural.
        total: Number of parts.
        done: How many were finished before.
        stream: Where to draw it; stderr by default. If that is a file, a line every ten seconds has to do.
        leave: Whether the bar stays after `close()`.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about a notebook without widgets, where it draws with characters
            from tqdm.auto import tqdm
    except ImportError:
        return None
    redrawn = (stream or sys.stderr).isatty() or "ipykernel" in sys.modules
    settings = {"unit": f" {unit}", "mininterval": 0.1 if redrawn else 10.0, "dynamic_ncols": True, "leave": leave}
    return tqdm(desc=name, total=total, initial=done, file=stream, **settings)
