"""The schedules a study compares, by key.

A new one is an entry in `STUDY_SCHEDULES`: a sentence, how to build it for a budget, and what it must be calibrated
with, if anything. Everything else (tasks, rows, summaries, tables, figures) goes by the key.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from trimtab.core.errors import unknown
from trimtab.core.rollout import take_rows
from trimtab.core.schedule import Schedule
from trimtab.domains.base import Problem
from trimtab.experimental.value import Value
from trimtab.limits.hindsight import hindsight
from trimtab.prices.calibration import Price
from trimtab.schedules import Fixed, Periodic, Stepwise, Terminal

__all__ = ["STUDY_SCHEDULES", "Ingredients", "StudySchedule", "study_schedule"]


@dataclass(frozen=True, eq=False)
class Ingredients:
    """What a schedule may be built from.

    Attributes:
        problem: Made for `seeds`; what hindsight would search on.
        seeds: Of the rollouts it will decide for, (n,).
        thresholds: The calibrated prices, for keys that name a calibration method.
    """

    problem: Problem
    seeds: Tensor
    thresholds: Price | Value | None = None

    @property
    def prices(self) -> Price | Value:
        """The calibrated prices, or planned times."""
        assert self.thresholds is not None, "this schedule's key names no calibration method"
        return self.thresholds


@dataclass(frozen=True)
class StudySchedule:
    """How a study builds one of its schedules.

    Attributes:
        summary: One sentence.
        build: The schedule for budgets, a number of corrections for each sample, (n,).
        calibration: The `method` of `calibrate` whose prices it needs; None for none.
        only_budget: The one budget it makes sense for; None for any.
        cheap_only: Whether it runs so many rollouts that only the synthetic domains can afford it.
    """

    summary: str
    build: Callable[[Ingredients, Tensor], Schedule]
    calibration: str | None = None
    only_budget: float | None = None
    cheap_only: bool = False


def _priced(summary: str, method: str, cheap_only: bool = False) -> StudySchedule:
    """A schedule made of the price that a method of `calibrate` finds."""
    return StudySchedule(summary, lambda given, budgets: given.prices.at(budgets), method, cheap_only=cheap_only)


STUDY_SCHEDULES: dict[str, StudySchedule] = {
    "terminal": StudySchedule(
        "No projection during the rollout, one at its end.",
        lambda given, budgets: Terminal(),
        only_budget=0.0,
    ),
    "stepwise": StudySchedule(
        "A projection after every update: the reference.",
        lambda given, budgets: Stepwise(),
        only_budget=1.0,
    ),
    "periodic": StudySchedule(
        "Projections at evenly spread steps.",
        lambda given, budgets: Periodic(budgets),
    ),
    "adaptive:paper": _priced(
        "A projection where the defect reaches the paper's price, a quantile of uncorrected rollouts' future defects.",
        "paper",
    ),
    "adaptive:dp": _priced(
        "A projection where the defect reaches the price that a dynamic program found on calibration rollouts.",
        "dp",
    ),
    "adaptive:on-policy": _priced(
        "The paper's rule, its prices calibrated on rollouts of the policy itself.",
        "on-policy",
    ),
    "adaptive:value": _priced(
        "The dynamic program's prices, changed where a learned advantage of correcting now was seen to do better.",
        "value",
        cheap_only=True,
    ),
    "planned": _priced(
        "Projections at the best steps of calibration rollouts, the same for all samples; no defect is looked at.",
        "planned",
    ),
    "hindsight": StudySchedule(
        "The best steps of each rollout, found afterwards: the limit, not a method.",
        lambda given, budgets: Fixed(_hindsight_mask(given, budgets)),
        cheap_only=True,
    ),
}
"""By the names used in rows, summaries and figures."""


def _hindsight_mask(given: Ingredients, budgets: Tensor) -> Tensor:
    problem = given.problem
    mask = torch.zeros(problem.sampler.n_steps, len(budgets), dtype=torch.bool)
    for budget in sorted(set(budgets.tolist())):
        rows = (budgets == budget).nonzero().squeeze(1)
        sampler, constraint = take_rows(problem.sampler, rows), problem.constraint.take(rows)
        # one round of branching finds nearly all there is to find; see tests/test_oracle.py
        mask[:, rows] = hindsight(sampler, constraint, given.seeds[rows], budget, rounds=1, tries=2)
    return mask


def study_schedule(name: str) -> StudySchedule:
    """A key by name."""
    if name not in STUDY_SCHEDULES:
        raise unknown("schedule", name, STUDY_SCHEDULES)
    return STUDY_SCHEDULES[name]
