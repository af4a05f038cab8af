"""Showing how far a study is: a bar on a terminal and in a notebook, lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import find_spec
from time import monotonic
from typing import Any, Protocol, TextIO

__all__ = ["Progress", "progress_on"]


class Progress(Protocol):
    """Told of each finished task."""

    def advance(self, name: str) -> None:
        """One more task is done."""
        ...

    def close(self) -> None:
        """No more will come."""
        ...


def progress_on(stream: TextIO | None, total: int, done: int) -> Progress:
    """A bar if the stream is a terminal or in a notebook, a line now and then if not, nothing if there is no stream.

    Args:
        stream: Usually sys.stderr.
        total: Number of tasks.
        done: How many were there already.
    """
    if stream is None:
        return _Silent()
    if stream.isatty() or in_notebook():
        return _Bar(stream, total, done)
    return Lines(stream, total, done)


def in_notebook() -> bool:
    """Whether this is a notebook that can draw a bar: a kernel of Jupyter, with its widgets."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return type(shell).__name__ == "ZMQInteractiveShell" and find_spec("ipywidgets") is not None


class _Silent:
    def advance(self, name: str) -> None:
        pass

    def close(self) -> None:
        pass


class _Bar:
    def __init__(self, stream: TextIO, total: int, done: int) -> None:
        from tqdm.auto import tqdm  # drawn by widgets in a notebook, by characters on a terminal

        self.bar: Any = tqdm(
            total=total, initial=done, file=stream, unit="task", desc="study", dynamic_ncols=True, smoothing=0.1
        )

    def advance(self, name: str) -> None:
        self.bar.set_postfix_str(name.split(".")[0], refresh=False)
        self.bar.update()

    def close(self) -> None:
        self.bar.close()


class Lines:
    """A line at the start, at most every `seconds`, and at the end."""

    def __init__(
        self, stream: TextIO, total: int, done: int, seconds: float = 10.0, clock: Callable[[], float] = monotonic
    ) -> None:
        """Begin with a line saying what is there."""
        self.stream, self.total, self.done, self.seconds, self.clock = stream, total, done, seconds, clock
        self.before = done
        self.begin = self.last = clock()
        self._say(f"study: {total} tasks, {done} done already" if done else f"study: {total} tasks")

    def advance(self, name: str) -> None:
        """Count, and say so if it is time."""
        self.done += 1
        now = self.clock()
        if now - self.last < self.seconds and self.done < self.total:
            return
        self.last = now
        rate = (self.done - self.before) / max(now - self.begin, 1e-9)
        left = (self.total - self.done) / rate
        self._say(f"study: {self.done} of {self.total} tasks, {rate:.1f} tasks/s, {_clock(left)} left")

    def close(self) -> None:
        """Nothing to do: the last task said it."""

    def _say(self, line: str) -> None:
        print(line, file=self.stream, flush=True)


def _clock(seconds: float) -> str:
    """Minutes and seconds.

    Example:
        >>> _clock(75.2)
        '1:15'
    """
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
