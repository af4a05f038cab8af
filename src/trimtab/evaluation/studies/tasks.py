"""The tasks a study is cut into, and what they depend on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

import trimtab
from trimtab.core.budget import Unit
from trimtab.core.files import parse_json
from trimtab.core.record import Closing
from trimtab.evaluation.domains import DOMAINS, SYNTHETIC, base_of, domain
from trimtab.evaluation.domains.base import Domain
from trimtab.evaluation.studies.config import SWEPT, Study
from trimtab.evaluation.studies.errors import StudyError
from trimtab.evaluation.studies.schedules import study_schedule
from trimtab.evaluation.studies.usercode import Source, domain_from, version_of

__all__ = [
    "EXPLORING",
    "Task",
    "code_version",
    "domain_of",
    "equivalent_schedule",
    "made_domain",
    "schedules_of",
    "source_of",
    "study_tasks",
]

EXPLORING = ("dp", "planned", "value")
"""The calibration methods that look at rollouts corrected at random, which they share."""

_ROLLOUTS = 320  # of a task, unless one budget takes more: enough to keep a core busy, few enough to fit in memory


@dataclass(frozen=True)
class Task:
    """One batched run of rollouts of a study, or a calibration that others share.

    Attributes:
        kind: "explore" runs the calibration rollouts that several methods share, "calibrate" estimates the prices of
            `schedule`'s method, "reference" runs full projection on seeds of its own, "rollout" runs `schedule`.
        domain: By name.
        schedule: By key.
        budgets: Fractions of T, run side by side.
        first: The first seed.
        stop: One past the last seed.
        kappa: The domain's restoring pull where it is swept; None leaves the domain's own.
        examples: How many of the seeds are kept to look at.
        origin: The record of the domain, if it is not a built-in one as it is; see `Study.origin`.
        factory: The code that makes a domain which is not built in; "" where it is, or where none was named.
        unit: What budgets count; see `Study`.
        closing: Whether they count the closing projection; see `Study`.
    """

    kind: Literal["explore", "calibrate", "reference", "rollout"]
    domain: str
    schedule: str
    budgets: tuple[float, ...]
    first: int
    stop: int
    kappa: float | None = None
    examples: int = 0
    origin: str = ""
    factory: str = ""
    unit: Unit = "projection"
    closing: Closing = "free"

    @property
    def problem(self) -> str:
        """The domain with its setting, as file names have it."""
        return self.domain if self.kappa is None else f"{self.domain}@kappa={self.kappa:g}"

    @property
    def name(self) -> str:
        """Unique within a study, and a file name."""
        if self.kind == "explore":
            return f"{self.problem}.explored"
        if self.kind == "reference":
            return f"{self.problem}.reference"
        if self.kind == "calibrate":
            return f"{self.problem}.calibration-{study_schedule(self.schedule).calibration}"
        several = "" if len(self.budgets) == 1 else f"-{self.budgets[-1]:.4f}"
        return self.name_at(self.budgets[0], several)

    def name_at(self, budget: float, more: str = "") -> str:
        """A file name for what it has at one of its budgets."""
        schedule = self.schedule.replace(":", "-")
        return f"{self.problem}.{schedule}.{budget:.4f}{more}.{self.first}-{self.stop}"

    @property
    def shares(self) -> bool:
        """Whether it leaves a file: what others need, or final states to be compared as distributions."""
        return self.kind != "rollout" or self.schedule == "stepwise" or self.kappa is None

    @property
    def describes(self) -> bool:
        """Whether it is the one task of its domain that says what reports need to know of it."""
        return (self.kind, self.schedule, self.first, self.kappa) == ("rollout", "terminal", 0, None)

    @property
    def seeds(self) -> range:
        """Of its rollouts."""
        return range(self.first, self.stop)

    @property
    def needs(self) -> dict[str, Task]:
        """The tasks whose files it needs, by what they are to it."""
        if self.kind in ("explore", "reference"):
            return {}
        if self.kind == "calibrate":
            explores = study_schedule(self.schedule).calibration in EXPLORING and self.unit == "projection"
            return {"explored": replace(self, kind="explore")} if explores else {}
        needs = {}
        if self.schedule != "stepwise":
            needs["reference"] = replace(self, schedule="stepwise", budgets=(1.0,), examples=0)
        if study_schedule(self.schedule).calibration is not None:
            needs["thresholds"] = replace(self, kind="calibrate")
        return needs


def study_tasks(study: Study, factories: Mapping[str, str] | None = None) -> list[Task]:
    """All tasks of a study, those that others need first.

    Args:
        study: What is run.
        factories: The code, "package.module:factory", of the domains that are not built in. It comes from whoever asks
            for the run, never from a file; without it such tasks have names and no more.
    """
    for key in study.schedules:
        if study.unit not in study_schedule(key).units:
            raise ValueError(f"the schedule {key} does not spend {study.unit}s: leave it out of a study in those")
        if study.closing not in study_schedule(key).closings:
            raise ValueError(f"the schedule {key} does not count the closing projection: leave it out of this study")
    tasks: dict[str, Task] = {}
    for name in study.domains:
        for task in _tasks_of(study, name, None, study.budgets, study.seeds, study.example_seeds):
            tasks.setdefault(task.name, task)
    for name in study.kappa_domains:
        for kappa in study.kappas:
            for task in _tasks_of(study, name, kappa, (study.table_budget,), study.kappa_seeds, 0):
                tasks.setdefault(task.name, task)
    named = factories or {}
    same: dict[str, Any] = {"unit": study.unit, "closing": study.closing}
    made = [replace(task, factory=named.get(task.domain, ""), **same) for task in tasks.values()]
    return sorted(made, key=lambda task: len(task.needs))


def _tasks_of(
    study: Study, name: str, kappa: float | None, budgets: tuple[float, ...], n_seeds: int, examples: int
) -> Iterator[Task]:
    origin, seeds = study.origin(name), study.seeds_of(name, n_seeds)
    first, last = seeds.calibration
    if kappa is None:
        yield Task("reference", name, "stepwise", (1.0,), *seeds.reference, origin=origin)
    for schedule in schedules_of(study, name, swept=kappa is not None):
        key = study_schedule(schedule)
        if key.calibration is not None:
            calibrate = Task("calibrate", name, schedule, (1.0,), first, last, kappa, origin=origin, unit=study.unit)
            yield from (*calibrate.needs.values(), calibrate)
        groups = _groups(study, name, budgets) if key.only_budget is None else [(key.only_budget,)]
        for begin, stop in pairwise(seeds.blocks):
            kept = examples if begin == 0 else 0
            for group in groups:
                yield Task("rollout", name, schedule, group, begin, stop, kappa, kept, origin)


def schedules_of(study: Study, name: str, swept: bool = False) -> list[str]:
    """The schedules that a study runs on a domain."""
    return [
        key
        for key in study.schedules
        if (base_of(name) in SYNTHETIC or not study_schedule(key).cheap_only) and (key in SWEPT or not swept)
    ]


def _groups(study: Study, name: str, budgets: tuple[float, ...]) -> list[tuple[float, ...]]:
    """The budgets that are run side by side.

    What a rollout costs is reported at the table's budget for the samplers whose cost matters, so there it is run, and
    timed, by itself.
    """
    alone = () if base_of(name) in SYNTHETIC else (study.table_budget,)
    inside = [budget for budget in budgets if equivalent_schedule("any", budget) == "any"]
    others = [budget for budget in inside if budget not in alone]
    size = max(1, _ROLLOUTS // study.block)
    groups = [tuple(others[i : i + size]) for i in range(0, len(others), size)]
    return [(budget,) for budget in inside if budget in alone] + groups


def equivalent_schedule(schedule: str, budget: float) -> str:
    """The schedule whose run stands for a schedule at a budget.

    With no budget every schedule is terminal correction and with all of it every schedule is stepwise correction, so
    those are run once.
    """
    return {0.0: "terminal", 1.0: "stepwise"}.get(budget, schedule)


# ------------------------------------------------------------------ what tasks depend on


def domain_of(task: Task) -> Domain:
    """The domain of a task, whose code must be named by the task and be what it was when the run began."""
    if not task.origin:
        return made_domain(task.domain, task.kappa)
    record = parse_json(task.origin, f"the record of {task.domain}")
    source = source_of(task.domain, record, task.factory)
    now, then = _version_of(source), record.get("code")
    if now != then:
        raise StudyError(
            f"{task.domain}: the sampler's code was {then} when the run began and is {now} now; old and new rows "
            "are not mixed: start again with --overwrite"
        )
    return domain_from(source)


def source_of(name: str, record: Mapping[str, Any], factory: str = "") -> Source:
    """Where a domain comes from, its settings by the record of a run and its code by the caller alone.

    Args:
        name: The domain's.
        record: Of `Study.samplers`. What it says of code is compared, never followed.
        factory: "package.module:factory" as it was named on the command line; "" if none was.
    """
    settings = json.dumps(record.get("settings", {}), sort_keys=True)
    if name in DOMAINS:
        return Source(name, "", settings)
    if not factory:
        raise StudyError(
            f"{name} is a sampler of your own, and code is run only if this very call names it: go on with `trimtab "
            f"compare --sampler {record.get('factory')} --name {name} --resume` and the options it was begun with"
        )
    return Source(name, factory, settings)


@lru_cache(maxsize=32)
def _version_of(source: Source) -> str:
    return version_of(source)


@lru_cache(maxsize=32)
def made_domain(name: str, kappa: float | None = None) -> Domain:
    """A built-in domain, made once a process: some load a model."""
    return domain(name) if kappa is None else domain(name, kappa=kappa)


ROW_MAKERS = ("core", "schedules", "constraints", "prices", "evaluation/limits", "evaluation/domains", "integrations")
"""The rooms whose code decides what is in a row."""

ROW_MAKING_STUDIES = (
    "config",
    "explored",
    "rules",
    "schedules",
    "tasks",
    "usercode",
    "whole_groups",
    "windows",
    "work",
)
"""And the modules of this one; words, figures, advice, the engines and the command line change no row."""

_WORDS = (  # how things are said, kept, sent and drawn
    "core/worker.py",
    "core/runner.py",
    "core/errors.py",
    "core/files.py",
    "core/batch_cache.py",
    "core/machine.py",
    "core/pools.py",
    "core/progress.py",
    "core/ray_pool.py",
    "core/html.py",
    "schedules/style.py",
)


@lru_cache(maxsize=1)
def code_version() -> str:
    """A hash of the code that makes rows, by an allow-list of rooms and modules, and of the libraries it uses."""
    root = Path(trimtab.__file__).parent
    digest = hashlib.sha256(f"torch {torch.__version__} numpy {np.__version__}".encode())
    rooms = [path for room in ROW_MAKERS for path in (root / room).rglob("*")]
    for path in sorted([*rooms, *(root / "evaluation" / "studies" / f"{name}.py" for name in ROW_MAKING_STUDIES)]):
        parts = path.relative_to(root).parts
        if path.is_file() and "__pycache__" not in parts and "/".join(parts) not in _WORDS:
            digest.update("/".join(parts).encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]
