"""Run batches of rollouts, in this process or on an executor, and keep finished ones in a folder.

Calibration, advice and comparisons run one batch after another: the same samples under other schedules. A batch is a
function of its problem and its schedule, so where it runs does not change its numbers.
"""

from __future__ import annotations

import os
import pickle
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch

from trimtab.core.checks import EngineError
from trimtab.core.processes import Processes
from trimtab.core.record import Rollout
from trimtab.core.repeatable import Batch, RunBatch, run_batch
from trimtab.core.schedule import Schedule
from trimtab.loop.kept import KeptBatches, by_value, name_of
from trimtab.loop.rollout import Problem

__all__ = ["BatchRunner", "Engine", "Runs", "open_runner", "prefetch"]


class BatchRunner:
    """Runs batches on an engine, and keeps them. Several calls may share one; use it in `with`, or `close` it.

    Args:
        engine: None is this process, a number so many processes of this machine. Or an executor: anything with
            `submit`, such as those of `concurrent.futures`, dask, loky and `trimtab.integrations.ray`.
        keep: A folder for finished batches, with which a call that was stopped continues. The first batch that is
            found there is run again and compared.
        key: Which problem the kept batches are of, in your words. Change it when its code or data change.

    Example:
        >>> import tempfile, trimtab as tt
        >>> problem = tt.domain("so3", n_steps=20).problem(range(1000, 1008))
        >>> with tempfile.TemporaryDirectory() as folder, BatchRunner(keep=folder, key="so3, 20 steps") as runner:
        ...     tt.calibrate(problem, method="paper", engine=runner).notes["batches"]
        2
    """

    def __init__(
        self,
        engine: int | Executor | None = None,
        keep: str | os.PathLike[str] | None = None,
        key: str | None = None,
    ) -> None:
        """Start no process yet; the first batch does."""
        if isinstance(engine, bool) or not (engine is None or isinstance(engine, int) or hasattr(engine, "submit")):
            raise TypeError(f"engine must be None, a number of processes, or have submit(…): got {engine!r:.60}")
        if isinstance(engine, int) and engine < 1:
            raise ValueError(f"engine must be at least one process: got {engine}")
        if key is not None and keep is None:
            raise ValueError(f"key={key!r} names batches that are kept: give keep=folder as well")
        self.engine, self.kept = engine, None if keep is None else KeptBatches(keep, key)
        self._executor: Any = None
        self._runs: dict[tuple[int, str], Runs] = {}
        self.compared: set[int] = set()

    def runs(self, source: Problem | RunBatch, role: str = "", **options: Any) -> Runs:
        """Return the batches of a problem, with options of `rollout`, or of a function run(schedule).

        Kept batches of problems are told apart by seeds and `role`, those of functions by `role`.
        """
        if isinstance(source, Runs):
            return source
        name = f"{role} {sorted(options.items())}"
        return self._runs.setdefault((id(source), name), Runs(self, source, name, options))

    def submit(self, work: Work) -> Future[bytes]:
        """Start a batch on the executor."""
        if self._executor is None:
            self._executor = Processes(self.engine) if isinstance(self.engine, int) else self.engine
        with _translated():
            return self._executor.submit(_run_sent, _pickled(work.source), _pickled(work._replace(source=None)))  # type: ignore[no-any-return]

    def close(self) -> None:
        """End the processes. Batches that are finished are kept; the others are dropped."""
        for runs in self._runs.values():
            runs.drop()
        if isinstance(self._executor, Processes):
            self._executor.__exit__()
        self._executor = None

    def __enter__(self) -> BatchRunner:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


Engine = int | Executor | BatchRunner | None
"""Where batches run; None is in this process."""


