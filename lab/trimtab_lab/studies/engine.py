"""Run the tasks of a study: in this process, in local processes, or on a Ray cluster.

This process alone decides the order, passes each task its inputs, and keeps the results.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from contextlib import ExitStack, contextmanager
from graphlib import TopologicalSorter
from time import perf_counter
from typing import Any, TextIO

from trimtab.calibration.collect import FEWEST
from trimtab.core.checks import EngineError, unknown
from trimtab.core.processes import Processes
from trimtab_lab.studies.config import Study, StudyError
from trimtab_lab.studies.rows import check_arrow
from trimtab_lab.studies.schedules import study_schedule
from trimtab_lab.studies.store import Store
from trimtab_lab.studies.tasks import Task, domain_of, study_tasks
from trimtab_lab.studies.work import run_task

__all__ = ["ENGINES", "check_runnable", "open_executor", "run_study"]

ENGINES = ("processes", "ray", "serial")
"""Where tasks and batches run: in processes on this machine, on a Ray cluster, or in this process."""


def check_runnable(study: Study, factories: Mapping[str, str] | None = None) -> None:
    """Raise if a study would stop half-way, before a directory is claimed for it; see `run_study`."""
    check_arrow()
    for task in {task.domain: task for task in study_tasks(study, factories)}.values():
        if task.origin and not task.factory:
            domain_of(task)  # settings that cannot be meant, or a file that cannot be read
    learning = [key for key in study.all_schedules if study_schedule(key).calibration not in (None, "paper")]
    if learning and study.calibration_seeds < FEWEST:
        raise ValueError(
            f"{study.calibration_seeds} calibration rollouts are too few for {learning[0]}: give --calibration-seeds "
            f"of at least {FEWEST}, better 64"
        )


def run_study(
    store: Store,
    engine: str = "processes",
    workers: int | None = None,
    stream: TextIO | None = None,
    factories: Mapping[str, str] | None = None,
) -> None:
    """Run the unfinished tasks of a store's study.

    Args:
        store: Where results are kept.
        engine: A name in `ENGINES`.
        workers: Number of processes; None is one per core (or all of the cluster).
        stream: Where to show progress; None shows nothing.
        factories: The code of domains that are not built in, "package.module:factory" by name. Code that only the
            record of a run names is never run.
    """
    tasks = {task.name: task for task in study_tasks(store.study, factories)}
    done = store.finished(tasks.values())
    start, complete = perf_counter(), False
    try:
        if len(done) < len(tasks):
            bar = None if stream is None else _bar(len(tasks), len(done), stream)
            try:
                _run_missing(tasks, done, store, engine, workers, (lambda: None) if bar is None else bar.update)
            finally:
                if bar is not None:
                    bar.close()
        complete = True
    except EngineError as error:
        raise StudyError(str(error)) from error
    except BrokenExecutor as error:
        raise StudyError(
            f"a worker died, perhaps because memory ran out ({error}); finished work is kept (try fewer workers)"
        ) from error
    finally:
        store.add_seconds(perf_counter() - start, complete)


def _run_missing(
    tasks: Mapping[str, Task],
    done: set[str],
    store: Store,
    engine: str,
    workers: int | None,
    advance: Callable[[], object],
) -> None:
    order = TopologicalSorter({task.name: [need.name for need in task.needs.values()] for task in tasks.values()})
    order.prepare()
    ready: deque[str] = deque()
    running: dict[Future[Any], str] = {}
    with open_executor(engine, workers) as (executor, at_once):
        while order.is_active():
            for name in order.get_ready():
                if name in done:
                    order.done(name)
                else:
                    ready.append(name)
            while ready and len(running) < 2 * at_once:
                task = tasks[ready.popleft()]
                inputs = {role: store.shared(tasks[need.name]) for role, need in task.needs.items()}
                running[executor.submit(run_task, task, inputs)] = task.name
            if running:
                finished = wait(running, return_when=FIRST_COMPLETED).done  # a set, in no order
                for future in [one for one in running if one in finished]:
                    name = running.pop(future)
                    store.keep(tasks[name], future.result())
                    order.done(name)
                    advance()


# ------------------------------------------------------------------ where tasks run


@contextmanager
def open_executor(engine: str, workers: int | None = None) -> Iterator[tuple[Executor, int]]:
    """Open the executor that a name in `ENGINES` stands for, and say how many calls it runs at once."""
    if engine not in ENGINES:
        raise unknown("engine", engine, ENGINES)
    if engine == "serial":
        yield _Serial(), 1
        return
    with ExitStack() as stack:
        if engine == "ray":
            from trimtab.integrations.ray import RayExecutor

            cluster = stack.enter_context(RayExecutor(workers))
            yield cluster, cluster.workers
        else:
            workers = workers or cores()
            yield stack.enter_context(Processes(workers)), workers


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Serial(Executor):
    """Runs each call at once, in this process."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(function(*arguments, **options))
        except Exception as error:
            future.set_exception(error)
        return future


def _bar(total: int, done: int, stream: TextIO) -> Any:
    """Return a bar of tqdm; None if it is not installed. In a file, a line every ten seconds has to do."""
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return None
    every = 0.1 if stream.isatty() else 10.0
    return tqdm(
        desc="study", total=total, initial=done, file=stream, unit=" tasks", mininterval=every, dynamic_ncols=True
    )
