"""What running a task does.

A task is a pure function of its description and of the results it needs. It writes nothing; who runs it keeps what
it returns.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from trimtab.core.arrays import Form, map_leaves, numbers_of
from trimtab.core.budget import corrections
from trimtab.core.files import load_tensors, save_tensors
from trimtab.core.machine import THREADS, machine_facts
from trimtab.core.metrics import Distance, endpoint_distance, measured_distance, path_error, top_mass
from trimtab.core.noise import as_seeds
from trimtab.core.record import Rollout
from trimtab.core.replay import replay
from trimtab.core.schedule import Schedule
from trimtab.evaluation.domains.base import Domain
from trimtab.evaluation.studies.domain_info import about
from trimtab.evaluation.studies.errors import StudyError
from trimtab.evaluation.studies.explored import counting, explore, n_deciders, part_of, replicate_problem, runs_from
from trimtab.evaluation.studies.rules import RULES, Rule, find_rule
from trimtab.evaluation.studies.schedules import ScheduleInputs, study_schedule
from trimtab.evaluation.studies.tasks import Task, code_version, domain_of
from trimtab.evaluation.studies.traces import Trace
from trimtab.evaluation.studies.whole_groups import check_whole_groups
from trimtab.evaluation.studies.windows import BEST_WINDOW, best_windows
from trimtab.prices.calibration import calibrate
from trimtab.prices.objective import finite
from trimtab.prices.price import Price, load
from trimtab.schedules import Stepwise

__all__ = ["GROUP", "QUALITY", "Result", "finals_in", "run_task"]

GROUP = "group"
"""The column that says which samples were decided on together, by the first seed of theirs; only where some were."""

QUALITY = "quality_"
"""How the columns of a domain's own judgement of its final states begin."""

Thing = TypeVar("Thing")


@dataclass(frozen=True)
class Result:
    """What a task returns.

    Attributes:
        rows: One a rollout, a function of the task and the code alone.
        timing: Seconds, calls and rows handled; differs from run to run.
        code: The version of the code that ran it.
        machine: What its last bits depend on besides; see `machine_facts`.
        shared: A file: explored rollouts, prices or the stepwise reference, which other tasks need, or final states.
        traces: Files of example rollouts to look at, by budget.
        about: What a report needs to know of the domain, from the one task of each domain that says it.
    """

    rows: list[dict[str, Any]]
    timing: dict[str, Any]
    code: str
    machine: dict[str, Any]
    shared: bytes | None = None
    traces: dict[float, bytes] = field(default_factory=dict)
    about: dict[str, Any] | None = None


def run_task(task: Task, inputs: Mapping[str, bytes]) -> Result:
    """Run one task.

    Args:
        task: What to run.
        inputs: The `shared` files of the tasks it needs, by the names `Task.needs` gives them.
    """
    begin = perf_counter()
    threads = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        result = _KINDS[task.kind](task, inputs)
    finally:
        torch.set_num_threads(threads)
    result.timing["seconds"] = perf_counter() - begin
    return result


def _explore(task: Task, inputs: Mapping[str, bytes]) -> Result:
    check_whole_groups(domain_of(task), task.seeds)
    run = explore(domain_of(task).problem, task.seeds, task.closing)
    timing = _described(task) | {"rollouts": len(run.closing)} | _costs(run)
    return Result([], timing, code_version(), machine_facts(), shared=_as_bytes(run.save))


def _calibrate(task: Task, inputs: Mapping[str, bytes]) -> Result:
    check_whole_groups(domain_of(task), task.seeds)
    problem = domain_of(task).problem(task.seeds)
    known = _from_bytes(Rollout.load, inputs["explored"]) if "explored" in inputs else None
    method = study_schedule(task.schedule).calibration
    assert method is not None
    run = runs_from(known, problem, task.seeds, task.closing)
    if method in RULES:
        prices: Price | Rule = find_rule(method, domain_of(task).problem, task.seeds, task.closing)
    elif method == BEST_WINDOW:
        prices = best_windows(domain_of(task).problem, task.seeds, task.closing)
    else:
        by_finals: dict[str, Any] = {"objective": "endpoint", "distance": problem.distance}
        options = by_finals if method == "race" else {"objective": "path"}
        most = max(2, round(_iterations(run(Stepwise())))) if task.unit == "iteration" else 1.0
        prices = calibrate(run, most, method, unit=task.unit, check=False, **options)
    return Result([], _described(task), code_version(), machine_facts(), shared=_as_bytes(prices.save))


