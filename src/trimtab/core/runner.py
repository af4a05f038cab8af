"""Run batches of rollouts: in this process, in processes or on a cluster, and keep finished ones in a folder.

Calibration, advice and comparisons run one batch after another: the same samples under other schedules. A batch is a
pure function of its problem and its schedule, so where it runs does not change its numbers. What a batch depends on is
identified when it is submitted, and a kept batch is reused only if all of that is the same.
"""

from __future__ import annotations

import json
import os
import pickle
import re
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch

from trimtab.core.arrays import plain_tree, state_of
from trimtab.core.checks import EngineError, check_callable
from trimtab.core.executors import check_engine, open_executor
from trimtab.core.files import UNUSABLE, as_path, plain_name, read_json, sha256, write_atomically
from trimtab.core.identity import UnidentifiedError, environment, identity, user_modules
from trimtab.core.record import Rollout
from trimtab.core.repeatable import Batch, check_repeatable, differing, run_batch
from trimtab.core.schedule import Schedule
from trimtab.loop.rollout import Problem

__all__ = ["BatchRunner", "Engine", "RunBatch", "Runs", "is_cache_file", "open_runner", "prefetch"]

RunBatch = Callable[[Schedule], Rollout]
"""Runs one batch of rollouts under a schedule, with the same seeds and noise every time."""

checked = check_repeatable


