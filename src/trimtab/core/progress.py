"""Show how far some work is: a bar on a terminal and in a notebook if tqdm is installed, lines on stderr elsewhere."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Any, Self, TextIO

from trimtab.core.checks import check_callable

__all__ = ["Meter", "Progress", "progress_of"]

_PATIENCE = 4.0  # seconds before a call shows anything
_EVERY = 10.0  # seconds between lines
_FEWEST = 3  # batches before a guess: the first two are not corrected, and cheaper than most


class Meter:
    """Counts finished parts of some work and shows them, with the rate and the time left."""

    def __init__(
        self,
        name: str,
        unit: str,
        total: int,
        done: int = 0,
        *,
        stream: TextIO | None = None,
        patience: float = 0.0,
        every: float = _EVERY,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """Start counting time.

        Args:
            name: What lines start with.
            unit: Of the parts, in the plural.
            total: Number of parts; it may change.
            done: How many were finished before.
            stream: For lines or the bar; stderr by default.
            patience: Seconds before anything is shown. At 0 a line about the start is shown at once.
            every: Seconds between lines.
            clock: Returns seconds.
        """
        self.name, self.unit, self.total, self.done = name, unit, total, done
        self.stream, self.every, self.clock = stream or sys.stderr, every, clock
        self.preface = ""  # shown once, before the first line
        self.before, self.start = done, clock()
        self.next_line = self.start + (patience or every)
        self.bar = _bar(self, patience)
        if self.bar is None and not patience:
            self._print(f"{name}: {total} {unit}" + (f", {done} done already" if done else ""))

    def advance(self, doing: str = "", count: int = 1) -> None:
        """Count finished parts, and show it if it is time; `doing` is added to the line."""
        self.done += count
        if self.preface and self.clock() >= self.next_line:
            (self._print if self.bar is None else partial(self.bar.write, file=self.stream))(self.preface)
            self.preface = ""
        if self.bar is not None:
            self.bar.total = max(self.total, self.done)
            self.bar.set_postfix_str(doing, refresh=False)
            self.bar.update(count)
        elif self.clock() >= self.next_line or self.done == self.total:
            self.show(doing)

    def show(self, doing: str = "") -> None:
        """Print a line now."""
        now = self.clock()
        self.next_line = now + self.every
        rate = (self.done - self.before) / max(now - self.start, 1e-9)
        left = _clock((self.total - self.done) / max(rate, 1e-9))
        words = f"{self.name}: {self.done} of {self.total} {self.unit}, {rate:.2g} {self.unit}/s, {left} left"
        self._print(f"{words} ({doing})" if doing else words)

    def close(self) -> None:
        """Remove the bar."""
        if self.bar is not None:
            self.bar.close()

    def _print(self, line: str) -> None:
        print(line, file=self.stream, flush=True)


class Progress:
    """Counts the batches of a call and shows how long the rest will take; a quick call shows nothing.

    It is called with what is being done. If the caller gave a function `progress(text)`, that is called instead, and
    nothing is shown. Used in `with`, it removes its bar at the end of the outermost call; after an error the bar stays.
    """

    def __init__(
        self, call: str, progress: Callable[[str], None] | None = None, clock: Callable[[], float] = monotonic
    ) -> None:
        """Start counting time; `call` is the name of the function that was called."""
        if progress is not None:
            check_callable(progress, "progress", "progress(text)")
        self.call, self.progress = call, progress
        self.done, self.expected, self.doing = 0, 0, ""
        self.meter = None if progress else Meter(f"trimtab.{call}", "batches", 0, patience=_PATIENCE, clock=clock)
        self._inside = 0

    def __enter__(self) -> Self:
        """Enter a call, which may be part of another."""
        self._inside += 1
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Leave a call."""
        self._inside -= 1
        if self.meter is not None and kind is None and not self._inside:
            self.meter.close()

    def __call__(self, text: str) -> None:
        """Say what is being done now."""
        self.doing = text
        if self.progress is not None:
            self.progress(text)

    def expect(self, batches: int) -> None:
        """Expect about that many more batches."""
        self.expected = self.done + batches

    def plan(self, cost: Any) -> None:
        """Say what the call will take; `cost.batches` are expected unless this is part of another call."""
        if self._inside == 1:
            self.expect(cost.batches)
        text = f"this will take {cost}"
        if self.progress is not None:
            self.progress(text)
        elif self.meter is not None:
            self.meter.preface = f"trimtab.{self.call}: {text}"

    def batch(self, count: int = 1) -> None:
        """Count finished batches."""
        self.done += count
        if self.meter is not None:
            self.meter.total = max(self.expected, self.done + 1)  # a guess, and never the last one
            if self.done >= _FEWEST:
                self.meter.advance(self.doing, self.done - self.meter.done)


def progress_of(call: str, progress: Callable[[str], None] | None) -> Progress:
    """Return the progress of a call: the given one if it is part of another call, else a new one."""
    return progress if isinstance(progress, Progress) else Progress(call, progress)


def _bar(meter: Meter, patience: float) -> Any:
    """Return a bar of tqdm if it is installed and the stream can be redrawn; None if not."""
    ipython: Any = sys.modules.get("IPython")  # whoever runs a notebook has imported it
    shell = None if ipython is None else ipython.get_ipython()
    if not (meter.stream.isatty() or hasattr(shell, "kernel")):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about a notebook without widgets, where it draws with characters
            from tqdm.auto import tqdm
    except ImportError:
        return None
    settings = {"unit": f" {meter.unit}", "desc": meter.name, "dynamic_ncols": True, "leave": not patience}
    return tqdm(total=meter.total, initial=meter.done, file=meter.stream, delay=patience, **settings)


def _clock(seconds: float) -> str:
    """Write hours, minutes and seconds.

    Example:
        >>> _clock(75.2), _clock(3700)
        ('1:15', '1:01:40')
    """
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
