"""A learned value: a price table, and how to depart from it by what else a rollout shows."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from trimtab.core.budget import Budget
from trimtab.core.checks import float_tensor
from trimtab.core.errors import of_type, real_number
from trimtab.core.files import save_tensors
from trimtab.core.moment import Moment, last_corrections
from trimtab.core.steady import log, sum_rows
from trimtab.prices.own_scale import OwnScale
from trimtab.prices.provenance import Priced, Provenance, budget_within, reading
from trimtab.prices.thresholds import Thresholds

__all__ = ["FEATURES", "Value", "ValueSchedule", "basis", "close_decisions", "observed"]

FEATURES = ("step", "rate", "price ratio", "surprise", "last surprise", "recent surprise", "own scale", "since")
"""What the ensemble looks at; see `observed`."""

_CLOSE = 0.7  # log ratio of defect and price: within a factor of 2 the table may be departed from
_RECENT = 0.7  # weight of each surprise relative to the next


@dataclass(frozen=True, eq=False)
class Value(Provenance):
    """A price table and an ensemble of linear models of the advantage of correcting now.

    Attributes:
        thresholds: The table that is departed from, and that decides wherever the defect is far from its price.
        expected: Usual defect at each step by step of the last correction, (T + 1, T), row 0 for none.
        center: Of the features, (k,).
        spread: Of the features, (k,).
        weights: Of margin, constant, features and their squares, (members, 2 + 2 k).

    How it was made is told as for all prices: see `Provenance`. Its closing is that of the table, if it tells no other.
    """

    thresholds: Thresholds
    expected: Tensor
    center: Tensor
    spread: Tensor
    weights: Tensor
    method: str = field(default="value", kw_only=True)

    def __post_init__(self) -> None:
        """Refuse parts that do not belong together."""
        super().__post_init__()
        of_type(self.thresholds, Thresholds, "the table of a value", "calibrate makes one")
        T, k = self.thresholds.n_steps, len(FEATURES)
        shapes: dict[str, tuple[int | str, ...]] = {"expected": (T + 1, T), "center": (k,), "spread": (k,)}
        for name, shape in (shapes | {"weights": ("members", 2 * k + 2)}).items():
            float_tensor(getattr(self, name), f"{name} of a value", shape)
        if len(self.weights) < 2:
            raise ValueError(f"weights of a value are of 2 members or more: got {len(self.weights)}")
        object.__setattr__(self, "closing", self.closing or self.thresholds.closing)

    @classmethod
    def untrained(cls, thresholds: Thresholds, expected: Tensor) -> Value:
        """A value that decides as the table does."""
        zeros, ones = torch.zeros(2, len(FEATURES), dtype=torch.float64), torch.ones(len(FEATURES), dtype=torch.float64)
        weights = torch.cat([torch.ones(2, 1), torch.zeros(2, 1), zeros, zeros], dim=1).double()
        return cls(thresholds, expected, zeros[0], ones, weights)

    @property
    def n_steps(self) -> int:
        """T."""
        return self.thresholds.n_steps

    @property
    def budget(self) -> int:
        """The largest budget it serves."""
        return self.thresholds.budget

    def at(self, budget: Budget, caution: float = 0.0) -> ValueSchedule:
        """The schedule for a budget.

        Args:
            budget: At most the table's own.
            caution: Depart from the table only where the advantage is this many spreads of the ensemble from 0.
        """
        return ValueSchedule(self, budget, caution)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one safetensors file."""
        tensors = {name: getattr(self, name) for name in _TENSORS} | {"table": self.thresholds.table}
        facts = self.told()
        OwnScale.write(self.thresholds.own_scale, tensors, facts)
        save_tensors(path, "value", tensors, facts)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Value:
        """Read what `save` wrote; a truncated, foreign or inconsistent file is refused."""
        with reading(path, "value", "a usable value") as (tensors, facts):
            own_scale = OwnScale.read(tensors, facts)
            closing = facts.get("closing", "")  # which earlier files do not tell
            table = Thresholds(tensors["table"], method="dp", own_scale=own_scale, closing=closing)
            return cls(table, *(tensors[name] for name in _TENSORS), **facts)

    def to(self, device: torch.device) -> Value:
        """The same value on `device`."""
        moved = {name: getattr(self, name).to(device) for name in _TENSORS}
        return replace(self, thresholds=self.thresholds.to(device), **moved)


_TENSORS = ("expected", "center", "spread", "weights")