class Runs:
    """The batches of one problem: `runs(schedule)` returns the record of one."""

    def __init__(self, runner: BatchRunner, source: Problem | RunBatch, name: str, options: dict[str, Any]) -> None:
        """See `BatchRunner.runs`."""
        self.runner, self.source, self.options = runner, source, options
        seeds = source.seeds.tolist() if isinstance(source, Problem) else None
        self._told = runner.kept and runner.kept.key, name, seeds, str(torch.get_default_dtype())
        self._ahead: defaultdict[str, deque[Future[bytes]]] = defaultdict(deque)
        self._whose = 0 if isinstance(source, Problem) else id(source)  # functions are not told apart by seeds

    def __call__(self, schedule: Schedule) -> Rollout:
        """Run one batch."""
        return self._batch(schedule).records[0]

    def twice(self, schedule: Schedule) -> Batch:
        """Run one batch twice in one worker, which shows if a loop carries something from run to run."""
        return self._batch(schedule, 2)

    def prefetch(self, schedules: Sequence[Schedule]) -> None:
        """Start batches that will be asked for; in this process each runs when it is asked for."""
        for schedule in schedules if self.runner.engine is not None else ():
            if (name := self._name_of(schedule)) and self._read(name) is None:
                self._ahead[name].append(self.runner.submit(self._work(schedule)))

    def drop(self) -> None:
        """Forget what was started and not asked for; what is finished is kept in the folder."""
        for name, futures in self._ahead.items():
            for future in futures:
                if not future.cancel() and future.done():
                    with suppress(Exception):  # nobody asked for it
                        self._keep(name, _received(future).records[0])
        self._ahead.clear()

    def _batch(self, schedule: Schedule, times: int = 1) -> Batch:
        name = self._name_of(schedule)
        kept = self._read(name)
        if kept is not None and times == 1 and self._whose in self.runner.compared:
            return Batch((kept,))
        if times == 1 and self._ahead[name]:
            batch = _received(self._ahead[name].popleft())
        else:
            work = self._work(schedule, times)
            batch = work.run() if self.runner.engine is None else _received(self.runner.submit(work))
        if kept is None:
            self._keep(name, batch.records[0])
        elif self.runner.kept is not None:
            self.runner.kept.compare(kept, batch.records[0])
            self.runner.compared.add(self._whose)
        return batch

    def _name_of(self, schedule: Schedule) -> str:
        needed = self.runner.kept is not None or self.runner.engine is not None
        return name_of(self._told, schedule) if needed else ""

    def _read(self, name: str) -> Rollout | None:
        return self.runner.kept.read(name, self.source) if self.runner.kept is not None and name else None

    def _keep(self, name: str, record: Rollout) -> None:
        if self.runner.kept is not None and name:
            self.runner.kept.write(name, record, self.source)

    def _work(self, schedule: Schedule, times: int = 1) -> Work:
        return Work(self.source, self.options, schedule, times, torch.get_default_dtype())


# ------------------------------------------------------------------ to a worker and back


class Work(NamedTuple):
    """A batch to run."""

    source: Any
    options: dict[str, Any]
    schedule: Schedule
    times: int
    dtype: torch.dtype

    def run(self) -> Batch:
        """Run it in this process."""
        problem = isinstance(self.source, Problem)
        run = partial(self.source.rollout, **self.options) if problem else self.source
        return run_batch(run, self.schedule, self.times)


def _run_sent(source: bytes, work: bytes) -> bytes:
    """Run a batch in a worker."""
    sent: Work = pickle.loads(work)
    torch.set_default_dtype(sent.dtype)
    return _pickled(sent._replace(source=_made(source)).run())


_made = lru_cache(maxsize=4)(pickle.loads)  # once per worker: it may be a model


def _received(future: Future[bytes]) -> Batch:
    with _translated():
        return pickle.loads(future.result())  # type: ignore[no-any-return]


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except BrokenExecutor as error:
        raise EngineError(
            f"a worker died, perhaps because memory ran out ({error}); finished work is kept (try fewer workers; a "
            "script that starts processes must do its work under `if __name__ == '__main__':`)"
        ) from error


def _pickled(thing: object) -> bytes:
    try:
        return bytes(by_value.dumps(thing))
    except Exception as error:  # objects that cannot be sent raise what they like
        raise ValueError(
            f"this cannot be sent to other processes ({type(error).__name__}: {error}); define its functions and "
            "classes in a module rather than in place, or install cloudpickle, or leave engine out"
        ) from error


# ------------------------------------------------------------------ what callers use


@contextmanager
def open_runner(engine: Engine) -> Iterator[BatchRunner]:
    """Open an engine for the duration of a call; a `BatchRunner` that is passed in stays open."""
    if isinstance(engine, BatchRunner):
        yield engine
        return
    with BatchRunner(engine) as runner:
        yield runner


def prefetch(run: RunBatch, schedules: Sequence[Schedule]) -> None:
    """Start batches that `run` will be asked for, if it is on an engine."""
    if isinstance(run, Runs):
        run.prefetch(schedules)
