"""Calibration rollouts that try out corrections at all times and rates."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from trimtab.core.budget import Budget, corrections
from trimtab.core.noise import uniform_numbers
from trimtab.core.schedule import ByIteration, Schedule
from trimtab.core.view import StepView, as_array
from trimtab.prices.thresholds import Thresholds

__all__ = ["Explore", "ExploreIterations", "spread_budgets"]

_COINS = 1 << 33  # a stream of noise of its own
_AT_ONCE = 1 << 14  # decisions whose coins are thrown together
_TOSSES = 64  # within a step, where those are about iterations
_TOSSED = 1 << 34  # a stream of noise of its own


@dataclass(frozen=True, eq=False)
class Explore(Schedule):
    """Follow a price table, but decide a share of the time at random; with no table, always at random.

    Random decisions spend the budget left evenly over the steps to go, so that every budget is met exactly and what
    happens after a correction can be compared with what happens without one at every step.

    Attributes:
        budget: For each sample, usually spread over all budgets of interest.
        thresholds: The table to stay near.
        share: Of decisions made at random.
        seed: Of the random decisions.
    """

    budget: Budget
    thresholds: Thresholds | None = None
    share: float = 1.0
    seed: int = 0

    def decide(self, view: StepView) -> Any:
        """Two coins for each sample: whether to explore, and if so, whether to correct."""
        seeds = view.seeds
        first, second = self._coins(self._numbers(view) if seeds is None else seeds, view.t)
        at_random = second * view.steps_to_go < as_array(view.spendable)
        if self.thresholds is None:
            return at_random
        s, b = view.arrays(self)
        by_price = s >= self.thresholds.price(view, b.clip(max=self.thresholds.budget))  # may be beyond
        explores = first < self.share
        return (explores & at_random) | (~explores & by_price)

    def _numbers(self, view: StepView) -> Tensor:
        """Those of samples that have no seeds, (n,): the same tensor at every step."""
        numbers = self._kept.get("numbers")
        if numbers is None or len(numbers) != len(view):
            numbers = self._kept["numbers"] = torch.arange(len(view), device=view.defect.device)
        return numbers

    def _coins(self, seeds: Tensor, t: int) -> Any:
        """The coins of one step, (2, n), an array as in `StepView.arrays`.

        Those of many steps are thrown at once, as one by one they cost more.
        """
        begin, thrown_for, thrown = self._kept.get("coins", (0, None, ()))
        same = thrown_for is seeds or (thrown_for is not None and torch.equal(thrown_for, seeds))
        if not same or not begin <= t < begin + len(thrown):
            begin, steps = t, max(1, _AT_ONCE // max(1, len(seeds)))
            coins = uniform_numbers(seeds, range(t, t + steps), (2,), _COINS + self.seed)
            thrown = as_array(coins.transpose(1, 2).contiguous())
            self._kept["coins"] = begin, seeds, thrown
        return thrown[t - begin]

    @cached_property
    def _kept(self) -> dict[str, Any]:
        """What is the same at many steps."""
        return {}

    def to(self, device: torch.device) -> Explore:
        """The same schedule on `device`."""
        budget = self.budget.to(device) if isinstance(self.budget, Tensor) else self.budget
        return replace(self, budget=budget, thresholds=self.thresholds and self.thresholds.to(device))


@dataclass(frozen=True, eq=False)
class ExploreIterations(ByIteration):
    """Buy iterations at random, spread evenly over the steps to go; near a table, only a share of the time.

    Attributes:
        budget: For each sample, (n,).
        thresholds: The table to stay near.
        share: Of decisions made at random.
        seed: Of the random decisions.
        held: What is kept back for the closing projection.
    """

    budget: Budget
    thresholds: Thresholds | None = None
    share: float = 1.0
    seed: int = 0
    held: int = 1

    @property
    def closing_reserve(self) -> int:
        """As calibration has found."""
        return self.held

    def decide(self, view: StepView) -> Tensor:
        """Stop or go on with the odds that spend what is left by the last step."""
        seeds = view.seeds if view.seeds is not None else torch.arange(len(view), device=view.defect.device)
        tosses = uniform_numbers(seeds, range(view.t, view.t + 1), (2 * _TOSSES,), _TOSSED + self.seed)[0]
        place = (view.spent % _TOSSES)[:, None]
        coin, choice = tosses[:, :_TOSSES].gather(1, place)[:, 0], tosses[:, _TOSSES:].gather(1, place)[:, 0]
        wanted = view.spendable.clamp(min=0) / max(view.steps_to_go, 1)  # iterations per step
        at_random = coin < wanted / (1 + wanted)
        if self.thresholds is None:
            return at_random
        s, b = view.arrays(self)
        by_price = torch.as_tensor(s >= self.thresholds.price(view, b.clip(max=self.thresholds.budget)))
        return torch.where(choice < self.share, at_random, by_price)

    def to(self, device: torch.device) -> ExploreIterations:
        """The same schedule on `device`."""
        budget = self.budget.to(device) if isinstance(self.budget, Tensor) else self.budget
        return replace(self, budget=budget, thresholds=self.thresholds and self.thresholds.to(device))


def spread_budgets(n: int, n_steps: int, most: Budget, seed: int) -> Tensor:
    """Budgets for n samples, spread evenly from 0 to half as much again as `most`, in shuffled order, (n,).

    Example:
        >>> spread_budgets(4, 100, 0.5, seed=0).sort().values
        tensor([ 9, 28, 46, 65])
    """
    limit = min(n_steps, 1.5 * int(torch.as_tensor(corrections(most, n_steps)).max()))
    order = uniform_numbers(torch.tensor([seed]), range(1), (n,), _COINS)[0, 0].argsort()
    return ((order + 0.5) / n * limit).long()