@dataclass(frozen=True)
class Engine:
    """Where batches of rollouts run, and where finished ones are kept.

    Attributes:
        name: "processes" (on this machine), "ray" (the cluster that RAY_ADDRESS names, or this machine) or "serial"
            (this process). Every batch runs with one thread, so all three give the same numbers.
        workers: How many batches run at once; one per core by default.
        keep: A folder for finished batches. The same call with the same folder continues where it was stopped. Each
            such call runs one kept batch again and compares. The state of a random generator that the problem holds is
            part of its identity, so create generators inside each run, from a seed.
        make: A function of a module that makes the same problem in a worker, for a problem that cannot be sent there.

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
        """Check the settings."""
        check_engine(self.name, self.workers)
        if self.keep is not None:
            as_path(self.keep)
        if self.make is not None:
            check_callable(self.make, "make", "make()")


class BatchRunner:
    """An engine at work, which several calls may share. Use it in `with`, or `close` it.

    Attributes:
        engine: Its settings.
        reused: How many kept batches were used instead of running them.
    """

    def __init__(self, engine: Engine, progress: Callable[[str], None] = lambda text: None) -> None:
        """Start no worker yet; the first batch does."""
        self.engine, self.progress, self.reused = engine, progress, 0
        self.cache = None if engine.keep is None else BatchCache(engine.keep, progress)
        self._executor: Any = None
        self._runs: dict[tuple[int, str], Runs] = {}
        self._makers: dict[int, tuple[Problem, Callable[[], Problem]]] = {}
        self._compared = False  # one kept batch is run again and compared
        self._said: set[str] = set()

    def runs(self, source: Problem | RunBatch, **options: Any) -> Runs:
        """Return the batches of a problem, with options of `rollout`, or of a function run(schedule)."""
        if isinstance(source, Runs):
            return source
        key = id(source), repr(sorted(options.items()))
        if key not in self._runs:
            self._runs[key] = Runs(self, source, options)
        return self._runs[key]

    def knows(self, problem: Problem, make: Callable[[], Problem]) -> None:
        """Let workers make a problem by a function; it is not sent to them."""
        self._makers[id(problem)] = problem, make

    def maker_of(self, problem: object) -> Callable[[], Problem] | None:
        """Return the function by which workers make a problem; None if it is sent to them."""
        return self._makers.get(id(problem), (None, None))[1]

    def start(self, name: str | None, work: Work, source: Any) -> Started:
        """Start a batch, or read it; `name` is the name of its files, None if it cannot be kept."""
        cached = None if self.cache is None or name is None else self.cache.read(name)
        if cached is not None and self._compared:
            self.reused += 1
            return Started(self, name, cached, None)
        self._compared = self._compared or cached is not None
        if self._executor is None:
            self._executor = open_executor(self.engine.name, self.engine.workers)
        if self.engine.name == "serial":
            future = self._executor.submit(_run_here, work, source)
        else:
            future = self._executor.submit(_run_sent, *_sent(work, source, self.maker_of(source)))
        return Started(self, name, cached, future)

    def keep(self, name: str | None, batch: Batch) -> None:
        """Write a finished batch to the folder, if there is one."""
        if self.cache is not None and name is not None and not self.cache.write(name, batch):
            self.say("final states in types of your own cannot be kept in files: such batches will run again")

    def say(self, text: str) -> None:
        """Report something once."""
        if text not in self._said:
            self._said.add(text)
            self.progress(text)

    def close(self) -> None:
        """End the workers. Batches that are finished are kept; the others are dropped."""
        for runs in self._runs.values():
            runs.drop()
        if self._executor is not None:
            self._executor.__exit__(None, None, None)
        self._executor = None

    def __enter__(self) -> BatchRunner:
        """Return itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close the runner."""
        self.close()


class Started(NamedTuple):
    """A batch that was started; if `future` is None it was read from the folder. A result is compared with `cached`."""

    runner: BatchRunner
    name: str | None
    cached: Batch | None
    future: Future[Any] | None

    def result(self) -> Batch:
        """Wait for the batch; check where it was run, and keep it or compare it with the kept one."""
        if self.future is None:
            assert self.cached is not None
            return self.cached
        answer = self.future.result()
        batch, there = pickle.loads(answer) if isinstance(answer, bytes) else answer
        changed = [key for key, value in environment().items() if there.get(key) != value]
        if changed:
            raise EngineError(
                f"a worker differs from this process in {', '.join(changed)}, and its numbers may differ in their last "
                "digits; use workers with the same libraries and the same kind of processor"
            )
        if self.cached is None:
            self.runner.keep(self.name, batch)
            return batch  # type: ignore[no-any-return]
        pairs = zip(batch.records, self.cached.records, strict=True)
        if any(differing(one, other, 1e-9) is not None for one, other in pairs):
            raise EngineError(
                f"a batch that is kept in {self.runner.engine.keep} was run again and its result differs: the sampler "
                "is not repeatable, or has changed since; use another folder"
            )
        return self.cached


class Runs:
    """The batches of one problem on an engine: `runs(schedule)` returns the record of one."""

    def __init__(self, runner: BatchRunner, source: Problem | RunBatch, options: Mapping[str, Any]) -> None:
        """See `BatchRunner.runs`."""
        self.runner = runner
        self.source, self.options = source, dict(options)
        self._started: defaultdict[str, deque[Started]] = defaultdict(deque)
        self._numbers: Counter[str] = Counter()

    def __call__(self, schedule: Schedule) -> Rollout:
        """Run one batch."""
        return self.submit(schedule).result().records[0]

    def twice(self, schedule: Schedule) -> Batch:
        """Run one batch twice in one worker, which shows if a loop carries something from run to run."""
        return self.submit(schedule, 2).result()

    def submit(self, schedule: Schedule, times: int = 1) -> Started:
        """Start one batch, or take the one that was started ahead; its `result()` waits for it."""
        work, key = self._work(schedule, times)
        return self._started[key].popleft() if self._started[key] else self._start(work, key)

    def prefetch(self, schedules: Sequence[Schedule]) -> None:
        """Start batches that will be asked for; a serial engine runs each when it is asked for."""
        if self.runner.engine.name != "serial":
            for schedule in schedules:
                work, key = self._work(schedule, 1)
                self._started[key].append(self._start(work, key))

    def drop(self) -> None:
        """Forget what was started and not asked for; what is finished is kept in the folder."""
        for started in [one for queue in self._started.values() for one in queue]:
            if started.future is not None and started.future.done():
                with suppress(Exception):  # nobody asked for it
                    started.result()
        self._started.clear()

    def _start(self, work: Work, key: str) -> Started:
        """Start a batch; if it was started before, it runs again under the next number, to be timed or compared."""
        number = self._numbers[key]
        self._numbers[key] += 1
        return self.runner.start(f"{key}-{number}" if work.identity else None, work, self.source)

    def _work(self, schedule: Schedule, times: int) -> tuple[Work, str]:
        """Return the work of a batch, and a hash of everything that its result depends on."""
        runner, serial = self.runner, self.runner.engine.name == "serial"
        work, make = Work(schedule, self.options, times, torch.get_default_dtype()), runner.maker_of(self.source)
        if serial and runner.cache is None:
            return work, ""
        try:
            known = work._replace(identity=identity(self.source))
            return known, identity(known, make, environment())[:32]
        except UnidentifiedError as error:
            if runner.cache is not None:
                runner.say(f"batches of this problem are not kept, and will run again: {error}")
            return work, "" if serial else sha256(b"".join(_sent(work, self.source, make)))


# ------------------------------------------------------------------ in a worker


class Work(NamedTuple):
    """A batch to run; `identity` is the source's, or "" if it has none."""

    schedule: Schedule
    options: dict[str, Any]
    times: int
    dtype: torch.dtype
    identity: str = ""


