"""Run the cells of the benchmark: a system, a rule and a budget each; one small file per cell, so that runs resume."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import trimtab as tt
from trimtab.core.files import read_json, write_atomically
from trimtab.core.quality import as_quality
from trimtab.core.record import Rollout
from trimtab.prices import Learner
from trimtab_lab.bench.rules import Changed, NotApplicable, Rule
from trimtab_lab.bench.system import CALIBRATION, EVALUATION, FITTING, System

__all__ = ["BUDGETS", "Cell", "cells_of", "read_cells", "run_cell", "run_cells"]

BUDGETS = {"smoke": (0.25,), "whole": (0.1, 0.25, 0.5)}
"""Shares of the work of full projection."""

_NEAR = 0.1  # how far the work on the fitting seeds may be from the budget, as a share
_FEW = 32  # samples that budgets are fitted on
_VERSION = 1


@dataclass(frozen=True)
class Cell:
    """One system, one rule, one budget (None for a rule that has a cost of its own)."""

    system: System
    rule: Rule
    budget: float | None

    @property
    def name(self) -> str:
        """The name of its file."""
        at = "" if self.budget is None else f"@{self.budget:g}"
        return f"{_plain(self.system.name)}--{_plain(self.rule.name)}{at}"

    @property
    def key(self) -> dict[str, Any]:
        """What a kept result must agree with."""
        system = self.system
        sizes = [system.samples, system.learning, system.batch]
        return {
            "version": _VERSION,
            "trimtab": tt.__version__,
            "system": system.name,
            "rule": self.rule.name,
            "budget": self.budget,
            "sizes": sizes,
            "measure": system.measure,
        }


def cells_of(systems: Iterable[System], rules: Iterable[Rule], budgets: Iterable[float]) -> list[Cell]:
    """Return all cells, system by system, full projection and terminal first."""
    rules, budgets = sorted(rules, key=lambda rule: rule.name not in ("full", "terminal")), tuple(budgets)
    return [
        Cell(system, rule, budget)
        for system in systems
        for rule in rules
        for budget in (budgets if rule.by_budget else (None,))
    ]


# ------------------------------------------------------------------ what a run costs and gives


def metered(system: System, problem: tt.Problem, schedule: Any) -> tuple[Rollout, Tensor]:
    """Run a batch; return its record and the work of each sample, (n,).

    Work is what the system's meter counts, shared by the batch; else solver iterations, or projections if the solver
    counts none.
    """
    before = 0.0 if system.meter is None else system.meter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # infeasible samples are counted, and path error is not the measure here
        if isinstance(schedule, Changed):
            problem, schedule = replace(problem, constraint=schedule.constraint(problem.constraint)), schedule.schedule
        run = problem.rollout(schedule)
    if system.meter is not None:
        return run, torch.full((len(problem),), (system.meter() - before) / len(problem), dtype=torch.float64)
    iterations = run.all_iterations.double()
    return run, iterations if float(iterations.sum()) > 0 else run.paid.double()


@dataclass(frozen=True)
class _Reference:
    """Full projection of the evaluation seeds, batch by batch."""

    finals: tuple[Any, ...]
    work: float  # per sample


@lru_cache(maxsize=2)
def _reference(system: System, first: int, count: int) -> _Reference:
    pairs = [metered(system, problem, tt.Stepwise()) for problem in system.batches(first, count)]
    return _Reference(tuple(run.final for run, _ in pairs), float(torch.cat([spent for _, spent in pairs]).mean()))


def _fitted(cell: Cell, budget: float) -> Any:
    """Return the rule's schedule whose work is the budget on seeds of its own; what comes nearest of three."""
    system, asked, nearest = cell.system, budget, (float("inf"), None)
    count = min(_FEW, system.learning)
    aim = budget * (1 - _NEAR / 2)  # samples differ: what is at the budget here may be over it there
    full = _reference(system, FITTING, count).work
    for _ in range(3):
        schedule = cell.rule.make(system, asked)
        spent = [metered(system, problem, schedule)[1] for problem in system.batches(FITTING, count)]
        share = float(torch.cat(spent).mean()) / full
        nearest = min(nearest, (abs(share / aim - 1), schedule), key=lambda pair: pair[0])
        if nearest[0] <= _NEAR / 2:
            break
        asked = min(1.0, max(0.005, asked * aim / share))
    return nearest[1]


