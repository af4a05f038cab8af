"""The tasks of a study, and what they depend on."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

import trimtab
import trimtab_lab
from trimtab.core.record import Closing
from trimtab_lab.domains import DOMAINS, SYNTHETIC, base_of, domain
from trimtab_lab.domains.base import Domain
from trimtab_lab.files import parse_json
from trimtab_lab.studies.config import SWEPT, Study, StudyError
from trimtab_lab.studies.schedules import study_schedule
from trimtab_lab.studies.usercode import Source, domain_from, version_of

__all__ = ["Task", "code_version", "domain_of", "equivalent_schedule", "made_domain", "schedules_of", "study_tasks"]

_ROLLOUTS = 4096  # per task, unless one budget takes more: enough to keep a core busy, few enough to fit in memory


@dataclass(frozen=True)
class Task:
    """One batch of rollouts of a study, or a calibration that other tasks use.

    Attributes:
        kind: "calibrate" estimates the prices of `schedule`'s method, "reference" runs full projection on separate
            seeds, "rollout" runs `schedule`.
        domain: By name.
        schedule: By key.
        budgets: Fractions of T, run in one batch.
        first: The first seed.
        stop: One past the last seed.
        kappa: The domain's restoring pull in a sweep; None keeps the domain's value.
        examples: Number of seeds that are kept for drawings.
        origin: The record of a domain that is not built in, or has changed settings; see `Study.origin`.
        factory: The code that makes a domain which is not built in; "" if it is, or if no code was named.
        closing: Whether budgets include the closing projection; see `Study`.
    """

    kind: Literal["calibrate", "reference", "rollout"]
    domain: str
    schedule: str
    budgets: tuple[float, ...]
    first: int
    stop: int
    kappa: float | None = None
    examples: int = 0
    origin: str = ""
    factory: str = ""
    closing: Closing = "free"

    @property
    def name(self) -> str:
        """A file name, unique within a study."""
        if self.kind == "rollout":
            several = "" if len(self.budgets) == 1 else f"-{self.budgets[-1]:.4f}"
            return self.name_at(self.budgets[0], several)
        what = "reference" if self.kind == "reference" else f"calibration-{study_schedule(self.schedule).calibration}"
        return f"{self._problem}.{what}"

    @property
    def _problem(self) -> str:
        return self.domain if self.kappa is None else f"{self.domain}@kappa={self.kappa:g}"

    def name_at(self, budget: float, more: str = "") -> str:
        """Return a file name for the result at one of the budgets."""
        schedule = self.schedule.replace(":", "-")
        return f"{self._problem}.{schedule}.{budget:.4f}{more}.{self.first}-{self.stop}"

    @property
    def has_output(self) -> bool:
        """Whether the task has a file of tensors: inputs of other tasks, or final states."""
        return self.kind != "rollout" or self.schedule == "stepwise" or self.kappa is None

    @property
    def describes(self) -> bool:
        """Whether this is the one task of its domain that records the facts which reports need."""
        return (self.kind, self.schedule, self.first, self.kappa) == ("rollout", "terminal", 0, None)

    @property
    def seeds(self) -> range:
        """The seeds of the rollouts."""
        return range(self.first, self.stop)

    @property
    def needs(self) -> dict[str, Task]:
        """The tasks whose files this one reads, by role."""
        if self.kind != "rollout":
            return {}
        needs = {}
        if self.schedule != "stepwise":
            needs["reference"] = replace(self, schedule="stepwise", budgets=(1.0,), examples=0)
        if study_schedule(self.schedule).calibration is not None:
            needs["thresholds"] = replace(self, kind="calibrate")
        return needs


def study_tasks(study: Study, factories: Mapping[str, str] | None = None) -> list[Task]:
    """Return all tasks of a study, each after those that it needs.

    Args:
        study: What is run.
        factories: The code, "package.module:factory", of the domains that are not built in. It comes from the caller,
            never from a file; without it such tasks have names and cannot run.
    """
    for key in study.all_schedules:
        if study.closing not in study_schedule(key).closings:
            raise ValueError(f"the schedule {key} does not count the closing projection: leave it out of this study")
    tasks: dict[str, Task] = {}
    for name in study.domains:
        for task in _tasks_of(study, name, None, study.budgets_of(name), study.seeds, study.example_seeds):
            tasks.setdefault(task.name, task)
    for name in study.kappa_domains:
        for kappa in study.kappas:
            for task in _tasks_of(study, name, kappa, (study.table_budget,), study.kappa_seeds, 0):
                tasks.setdefault(task.name, task)
    named = factories or {}
    same: dict[str, Any] = {"closing": study.closing}
    made = [replace(task, factory=named.get(task.domain, ""), **same) for task in tasks.values()]
    return sorted(made, key=lambda task: len(task.needs))


def _tasks_of(
    study: Study, name: str, kappa: float | None, budgets: tuple[float, ...], n_seeds: int, examples: int
) -> Iterator[Task]:
    origin, seeds = study.origin(name), study.seeds_of(name, n_seeds)
    first, last = seeds.calibration
    if kappa is None and name not in study.exceptions:
        yield Task("reference", name, "stepwise", (1.0,), *seeds.reference, origin=origin)
    for schedule in schedules_of(study, name, swept=kappa is not None):
        key = study_schedule(schedule)
        if key.calibration is not None:
            yield Task("calibrate", name, schedule, (1.0,), first, last, kappa, origin=origin)
        groups = _budget_groups(study, name, budgets) if key.only_budget is None else [(key.only_budget,)]
        for start, stop in pairwise(seeds.blocks):
            kept = examples if start == 0 else 0
            for group in groups:
                yield Task("rollout", name, schedule, group, start, stop, kappa, kept, origin)


def schedules_of(study: Study, name: str, swept: bool = False) -> list[str]:
    """Return the schedules that a study runs on a domain."""
    return [
        key
        for key in study.schedules_of(name)
        if (base_of(name) in SYNTHETIC or not study_schedule(key).cheap_only) and (key in SWEPT or not swept)
    ]


def _budget_groups(study: Study, name: str, budgets: tuple[float, ...]) -> list[tuple[float, ...]]:
    """Return the budgets that are run in one batch each."""
    inside = [budget for budget in budgets if equivalent_schedule("any", budget) == "any"]
    size = max(1, _ROLLOUTS // study.exceptions.get(name, {}).get("block", study.block))
    return [tuple(inside[i : i + size]) for i in range(0, len(inside), size)]


def equivalent_schedule(schedule: str, budget: float) -> str:
    """Return the schedule whose run is used for a schedule at a budget.

    With no budget every schedule is terminal correction, and with all of it every schedule is stepwise correction, so
    those are run once.
    """
    return {0.0: "terminal", 1.0: "stepwise"}.get(budget, schedule)


# ------------------------------------------------------------------ what tasks depend on


def domain_of(task: Task) -> Domain:
    """Return the domain of a task; code of the user must be named by the task and unchanged since the run started."""
    if not task.origin:
        return made_domain(task.domain, task.kappa)
    record = parse_json(task.origin, f"the record of {task.domain}")
    source = _source_of(task, record)
    now, then = _version_of(source), record.get("code")
    if now != then:
        raise StudyError(
            f"{task.domain}: the sampler's code was {then} when the run started and is {now} now; old and new rows "
            "are not mixed: start again with --overwrite"
        )
    return domain_from(source)


def _source_of(task: Task, record: Mapping[str, Any]) -> Source:
    """Return the source of a domain: its settings come from the record, its code only from the caller."""
    settings = json.dumps(record.get("settings", {}), sort_keys=True)
    if task.domain in DOMAINS:
        return Source(task.domain, "", settings)
    if not task.factory:
        raise StudyError(
            f"{task.domain} is a sampler of your own, and code is run only if this very call names it: continue with "
            f"`trimtab compare --sampler {record.get('factory')} --name {task.domain} --resume` and the options it was "
            "started with"
        )
    return Source(task.domain, task.factory, settings)


_version_of = lru_cache(maxsize=32)(version_of)


@lru_cache(maxsize=32)
def made_domain(name: str, kappa: float | None = None) -> Domain:
    """Return a built-in domain, made once per process: some load a model."""
    return domain(name) if kappa is None else domain(name, kappa=kappa)


@lru_cache(maxsize=1)
def code_version() -> str:
    """Return a hash of the files of library and lab and of the library versions; rows of two are never mixed."""
    digest = hashlib.sha256(f"torch {torch.__version__} numpy {np.__version__}".encode())
    for root in (Path(trimtab.__file__).parent, Path(trimtab_lab.__file__).parent):
        for path in sorted(path for path in root.rglob("*") if path.is_file() and "__pycache__" not in path.parts):
            digest.update(path.relative_to(root).as_posix().encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


THREADS = 1
"""Threads of a task: sums may be split, and so rounded, differently with more."""


def machine_facts() -> dict[str, Any]:
    """Return the facts on which the last bits of a result depend; libraries choose instructions by the processor."""
    found: Any = np.show_config(mode="dicts")
    simd = found.get("SIMD Extensions", {})
    return {
        "processor": platform.machine(),
        "torch_instructions": torch.backends.cpu.get_cpu_capability(),
        "numpy_instructions": " ".join([*simd.get("baseline", ()), *simd.get("found", ())]),
        "threads": THREADS,
        "dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": ".".join(platform.python_version_tuple()[:2]),
    }
