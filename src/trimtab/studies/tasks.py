"""The tasks a study is cut into, and what running one of them does.

A task is a pure function of its description and of the results it needs. It writes nothing; who runs it keeps what
it returns.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

import trimtab
from trimtab.calibration import calibrate
from trimtab.domains import SYNTHETIC, domain
from trimtab.domains.base import Domain
from trimtab.loop import replay, rollout
from trimtab.metrics import Distance, endpoint_distance, path_error, top_mass
from trimtab.noise import as_seeds
from trimtab.price_file import load_price
from trimtab.record import Rollout
from trimtab.schedule import Schedule, corrections
from trimtab.studies.config import CALIBRATION_SEED, SWEPT, Study
from trimtab.studies.errors import StudyError
from trimtab.studies.schedules import Material, schedule_key
from trimtab.studies.traces import Trace
from trimtab.usercode import Source, domain_from, version_of

__all__ = ["QUALITY", "Result", "Task", "code_version", "made_domain", "run_task", "study_tasks"]

QUALITY = "quality_"
"""How the columns of a domain's own judgement of its final states begin."""

Thing = TypeVar("Thing")


@dataclass(frozen=True)
class Task:
    """One batched rollout of a study, or the calibration that others share.

    Attributes:
        kind: "calibrate" estimates the prices of `schedule`'s method, "rollout" runs `schedule`.
        domain: By name.
        schedule: By key.
        budget: A fraction of T.
        first: The first seed.
        stop: One past the last seed.
        kappa: The domain's restoring pull where it is swept; None leaves the domain's own.
        examples: How many of the seeds are kept to look at.
        origin: Where the domain comes from, if it is not built in; see `Study.origin`.
    """

    kind: Literal["calibrate", "rollout"]
    domain: str
    schedule: str
    budget: float
    first: int
    stop: int
    kappa: float | None = None
    examples: int = 0
    origin: str = ""

    @property
    def problem(self) -> str:
        """The domain with its setting, as file names have it."""
        return self.domain if self.kappa is None else f"{self.domain}@kappa={self.kappa:g}"

    @property
    def name(self) -> str:
        """Unique within a study, and a file name."""
        if self.kind == "calibrate":
            return f"{self.problem}.calibration-{schedule_key(self.schedule).calibration}"
        schedule = self.schedule.replace(":", "-")
        return f"{self.problem}.{schedule}.{self.budget:.4f}.{self.first}-{self.stop}"

    @property
    def seeds(self) -> range:
        """Of its rollouts."""
        return range(self.first, self.stop)

    @property
    def needs(self) -> dict[str, Task]:
        """The tasks whose files it needs, by what they are to it."""
        if self.kind == "calibrate":
            return {}
        needs = {}
        if self.schedule != "stepwise":
            needs["reference"] = replace(self, schedule="stepwise", budget=1.0, examples=0)
        if schedule_key(self.schedule).calibration is not None:
            needs["thresholds"] = Task("calibrate", self.domain, self.schedule, 1.0, 0, 0, self.kappa)
        return needs


def study_tasks(study: Study) -> list[Task]:
    """All tasks of a study, those that others need first."""
    tasks: dict[str, Task] = {}
    for name in study.domains:
        for task in _tasks_of(study, name, None, study.budgets, study.seeds, study.example_seeds):
            tasks.setdefault(task.name, task)
    for name in study.kappa_domains:
        for kappa in study.kappas:
            for task in _tasks_of(study, name, kappa, (study.table_budget,), study.kappa_seeds, 0):
                tasks.setdefault(task.name, task)
    return sorted(tasks.values(), key=lambda task: len(task.needs))


def _tasks_of(
    study: Study, name: str, kappa: float | None, budgets: tuple[float, ...], n_seeds: int, examples: int
) -> Iterator[Task]:
    origin = study.origin(name)
    for schedule in study.schedules:
        key = schedule_key(schedule)
        if (key.cheap_only and name not in SYNTHETIC) or (kappa is not None and schedule not in SWEPT):
            continue
        if key.calibration is not None:
            last = CALIBRATION_SEED + study.calibration_seeds
            yield Task("calibrate", name, schedule, 1.0, CALIBRATION_SEED, last, kappa, origin=origin)
        for budget in budgets if key.only_budget is None else (key.only_budget,):
            for first in range(0, n_seeds, study.block):
                stop = min(first + study.block, n_seeds)
                kept = examples if first == 0 else 0
                yield Task("rollout", name, schedule, budget, first, stop, kappa, kept, origin)


# ------------------------------------------------------------------ running one


@dataclass(frozen=True)
class Result:
    """What a task returns.

    Attributes:
        rows: One a rollout, a function of the task and the code alone.
        timing: Seconds, calls and rows handled; differs from run to run.
        code: The version of the code that ran it.
        shared: A file that other tasks need: prices, or the stepwise reference.
        trace: A file of example rollouts to look at.
    """

    rows: list[dict[str, Any]]
    timing: dict[str, Any]
    code: str
    shared: bytes | None = None
    trace: bytes | None = None


def run_task(task: Task, inputs: Mapping[str, bytes]) -> Result:
    """Run one task.

    Args:
        task: What to run.
        inputs: The `shared` files of the tasks it needs, by the names `Task.needs` gives them.
    """
    begin = perf_counter()
    result = _calibrate(task) if task.kind == "calibrate" else _rollout(task, inputs)
    result.timing["seconds"] = perf_counter() - begin
    return result