def run_cell(cell: Cell) -> dict[str, Any]:
    """Run one cell and return what its file holds; `skipped` says why there are no numbers."""
    system, rule, began = cell.system, cell.rule, time.perf_counter()
    if system.missing:
        return {"key": cell.key, "skipped": system.missing}
    try:
        schedule = rule.make(system, 1.0 if cell.budget is None else cell.budget)
        if cell.budget is not None and not isinstance(schedule, Learner):
            schedule = _fitted(cell, cell.budget)
        if isinstance(schedule, Learner):  # its first batches are production as well, on the seeds others learn from
            for problem in system.batches(CALIBRATION, system.learning):
                metered(system, problem, schedule)
    except NotApplicable as reason:
        return {"key": cell.key, "skipped": str(reason)}
    prepared = time.perf_counter() - began
    reference = _reference(system, EVALUATION, system.samples)
    problems = system.batches(EVALUATION)
    pairs = [metered(system, problem, schedule) for problem in problems]
    runs = [run for run, _ in pairs]
    apart = [p.distance(r.final, final) for p, r, final in zip(problems, runs, reference.finals, strict=True)]
    judge = as_quality(system.quality)
    qualities = apart if judge is None else [judge.costs(run.final) for run in runs]
    kinds = runs[0].seconds
    facts: dict[str, Any] = {
        "key": cell.key,
        "quality": _list(qualities),
        "distance": _list(apart),
        "work": _list([spent for _, spent in pairs]),
        "full": reference.work,
        "calls": sum(run.calls["projection"] for run in runs) / len(runs),
        "feasible": float(torch.cat([run.feasible for run in runs]).double().mean()),
        "seconds": {kind: sum(run.seconds[kind] for run in runs) / system.samples for kind in kinds},
        "preparing": prepared,
    }
    if isinstance(schedule, Learner):
        facts["report"] = repr(schedule.report())
    return facts


def _list(parts: list[Tensor]) -> list[float]:
    return [float(f"{value:.6g}") for value in torch.cat([part.double() for part in parts]).tolist()]


# ------------------------------------------------------------------ all cells


def run_cells(cells: list[Cell], folder: Path, progress: Callable[[str], None]) -> Iterator[Mapping[str, Any]]:
    """Run what the folder does not hold yet, and yield every cell's facts.

    Each cell is one JSON file, written at once or not at all, so a stopped run continues where it was.
    """
    folder.mkdir(parents=True, exist_ok=True)
    threads, began, done = torch.get_num_threads(), time.monotonic(), 0
    todo = [cell for cell in cells if _kept(cell, folder) is None]
    torch.set_num_threads(1)
    try:
        for cell in cells:
            facts = _kept(cell, folder)
            if facts is None:
                facts = run_cell(cell)
                write_atomically(folder / f"{cell.name}.json", f"{json.dumps(facts)}\n".encode())
                done += 1
                to_go = (time.monotonic() - began) / done * (len(todo) - done)
                progress(f"{done} of {len(todo)} · {cell.name} · {_said(facts)} · about {to_go / 60:.1f} min to go")
            yield facts
    finally:
        torch.set_num_threads(threads)


def read_cells(folder: Path) -> list[dict[str, Any]]:
    """Return the facts of all cells that a folder holds."""
    return [read_json(file) for file in sorted(folder.glob("*--*.json"))]


def _kept(cell: Cell, folder: Path) -> dict[str, Any] | None:
    """Return a finished cell; None if there is none, or one of other settings."""
    file = folder / f"{cell.name}.json"
    if not file.is_file():
        return None
    try:
        facts: dict[str, Any] = read_json(file)
    except ValueError:
        return None
    return facts if facts.get("key") == cell.key else None


def _said(facts: Mapping[str, Any]) -> str:
    if "skipped" in facts:
        return f"left out: {facts['skipped']}"
    values, spent = torch.tensor(facts["quality"]), torch.tensor(facts["work"])
    share = float(spent.mean()) / facts["full"]
    return f"median {float(values.median()):.3g}, mean {float(values.mean()):.3g} for {share:.0%} of the work"


def _plain(name: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in name).strip("-")
