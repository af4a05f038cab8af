"""Telling how far a call is that runs batch after batch: nothing of a quick one, now and then a line of a slow one.

In a notebook a bar takes the place of the lines. It goes when the call has returned; if the call failed, it stays where
it was.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from html import escape
from importlib import import_module
from time import monotonic
from typing import Any, Self

from trimtab.core.errors import check_callable

__all__ = ["Progress", "progress_of"]

_PATIENCE = 4.0  # seconds before the first line
_EVERY = 10.0  # seconds between lines
_BAR_PATIENCE, _BAR_EVERY = 1.0, 0.3  # of a bar, which is redrawn in place and fills no screen
_FEWEST = 3  # batches before a guess: the first two are not corrected, and cheaper than most


class Progress:
    """Counts the batches of a call and says how long the rest will take.

    It is called with what is being done, as `progress=` of the caller's own would be; that one is told instead, if there
    is one, and nothing is printed. As a context it takes its bar away at the end of the outermost call.
    """

    def __init__(
        self, call: str, progress: Callable[[str], None] | None = None, clock: Callable[[], float] = monotonic
    ) -> None:
        """Begin to count time.

        Args:
            call: What lines begin with.
            progress: Of the caller's own.
            clock: Seconds.
        """
        if progress is not None:
            check_callable(progress, "progress", "progress(text)")
        self.call, self.progress, self.clock = call, progress, clock
        self.done, self.expected, self.doing = 0, 0, ""
        self.begin = clock()
        self.bar = Bar() if progress is None and in_notebook() else None
        self.next_line = self.begin + (_PATIENCE if self.bar is None else _BAR_PATIENCE)
        self._inside = 0

    def __enter__(self) -> Self:
        """A call begins that may be part of another."""
        self._inside += 1
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """A call ends."""
        self._inside -= 1
        if self.bar is not None and kind is None and not self._inside:
            self.bar.clear()

    def __call__(self, text: str) -> None:
        """What is being done now."""
        self.doing = text
        if self.progress is not None:
            self.progress(text)

    def expect(self, batches: int) -> None:
        """That many more batches, about."""
        self.expected = self.done + batches

    def batch(self, count: int = 1) -> None:
        """So many more are done."""
        self.done += count
        now = self.clock()
        if self.progress is None and now >= self.next_line and self.done >= _FEWEST:
            self.next_line = now + (_EVERY if self.bar is None else _BAR_EVERY)
            if self.bar is None:
                print(self.line(now), file=sys.stderr, flush=True)
            else:
                self.bar.draw(self.done, max(self.expected, self.done + 1), self.line(now))

    def line(self, now: float) -> str:
        """How far it is."""
        spent = now - self.begin
        more = max(self.expected - self.done, 1)
        left = more * spent / max(self.done, 1)
        return (
            f"trimtab.{self.call}: batch {self.done} of about {self.done + more}, {_clock(spent)} so far, about "
            f"{_clock(left)} left ({self.doing})"
        )


class Bar:
    """A bar in the output of a notebook's cell, redrawn in place."""

    def __init__(self) -> None:
        """Nothing is shown yet."""
        self._shown: Any = None

    def draw(self, done: int, of: int, words: str) -> None:
        """Show that `done` parts `of` all are done, with words beside the bar, or below it on a narrow page."""
        bar = f'<progress value="{done}" max="{of}" style="width:16em;max-width:100%"></progress>'
        self._show({"text/html": f"<div>{bar} {escape(words)}</div>", "text/plain": words})

    def clear(self) -> None:
        """Take away what is shown."""
        if self._shown is not None:
            self._show({"text/html": "", "text/plain": ""})

    def _show(self, data: dict[str, str]) -> None:
        if self._shown is None:
            self._shown = import_module("IPython.display").display(data, raw=True, display_id=True)
        else:
            self._shown.update(data, raw=True)


def in_notebook() -> bool:
    """Whether the code runs in the kernel of a notebook, which can redraw what a cell shows; a terminal cannot."""
    ipython: Any = sys.modules.get("IPython")  # who runs a notebook has imported it
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and hasattr(shell, "kernel")


def progress_of(call: str, progress: Callable[[str], None] | None) -> Progress:
    """The progress of a call: the caller's own, if it is part of another call, or a new one."""
    return progress if isinstance(progress, Progress) else Progress(call, progress)


def _clock(seconds: float) -> str:
    """Hours, minutes and seconds.

    Example:
        >>> _clock(75.2), _clock(3700)
        ('1:15', '1:01:40')
    """
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
