"""Batches on a Ray cluster: `tt.calibrate(problem, engine=RayExecutor())`."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future
from contextlib import suppress
from typing import Any

import torch

from trimtab.core.checks import EngineError, missing_extra

__all__ = ["RayExecutor"]


class RayExecutor(Executor):
    """Runs functions on a Ray cluster: the one that this process has joined or RAY_ADDRESS names, else this machine.

    Each call uses one core and one thread, and is run again elsewhere if its node is lost. Modules are looked for where
    this process finds them.

    Args:
        workers: How many cores to use if a cluster is started here; all of them by default.
    """

    def __init__(self, workers: int | None = None) -> None:
        """Join the cluster, or start one here."""
        try:
            import ray
        except ImportError as error:
            raise missing_extra("ray", "ray", "RayExecutor") from error
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
                    f"no Ray cluster answers at RAY_ADDRESS={address} ({error}); is it running?"
                ) from error
        self.workers = workers or max(1, int(self.ray.cluster_resources().get("CPU", 1)))
        self.remote: Any = ray.remote(num_cpus=1, max_retries=5)(_run)

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        """Start a call on the cluster; cancelling its future stops it there."""
        reference = self.remote.remote(list(sys.path), function, arguments, options)
        answer: Future[Any] = Future()

        def settle(done: Future[Any]) -> None:
            if answer.set_running_or_notify_cancel():
                error = done.exception()
                if error is None:
                    answer.set_result(done.result())
                elif isinstance(error, self.ray.exceptions.RayTaskError):
                    answer.set_exception(error.as_instanceof_cause())
                else:
                    answer.set_exception(BrokenExecutor(f"a call was lost by the Ray cluster: {type(error).__name__}"))

        def stop(answer: Future[Any]) -> None:
            if answer.cancelled():
                with suppress(Exception):  # it has ended, or the cluster is gone
                    self.ray.cancel(reference, force=True)

        answer.add_done_callback(stop)
        reference.future().add_done_callback(settle)
        return answer

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Leave a cluster that was joined here; what is running there is dropped."""
        if self.joined and self.ray.is_initialized():
            self.ray.shutdown()


def _run(path: list[str], function: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    torch.set_num_threads(1)
    sys.path += [place for place in path if place not in sys.path]
    return function(*arguments, **options)


def _reach(address: str) -> None:
    """Raise OSError if nobody listens at "host:port"; Ray itself would try for minutes."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
