"""The paper's study of its six domains, against the same protocol written as a plain loop over seeds.

Both run the paper's own schedules: terminal, stepwise, periodic, and adaptive with the paper's prices. The loop takes
the samplers, constraints and noise from here, so that only the way of running them differs: one seed, one schedule and
one budget after another in one process.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from _compare import median_interval, row
from trimtab.core.noise import Noise, as_seeds
from trimtab_lab.domains import SYNTHETIC, domain
from trimtab_lab.domains.base import Domain, Problem
from trimtab_lab.studies.config import CALIBRATION_SEED, Study, preset
from trimtab_lab.studies.engine import run_study
from trimtab_lab.studies.store import Store

LOOPED = 16  # the loop runs one seed in this many and its time is multiplied: it takes as long for each seed
SCHEDULES = ("terminal", "stepwise", "periodic", "adaptive:paper")


def plain_rollout(problem: Problem, seed: int, budget: int, prices: Tensor | None, every: float) -> tuple[Tensor, ...]:
    """Run one seed step by step: by prices if there are any, else evenly spread."""
    sampler, constraint = problem.sampler, problem.constraint
    noise = Noise(as_seeds([seed]))
    x = sampler.start(noise)
    defects, residuals, states = [], [], []
    left = budget
    for t in range(sampler.n_steps):
        x = sampler.step(x, t, noise)
        defect = constraint.defect(x)
        defects.append(defect)
        due = int((t + 1) * every) > int(t * every) if prices is None else bool(defect >= prices[t, left])
        if due and left:
            x = as_tensor(constraint.project(x))
            defect = constraint.defect(x)
            left -= 1
        residuals.append(defect)
        states.append(x)
    return as_tensor(constraint.project(x)), torch.cat(defects), torch.cat(residuals), torch.cat(states)


def as_tensor(answer: Any) -> Tensor:
    return answer if isinstance(answer, Tensor) else answer.x


def plain_study(study: Study) -> None:
    """Compute what the rows of the study say about the paper's four schedules, one seed at a time."""
    with torch.no_grad():
        for made, budgets, n_seeds in problems(study):
            held_out = range(CALIBRATION_SEED, CALIBRATION_SEED + study.calibration_seeds)
            free = torch.stack([plain_rollout(made.problem([seed]), seed, 0, None, 0.0)[1] for seed in held_out], dim=1)
            prices = plain_prices(free)
            T = len(free)
            for seed in range(n_seeds):
                problem = made.problem([seed])
                reference = plain_rollout(problem, seed, T, None, 1.0)
                runs = [plain_rollout(problem, seed, 0, None, 0.0)]
                for budget in budgets:
                    b = int(budget * T + 0.5)
                    runs.append(plain_rollout(problem, seed, b, None, b / T))
                    runs.append(plain_rollout(problem, seed, b, prices, 0.0))
                for final, _, residuals, states in runs:
                    made.distance(final, reference[0])
                    made.distance(states, reference[3]).sum()
                    residuals.sum()


def plain_prices(defects: Tensor) -> Tensor:
    """Return a quantile for each step and budget, (T, T + 1)."""
    T, n = defects.shape
    table = torch.full((T, T + 1), -torch.inf, dtype=torch.float64)
    table[:, 0] = torch.inf
    for t in range(T):
        pool = defects[t:].flatten().sort(descending=True).values
        table[t, 1 : T - t] = pool[n - 1 : -1 : n]
    return table


def problems(study: Study) -> Iterator[tuple[Domain, tuple[float, ...], int]]:
    for name in study.domains:
        yield domain(name), study.budgets, study.seeds
    for name in study.kappa_domains:
        for kappa in study.kappas:
            yield domain(name, kappa=kappa), (study.table_budget,), study.kappa_seeds


def ours(study: Study) -> None:
    with tempfile.TemporaryDirectory() as directory, Store(Path(directory) / "run", study) as store:
        run_study(store)


def run(quick: bool) -> list[dict[str, Any]]:
    study = replace(preset("tiny" if quick else "paper"), schedules=SCHEDULES)
    if not quick:
        study = replace(study.only(SYNTHETIC), kappas=(), kappa_domains=())
    few = replace(
        study,
        seeds=max(1, study.seeds // LOOPED),
        kappa_seeds=max(1, study.kappa_seeds // LOOPED),
        calibration_seeds=max(1, study.calibration_seeds // LOOPED),
        example_seeds=0,
    )
    times = study.seeds / few.seeds
    ratios, taken = [], []
    for _ in range(1 if quick else 3):
        begin = perf_counter()
        ours(study)
        between = perf_counter()
        plain_study(few)
        taken.append((between - begin, times * (perf_counter() - between)))
        ratios.append(taken[-1][1] / taken[-1][0])
    own, loop = (sorted(column)[len(taken) // 2] for column in zip(*taken, strict=True))
    inputs = (
        f"{len(study.domains)} domains, {len(SCHEDULES)} schedules, {len(study.budgets)} budgets, {study.seeds} seeds; "
        f"ours {own:.0f} s with files, one process per core; the loop {loop:.0f} s in one process (one seed in "
        f"{times:g} run, times {times:g})"
    )
    claim = "a tiny study" if quick else "the paper's protocol on its six domains"
    return [row(claim, "a plain loop over seeds", median_interval(ratios), "" if quick else ">= 20", inputs)]
