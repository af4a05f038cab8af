"""Batches of rollouts on an engine: in this process, in processes or on a cluster, and kept in a folder if asked.

Calibration, advice and comparisons run one batch after another: the same samples under other schedules. A batch is a
pure function of its problem and its schedule, so that where it is run changes no number. Those that are known to be
needed are announced ahead, and run side by side.
"""

from __future__ import annotations

import hashlib
import os
import pickle
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from trimtab.core.batch_cache import BatchCache, CachedBatch, folder_of
from trimtab.core.errors import EngineError, check_callable
from trimtab.core.identity import full_fingerprint
from trimtab.core.pools import Pool, Worked, check_engine, pool
from trimtab.core.problem import Problem
from trimtab.core.record import Rollout
from trimtab.core.repeatable import Twice, check_same, twice
from trimtab.core.schedule import Schedule
from trimtab.core.worker import Answer, Work, bytes_of, place, run_here, run_there

__all__ = ["Engine", "RunBatch"]

RunBatch = Callable[[Schedule], Rollout]
"""Runs one batch of rollouts under a schedule; the same seeds and noise every time."""


@dataclass(frozen=True)
class Engine:
    """Where batches of rollouts are run, and where finished ones are kept.

    Attributes:
        name: "processes" (on this machine), "ray" (the cluster that RAY_ADDRESS names, or this machine) or "serial"
            (this process). Every batch is run with one thread, so that all three give the same numbers.
        workers: How many batches are run at once; one per core if not given.
        keep: A folder for finished batches. The same call with the same folder goes on where it was stopped. A random
            generator that what is sampled holds counts with its state, so make one in each run, from a seed.
        make: A function of a module that makes the same problem again in a worker, for a problem that cannot be sent
            there.

    Example:
        >>> import trimtab as tt
        >>> problem = tt.domain("so3", n_steps=20).problem(range(1000, 1008))
        >>> price = tt.calibrate(problem, method="paper", engine=Engine("serial"))
        >>> price.notes["batches"]
        2
    """

    name: str = "processes"
    workers: int | None = None
    keep: str | os.PathLike[str] | None = None
    make: Callable[[], Problem] | None = None

    def __post_init__(self) -> None:
        """Refuse what is none."""
        check_engine(self.name, self.workers)
        if self.keep is not None:
            folder_of(self.keep)
        if self.make is not None:
            check_callable(self.make, "make", "make()")


class BatchRunner:
    """An engine at work. Several calls may share one, and its workers; `close` it, or use it in `with`."""

    def __init__(self, engine: Engine, progress: Callable[[str], None] = lambda text: None) -> None:
        """Workers are begun when there is work for them."""
        self.engine = engine
        self._kept = None if engine.keep is None else BatchCache(engine.keep, progress)
        self._progress = progress
        self._pool: Pool | None = None
        self._queue: deque[tuple[str, Worked, Any, Mapping[str, Any]]] = deque()
        self._running = 0
        self._finished: dict[str, CachedBatch] = {}
        self._runs: dict[tuple[int, str], Runs] = {}
        self._makers: dict[int, tuple[Problem, Callable[[], Problem]]] = {}
        self.reused = 0

    def runs(self, source: Problem | RunBatch, **options: Any) -> Runs:
        """The batches of a problem, with options of `rollout`, or of a function run(schedule)."""
        if isinstance(source, Runs):
            return source
        key = id(source), repr(sorted(options.items()))
        if key not in self._runs:
            self._runs[key] = Runs(self, source, options)
        return self._runs[key]

    def knows(self, problem: Problem, make: Callable[[], Problem]) -> None:
        """Have a problem made by a function in the workers rather than sent to them."""
        self._makers[id(problem)] = problem, make

    def maker_of(self, problem: object) -> Callable[[], Problem] | None:
        """What makes a problem in the workers, if it is not to be sent."""
        known = self._makers.get(id(problem))
        return None if known is None else known[1]

    def begin(self, name: str, work: Work, runs: Runs) -> None:
        """Have some work done, unless it was kept."""
        kept = None if self._kept is None else self._kept.read(name)
        if kept is not None:
            self._finished[name] = kept
            self.reused += 1
            return
        if self.engine.name == "serial":
            self._queue.append((name, run_here, work, {"source": runs.source}))
        else:
            self._queue.append((name, run_there, bytes_of(work), {"source": runs.sent}))
        self._hand_out()

    def finish(self, name: str) -> CachedBatch | None:
        """Wait for some work that was begun; whatever else is done meanwhile is kept too.

        Returns:
            What came of it; None if nothing will, since it failed while other work was waited for, or was dropped.
        """
        while name not in self._finished:
            self._hand_out()
            if self._pool is None or not self._running:
                return None
            try:
                done, answer = self._pool.next()
            finally:
                self._running -= 1  # a batch that failed is over as well
            self._take(done, answer if isinstance(answer, Answer) else pickle.loads(answer))
        return self._finished.pop(name)

    def _hand_out(self) -> None:
        if self._pool is None and self._queue:
            self._pool = pool(self.engine.name, self.engine.workers)
        while self._queue and self._pool is not None and self._running < self._pool.capacity:
            self._pool.submit(*self._queue.popleft())
            self._running += 1

    def _take(self, name: str, answer: Answer) -> None:
        if answer.place != place():
            changed = [key for key, value in place().items() if answer.place.get(key) != value]
            raise EngineError(
                f"a worker differs from this process in {', '.join(changed)}, so that its numbers may differ in their "
                "last bits; use workers with the same libraries and the same kind of processor"
            )
        if self._kept is not None and not self._kept.write(name, answer.finished):
            self._progress("final states in types of your own cannot be kept in files: this batch would be run again")
        self._finished[name] = answer.finished

    def close(self) -> None:
        """End the workers; work that is not done is dropped."""
        if self._pool is not None:
            self._pool.close()
        self._pool, self._running = None, 0
        self._queue.clear()

    def __enter__(self) -> BatchRunner:
        """Itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close it."""
        self.close()


