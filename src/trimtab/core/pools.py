"""Old way to run the tasks of a study; it goes when `trimtab.evaluation.studies` uses `open_executor`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

from trimtab.core.executors import ENGINES, check_engine, open_executor

__all__ = ["ENGINES", "Pool", "check_engine", "pool"]


class Pool:
    """Runs named calls on an executor and returns them as they finish."""

    def __init__(self, engine: str, workers: int | None = None) -> None:
        """Open the executor."""
        self.executor = open_executor(engine, workers)
        self.capacity = 1 if engine == "serial" else 2 * self.executor.workers
        self.running: dict[Future[Any], str] = {}

    def submit(self, name: str, function: Callable[..., Any], what: Any, shared: Mapping[str, bytes]) -> None:
        """Start `function(what, shared)`."""
        self.running[self.executor.submit(function, what, shared)] = name

    def next(self) -> tuple[str, Any]:
        """Wait for any call that was started: its name and its result."""
        done, _ = wait(self.running, return_when=FIRST_COMPLETED)
        future = next(future for future in self.running if future in done)
        return self.running.pop(future), future.result()

    def close(self) -> None:
        """Stop at once; what is running is dropped."""
        self.executor.__exit__(None, None, None)


pool = Pool
