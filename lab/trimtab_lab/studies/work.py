"""Run a task: a pure function of its description and of the results it needs. It writes no files."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from trimtab.calibration.calibrate import calibrate
from trimtab.calibration.collect import Batches
from trimtab.core.arrays import Form, map_leaves, numbers_of
from trimtab.core.budget import PerBatch, corrections
from trimtab.core.files import load_tensors, save_tensors
from trimtab.core.metrics import Distance, endpoint_distance, measured_distance, path_error, top_mass
from trimtab.core.noise import as_seeds
from trimtab.core.record import Rollout
from trimtab.core.schedule import Schedule
from trimtab.loop.replay import replay
from trimtab.prices.objective import finite
from trimtab.prices.price import Price, load
from trimtab.schedules import Stepwise
from trimtab_lab.domains.base import Domain
from trimtab_lab.studies.batches import (
    counting,
    part_of,
)
from trimtab_lab.studies.config import StudyError
from trimtab_lab.studies.on_policy import on_policy_prices
from trimtab_lab.studies.schedules import ScheduleInputs, study_schedule
from trimtab_lab.studies.tasks import THREADS, Task, code_version, domain_of, machine_facts
from trimtab_lab.studies.traces import Trace, about

__all__ = ["QUALITY", "Result", "finals_in", "run_task"]


QUALITY = "quality_"
"""The prefix of the columns in which a domain judges its final states."""

Thing = TypeVar("Thing")


@dataclass(frozen=True)
class Result:
    """The result of a task.

    Attributes:
        rows: One per rollout; they depend on the task and the code only.
        code: The version of the code that ran it.
        machine: What its last bits depend on besides; see `machine_facts`.
        shared: A file with prices, the stepwise reference or final states.
        traces: Files of example rollouts, by budget.
        about: Facts about the domain for reports, from the one task of each domain that records them.
    """

    rows: list[dict[str, Any]]
    code: str = field(default_factory=lambda: code_version())
    machine: dict[str, Any] = field(default_factory=lambda: machine_facts())
    shared: bytes | None = None
    traces: dict[float, bytes] = field(default_factory=dict)
    about: dict[str, Any] | None = None


def run_task(task: Task, inputs: Mapping[str, bytes]) -> Result:
    """Run one task on one thread.

    Args:
        task: What to run.
        inputs: The `shared` files of the tasks it needs, by the roles in `Task.needs`.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        return _KINDS[task.kind](task, domain_of(task), inputs)
    finally:
        torch.set_num_threads(threads)


def _calibrate(task: Task, made: Domain, inputs: Mapping[str, bytes]) -> Result:
    method = study_schedule(task.schedule).calibration
    assert method is not None
    problem = made.problem(task.seeds)

    def run(schedule: Schedule) -> Rollout:
        return problem.rollout(schedule, **counting(task.closing))

    quiet: Any = {"objective": "path", "check": False, "progress": lambda text: None}
    prices: Price = (
        on_policy_prices(Batches(run, 1.0, **quiet)) if method == "on-policy" else calibrate(run, 1.0, method, **quiet)
    )
    return Result([], shared=_as_bytes(prices.save))


def _reference(task: Task, made: Domain, inputs: Mapping[str, bytes]) -> Result:
    run = made.problem(task.seeds).rollout(Stepwise(), **counting(task.closing))
    return Result([], shared=_finals(run))