class Foreseen:
    """A `run(schedule)` that can be told which batches it will be asked for next."""

    def __call__(self, schedule: Schedule) -> Rollout:
        """One batch."""
        raise NotImplementedError

    def ahead(self, schedules: Sequence[Schedule]) -> None:
        """Begin batches that will be asked for."""
        raise NotImplementedError


class Runs(Foreseen):
    """The batches of one problem on an engine: called with a schedule, it gives the record."""

    def __init__(self, shop: BatchRunner, source: Problem | RunBatch, options: Mapping[str, Any]) -> None:
        """See `BatchRunner.runs`."""
        self.shop, self.source, self.options = shop, source, dict(options)
        self.fingerprint = full_fingerprint(source)
        self._begun: Counter[str] = Counter()
        self._called: Counter[str] = Counter()

    @cached_property
    def sent(self) -> bytes:
        """What is sampled, as it goes to the workers."""
        make = self.shop.maker_of(self.source)
        return bytes_of(("as it is", self.source) if make is None else ("make", make))

    def __call__(self, schedule: Schedule) -> Rollout:
        """One batch."""
        return self._finished(schedule, 1).records[0]

    def twice(self, schedule: Schedule) -> Twice:
        """One batch, run twice by one worker: what a loop remembers from run to run shows."""
        both = self._finished(schedule, 2)
        first, second = both.records
        return Twice(first, second, both.moved)

    def ahead(self, schedules: Sequence[Schedule]) -> None:
        """Begin batches that will be asked for."""
        for schedule in schedules:
            key = self._key(schedule, 1)
            self._begun[key] += 1
            self._begin(schedule, 1, f"{key}-{self._begun[key] - 1}")

    def _finished(self, schedule: Schedule, times: int) -> CachedBatch:
        key = self._key(schedule, times)
        number = self._called[key]
        name = f"{key}-{number}"  # the same batch again is run again, to be timed or compared
        if self._begun[key] <= number:
            self._begun[key] += 1
            self._begin(schedule, times, name)
        while (found := self.shop.finish(name)) is None:  # it failed before; run again, it tells why
            self._begin(schedule, times, name)
        self._called[key] += 1  # where waiting ends in another one's failure, this one is still to be had
        return found

    def _begin(self, schedule: Schedule, times: int, name: str) -> None:
        work = Work(schedule, self.options, times, self.fingerprint, torch.get_default_dtype())
        self.shop.begin(name, work, self)

    def _key(self, schedule: Schedule, times: int) -> str:
        options = repr(sorted(self.options.items()))
        parts = (self.fingerprint, full_fingerprint(schedule), options, times, sorted(place().items()))
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


# ------------------------------------------------------------------ what callers use


@contextmanager
def open_runner(
    engine: Engine | BatchRunner | str | None, progress: Callable[[str], None], source: object = None
) -> Iterator[BatchRunner | None]:
    """An engine at work for the length of a call; None where none was asked for. One that is at work stays so.

    Args:
        engine: By name, as a value, or at work.
        progress: Told what is being done.
        source: What the engine's own `make` makes.
    """
    if engine is None or isinstance(engine, BatchRunner):
        yield engine
        return
    if not isinstance(engine, Engine | str):
        raise TypeError(f"engine is 'processes', 'ray', 'serial' or a trimtab.core.runner.Engine: got {engine!r:.60}")
    with BatchRunner(Engine(engine) if isinstance(engine, str) else engine, progress) as shop:
        if shop.engine.make is not None and isinstance(source, Problem):
            shop.knows(source, shop.engine.make)
        yield shop


def ahead(run: RunBatch, schedules: Sequence[Schedule]) -> None:
    """Say which batches `run` will be asked for next; without an engine that changes nothing."""
    if isinstance(run, Foreseen):
        run.ahead(schedules)


def checked(run: RunBatch, schedule: Schedule) -> Rollout:
    """One batch, run twice to see that it repeats itself; see `check_repeatable`."""
    return check_same(run.twice(schedule) if isinstance(run, Runs) else twice(run, schedule))
