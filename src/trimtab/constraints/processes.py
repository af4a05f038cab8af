"""A pool of worker processes in which a task that hangs or ends its process fails alone."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar

from trimtab.core.processes import Processes

__all__ = ["WorkerDiedError", "Workers"]

Answer = TypeVar("Answer")

_PATIENCE = 120  # seconds in which a process has to start, or to read a task

_task: Any = None  # what this process has read and is about to run; None if it is no worker


class WorkerDiedError(RuntimeError):
    """A worker process ended before it answered."""


class Workers:
    """Processes that start when they are first needed, and end with `close()`, with the object or with the program.

    A script that uses them must guard its entry with `if __name__ == "__main__":`. On systems with a fork server a new
    process starts in a fraction of a second, since the server has imported torch already.
    """

    def __init__(self) -> None:
        """Start nothing yet."""
        self._idle: list[Processes] = []  # of one process each, so that one can be ended alone
        weakref.finalize(self, _end_all, self._idle)

    def __getstate__(self) -> dict[str, Any]:
        """Give a copy its own processes."""
        return {"_idle": []}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Start nothing yet."""
        self.__init__()  # type: ignore[misc]

    def run(
        self, function: Callable[..., Answer], tasks: Sequence[tuple[Any, ...]], workers: int, seconds: float | None
    ) -> list[Answer | Exception]:
        """Return `function(*task)` for each task, or the exception that it ended with.

        The function must be one of a module, which the processes import. 0 workers are one per core; a single worker
        without a time limit is this process. A task that takes more than `seconds` is a `TimeoutError`, one that ends
        its process a `WorkerDiedError`. Inside of a worker process tasks run there, since it must not start others.
        """
        workers = workers or os.cpu_count() or 1
        within = _task is not None or multiprocessing.current_process().daemon
        if within or (seconds is None and (workers == 1 or len(tasks) < 2)):
            return [_call(function, task) for task in tasks]
        with ThreadPoolExecutor(min(workers, len(tasks))) as threads:
            return list(threads.map(lambda task: self._run_one(function, task, seconds), tasks))

    def _run_one(self, function: Callable[..., Answer], task: tuple[Any, ...], seconds: float | None) -> Any:
        # Plain pickles: a queue of torch would share the memory of tensors, which fails if a process is killed.
        sent = pickle.dumps((function, task))
        try:
            worker = self._idle.pop()
        except IndexError:
            worker = _started()
        try:
            worker.submit(_read, sent).result(_PATIENCE)  # imports are no part of a task's time
            answer = pickle.loads(worker.submit(_run).result(seconds))
        except (BrokenExecutor, TimeoutError) as error:
            _end_all([worker])
            if isinstance(error, BrokenExecutor):
                return WorkerDiedError("the worker process ended before it answered")
            return TimeoutError(f"the task took more than {seconds or _PATIENCE:g} s")
        self._idle.append(worker)
        return answer

    def close(self) -> None:
        """End the processes; the next tasks start new ones."""
        _end_all(self._idle)


def _started() -> Processes:
    """Start a worker and wait until its process runs, so that a task's time does not include the start."""
    worker = Processes(1, _context())
    try:
        worker.submit(os.getpid).result(_PATIENCE)
    except (BrokenExecutor, TimeoutError) as error:
        _end_all([worker])
        raise RuntimeError(
            "the worker process ended as it started; a script that uses worker processes needs its entry under "
            '`if __name__ == "__main__":`'
        ) from error
    return worker


def _end_all(workers: list[Processes]) -> None:
    while workers:
        workers.pop().__exit__()


@cache
def _context() -> Any:
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "trimtab.constraints.processes"])
    return context


def _read(sent: bytes) -> None:
    """Unpickle a task in a worker, which may import modules."""
    global _task
    _task = True  # whatever reading it calls is called inside of a worker
    _task = _call(pickle.loads, (sent,))


def _run() -> bytes:
    """Run the task that was read in a worker; return the answer, or the exception that it ended with, pickled."""
    answer = _task if isinstance(_task, Exception) else _call(*_task)
    try:
        return pickle.dumps(answer)
    except Exception as error:
        return pickle.dumps(RuntimeError(f"{type(answer).__name__} cannot be sent between processes: {error}"))


def _call(function: Callable[..., Answer], task: tuple[Any, ...]) -> Answer | Exception:
    try:
        return function(*task)
    except Exception as error:
        return error
