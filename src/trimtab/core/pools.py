"""Somewhere to run work: this process, processes on this machine, or a Ray cluster.

The pools differ only in where a function is called. The process that hands out work decides its order and keeps what
comes back.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait as wait_for
from typing import Any, Protocol

import torch

from trimtab.core.errors import EngineError, unknown
from trimtab.core.ray_pool import RayPool

__all__ = ["ENGINES", "Pool", "Worked", "check_engine", "pool"]

Worked = Callable[[Any, Mapping[str, bytes]], Any]
"""What a worker calls: a function of a module, of a description of the work and of bytes that it shares with others."""


class Pool(Protocol):
    """Somewhere to run work.

    Attributes:
        capacity: How much to hand out at once: enough that no worker waits for this process.
    """

    capacity: int

    def submit(self, name: str, function: Worked, what: Any, shared: Mapping[str, bytes]) -> None:
        """Have `function(what, shared)` called."""
        ...

    def next(self) -> tuple[str, Any]:
        """Wait for any work that was submitted: its name, and what the function returned."""
        ...

    def close(self) -> None:
        """Stop at once; what is still running is dropped."""
        ...


class SerialPool:
    """This very process, one call at a time."""

    capacity = 1

    def __init__(self, workers: int | None = None) -> None:
        """`workers` is of no consequence here."""
        self.waiting: deque[tuple[str, Worked, Any, Mapping[str, bytes]]] = deque()

    def submit(self, name: str, function: Worked, what: Any, shared: Mapping[str, bytes]) -> None:
        """Remember it."""
        self.waiting.append((name, function, what, shared))

    def next(self) -> tuple[str, Any]:
        """Run the oldest."""
        name, function, what, shared = self.waiting.popleft()
        return name, function(what, shared)

    def close(self) -> None:
        """Forget what was not run."""
        self.waiting.clear()


class ProcessPool:
    """Processes on this machine, each with one thread."""

    def __init__(self, workers: int | None = None) -> None:
        """One process per core unless told otherwise."""
        workers = workers or _cores()
        self.capacity = 2 * workers
        self.executor = ProcessPoolExecutor(
            workers, mp_context=multiprocessing.get_context("spawn"), initializer=_begin_worker
        )
        self.running: dict[Future[Any], str] = {}
        self.finished: deque[Future[Any]] = deque()

    def submit(self, name: str, function: Worked, what: Any, shared: Mapping[str, bytes]) -> None:
        """Hand it to whichever process is free first."""
        try:
            self.running[self.executor.submit(function, what, shared)] = name
        except BrokenProcessPool as error:
            raise _died() from error

    def next(self) -> tuple[str, Any]:
        """Whichever is done; of several, the one that was submitted first."""
        if not self.finished:
            done, _ = wait(self.running, return_when=FIRST_COMPLETED)
            self.finished.extend(future for future in self.running if future in done)  # a set has no order
        future = self.finished.popleft()
        name = self.running.pop(future)
        try:
            return name, future.result()
        except BrokenProcessPool as error:
            raise _died() from error

    def close(self) -> None:
        """Drop what is queued and end the processes, even in the middle of a call."""
        if self.running:
            # Python has no public name for them before 3.14; other children of this process may be another pool's
            for process in list((self.executor._processes or {}).values()):
                process.terminate()
        self.executor.shutdown(wait=True, cancel_futures=True)


def _died() -> EngineError:
    return EngineError(
        "a worker process died, perhaps for want of memory; what was finished is kept (try fewer workers, and let a "
        "script that starts processes do its work under `if __name__ == '__main__':`)"
    )


def _cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _begin_worker() -> None:
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that decides
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:  # a process killed with SIGKILL cannot end its workers, so they watch it
        wait_for([parent.sentinel])
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


ENGINES: dict[str, Callable[[int | None], Pool]] = {
    "processes": ProcessPool,
    "ray": RayPool,
    "serial": SerialPool,
}
"""What batches and tasks can be run on, by name."""


def check_engine(engine: str, workers: int | None = None) -> None:
    """Refuse an engine that is none, and a number of workers that does no work."""
    if not isinstance(engine, str) or engine not in ENGINES:
        raise unknown("engine", engine, ENGINES)
    if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 1):
        raise ValueError(f"workers must be a whole number of at least 1: got {workers!r}")


def pool(engine: str, workers: int | None = None) -> Pool:
    """An engine by name."""
    check_engine(engine, workers)
    return ENGINES[engine](workers)
