"""Show how far a long call is: a bar of tqdm if it is installed, or texts to a function of the caller."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self

from trimtab.core.checks import check_callable

__all__ = ["Progress", "progress_of"]

_PATIENCE = 4.0  # seconds before a call shows anything


class Progress:
    """Counts the batches of a call, which may consist of others; called with what is being done.

    If the caller gave a function `progress(text)`, that is called instead, and nothing is shown.
    """

    def __init__(self, call: str, progress: Callable[[str], None] | None = None) -> None:
        """Show nothing yet; `call` is the name of the function that was called."""
        if progress is not None:
            check_callable(progress, "progress", "progress(text)")
        self.progress, self.done, self.expected, self.inside = progress, 0, 0, 0
        self.bar: Any = None
        if progress is None:
            with suppress(ImportError), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about a notebook without widgets, where it draws with characters
                from tqdm.auto import tqdm

                self.bar = tqdm(desc=f"trimtab.{call}", unit=" batches", delay=_PATIENCE, leave=False, file=sys.stderr)

    def __enter__(self) -> Self:
        self.inside += 1
        return self

    def __exit__(self, *_: object) -> None:
        self.inside -= 1
        if self.bar is not None and not self.inside:
            self.bar.close()

    def __call__(self, text: str) -> None:
        """Say what is being done now."""
        if self.progress is not None:
            self.progress(text)
        elif self.bar is not None:
            self.bar.set_postfix_str(text, refresh=False)

    def expect(self, batches: int) -> None:
        """Expect about that many more batches."""
        self.expected = self.done + batches

    def plan(self, cost: Any) -> None:
        """Say what the call will take, unless it is part of another one."""
        if self.inside < 2:
            self.expect(cost.batches)
            self(f"this will take {cost}")

    def batch(self, count: int = 1) -> None:
        """Count finished batches."""
        self.done += count
        if self.bar is not None:
            self.bar.total = max(self.expected, self.done + 1)  # a guess, and never the last one
            self.bar.update(count)


def progress_of(call: str, progress: Callable[[str], None] | None) -> Progress:
    """Return the progress of a call: the given one if it is part of another call, else a new one."""
    return progress if isinstance(progress, Progress) else Progress(call, progress)
