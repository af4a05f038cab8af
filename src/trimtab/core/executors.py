"""Where functions are run: in this process, in processes on this machine, or on a Ray cluster.

All three have `submit(function, *arguments) -> concurrent.futures.Future` and run every call with one thread.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait
from typing import Any

import torch

from trimtab.core.checks import EngineError, missing_extra, unknown
from trimtab.core.identity import THREADS

__all__ = ["ENGINES", "check_engine", "open_executor"]


def check_engine(engine: str, workers: int | None = None) -> None:
    """Check the name of an engine and the number of its workers."""
    if not isinstance(engine, str) or engine not in ENGINES:
        raise unknown("engine", engine, ENGINES)
    if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 1):
        raise ValueError(f"workers must be a whole number of at least 1: got {workers!r}")


def open_executor(engine: str, workers: int | None = None) -> SerialExecutor | ProcessExecutor | RayExecutor:
    """Return the executor of an engine. Its `workers` say how many calls run at once; leaving `with` drops the rest."""
    check_engine(engine, workers)
    return ENGINES[engine](workers)


class SerialExecutor(Executor):
    """Runs each call at once, in this process."""

    def __init__(self, workers: int | None = None) -> None:
        """Accept `workers` as the others do; there is one."""
        self.workers = 1

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Future[Any]:  # type: ignore[override]
        """Run the call now."""
        future: Future[Any] = Future()
        threads = torch.get_num_threads()
        torch.set_num_threads(THREADS)
        try:
            future.set_result(function(*arguments))
        except Exception as error:
            future.set_exception(error)
        finally:
            torch.set_num_threads(threads)
        return future


class ProcessExecutor(ProcessPoolExecutor):
    """Runs calls in processes of this machine."""

    def __init__(self, workers: int | None = None, context: Any = None) -> None:
        """Use one process per core, or as many as `workers`; `context` says how they start, None is by spawning."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.workers = workers or cores
        super().__init__(self.workers, context or multiprocessing.get_context("spawn"), _start_worker)

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Future[Any]:  # type: ignore[override]
        """Give the call to the next free process."""
        try:
            return _translated(super().submit(function, *arguments), _without_worker)
        except BrokenProcessPool as error:
            raise _without_worker(error) from error

    def __exit__(self, *error: object) -> bool | None:
        """Drop what is waiting and end the processes, even in the middle of a call."""
        for process in list((self._processes or {}).values()):  # Python 3.14 has terminate_workers()
            process.terminate()
        self.shutdown(wait=True, cancel_futures=True)
        return None


class RayExecutor(Executor):
    """Runs calls on a Ray cluster: the one that RAY_ADDRESS names or this process has joined, else this machine."""

    def __init__(self, workers: int | None = None) -> None:
        """Join the cluster, or start one here with as many cores as `workers`."""
        try:
            import ray
        except ImportError as error:
            raise missing_extra("ray", "ray", "the ray engine") from error
        self.ray: Any = ray
        self.joined = not ray.is_initialized()
        if self.joined:
            address = os.environ.get("RAY_ADDRESS")
            local = {} if address else {"num_cpus": workers, "include_dashboard": False}
            try:
                _reach(address or "")
                self.ray.init(log_to_driver=False, logging_level="error", **local)
            except (OSError, RuntimeError, ValueError) as error:
                raise EngineError(
                    f"no Ray cluster answers at RAY_ADDRESS={address} ({error}); is it running, and RAY_ADDRESS right? "
                    "Without RAY_ADDRESS the work runs on this machine"
                ) from error
        self.workers = workers or max(1, int(self.ray.cluster_resources().get("CPU", 1)))
        # work of a lost node is done again elsewhere
        self.remote: Any = ray.remote(num_cpus=1, max_retries=5)(_run_remotely)
        self.running: set[Any] = set()

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Future[Any]:  # type: ignore[override]
        """Give the call to the cluster."""
        reference = self.remote.remote(list(sys.path), function, *arguments)
        self.running.add(reference)
        future = reference.future()
        future.add_done_callback(lambda _: self.running.discard(reference))
        return _translated(future, self._cause)

    def _cause(self, error: BaseException) -> BaseException:
        if isinstance(error, self.ray.exceptions.RayTaskError):
            return error.as_instanceof_cause()  # type: ignore[no-any-return]
        if isinstance(error, self.ray.exceptions.RayError):
            return EngineError(f"a call was lost by the Ray cluster ({type(error).__name__})")
        return error

    def __exit__(self, *error: object) -> bool | None:
        """Cancel what is running, and leave a cluster that was joined here."""
        for reference in list(self.running):
            self.ray.cancel(reference, force=True)
        if self.joined:
            self.ray.shutdown()
        return None


ENGINES: dict[str, Callable[[int | None], SerialExecutor | ProcessExecutor | RayExecutor]] = {
    "processes": ProcessExecutor,
    "ray": RayExecutor,
    "serial": SerialExecutor,
}
"""The executors by the names of their engines."""


def _translated(future: Future[Any], cause: Callable[[BaseException], BaseException]) -> Future[Any]:
    """Return a future with the same result, and with `cause(error)` for an error."""
    found: Future[Any] = Future()

    def settle(done: Future[Any]) -> None:
        try:
            found.set_result(done.result())
        except BaseException as error:
            found.set_exception(cause(error))

    future.add_done_callback(settle)
    return found


def _without_worker(error: BaseException) -> BaseException:
    if not isinstance(error, BrokenProcessPool):
        return error
    return EngineError(
        "a worker process died, perhaps because memory ran out; finished work is kept (try fewer workers; a script "
        "that starts processes must do its work under `if __name__ == '__main__':`)"
    )


def _start_worker() -> None:
    torch.set_num_threads(THREADS)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that hands out the work
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End a worker whose parent was killed: it holds both ends of its queue, and would wait for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


def _run_remotely(path: list[str], function: Callable[..., Any], *arguments: Any) -> Any:
    torch.set_num_threads(THREADS)
    sys.path += [place for place in path if place not in sys.path]  # find modules where the driver finds them
    return function(*arguments)


def _reach(address: str) -> None:
    """Raise OSError if nobody listens at "host:port"; Ray itself would try for minutes."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