def _rollout(task: Task, inputs: Mapping[str, bytes]) -> Result:
    made = domain_of(task)
    n, times = len(task.seeds), len(task.budgets)
    check_whole_groups(made, task.seeds)
    problem = replicate_problem(made.problem, as_seeds(task.seeds), times)
    method = study_schedule(task.schedule).calibration
    read: Callable[[Path], Price | Rule] = load
    if method in RULES:
        read = Rule.load
    prices = _from_bytes(read, inputs["thresholds"]) if "thresholds" in inputs else None
    T = problem.sampler.n_steps
    in_iterations = task.unit == "iteration" and study_schedule(task.schedule).only_budget is None
    most = _iterations(_from_bytes(Rollout.load, inputs["reference"])) if in_iterations else T  # what a budget of 1 is
    fewest = int(task.closing == "paid")
    counts = [
        round(budget * most) if in_iterations else max(fewest, int(corrections(budget, T))) for budget in task.budgets
    ]
    wanted = torch.tensor(counts).repeat_interleave(n_deciders(problem) // times)
    given = ScheduleInputs(problem, problem.seeds, prices, task.unit, max(1.0, most / T))
    schedule = study_schedule(task.schedule).build(given, wanted)
    run = problem.rollout(schedule, keep_states=True, **counting(task.closing))
    verify(task, schedule, run, wanted)

    reference = run if task.schedule == "stepwise" else _kept_like(run, _from_bytes(Rollout.load, inputs["reference"]))
    rows, traces = [], {}
    for i, budget in enumerate(task.budgets):
        block = slice(i * n, (i + 1) * n)
        part = part_of(run, block)
        apart = distances_along(part, reference, made.distance)
        along = finite(apart.sum(dim=0), "the distance of states to those of full projection")
        some = _rows(task, budget, made, part, endpoint_distance(part, reference, made.distance), along)
        if task.unit == "iteration":
            cost = part.iterations.sum(dim=0).double() / _iterations(reference)
            some = [row | {"unit": task.unit, "achieved_budget": c} for row, c in zip(some, cost.tolist(), strict=True)]
        if made.quality is not None:
            constraint = problem.constraint.take(torch.arange(block.start, block.stop))
            judged = {f"{QUALITY}{name}": v.tolist() for name, v in made.quality(part.final, constraint).items()}
            some = [row | {name: values[j] for name, values in judged.items()} for j, row in enumerate(some)]
        rows += some
        if task.examples:
            traces[budget] = Trace.of(made.looks, part, apart, task.examples).as_bytes()
    shared = None
    if task.shares:
        shared = _as_bytes(run.save) if task.schedule == "stepwise" else _finals(run)
    said = about(made, problem.constraint) if task.describes else None
    return Result(rows, _described(task) | _costs(run), code_version(), machine_facts(), shared, traces, said)


def _reference(task: Task, inputs: Mapping[str, bytes]) -> Result:
    check_whole_groups(domain_of(task), task.seeds)
    run = domain_of(task).problem(task.seeds).rollout(Stepwise(), **counting(task.closing))
    return Result([], _described(task) | _costs(run), code_version(), machine_facts(), shared=_finals(run))


_KINDS: dict[str, Callable[[Task, Mapping[str, bytes]], Result]] = {
    "explore": _explore,
    "calibrate": _calibrate,
    "reference": _reference,
    "rollout": _rollout,
}


def _kept_like(run: Rollout, record: Rollout) -> Rollout:
    """A record from a file, which knows arrays by name, with its states in the form of a run's."""
    final, states = Form(run.final).of_names(record.final), Form(run.states).of_names(record.states)
    return replace(record, final=final, states=states)


def _finals(run: Rollout) -> bytes:
    """The final states, one row of numbers each."""
    return _as_bytes(lambda path: save_tensors(path, "final states", {"final": numbers_of(run.final)}, {}))


def finals_in(data: bytes, whole: bool) -> Tensor:
    """The final states in a task's file, (n, d); of a stepwise task the file holds the whole run."""
    if whole:
        return numbers_of(_from_bytes(Rollout.load, data).final)
    return _from_bytes(lambda path: load_tensors(path, "final states")[0]["final"], data)


def verify(task: Task, schedule: Schedule, run: Rollout, wanted: Tensor) -> None:
    """The schedule that ran is the one asked for, and it spent the budgets of all deciders: exactly, if it can."""
    if not torch.equal(replay(schedule, run), run.projected if run.unit == "projection" else run.iterations.long()):
        raise StudyError(f"{task.name}: the recorded decisions are not those of the schedule asked for")
    by_decider = run.grouped().spent
    off = by_decider != wanted if study_schedule(task.schedule).exact else by_decider > wanted
    wrong = off.nonzero().squeeze(1)
    if len(wrong):
        asked, spent = int(wanted[wrong[0]]), int(by_decider[wrong[0]])
        what = "corrections" if run.unit == "projection" else "iterations"
        raise StudyError(f"{task.name}: a budget of {asked} {what} was asked for, {spent} were spent")


def distances_along(run: Rollout, reference: Rollout, distance: Distance) -> Tensor:
    """Distance to the reference after each step, (T, n); summed over time it is `metrics.state_error`."""
    assert run.states is not None
    assert reference.states is not None
    after = (map_leaves(lambda leaf: leaf[1:].flatten(0, 1), states) for states in (run.states, reference.states))
    return measured_distance(distance, *after).reshape(run.projected.shape)


def _rows(
    task: Task, budget: float, made: Domain, run: Rollout, endpoint: Tensor, state_error: Tensor
) -> list[dict[str, Any]]:
    """One row a rollout; NEPE is joined later, since it needs the terminal rollout too."""
    failures = run.failed.sum(dim=0) + run.closing_failed
    columns: dict[str, list[Any]] = {
        "seed": list(task.seeds),
        "achieved_budget": (run.spent.double() / run.n_steps).tolist(),
        "path_error": path_error(run).double().tolist(),
        "endpoint": endpoint.double().tolist(),
        "state_error": state_error.double().tolist(),
        "concentration": top_mass(run.defects).double().tolist(),
        "projections": (run.spent + run.closing).tolist(),
        "closing": run.closing.tolist(),
        "failures": failures.tolist(),
        "iterations": run.all_iterations.tolist(),
    }
    if run.groups is not None:
        columns[GROUP] = [task.seeds[row] for row in run.groups.per_row(run.groups.first_row).tolist()]
    same = {
        "domain": task.domain,
        "kappa": float(made.settings.get("kappa", np.nan)),
        "schedule": task.schedule,
        "budget": budget,
        "n_steps": run.n_steps,
    }
    return [same | dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _iterations(run: Rollout) -> float:
    """Of a rollout on average, before the closing projection."""
    return float(run.iterations.sum(dim=0).double().mean())


def _described(task: Task) -> dict[str, Any]:
    return {
        "task": task.name,
        "domain": task.domain,
        "schedule": task.schedule,
        "budget": task.budgets[0] if len(task.budgets) == 1 else None,
        "rollouts": len(task.seeds) * len(task.budgets),
    }


def _costs(run: Rollout) -> dict[str, Any]:
    kinds = (("seconds", run.seconds), ("calls", run.calls), ("rows", run.rows))
    return {f"{kind}_{name}": value for kind, what in kinds for name, value in what.items()}


def _as_bytes(save: Callable[[Path], None]) -> bytes:
    with tempfile.TemporaryDirectory(prefix="trimtab-") as folder:
        save(Path(folder) / "shared")
        return (Path(folder) / "shared").read_bytes()


def _from_bytes(load: Callable[[Path], Thing], data: bytes) -> Thing:
    with tempfile.TemporaryDirectory(prefix="trimtab-") as folder:
        (Path(folder) / "shared").write_bytes(data)
        return load(Path(folder) / "shared")
