"""A pool of worker processes in which a task that hangs or ends its process fails alone."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from multiprocessing.connection import Connection
from typing import Any, TypeVar

import torch

__all__ = ["WorkerDiedError", "Workers"]

Answer = TypeVar("Answer")

_PATIENCE = 120  # seconds in which a process has to start, or to read a task


class WorkerDiedError(RuntimeError):
    """A worker process ended before it answered."""


class Workers:
    """Processes that start when they are first needed, and end with `close()`, with the object or with the program.

    A script that uses them must guard its entry with `if __name__ == "__main__":`. On systems with a fork server a new
    process starts in a fraction of a second, since the server has imported torch already.
    """

    def __init__(self) -> None:
        """Start nothing yet."""
        self._idle: list[_Worker] = []
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
        if multiprocessing.current_process().daemon or (seconds is None and (workers == 1 or len(tasks) < 2)):
            return [_call(function, task) for task in tasks]
        with ThreadPoolExecutor(min(workers, len(tasks))) as threads:
            return list(threads.map(lambda task: self._run_one(function, task, seconds), tasks))

    def _run_one(self, function: Callable[..., Answer], task: tuple[Any, ...], seconds: float | None) -> Any:
        try:
            worker = self._idle.pop()
        except IndexError:
            worker = _Worker()
        try:
            worker.pipe.send_bytes(pickle.dumps((function, task)))
            worker.wait("read a task")
            if worker.pipe.poll(seconds):
                answer = pickle.loads(worker.pipe.recv_bytes())
                self._idle.append(worker)
                return answer
            failure: Exception = TimeoutError(f"the task took more than {seconds:g} s")
        except (EOFError, OSError):
            failure = WorkerDiedError("the worker process ended before it answered")
        worker.end()
        return failure

    def close(self) -> None:
        """End the processes; the next tasks start new ones."""
        _end_all(self._idle)


class _Worker:
    """One process and the pipe to it."""

    def __init__(self) -> None:
        context = _context()
        self.pipe, there = context.Pipe()
        self.process = context.Process(target=_work, args=(there,), daemon=True)
        try:
            self.process.start()
            there.close()
            self.wait("start")
        except (EOFError, OSError, RuntimeError) as error:
            raise RuntimeError(
                "the worker process ended as it started; a script that uses worker processes needs its entry under "
                '`if __name__ == "__main__":`'
            ) from error

    def wait(self, what: str) -> None:
        """Wait for the process to say that it is ready; imports must not count as a part of a task's time."""
        if not self.pipe.poll(_PATIENCE):
            self.end()
            raise TimeoutError(f"a worker process did not {what} within {_PATIENCE} s; is the machine overloaded?")
        self.pipe.recv_bytes()

    def end(self) -> None:
        """End the process, whatever it does."""
        self.process.kill()
        self.process.join()
        self.process.close()
        self.pipe.close()


def _end_all(workers: list[_Worker]) -> None:
    while workers:
        workers.pop().end()


@cache
def _context() -> Any:
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "trimtab.constraints.processes"])
    return context


def _work(there: Connection) -> None:
    """Answer tasks until the pipe is closed.

    Tasks are plain pickles: the pipe itself would share the memory of tensors, which fails if a process is killed.
    """
    torch.set_num_threads(1)
    there.send_bytes(b"ready")
    while True:
        try:
            received = there.recv_bytes()
        except EOFError:
            return
        loaded = _call(pickle.loads, (received,))
        there.send_bytes(b"ready")
        answer = loaded if isinstance(loaded, Exception) else _call(*loaded)
        try:
            sent = pickle.dumps(answer)
        except Exception as error:
            sent = pickle.dumps(RuntimeError(f"{type(answer).__name__} cannot be sent between processes: {error}"))
        there.send_bytes(sent)


def _call(function: Callable[..., Answer], task: tuple[Any, ...]) -> Answer | Exception:
    try:
        return function(*task)
    except Exception as error:
        return error
