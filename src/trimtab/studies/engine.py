"""Running the tasks of a study: in this process, in local processes, or on a Ray cluster.

The engines differ only in where `run_task` is called. This process alone decides the order, hands each task what it
needs, and keeps what comes back.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from graphlib import TopologicalSorter
from multiprocessing.connection import wait as wait_for
from time import perf_counter
from typing import Protocol, TextIO

import torch

from trimtab.core.errors import unknown
from trimtab.studies.errors import StudyError
from trimtab.studies.progress import progress_on
from trimtab.studies.ray_pool import RayPool
from trimtab.studies.store import Store
from trimtab.studies.tasks import Task, study_tasks
from trimtab.studies.work import Result, run_task

__all__ = ["ENGINES", "Pool", "pool", "run_study"]


class Pool(Protocol):
    """Somewhere to run tasks.

    Attributes:
        capacity: How many tasks to hand out at once: enough that no worker waits for this process.
    """

    capacity: int

    def submit(self, task: Task, inputs: Mapping[str, bytes]) -> None:
        """Have a task run."""
        ...

    def next(self) -> tuple[Task, Result]:
        """Wait for any task that was submitted."""
        ...

    def close(self) -> None:
        """Stop at once; what is still running is dropped."""
        ...


def run_study(
    store: Store,
    engine: str = "local",
    workers: int | None = None,
    stream: TextIO | None = None,
    factories: Mapping[str, str] | None = None,
) -> None:
    """Run whatever a store's study still lacks.

    Args:
        store: Where finished tasks are, and are kept.
        engine: A name in `ENGINES`.
        workers: Number of processes; None is one a core (or all the cluster has).
        stream: Where to show progress; None shows nothing.
        factories: The code of domains that are not built in, "package.module:factory" by name. What the record of a
            run says of code is never followed.
    """
    tasks = study_tasks(store.study, factories)
    done = store.finished(tasks)
    begin = perf_counter()
    complete = False
    try:
        if len(done) < len(tasks):
            show = progress_on(stream, len(tasks), len(done))
            workshop = pool(engine, workers)
            try:
                _run_missing(tasks, done, store, workshop, show.advance)
            finally:
                workshop.close()
                show.close()
        complete = True
    finally:
        store.add_seconds(perf_counter() - begin, complete)


def _run_missing(
    tasks: list[Task], done: set[str], store: Store, workshop: Pool, advance: Callable[[str], None]
) -> None:
    by_name = {task.name: task for task in tasks}
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
        while ready and running < workshop.capacity:
            task = by_name[ready.popleft()]
            inputs = {role: store.shared(by_name[need.name]) for role, need in task.needs.items()}
            workshop.submit(task, inputs)
            running += 1
        if running:
            task, result = workshop.next()
            running -= 1
            store.keep(task, result)
            order.done(task.name)
            advance(task.name)


# ------------------------------------------------------------------ where tasks run


class SerialPool:
    """This very process, one task at a time."""

    capacity = 1

    def __init__(self, workers: int | None = None) -> None:
        """`workers` is of no consequence here."""
        self.waiting: deque[tuple[Task, Mapping[str, bytes]]] = deque()

    def submit(self, task: Task, inputs: Mapping[str, bytes]) -> None:
        """Remember it."""
        self.waiting.append((task, inputs))

    def next(self) -> tuple[Task, Result]:
        """Run the oldest."""
        task, inputs = self.waiting.popleft()
        return task, run_task(task, inputs)

    def close(self) -> None:
        """Forget what was not run."""
        self.waiting.clear()


class LocalPool:
    """Processes on this machine, each with one thread."""

    def __init__(self, workers: int | None = None) -> None:
        """One process a core unless told otherwise."""
        workers = workers or _cores()
        self.capacity = 2 * workers
        self.executor = ProcessPoolExecutor(
            workers, mp_context=multiprocessing.get_context("spawn"), initializer=_begin_worker
        )
        self.others = set(multiprocessing.active_children())  # not ours to end
        self.running: dict[Future[Result], Task] = {}
        self.finished: deque[Future[Result]] = deque()

    def submit(self, task: Task, inputs: Mapping[str, bytes]) -> None:
        """Hand it to whichever process is free first."""
        self.running[self.executor.submit(run_task, task, inputs)] = task

    def next(self) -> tuple[Task, Result]:
        """Whichever is done."""
        if not self.finished:
            done, _ = wait(self.running, return_when=FIRST_COMPLETED)
            self.finished.extend(done)
        future = self.finished.popleft()
        task = self.running.pop(future)
        try:
            return task, future.result()
        except BrokenProcessPool as error:
            raise StudyError(
                "a worker process died, perhaps for want of memory; what was finished is kept (try fewer --workers)"
            ) from error

    def close(self) -> None:
        """Drop what is queued and end the processes, even in the middle of a task."""
        if self.running:
            for process in set(multiprocessing.active_children()) - self.others:
                process.terminate()
        self.executor.shutdown(wait=True, cancel_futures=True)


def _cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _begin_worker() -> None:
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that decides
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:  # a process killed with SIGKILL cannot end its workers, so they watch it
        wait_for([parent.sentinel])
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


ENGINES: dict[str, Callable[[int | None], Pool]] = {"local": LocalPool, "ray": RayPool, "serial": SerialPool}


def pool(engine: str, workers: int | None = None) -> Pool:
    """An engine by name."""
    if engine not in ENGINES:
        raise unknown("engine", engine, ENGINES)
    if workers is not None and workers < 1:
        raise ValueError(f"workers must be at least 1: got {workers}")
    return ENGINES[engine](workers)
