"""Run the tasks of a study: in this process, in local processes, or on a Ray cluster.

This process alone decides the order, passes each task its inputs, and keeps the results.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from graphlib import TopologicalSorter
from time import perf_counter
from typing import Any, TextIO

from trimtab.calibration.collect import FEWEST
from trimtab.core.checks import EngineError
from trimtab.core.executors import ENGINES, open_executor
from trimtab.core.progress import open_bar
from trimtab_lab.studies.config import Study, StudyError
from trimtab_lab.studies.rows import check_arrow
from trimtab_lab.studies.schedules import study_schedule
from trimtab_lab.studies.store import Store
from trimtab_lab.studies.tasks import Task, domain_of, study_tasks
from trimtab_lab.studies.work import run_task

__all__ = ["ENGINES", "check_runnable", "run_study"]


def check_runnable(study: Study, factories: Mapping[str, str] | None = None) -> None:
    """Raise if a study would stop half-way, before a directory is claimed for it; see `run_study`."""
    check_arrow()
    tasks = study_tasks(study, factories)
    learning = [key for key in study.schedules if study_schedule(key).calibration not in (None, "paper")]
    if learning and study.calibration_seeds < FEWEST:
        raise ValueError(
            f"{study.calibration_seeds} calibration rollouts are too few for {learning[0]}: give --calibration-seeds "
            f"of at least {FEWEST}, better 64"
        )
    if study.unit == "iteration":
        for task in {task.domain: task for task in tasks}.values():
            constraint = domain_of(task).problem(task.seeds[:1]).constraint
            if not constraint.improves:
                raise ValueError(
                    f"{task.domain}: a study in iterations needs a constraint that offers improve(x, state), one "
                    f"iteration at a time; {type(constraint).__name__} has only project: leave the domain out"
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
            bar = None if stream is None else open_bar("study", "tasks", len(tasks), len(done), stream=stream)
            try:
                _run_missing(tasks, done, store, engine, workers, (lambda: None) if bar is None else bar.update)
            finally:
                if bar is not None:
                    bar.close()
        complete = True
    except EngineError as error:
        raise StudyError(str(error)) from error
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
    with open_executor(engine, workers) as executor:
        while order.is_active():
            for name in order.get_ready():
                if name in done:
                    order.done(name)
                else:
                    ready.append(name)
            while ready and len(running) < 2 * executor.workers:
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