def _rollout(task: Task, made: Domain, inputs: Mapping[str, bytes]) -> Result:
    n, times = len(task.seeds), len(task.budgets)
    problem = made.problem(as_seeds(task.seeds).repeat(times))
    entry, T = study_schedule(task.schedule), problem.sampler.n_steps
    prices = _from_bytes(load, inputs["thresholds"]) if "thresholds" in inputs else None
    fewest = int(task.closing == "paid")
    counts = [max(fewest, int(corrections(budget, T))) for budget in task.budgets]
    wanted = torch.tensor(counts).repeat_interleave(len(problem) // times)
    schedule = entry.build(ScheduleInputs(problem, problem.seeds, prices), wanted)
    run = problem.rollout(schedule, keep_states=True, **counting(task.closing))
    verify(task, schedule, run, wanted)

    reference = run if task.schedule == "stepwise" else _loaded_like(run, inputs["reference"])
    rows, traces = [], {}
    for i, budget in enumerate(task.budgets):
        block = slice(i * n, (i + 1) * n)
        part = part_of(run, block)
        more: dict[str, list[Any]] = {}
        if made.quality is not None:
            constraint = problem.constraint.take(torch.arange(block.start, block.stop))
            more |= {f"{QUALITY}{name}": v.tolist() for name, v in made.quality(part.final, constraint).items()}
        ends = finite(endpoint_distance(part, reference, made.distance), "the distance to full projection")
        rows += _rows(task, budget, made, part, ends, more)
        if task.examples:
            along = _distances_along(part, reference, made.distance, task.examples)
            traces[budget] = Trace.of(made.looks, part, along, task.examples).as_bytes()
    shared = None
    if task.has_output:
        shared = _as_bytes(run.save) if task.schedule == "stepwise" else _finals(run)
    facts = about(made, problem.constraint) if task.describes else None
    return Result(rows, shared=shared, traces=traces, about=facts)


_KINDS = {"calibrate": _calibrate, "reference": _reference, "rollout": _rollout}


def verify(task: Task, schedule: Schedule, run: Rollout, wanted: Tensor) -> None:
    """Check that a replay makes the recorded decisions and that no budget was exceeded.

    Schedules that spend exactly their budget must have spent all of it.
    """
    if not torch.equal(replay(schedule, run), run.projected):
        raise StudyError(f"{task.name}: the recorded decisions are not those of the schedule asked for")
    each = run.spent
    if isinstance(schedule.budget, PerBatch):  # of each pool on average
        pools = schedule.budget.pools(len(each))
        each, wanted = (torch.zeros(int(pools.max()) + 1).long().index_add(0, pools, x) for x in (each, wanted))
    off = each != wanted if study_schedule(task.schedule).exact else each > wanted
    wrong = off.nonzero().squeeze(1)
    if len(wrong):
        asked, spent = int(wanted[wrong[0]]), int(each[wrong[0]])
        raise StudyError(f"{task.name}: expected a budget of {asked} corrections to be spent: got {spent}")


def _distances_along(run: Rollout, reference: Rollout, distance: Distance, k: int) -> Tensor:
    """Return the distance of the first k rollouts to the reference after each step, (T, k)."""
    after = (map_leaves(lambda leaf: leaf[1:, :k].flatten(0, 1), states) for states in (run.states, reference.states))
    return measured_distance(distance, *after).reshape(run.n_steps, k)


def _rows(
    task: Task,
    budget: float,
    made: Domain,
    run: Rollout,
    endpoint: Tensor,
    more: Mapping[str, list[Any]],
) -> list[dict[str, Any]]:
    """Return one row per rollout; NEPE is added later, as it needs the terminal rollout too."""
    columns: dict[str, list[Any]] = {
        "seed": list(task.seeds),
        "achieved_budget": (run.spent.double() / run.n_steps).tolist(),
        "path_error": path_error(run).double().tolist(),
        "endpoint": endpoint.double().tolist(),
        "concentration": top_mass(run.defects).double().tolist(),
        "projections": (run.spent + run.closing).tolist(),
        "closing": run.closing.tolist(),
        "failures": (run.failed.sum(dim=0) + run.closing_failed).tolist(),
        "iterations": run.all_iterations.tolist(),
    }
    columns |= more
    same = {
        "domain": task.domain,
        "kappa": float(made.settings.get("kappa", np.nan)),
        "schedule": task.schedule,
        "budget": budget,
        "n_steps": run.n_steps,
    }
    return [same | dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


# ------------------------------------------------------------------ files in memory


def _loaded_like(run: Rollout, data: bytes) -> Rollout:
    """Load the record of a run from a file, with its states as the sampler of `run` keeps them."""
    record = _from_bytes(Rollout.load, data)
    final, states = Form(run.final).of_names(record.final), Form(run.states).of_names(record.states)
    return replace(record, final=final, states=states)


def _finals(run: Rollout) -> bytes:
    """Return a file of the final states, one row of numbers each."""
    return _as_bytes(lambda path: save_tensors(path, "final states", {"final": numbers_of(run.final)}, {}))


def finals_in(data: bytes, whole: bool) -> Tensor:
    """Return the final states in a task's file, (n, d); the file of a stepwise task holds the whole run."""
    if whole:
        return numbers_of(_from_bytes(Rollout.load, data).final)
    return _from_bytes(lambda path: load_tensors(path, "final states")[0]["final"], data)


def _as_bytes(save: Callable[[Path], None]) -> bytes:
    with tempfile.TemporaryDirectory(prefix="trimtab-") as folder:
        save(Path(folder) / "shared")
        return (Path(folder) / "shared").read_bytes()


def _from_bytes(load: Callable[[Path], Thing], data: bytes) -> Thing:
    with tempfile.TemporaryDirectory(prefix="trimtab-") as folder:
        (Path(folder) / "shared").write_bytes(data)
        return load(Path(folder) / "shared")
