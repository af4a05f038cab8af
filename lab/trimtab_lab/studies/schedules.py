"""The schedules that studies compare, by key.

To add one, add an entry to `STUDY_SCHEDULES`: a sentence, how to build it for a budget, and its calibration method if
it needs one. Tasks, rows, summaries, tables and figures follow from the key.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from trimtab.core.budget import PerBatch
from trimtab.core.checks import unknown
from trimtab.core.record import Closing
from trimtab.core.schedule import Schedule
from trimtab.loop.rollout import take_rows
from trimtab.prices.price import Price
from trimtab.schedules import Fixed, Geometric, Periodic, RandomRamp, Stepwise, Terminal
from trimtab_lab.domains.base import Problem
from trimtab_lab.limits.hindsight import hindsight

__all__ = ["SHARING", "STUDY_SCHEDULES", "ScheduleInputs", "StudySchedule", "study_schedule"]


@dataclass(frozen=True, eq=False)
class ScheduleInputs:
    """What a schedule may be built from.

    Attributes:
        problem: Made for `seeds`; hindsight searches on it.
        seeds: The seeds of the samples it decides for, (n,).
        thresholds: The calibrated prices, for keys that name a calibration method.
    """

    problem: Problem
    seeds: Tensor
    thresholds: Price | None = None

    @property
    def prices(self) -> Price:
        """The calibrated prices or planned steps."""
        assert self.thresholds is not None, "this schedule's key names no calibration method"
        return self.thresholds


@dataclass(frozen=True)
class StudySchedule:
    """How a study builds one of its schedules.

    Attributes:
        summary: One sentence.
        build: `build(inputs, budgets)` returns the schedule; budgets are numbers of corrections per sample, (n,).
        calibration: The `method` of `calibrate` whose prices it needs, or "on-policy"; None for none.
        only_budget: The one budget it makes sense for; None for any.
        cheap_only: True if it runs so many rollouts that only the synthetic domains can afford it.
        exact: True if it spends its budget to the last correction; a solver that has converged spends less.
        closings: Whether budgets may include the closing projection.
    """

    summary: str
    build: Callable[[ScheduleInputs, Tensor], Schedule]
    calibration: str | None = None
    only_budget: float | None = None
    cheap_only: bool = False
    exact: bool = True
    closings: tuple[Closing, ...] = ("paid", "free")


SHARING = 16
"""How many samples share a budget, as a small production batch does."""


def _shared(inputs: ScheduleInputs, budgets: Tensor) -> Schedule:
    starts = torch.nn.functional.pad(budgets.diff() != 0, (1, 0), value=True)  # a task runs budget after budget
    first = starts.nonzero().squeeze(1)[starts.cumsum(0) - 1]
    parts = first + (torch.arange(len(budgets)) - first) // SHARING
    return inputs.prices.at(PerBatch(budgets, parts))


def _calibrated(summary: str, method: str) -> StudySchedule:
    """Return a schedule made from the price of a `calibrate` method."""
    return StudySchedule(summary, lambda inputs, budgets: inputs.prices.at(budgets), method)


STUDY_SCHEDULES: dict[str, StudySchedule] = {
    "terminal": StudySchedule(
        "No projection during the rollout, one at its end.",
        lambda inputs, budgets: Terminal(),
        only_budget=0.0,
    ),
    "stepwise": StudySchedule(
        "A projection after every update: the reference.",
        lambda inputs, budgets: Stepwise(),
        only_budget=1.0,
    ),
    "periodic": StudySchedule(
        "Projections at evenly spaced steps.",
        lambda inputs, budgets: Periodic(budgets),
    ),
    "adaptive:paper": _calibrated(
        "A projection if the defect reaches the paper's price, a quantile of future defects of uncorrected rollouts.",
        "paper",
    ),
    "adaptive:dp": _calibrated(
        "A projection if the defect reaches the price that a dynamic program found on calibration rollouts.",
        "dp",
    ),
    "adaptive:on-policy": _calibrated(
        "The paper's rule, with prices calibrated on rollouts of the policy itself.",
        "on-policy",
    ),
    "planned": _calibrated(
        "Projections at the best steps of calibration rollouts, the same for all samples; defects are not used.",
        "planned",
    ),
    "trimtab": StudySchedule(
        "What trimtab does: prices of the dynamic program, and a budget that every 16 samples share.",
        _shared,
        "dp",
    ),
    "window": StudySchedule(
        "A projection at each of the last steps, as many as the budget allows, and none before.",
        lambda inputs, budgets: Fixed(_last_steps(inputs.problem.sampler.n_steps, budgets)),
    ),
    "first": StudySchedule(
        "A projection at each of the first steps, as many as the budget allows, and none after.",
        lambda inputs, budgets: Fixed(_first_steps(inputs.problem.sampler.n_steps, budgets)),
        closings=("free",),
    ),
    "geometric": StudySchedule(
        "Projections at steps whose distance to the end shrinks by a constant factor.",
        lambda inputs, budgets: Geometric(budgets),
    ),
    "random-ramp": StudySchedule(
        "Projections at random steps, later ones more likely, as in DDAT.",
        lambda inputs, budgets: RandomRamp(budgets),
    ),
    "hindsight": StudySchedule(
        "The best steps of each rollout, found afterwards: a limit, not a method.",
        lambda inputs, budgets: Fixed(_hindsight_mask(inputs, budgets)),
        cheap_only=True,
        closings=("free",),
    ),
}
"""By the names in rows, summaries and figures."""


def study_schedule(name: str) -> StudySchedule:
    """Return an entry by key."""
    if not isinstance(name, str) or name not in STUDY_SCHEDULES:
        raise unknown("schedule", name, STUDY_SCHEDULES)
    return STUDY_SCHEDULES[name]


def _last_steps(n_steps: int, budgets: Tensor) -> Tensor:
    """Return a mask of the last steps, (T, n) bool."""
    return torch.arange(n_steps)[:, None] >= n_steps - budgets


def _first_steps(n_steps: int, budgets: Tensor) -> Tensor:
    """Return a mask of the first steps, (T, n) bool."""
    return torch.arange(n_steps)[:, None] < budgets


def _hindsight_mask(inputs: ScheduleInputs, budgets: Tensor) -> Tensor:
    problem = inputs.problem
    mask = torch.zeros(problem.sampler.n_steps, len(budgets), dtype=torch.bool)
    for budget in sorted(set(budgets.tolist())):
        rows = (budgets == budget).nonzero().squeeze(1)
        sampler, constraint = take_rows(problem.sampler, rows), problem.constraint.take(rows)
        # one round of branching finds nearly all that can be found
        mask[:, rows] = hindsight(sampler, constraint, inputs.seeds[rows], budget, rounds=1, tries=2)
    return mask
