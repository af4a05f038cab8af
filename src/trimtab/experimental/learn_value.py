"""The advantage of correcting now, learned from paired counterfactual rollouts.

A price table knows the step, the budget left and the defect. A rollout shows more: its recent defects, how they compare
with those of other rollouts, when it was last corrected. Whether that helps is learned where the table is nearly
indifferent: a batch is run twice with the same noise, corrected at one such moment of each sample or not, and following
the table from there; the difference of the two path errors is what correcting was worth. A small ensemble of ridge
regressions, fitted to the differences, corrects the table: acting on it is one step of policy improvement.

Which moment is taken must not depend on what happens after it, or the labels are biased. So each sample draws
a step in advance and the first close decision from there on is it.

Advantages are differences of large noisy numbers, and a model that explains a few per cent of them on samples left out
can still be a worse schedule than the table. So the two are compared before one is handed out.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from trimtab.core.budget import Budget
from trimtab.core.checks import float_tensor, whole_tensor, yes_or_no
from trimtab.core.engine import RunBatch
from trimtab.core.errors import of_type, whole_number
from trimtab.core.metrics import summary
from trimtab.core.moment import Moment, as_array
from trimtab.core.noise import uniform_numbers
from trimtab.core.record import Rollout
from trimtab.core.repeatable import recorded
from trimtab.core.schedule import Schedule
from trimtab.experimental.value import FEATURES, Value, basis, close_decisions, observed
from trimtab.prices.calibration import calibrate
from trimtab.prices.explore import Explore, spread_budgets
from trimtab.prices.planned import mean_defects
from trimtab.prices.thresholds import Thresholds
from trimtab.schedules import Terminal

__all__ = ["Branch", "Labels", "counterfactuals", "fit", "gather", "learn"]

_STARTS = 1 << 35  # a stream of noise of its own
_MEMBERS = 8
_FOLDS = 8
_LEAST = 32  # labels
_PENALTIES = (1e1, 1e2, 1e3, 1e4)
_PER_BASE = 17  # batches that share an explored one, itself among them
_SHARE = 0.3  # of decisions made at random before the branch: the value must be right where it leads, not the table
_SEED = 100  # of exploration, other than the table's own


@dataclass(frozen=True, eq=False)
class Branch(Schedule):
    """Explore up to one step of each sample's own, decide there as told, and follow the price table from then on.

    Attributes:
        explore: What happens before, and the table.
        at: The step, (n,); T for none.
        correct: The decision there.
    """

    explore: Explore
    at: Tensor
    correct: bool

    budget: Any = None

    def __post_init__(self) -> None:
        """Refuse what is no branch; spend what is explored with."""
        of_type(self.explore, Explore, "what a branch explores with")
        whole_tensor(self.at, "at, the step of each sample,", ("n",))
        if len(self.at) and int(self.at.min()) < 0:
            raise ValueError(f"at is a step of at least 0 for each sample: got {int(self.at.min())}")
        yes_or_no(self.correct, "correct")
        object.__setattr__(self, "budget", self.explore.budget)

    def decide(self, now: Moment) -> Tensor:
        """By the one of the three that it is time for."""
        if self.explore.thresholds is None or len(self.at) != len(now):
            raise ValueError(
                f"a branch follows the table that it explores near, from a step of each of {len(now)} samples on: got "
                f"{len(self.at)} steps and {'a' if self.explore.thresholds else 'no'} table"
            )
        explored = torch.as_tensor(self.explore.decide(now))
        s, b = now.arrays(self)
        by_price = torch.as_tensor(s >= self.explore.thresholds.price(now, b))
        forced = torch.full_like(by_price, self.correct)
        after = torch.where(self.at == now.t, forced, by_price)
        return torch.where(self.at > now.t, explored, after)

    def to(self, device: torch.device) -> Branch:
        """The same schedule on `device`."""
        return replace(self, explore=self.explore.to(device), at=self.at.to(device))


@dataclass(frozen=True, eq=False)
class Labels:
    """What correcting was worth at m close decisions.

    Attributes:
        features: What was observed there, (m, k), from `observed`.
        margin: How far the defect is above its price, in units of the price, (m,).
        advantage: Path error without the correction minus that with it, in the same units, (m,).
        sample: Which calibration sample, (m,); its labels share their noise.
    """

    features: Tensor
    margin: Tensor
    advantage: Tensor
    sample: Tensor

    def __post_init__(self) -> None:
        """Refuse labels that do not belong together."""
        m = len(float_tensor(self.features, "features", ("m", len(FEATURES))))
        float_tensor(self.margin, "margin", (m,))
        float_tensor(self.advantage, "advantage", (m,))
        whole_tensor(self.sample, "sample", (m,))
        if m and int(self.sample.min()) < 0:
            raise ValueError(f"sample numbers samples from 0: got {int(self.sample.min())}")


def learn(run: RunBatch, thresholds: Thresholds, free: Rollout, batches: int = 20) -> Value:
    """A learned value on top of a price table; the table itself where the value measures no better.

    Args:
        run: Runs a calibration batch under a schedule.
        thresholds: The table to improve on, calibrated for path error.
        free: A batch that was run already, for its size.
        batches: To run at most, at least 5: two compare the value with the table, and of the others every two after
            the first give at most one label a sample. Give more where sampling is cheap.
    """
    whole_number(batches, "batches (explored, two branches, two to compare)", 5)
    run = recorded(run)
    value, labels = gather(run, thresholds, free, batches - 2)
    learned = fit(value, labels)
    if learned.notes["penalty"] == "table":
        return learned
    T, n = free.defects.shape
    budgets = spread_budgets(n, T, thresholds.budget, seed=1).clamp(1, thresholds.budget)
    ours, table = (
        run(schedule).residuals.sum(dim=0)
        for schedule in (learned.at(budgets), replace(thresholds, seeds=()).at(budgets))
    )
    gain = summary(table - ours)
    notes = {**learned.notes, "gain": gain.mean / max(float(table.mean()), 1e-300)}
    if gain.mean > 2 * gain.se:
        return replace(learned, notes=notes)
    return replace(value, notes={**notes, "penalty": "table"})


def gather(run: RunBatch, thresholds: Thresholds, free: Rollout, batches: int) -> tuple[Value, Labels]:
    """Labels from so many batches (at least 3), and the value to fit to them."""
    run = recorded(run)
    of_type(thresholds, Thresholds, "thresholds", "calibrate makes them")
    of_type(free, Rollout, "free, a batch that was run already,")
    whole_number(batches, "batches", 3)
    T, n = free.defects.shape
    value, groups = None, []
    for first in range(0, batches - 2, _PER_BASE):
        budgets = spread_budgets(n, T, thresholds.budget, seed=first).clamp(1, thresholds.budget)
        explore = Explore(budgets, thresholds, _SHARE, seed=_SEED + first)
        base = run(explore)
        if value is None:  # all features are measured against the first batch
            value = Value.untrained(thresholds, mean_defects([base]))
        pairs = (min(first + _PER_BASE, batches) - first - 1) // 2
        groups += [counterfactuals(run, value, explore, base, seed=first + k) for k in range(pairs)]
    assert value is not None
    return value, Labels(*(torch.cat([getattr(g, f.name) for g in groups]) for f in fields(Labels)))


def counterfactuals(run: RunBatch, value: Value, explore: Explore, base: Rollout, seed: int) -> Labels:
    """Run an explored batch twice more, once with a correction at one close decision of each sample, once without.

    Args:
        run: Runs a calibration batch under a schedule.
        value: With the table to follow.
        explore: What the batch was run with.
        base: The batch as it went.
        seed: Of the steps drawn.
    """
    run = recorded(run)
    of_type(value, Value, "value")
    of_type(explore, Explore, "explore, what the batch was run with,")
    of_type(base, Rollout, "base, the batch as it went,")
    whole_number(seed, "seed", 0)
    T, n = base.defects.shape
    start = (uniform_numbers(torch.tensor([seed]), range(1), (n,), _STARTS)[0, 0] * T).long()
    at = torch.full((n,), T)
    left = torch.as_tensor(explore.budget).expand(n).clone()
    seen: list[tuple[Tensor, Tensor]] = []
    memo = dict[Hashable, Any]()
    for t in range(T):
        now = Moment.of_record(t, base.defects, base.projected, torch.as_tensor(explore.budget), memo=memo)
        price = torch.as_tensor(value.thresholds.price(now, as_array(left)))
        at[(at == T) & (start <= t) & close_decisions(now.defect, price)] = t
        seen.append((observed(now, price, value), price))
        left = left - base.projected[t].long()
    alone, corrected = (run(Branch(explore, at, correct)).residuals.sum(dim=0).double() for correct in (False, True))
    some = (at < T).nonzero().squeeze(1)
    at = at[some]
    price = torch.stack([price for _, price in seen])[at, some]
    return Labels(
        torch.stack([features for features, _ in seen])[at, some],
        base.defects[at, some] / price - 1,
        (alone - corrected)[some] / price,
        some,
    )


def fit(value: Value, labels: Labels) -> Value:
    """Fit the ensemble: advantage = slope * margin + weights @ features, with the weights drawn to 0.

    How strongly is chosen by leaving samples out, and so is whether to depart from the table at all: labels that share
    a sample share their noise, and each member of the ensemble is fitted to samples drawn with replacement.
    """
    of_type(value, Value, "value")
    of_type(labels, Labels, "labels")
    if len(labels.advantage) < _LEAST:  # there were next to no close decisions to learn from
        return replace(value, notes={"labels": len(labels.advantage), "penalty": "table", "explained": 0.0})
    center, spread = labels.features.mean(dim=0), labels.features.std(dim=0).clamp(min=1e-9)
    x = basis(labels.margin, (labels.features - center) / spread)
    y = labels.advantage
    folds = labels.sample % _FOLDS
    errors = {}
    for penalty in (torch.inf, *_PENALTIES):
        held_out = [
            y[folds == k] - x[folds == k] @ _ridge(x[folds != k], y[folds != k], penalty) for k in range(_FOLDS)
        ]
        errors[penalty] = float(torch.cat(held_out).square().sum())
    penalty = min(errors, key=lambda p: errors[p])
    generator = torch.Generator().manual_seed(0)
    n = int(labels.sample.max()) + 1
    members = []
    for _ in range(_MEMBERS):
        times = torch.bincount(torch.randint(n, (n,), generator=generator), minlength=n)[labels.sample].double().sqrt()
        members.append(_ridge(x * times[:, None], y * times, penalty))
    notes = {
        "labels": len(y),
        "penalty": penalty if penalty < torch.inf else "table",
        "explained": 1 - errors[penalty] / errors[torch.inf],  # of what the table leaves, on samples left out
    }
    return replace(value, center=center, spread=spread, weights=torch.stack(members), notes=notes)


def _ridge(x: Tensor, y: Tensor, penalty: float) -> Tensor:
    """Least squares with all weights but the first penalised, and the first at least a little above 0."""
    if penalty == torch.inf:
        alone = torch.zeros(x.shape[1], dtype=x.dtype)
        alone[0] = (x[:, 0] @ y / (x[:, 0] @ x[:, 0]).clamp(min=1e-12)).clamp(min=1e-3)
        return alone
    gram = x.T @ x + penalty * torch.eye(x.shape[1], dtype=x.dtype)
    gram[0, 0] -= penalty * (1 - 1e-6)
    weights: Tensor = torch.linalg.solve(gram, x.T @ y)
    weights[0] = weights[0].clamp(min=1e-3)
    return weights


def calibrate_value(run: RunBatch, budget: Budget = 1.0) -> Value:
    """The dynamic program's prices for path error, corrected by what else a rollout shows.

    Args:
        run: As in `calibrate`.
        budget: The largest budget wanted.
    """
    table = calibrate(run, budget, "dp", objective="path", check=False)
    assert isinstance(table, Thresholds)
    if table.budget < 1 or table.n_steps < 2 or "expected" not in table.notes:
        raise ValueError(
            f"with T = {table.n_steps} and a budget of {table.budget} there is no choice whose value could be learned; "
            "method='dp' works, and Terminal or Stepwise do the same"
        )
    value = learn(run, table, run(Terminal()))
    facts = {name: getattr(table, name) for name in ("seeds", "objective", "fingerprint")}
    return replace(value, **facts, notes={**table.notes, **value.notes})
