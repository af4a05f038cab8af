"""The schedules a study compares, by key.

A new one is an entry in `KEYS`: a sentence, how to build it for a budget, and what it must be calibrated with, if
anything. Everything else (tasks, rows, summaries, tables, figures) goes by the key.
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
from trimtab.limits.hindsight import hindsight
from trimtab.prices.calibration import Price
from trimtab.schedules import Fixed, Periodic, Stepwise, Terminal

__all__ = ["KEYS", "Key", "Material", "schedule_key"]


@dataclass(frozen=True, eq=False)
class Material:
    """What a schedule may be built from.

    Attributes:
        problem: Made for `seeds`; what hindsight would search on.
        seeds: Of the rollouts it will decide for, (n,).
        thresholds: The calibrated prices, for keys that name a calibration method.
    """

    problem: Problem
    seeds: Tensor
    thresholds: Price | None = None

    @property
    def prices(self) -> Price:
        """The calibrated prices, or planned times."""
        assert self.thresholds is not None, "this schedule's key names no calibration method"
        return self.thresholds


@dataclass(frozen=True)
class Key:
    """How a study builds one of its schedules.

    Attributes:
        label: As figures and tables name it.
        summary: One sentence.
        build: The schedule for budgets, a number of corrections for each sample, (n,).
        calibration: The `method` of `calibrate` whose prices it needs; None for none.
        only_budget: The one budget it makes sense for; None for any.
        cheap_only: Whether it runs so many rollouts that only the synthetic domains can afford it.
    """

    label: str
    summary: str
    build: Callable[[Material, Tensor], Schedule]
    calibration: str | None = None
    only_budget: float | None = None
    cheap_only: bool = False


def _priced(label: str, summary: str, method: str, cheap_only: bool = False) -> Key:
    """A schedule made of the price that a method of `calibrate` finds."""
    return Key(label, summary, lambda material, budgets: material.prices.at(budgets), method, cheap_only=cheap_only)


KEYS: dict[str, Key] = {
    "terminal": Key(
        "terminal",
        "No projection during the rollout, one at its end.",
        lambda material, budgets: Terminal(),
        only_budget=0.0,
    ),
    "stepwise": Key(
        "stepwise",
        "A projection after every update: the reference.",
        lambda material, budgets: Stepwise(),
        only_budget=1.0,
    ),
    "periodic": Key(
        "periodic",
        "Projections at evenly spread steps.",
        lambda material, budgets: Periodic(budgets),
    ),
    "adaptive:paper": _priced(
        "adaptive (paper)",
        "A projection where the defect reaches the paper's price, a quantile of uncorrected rollouts' future defects.",
        "paper",
    ),
    "adaptive:dp": _priced(
        "adaptive (dp)",
        "A projection where the defect reaches the price that a dynamic program found on calibration rollouts.",
        "dp",
    ),
    "adaptive:on-policy": _priced(
        "adaptive (on-policy)",
        "The paper's rule, its prices calibrated on rollouts of the policy itself.",
        "on-policy",
    ),
    "adaptive:value": _priced(
        "adaptive (value)",
        "The dynamic program's prices, changed where a learned advantage of correcting now was seen to do better.",
        "value",
        cheap_only=True,
    ),
    "planned": _priced(
        "planned",
        "Projections at the best steps of calibration rollouts, the same for all samples; no defect is looked at.",
        "planned",
    ),
    "hindsight": Key(
        "hindsight",
        "The best steps of each rollout, found afterwards: the limit, not a method.",
        lambda material, budgets: Fixed(_hindsight_mask(material, budgets)),
        cheap_only=True,
    ),
}
"""By the names used in rows, summaries and figures."""


def _hindsight_mask(material: Material, budgets: Tensor) -> Tensor:
    problem = material.problem
    mask = torch.zeros(problem.sampler.n_steps, len(budgets), dtype=torch.bool)
    for budget in sorted(set(budgets.tolist())):
        rows = (budgets == budget).nonzero().squeeze(1)
        sampler, constraint = take_rows(problem.sampler, rows), problem.constraint.take(rows)
        # one round of branching finds nearly all there is to find; see tests/test_oracle.py
        mask[:, rows] = hindsight(sampler, constraint, material.seeds[rows], budget, rounds=1, tries=2)
    return mask


def schedule_key(name: str) -> Key:
    """A key by name."""
    if name not in KEYS:
        raise unknown("schedule", name, KEYS)
    return KEYS[name]
