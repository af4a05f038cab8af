"""CasADi's IPOPT as constraints and domains use it: whether it is there, its settings, and processes to solve in."""

from __future__ import annotations

import multiprocessing
import os
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from typing import Any, TypeVar

from trimtab.core.errors import missing_extra

__all__ = ["Workers", "casadi", "ipopt_options"]

Answer = TypeVar("Answer")


def casadi(purpose: str) -> Any:
    """CasADi, which brings IPOPT; where it is not installed, an error that says what for it is needed."""
    try:
        import casadi as found
    except ImportError as error:
        raise missing_extra("casadi", "ipopt", purpose) from error
    return found


def ipopt_options(max_iterations: int, tolerance: float) -> dict[str, Any]:
    """Of CasADi's `nlpsol`: quiet, and with failures as outcomes rather than errors."""
    return {
        "ipopt.max_iter": max_iterations,
        "ipopt.tol": tolerance,
        "ipopt.print_level": 0,
        "ipopt.sb": "yes",
        "print_time": False,
        "error_on_fail": False,
        "show_eval_warnings": False,
    }


class Workers:
    """Processes that are started when first needed, and end with `close()`, with the object or with the program.

    They are spawned, so that a script that uses more than one guards its entry with `if __name__ == "__main__":`.
    """

    def __init__(self) -> None:
        """Nothing is started yet."""
        self._pool: ProcessPoolExecutor | None = None
        self._end: weakref.finalize[Any, Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """A copy elsewhere has processes of its own."""
        return {"_pool": None, "_end": None}

    def run(
        self, function: Callable[..., Answer], tasks: Sequence[tuple[Any, ...]], workers: int
    ) -> list[Answer | None]:
        """What `function(*task)` returns for each; None where the process died, which fails its samples and no more.

        Args:
            function: Of a module, which the processes import.
            tasks: Its arguments.
            workers: How many processes; 0 is one a core, and 1 works in this one.
        """
        workers = workers or os.cpu_count() or 1
        if workers == 1 or len(tasks) < 2:
            return [function(*task) for task in tasks]
        if self._pool is None:
            self._pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"))
            self._end = weakref.finalize(self, self._pool.shutdown, wait=True, cancel_futures=True)
        futures: list[Future[Answer]] = []
        with suppress(BrokenProcessPool):  # as soon as one has died, nothing more is taken
            futures.extend(self._pool.submit(function, *task) for task in tasks)
        answers = [_outcome(future) for future in futures] + [None] * (len(tasks) - len(futures))
        if None in answers:  # the next call gets new ones
            self.close()
        if all(answer is None for answer in answers):
            raise RuntimeError(
                "no worker process could be started or all died; a script that uses workers needs its entry under "
                '`if __name__ == "__main__":`, and workers=1 solves without processes'
            )
        return answers

    def close(self) -> None:
        """End the processes; the next tasks start new ones."""
        if self._end is not None:
            self._end()
        self._pool, self._end = None, None


def _outcome(future: Future[Answer]) -> Answer | None:
    try:
        return future.result()
    except BrokenProcessPool:
        return None