def _run_here(work: Work, source: Any) -> tuple[Batch, dict[str, Any]]:
    """Run a batch in this process; return it with the facts about the machine and code that its numbers depend on."""
    run: RunBatch = partial(source.rollout, **work.options) if isinstance(source, Problem) else source
    return run_batch(run, work.schedule, work.times), environment()


def _run_sent(sent: bytes, payload: bytes) -> bytes:
    """Run a batch in a worker."""
    work: Work = pickle.loads(sent)
    torch.set_default_dtype(work.dtype)
    source, known = _received(payload)
    if known and work.identity and known != work.identity:
        raise EngineError(
            "a worker has another sampler than this process: its module has another version there, or making or "
            "running the problem changes it"
        )
    return _pickled(_run_here(work, source))


@lru_cache(maxsize=4)
def _received(payload: bytes) -> tuple[Any, str]:
    """Return the problem or loop, made once per worker, and its identity unless it was sent by value."""
    kind, thing = pickle.loads(payload)
    source, known = thing() if kind == "make" else thing, ""
    if kind != "value":
        with suppress(UnidentifiedError):
            known = identity(source)
    return source, known


def _sent(work: Work, source: Any, make: Callable[[], Problem] | None) -> tuple[bytes, bytes]:
    """Pickle a batch and its problem for a worker, as they are now."""
    if make is not None:
        return _pickled(work), _pickled(("make", make))
    if _by_value() is not None:
        with suppress(ValueError):  # the user's modules may hold what cannot be sent, and then go by their names
            modules = user_modules(source, work.schedule)
            return _pickled(work, modules), _pickled(("value", source), modules)
    return _pickled(work), _pickled(("name", source))


def _pickled(thing: object, modules: Sequence[ModuleType] = ()) -> bytes:
    """Pickle for another process: code of scripts and of these modules by value, all other code by its name."""
    by_value = _by_value()
    new = [one for one in modules if one.__name__ not in by_value.list_registry_pickle_by_value()]
    try:
        for module in new:
            by_value.register_pickle_by_value(module)
        return (by_value or pickle).dumps(thing)  # type: ignore[no-any-return]
    except Exception as error:  # objects that cannot be sent raise what they like
        raise ValueError(
            f"this cannot be sent to other processes ({type(error).__name__}: {error}); define its functions and "
            "classes in a module rather than in place, or install cloudpickle, or give Engine(make=…) a function of a "
            "module that makes the problem, or use engine='serial'"
        ) from error
    finally:
        for module in new:
            by_value.unregister_pickle_by_value(module)


def _by_value() -> Any:
    """Return cloudpickle, or None if it is not installed."""
    with suppress(ImportError):
        return import_module("cloudpickle")
    return None


# ------------------------------------------------------------------ finished batches in a folder