@dataclass(frozen=True, eq=False)
class ValueSchedule(Priced):
    """Project where correcting now has a positive advantage; far from the table's price, where the table says so."""

    value: Value
    budget: Budget
    caution: float = 0.0

    def __post_init__(self) -> None:
        """Check the budget against the table, and the caution."""
        of_type(self.value, Value, "the value of a ValueSchedule")
        real_number(self.caution, "caution, a number of spreads,", 0)
        object.__setattr__(self, "budget", budget_within(self.budget, self.value.n_steps, self.value.budget))

    @property
    def made_from(self) -> Value:
        """The value."""
        return self.value

    def decide(self, now: Moment) -> Tensor:
        """By the ensemble's mean where the table is close to indifferent and the ensemble is sure enough."""
        value = self.value
        if now.n_steps != value.n_steps:
            raise ValueError(
                f"the value was learned for T = {value.n_steps} steps and cannot be used for T = {now.n_steps}"
            )
        price = torch.as_tensor(value.thresholds.price(now, now.arrays(self)[1]))
        by_price = now.defect >= price
        close = close_decisions(now.defect, price)
        if not bool(close.any()):
            return by_price
        margin = torch.where(close, now.defect / price - 1, 0.0)
        features = (observed(now, price, value) - value.center) / value.spread
        # one row for each sample, summed in an order of its own, so that batch-mates have no say
        terms = basis(margin, features)[:, None, :] * value.weights
        advantage = terms.sum(dim=2)
        mean, spread = advantage.mean(dim=1), advantage.std(dim=1)
        return torch.where(close & (mean.abs() > self.caution * spread), mean > 0, by_price)

    def to(self, device: torch.device) -> ValueSchedule:
        """The same schedule on `device`."""
        budget = self.budget.to(device) if isinstance(self.budget, Tensor) else self.budget
        return replace(self, value=self.value.to(device), budget=budget)


def _one_each(**values: Tensor) -> None:
    """Refuse what are not numbers of the same samples."""
    lengths = {name: len(float_tensor(value, name, ("n",), finite=False)) for name, value in values.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"one number per sample is expected of each: got {lengths}")


def close_decisions(defect: Tensor, price: Tensor) -> Tensor:
    """Where the table is nearly indifferent, (n,) bool; never where the budget decides."""
    _one_each(defect=defect, price=price)
    return price.isfinite() & ((defect / price.clamp(min=1e-300)).log().abs() < _CLOSE)


def basis(margin: Tensor, features: Tensor) -> Tensor:
    """What an advantage is a linear function of, (n, 2 + 2 k), of margins (n,) and standardised features (n, k)."""
    float_tensor(margin, "margin", ("n",), finite=False)
    float_tensor(features, "features", (len(margin), "k"), finite=False)
    features = features.clamp(-3, 3)
    return torch.cat([margin[:, None], torch.ones_like(margin)[:, None], features, features**2], dim=1)


def observed(now: Moment, price: Tensor, value: Value) -> Tensor:
    """What a sample's record shows now, (n, k), as `FEATURES` names it.

    A surprise is the log ratio of a defect and the usual one at its step after as long without a correction; the own
    scale is the mean of all surprises so far.
    """
    of_type(now, Moment, "now")
    of_type(value, Value, "value")
    _one_each(defect=now.defect, price=price)
    t, n = now.t, len(now.defect)
    steps = torch.arange(t + 1, device=now.defect.device)
    decided = torch.cat([now.projected, torch.zeros(1, n, dtype=torch.bool, device=now.defect.device)])
    last = last_corrections(decided)
    usual = value.expected[last, steps[:, None]].clamp(min=1e-300)
    surprise = log((now.defects / usual).clamp(1e-3, 1e3))  # whose bits no batch changes, as those of sum_rows
    before = surprise[:-1]
    fading = before.new_tensor([(1 - _RECENT) * _RECENT**age for age in reversed(range(t))])
    recent = sum_rows((fading[:, None] * before).T)
    own = sum_rows(before.T) / (t + 5)  # drawn to 0 while little was seen
    to_go = now.n_steps - t
    columns = (
        torch.full_like(own, t / now.n_steps),
        now.budget_left / to_go,
        torch.where(price.isfinite(), log((now.defect / price.clamp(min=1e-300)).clamp(1e-2, 1e2)), 0.0),
        surprise[-1],
        before[-1] if t else torch.zeros_like(own),
        recent,
        own,
        log((t + 1 - last[-1]).double()),
    )
    return torch.stack([column.double() for column in columns], dim=1)
