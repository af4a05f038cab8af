"""Running the tasks of a study: in this process, in local processes, or on a Ray cluster.

The engines differ only in where `run_task` is called. This process alone decides the order, hands each task what it
needs, and keeps what comes back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from graphlib import TopologicalSorter
from time import perf_counter
from typing import TextIO

from trimtab.core.checks import EngineError, check_type
from trimtab.core.pools import ENGINES, Pool, pool
from trimtab.evaluation.studies.config import Study
from trimtab.evaluation.studies.errors import StudyError
from trimtab.evaluation.studies.progress import progress_on
from trimtab.evaluation.studies.schedules import study_schedule
from trimtab.evaluation.studies.store import Store
from trimtab.evaluation.studies.tasks import Task, domain_of, study_tasks
from trimtab.evaluation.studies.work import run_task
from trimtab.prices.calibration import FEWEST

__all__ = ["ENGINES", "run_study"]

_OF_ANY_NUMBER = (None, "paper")  # what needs no calibration seeds, or makes do with any number of them


def check_runnable(study: Study, factories: Mapping[str, str] | None = None) -> None:
    """Refuse a study that would stop half-way, before a directory is claimed for it; see `run_study`."""
    tasks = study_tasks(study, factories)
    learning = [key for key in study.schedules if study_schedule(key).calibration not in _OF_ANY_NUMBER]
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
    """Run whatever a store's study still lacks.

    Args:
        store: Where finished tasks are, and are kept.
        engine: A name in `ENGINES`.
        workers: Number of processes; None is one per core (or all the cluster has).
        stream: Where to show progress; None shows nothing.
        factories: The code of domains that are not built in, "package.module:factory" by name. What the record of a
            run says of code is never followed.
    """
    check_type(store, Store, "store, where a study is kept,")
    tasks = study_tasks(store.study, factories)
    done = store.finished(tasks)
    begin = perf_counter()
    complete = False
    try:
        if len(done) < len(tasks):
            show = progress_on(stream, len(tasks), len(done))
            open_runner = None
            try:
                open_runner = pool(engine, workers)
                _run_missing(tasks, done, store, open_runner, show.advance)
            except EngineError as error:
                raise StudyError(str(error)) from error
            finally:
                if open_runner is not None:
                    open_runner.close()
                show.close()
        complete = True
    finally:
        store.add_seconds(perf_counter() - begin, complete)


def _run_missing(
    tasks: list[Task], done: set[str], store: Store, open_runner: Pool, advance: Callable[[str], None]
) -> None:
    simplify_objective = {task.name: task for task in tasks}
    order = TopologicalSorter({task.name: [need.name for need in task.needs.values()] for task in tasks})
    order.prepare()
    ready: deque[str] = deque()
    running = 0
    while order.is_active():
        for name in order.get_ready():
            if name in done:
                order.done(name)
            else:
                ready.append(name)
        while ready and running < open_runner.capacity:
            task = simplify_objective[ready.popleft()]
            inputs = {role: store.shared(simplify_objective[need.name]) for role, need in task.needs.items()}
            open_runner.submit(task.name, run_task, task, inputs)
            running += 1
        if running:
            name, result = open_runner.next()
            running -= 1
            store.keep(simplify_objective[name], result)
            order.done(name)
            advance(name)
