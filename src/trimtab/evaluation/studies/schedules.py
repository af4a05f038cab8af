"""The schedules a study compares, by key.

A new one is an entry in `STUDY_SCHEDULES`: a sentence, how to build it for a budget, and what it must be calibrated
with, if anything. Everything else (tasks, rows, summaries, tables, figures) goes by the key.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from trimtab.core.budget import Unit
from trimtab.core.checks import check_callable, check_number, check_type, unknown
from trimtab.core.record import Closing
from trimtab.core.rollout import take_rows
from trimtab.core.schedule import Schedule
from trimtab.evaluation.domains.base import Problem
from trimtab.evaluation.limits.hindsight import hindsight
from trimtab.evaluation.studies.rules import Rule
from trimtab.prices.iterations import even_counts, whole_counts
from trimtab.prices.plan import Plan
from trimtab.prices.price import Allowance, Price, Raced, Thresholds
from trimtab.prices.race import EVEN, fixed_plans
from trimtab.schedules import Fixed, Geometric, Periodic, RandomRamp, Stepwise, Terminal

__all__ = ["STUDY_SCHEDULES", "ScheduleInputs", "StudySchedule", "study_schedule"]


@dataclass(frozen=True, eq=False)
class ScheduleInputs:
    """What a schedule may be built from.

    Attributes:
        problem: Made for `seeds`; what hindsight would search on.
        seeds: Of the rollouts it will decide for, (n,).
        thresholds: The calibrated prices, for keys that name a calibration method.
        unit: What budgets count.
        each: Iterations of a whole projection, on average over those of full projection.
    """

    problem: Problem
    seeds: Tensor
    thresholds: Price | Rule | None = None
    unit: Unit = "projection"
    each: float = 1.0

    @property
    def prices(self) -> Price | Rule:
        """The calibrated prices, planned times, or values of a rule."""
        assert self.thresholds is not None, "this schedule's key names no calibration method"
        return self.thresholds


@dataclass(frozen=True)
class StudySchedule:
    """How a study builds one of its schedules.

    Attributes:
        summary: One sentence.
        build: The schedule for budgets, a number of corrections for each sample, (n,).
        calibration: The `method` of `calibrate` whose prices it needs, or the rule whose values; None for none.
        exact: Whether it spends its budget to the last correction; a rule that knows none may spend less.
        only_budget: The one budget it makes sense for; None for any.
        cheap_only: Whether it runs so many rollouts that only the synthetic domains can afford it.
        units: What its budgets may count.
        closings: Whether they may count the closing projection.
    """

    summary: str
    build: Callable[[ScheduleInputs, Tensor], Schedule]
    calibration: str | None = None
    only_budget: float | None = None
    cheap_only: bool = False
    exact: bool = True
    units: tuple[Unit, ...] = ("projection",)
    closings: tuple[Closing, ...] = ("paid", "free")

    def __post_init__(self) -> None:
        """Refuse what builds no schedule."""
        check_type(self.summary, str, "the summary of a schedule")
        check_callable(self.build, "build", "build(given, budgets)")
        if self.only_budget is not None:
            check_number(self.only_budget, "only_budget, a share of T,", 0, 1)


_EITHER: tuple[Unit, ...] = ("projection", "iteration")


def _priced(summary: str, method: str) -> StudySchedule:
    """A schedule made of the price that a method of `calibrate` finds."""
    return StudySchedule(summary, lambda given, budgets: given.prices.at(budgets), method)


def _ruled(summary: str, name: str) -> StudySchedule:
    """A rule of `trimtab.evaluation.studies.rules`, with values that spend about the budget on calibration rollouts."""
    return StudySchedule(summary, lambda given, budgets: given.prices.at(budgets), name, exact=False)


STUDY_SCHEDULES: dict[str, StudySchedule] = {
    "terminal": StudySchedule(
        "No projection during the rollout, one at its end.",
        lambda given, budgets: Terminal(),
        only_budget=0.0,
        units=_EITHER,
    ),
    "stepwise": StudySchedule(
        "A projection after every update: the reference.",
        lambda given, budgets: Stepwise(),
        only_budget=1.0,
        units=_EITHER,
    ),
    "periodic": StudySchedule(
        "Projections at evenly spread steps.",
        lambda given, budgets: Periodic(budgets) if given.unit == "projection" else _whole_evenly(given, budgets),
        units=_EITHER,
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
    "planned": _priced(
        "Projections at the best steps of calibration rollouts, the same for all samples; no defect is looked at.",
        "planned",
    ),
    "window": StudySchedule(
        "A projection at each of the last steps, as many as the budget allows, and none before.",
        lambda given, budgets: Fixed(_last_steps(given.problem.sampler.n_steps, budgets)),
    ),
    "best-window": _priced(
        "A projection at each step of the stretch that had the least path error on calibration rollouts, no others.",
        "best-window",
    ),
    "geometric": StudySchedule(
        "Projections at steps whose distance to the end shrinks by a constant factor.",
        lambda given, budgets: Geometric(budgets),
    ),
    "random-ramp": StudySchedule(
        "Projections at random steps, the more likely the later, as DDAT draws them.",
        lambda given, budgets: RandomRamp(budgets),
    ),
    "accumulated": _ruled(
        "A projection once the defects since the last one add up to a value, as caching schemes decide.", "accumulated"
    ),
    "event": _ruled(
        "A projection where the defect reaches a value, at the earliest two steps after the last one.", "event"
    ),
    "above-noise": _ruled(
        "A projection where the defect is more than a multiple of what one update of a feasible state explains, after "
        "CDIM.",
        "above-noise",
    ),
    "until-below": _ruled(
        "A projection after every update until the defect has once been below a value, and none afterwards.",
        "until-below",
    ),
    "inexact": StudySchedule(
        "A solver that is cut short: iterations spread evenly over the steps, with no look at the defect.",
        lambda given, budgets: _allowed(even_counts(given.problem.sampler.n_steps, int(budgets.max())), budgets),
        exact=False,
        units=("iteration",),
    ),
    "repeat": StudySchedule(
        "One iteration more wherever the defect reaches the price of one, asked again after each.",
        lambda given, budgets: given.prices.at(_within(given, budgets)),
        "dp",
        exact=False,
        units=("iteration",),
    ),
    "raced": StudySchedule(
        "Whatever left final samples nearest to those of full projection when tried out on calibration rollouts.",
        lambda given, budgets: given.prices.at(_within(given, budgets)),
        "race",
        exact=False,
        units=_EITHER,
    ),
    "hindsight": StudySchedule(
        "The best steps of each rollout, found afterwards: the limit, not a method.",
        lambda given, budgets: Fixed(_hindsight_mask(given, budgets)),
        cheap_only=True,
        closings=("free",),
    ),
}
"""By the names used in rows, summaries and figures."""


def _allowed(counts: Tensor, budgets: Tensor) -> Schedule:
    return Allowance(counts).at(budgets)


def _whole_evenly(given: ScheduleInputs, budgets: Tensor) -> Schedule:
    """Whole projections at evenly spread steps, as many as the iterations pay for."""
    n_steps = given.problem.sampler.n_steps
    return _allowed(whole_counts(fixed_plans(n_steps, n_steps)[EVEN], int(budgets.max()), given.each), budgets)


def _within(given: ScheduleInputs, budgets: Tensor) -> Tensor:
    """Budgets as far as the prices go, which is what full projection took on the calibration seeds."""
    assert isinstance(given.prices, Thresholds | Plan | Raced)
    return budgets.clamp(max=given.prices.budget)


def _last_steps(n_steps: int, budgets: Tensor) -> Tensor:
    """(T, n) bool."""
    return torch.arange(n_steps)[:, None] >= n_steps - budgets


def _hindsight_mask(given: ScheduleInputs, budgets: Tensor) -> Tensor:
    problem = given.problem
    mask = torch.zeros(problem.sampler.n_steps, len(budgets), dtype=torch.bool)
    for budget in sorted(set(budgets.tolist())):
        rows = (budgets == budget).nonzero().squeeze(1)
        sampler, constraint = take_rows(problem.sampler, rows), problem.constraint.take(rows)
        # one round of branching finds nearly all there is to find
        mask[:, rows] = hindsight(sampler, constraint, given.seeds[rows], budget, rounds=1, tries=2)
    return mask


def study_schedule(name: str) -> StudySchedule:
    """A key by name."""
    if not isinstance(name, str) or name not in STUDY_SCHEDULES:
        raise unknown("schedule", name, STUDY_SCHEDULES)
    return STUDY_SCHEDULES[name]