def _calibrate(task: Task) -> Result:
    problem = _domain_of(task).problem(task.seeds)
    method = schedule_key(task.schedule).calibration
    assert method is not None
    prices = calibrate(problem.sampler, problem.constraint, task.seeds, budget=1.0, method=method)
    return Result([], _described(task), code_version(), shared=_as_bytes(prices.save))


def _rollout(task: Task, inputs: Mapping[str, bytes]) -> Result:
    made = _domain_of(task)
    seeds = as_seeds(task.seeds)
    problem = made.problem(seeds)
    prices = _from_bytes(load_price, inputs["thresholds"]) if "thresholds" in inputs else None
    schedule = schedule_key(task.schedule).build(Material(problem, seeds, prices), task.budget)
    run = rollout(problem.sampler, problem.constraint, schedule, seeds, keep_states=True)
    verify(task, schedule, run)

    reference = run if task.schedule == "stepwise" else _from_bytes(Rollout.load, inputs["reference"])
    apart = distances_along(run, reference, made.distance)
    rows = _rows(task, made, run, endpoint_distance(run, reference, made.distance), apart.sum(dim=0))
    if made.quality is not None:
        judged = {f"{QUALITY}{name}": v.tolist() for name, v in made.quality(run.final, problem.constraint).items()}
        rows = [row | {name: values[i] for name, values in judged.items()} for i, row in enumerate(rows)]
    timing = _described(task)
    for kind, what in (("seconds", run.seconds), ("calls", run.calls), ("rows", run.rows)):
        timing |= {f"{kind}_{name}": value for name, value in what.items()}
    return Result(
        rows,
        timing,
        code_version(),
        shared=_as_bytes(run.save) if task.schedule == "stepwise" else None,
        trace=_as_bytes(Trace.of(task.domain, run, apart, task.examples).save) if task.examples else None,
    )


def verify(task: Task, schedule: Schedule, run: Rollout) -> None:
    """The schedule that ran is the schedule that was asked for, and it spent its budget exactly."""
    if not torch.equal(replay(schedule, run), run.projected):
        raise StudyError(f"{task.name}: the recorded decisions are not those of the schedule asked for")
    wanted = corrections(task.budget, run.n_steps)
    if bool((run.spent != wanted).any()):
        raise StudyError(
            f"{task.name}: a budget of {wanted} corrections was asked for, {sorted(set(run.spent.tolist()))} were spent"
        )


def distances_along(run: Rollout, reference: Rollout, distance: Distance) -> Tensor:
    """Distance to the reference after each step, (T, n); summed over time it is `metrics.state_error`."""
    assert run.states is not None
    assert reference.states is not None
    steps, n = run.projected.shape
    return distance(run.states[1:].flatten(0, 1), reference.states[1:].flatten(0, 1)).reshape(steps, n)


def _rows(task: Task, made: Domain, run: Rollout, endpoint: Tensor, state_error: Tensor) -> list[dict[str, Any]]:
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
        "iterations": run.iterations.sum(dim=0).tolist(),
    }
    same = {
        "domain": task.domain,
        "kappa": float(made.settings.get("kappa", np.nan)),
        "schedule": task.schedule,
        "budget": task.budget,
        "n_steps": run.n_steps,
    }
    return [same | dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _described(task: Task) -> dict[str, Any]:
    facts: dict[str, Any] = {"task": task.name, "domain": task.domain, "schedule": task.schedule}
    return facts | {"budget": task.budget, "rollouts": len(task.seeds)}


def _domain_of(task: Task) -> Domain:
    if task.origin and (now := _version_of(task.domain, task.origin)) != (then := json.loads(task.origin)["code"]):
        raise StudyError(f"{task.domain}: the sampler's code was {then} when the run began and is {now} now")
    return made_domain(task.domain, task.kappa, task.origin)


@lru_cache(maxsize=32)
def _version_of(name: str, origin: str) -> str:
    return version_of(_source(name, origin))


def _source(name: str, origin: str) -> Source:
    facts = json.loads(origin)
    return Source(name, facts["factory"], json.dumps(facts["settings"], sort_keys=True))


@lru_cache(maxsize=32)
def made_domain(name: str, kappa: float | None = None, origin: str = "") -> Domain:
    """A domain, made once a process: some load a model."""
    if origin:
        return domain_from(_source(name, origin))
    return domain(name) if kappa is None else domain(name, kappa=kappa)


_NO_EFFECT_ON_ROWS = ("cli.py", "__main__.py", "report")


@lru_cache(maxsize=1)
def code_version() -> str:
    """A hash of everything in the package that rows could depend on, and of the libraries that compute them."""
    root = Path(trimtab.__file__).parent
    digest = hashlib.sha256(f"torch {torch.__version__} numpy {np.__version__}".encode())
    for path in sorted(root.rglob("*")):
        parts = path.relative_to(root).parts
        if path.is_file() and "__pycache__" not in parts and parts[0] not in _NO_EFFECT_ON_ROWS:
            digest.update("/".join(parts).encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def _as_bytes(save: Callable[[Path], None]) -> bytes:
    with tempfile.TemporaryDirectory(prefix="trimtab-") as folder:
        save(Path(folder) / "shared")
        return (Path(folder) / "shared").read_bytes()


def _from_bytes(load: Callable[[Path], Thing], data: bytes) -> Thing:
    with tempfile.TemporaryDirectory(prefix="trimtab-") as folder:
        (Path(folder) / "shared").write_bytes(data)
        return load(Path(folder) / "shared")
