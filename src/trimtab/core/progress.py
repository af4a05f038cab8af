"""Telling how far a call is that runs batch after batch: nothing of a quick one, now and then a line of a slow one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import monotonic

__all__ = ["Progress", "progress_of"]

_PATIENCE = 4.0  # seconds before the first line
_EVERY = 10.0  # seconds between lines
_FEWEST = 3  # batches before a guess: the first two are not corrected, and cheaper than most


class Progress:
    """Counts the batches of a call and says how long the rest will take.

    It is called with what is being done, as `say=` of the caller's own would be; that one is told instead, if there
    is one, and nothing is printed.
    """

    def __init__(
        self, call: str, say: Callable[[str], None] | None = None, clock: Callable[[], float] = monotonic
    ) -> None:
        """Begin to count time.

        Args:
            call: What lines begin with.
            say: Of the caller's own.
            clock: Seconds.
        """
        self.call, self.say, self.clock = call, say, clock
        self.done, self.expected, self.doing = 0, 0, ""
        self.begin = clock()
        self.next_line = self.begin + _PATIENCE

    def __call__(self, text: str) -> None:
        """What is being done now."""
        self.doing = text
        if self.say is not None:
            self.say(text)

    def expect(self, batches: int) -> None:
        """That many more batches, about."""
        self.expected = self.done + batches

    def batch(self, count: int = 1) -> None:
        """So many more are done."""
        self.done += count
        now = self.clock()
        if self.say is None and now >= self.next_line and self.done >= _FEWEST:
            self.next_line = now + _EVERY
            print(self.line(now), file=sys.stderr, flush=True)

    def line(self, now: float) -> str:
        """How far it is."""
        spent = now - self.begin
        more = max(self.expected - self.done, 1)
        left = more * spent / max(self.done, 1)
        return (
            f"trimtab.{self.call}: batch {self.done} of about {self.done + more}, {_clock(spent)} so far, about "
            f"{_clock(left)} left ({self.doing})"
        )


def progress_of(call: str, say: Callable[[str], None] | None) -> Progress:
    """The progress of a call: the caller's own, if it is part of another call, or a new one."""
    return say if isinstance(say, Progress) else Progress(call, say)


def _clock(seconds: float) -> str:
    """Hours, minutes and seconds.

    Example:
        >>> _clock(75.2), _clock(3700)
        ('1:15', '1:01:40')
    """
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