_FORMAT = "trimtab-batch-2"
_NAME = re.compile(r"[0-9a-f]{32}-\d+(\.json|\.\d+\.safetensors)")


def is_cache_file(name: str) -> bool:
    """Return whether a file has the name of a cached batch.

    Example:
        >>> is_cache_file(f"{'0' * 32}-1.json"), is_cache_file("my-notes.json")
        (True, False)
    """
    return _NAME.fullmatch(name) is not None


class BatchCache:
    """A folder of finished batches, so that a call that was stopped can continue.

    A batch has one file per record, and a JSON file that is written last: it is there whole or not at all. Its name is
    a hash of everything that the batch depends on, so another sampler, schedule, library or machine looks for other
    names.
    """

    def __init__(self, folder: str | os.PathLike[str], progress: Callable[[str], None] = lambda text: None) -> None:
        """Create the folder if it does not exist; `progress` receives a line for each damaged batch."""
        self.folder, self.progress = as_path(folder), progress
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise ValueError(
                f"{self.folder}: the folder for finished batches cannot be made, since {error.filename} is a file or a "
                "broken link; remove it, or give another folder"
            ) from error

    def write(self, name: str, batch: Batch) -> bool:
        """Write a batch to files; return False if its states are of the user's own types, which cannot be written."""
        trees = [plain_tree(record.final) for record in batch.records]
        if None in trees:
            return False
        for i, record in enumerate(batch.records):
            record.save(self._record(name, i))
        facts = {"format": _FORMAT, "name": name, "trees": trees, "moved": batch.moved}
        write_atomically(self._facts(name), json.dumps(facts, indent=1).encode())
        return True

    def read(self, name: str) -> Batch | None:
        """Return a batch if it was kept and is as it was written; a damaged one is removed."""
        path = self._facts(name)
        if not path.is_file():
            return None
        try:
            facts = read_json(path)
            if (facts["format"], facts["name"]) != (_FORMAT, name):
                raise ValueError(f"{path}: belongs to another batch")
            records = tuple(self._load(name, i, tree) for i, tree in enumerate(facts["trees"]))
            return Batch(records, tuple(map(str, facts["moved"])))
        except (OSError, *UNUSABLE) as error:
            self.progress(f"a kept batch is damaged and is run again ({error})")
            path.unlink(missing_ok=True)
            return None

    def _load(self, name: str, i: int, tree: Any) -> Rollout:
        record = Rollout.load(self._record(name, i))  # compares the file with its checksum
        states = None if record.states is None else state_of(tree, record.states)
        return replace(record, final=state_of(tree, record.final), states=states)

    def _facts(self, name: str) -> Path:
        return self.folder / f"{plain_name(name)}.json"

    def _record(self, name: str, i: int) -> Path:
        return self.folder / f"{plain_name(name)}.{i}.safetensors"


# ------------------------------------------------------------------ what callers use


@contextmanager
def open_runner(
    engine: Engine | BatchRunner | str | None, progress: Callable[[str], None], source: object = None
) -> Iterator[BatchRunner | None]:
    """Open an engine for the duration of a call, and close it afterwards.

    A `BatchRunner` that is passed in is yielded as it is and stays open. Without an engine, None is yielded.

    Args:
        engine: A name, settings, or a runner.
        progress: Receives lines about what is being done.
        source: The problem that `engine.make` makes.
    """
    if engine is None or isinstance(engine, BatchRunner):
        yield engine
        return
    if not isinstance(engine, Engine | str):
        raise TypeError(f"engine must be 'processes', 'ray', 'serial' or a core.runner.Engine: got {engine!r:.60}")
    with BatchRunner(Engine(engine) if isinstance(engine, str) else engine, progress) as runner:
        if runner.engine.make is not None and isinstance(source, Problem):
            runner.knows(source, runner.engine.make)
        yield runner


def prefetch(run: RunBatch, schedules: Sequence[Schedule]) -> None:
    """Start batches that `run` will be asked for; without an engine this does nothing."""
    if isinstance(run, Runs):
        run.prefetch(schedules)
