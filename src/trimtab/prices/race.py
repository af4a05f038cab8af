"""A race of prices on calibration seeds: whatever the measure, the best one wins, and even spacing is the one to beat.

All candidates run the same samples with the same noise at the same budgets, which are spread over all rates, so that
every comparison is paired. A sample's cost is taken relative to what even spacing costs at budgets like its own, so
that all budgets have their progress. The few that do best together run a second time. In each range of budgets the one with
the least cost there wins, neighbouring ranges counting a little, if it is ahead of even spacing and something is so by
more than noise: the winner of all budgets together, or this one here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from trimtab.core.noise import uniform_numbers
from trimtab.core.record import Rollout
from trimtab.prices.objective import finite
from trimtab.prices.raced import Part, Raced
from trimtab.prices.thresholds import Thresholds

if TYPE_CHECKING:
    from trimtab.prices.batches import Batches

__all__ = ["EVEN", "Measure", "fixed_plans", "race"]

EVEN = "even spacing"
_RANGES = 5  # of budgets
_NEAR = 0.35  # how much a neighbouring range counts
_SECOND_ROUND = 3  # candidates at the most
_FEW = 0.25  # of the rollouts: where no more make up the mean of even spacing, its tail is bounded
_BODY = 0.8  # of the rollouts: beyond lies the tail
_BEHIND = 2.5  # standard errors behind the first: no second round
_LEAST = 0.01  # of the largest range's cost: a range that costs next to nothing has no more say than that
_SHUFFLES = 1 << 37  # a stream of noise of its own


class Measure(NamedTuple):
    """What the race goes by.

    Attributes:
        name: As notes and words call it.
        cost: Of each sample of a record, (n,), lower being better.
    """

    name: str
    cost: Callable[[Rollout], Tensor]


def fixed_plans(n_steps: int, budget: int) -> dict[str, Tensor]:
    """What needs no calibration, as masks for every budget, (B + 1, T) bool: even spacing, and windows."""
    steps, b = torch.arange(n_steps), torch.arange(budget + 1)[:, None]
    # the step after the last is the closing projection's, so that gaps are even up to it
    even = ((steps + 1) * (b + 1)) // (n_steps + 1) > (steps * (b + 1)) // (n_steps + 1)
    plans = {EVEN: even}
    for name, stop in (("last steps", n_steps), ("window before the last quarter", (3 * n_steps) // 4)):
        end = torch.maximum(torch.tensor(stop), b)
        plans[name] = (steps >= end - b) & (steps < end)
    return plans


def race(
    batches: Batches,
    candidates: Mapping[str, Part],
    measure: Measure,
    look: float = 0.0,
    bound_tails: bool = False,
) -> Raced:
    """Run the candidates against each other and keep the best.

    Args:
        batches: Runs calibration batches.
        candidates: By name; "even spacing" is among them.
        measure: What to go by.
        look: What a look at the defect costs, in units of the budget. A candidate that looks has that many fewer to
            spend, and is out where none would be left.
        bound_tails: Whether costs count no more than the largest fifth of even spacing's where a few rollouts make up
            most of their mean, which then tells little.
    """
    looks = math.ceil(look * batches.n_steps)
    for name, one in candidates.items():
        if one.closing_reserve != max(batches.held, 1):
            raise ValueError(
                f"the candidate {name!r} keeps {one.closing_reserve} of a budget for the closing projection, and this race "
                f"{max(batches.held, 1)}: calibrate it on the same samples"
            )
    # on calibration seeds, which a schedule of theirs would refuse
    known = {name: replace(one, seeds=()) for name, one in candidates.items()}
    names, rounds = list(known), list[_Round]()
    for number in range(2):
        if number:
            names = _still_in(_Standing(rounds, bound_tails), names)
        if len(names) == 1:
            break
        budgets, place = _spread(batches, seed=number)
        spend = {True: (budgets - looks).clamp(min=batches.held), False: budgets}
        schedules = {name: known[name].at(spend[isinstance(known[name], Thresholds)]) for name in names}
        costs = {}
        batches.ahead(list(schedules.values()))
        for name, schedule in schedules.items():
            batches.progress(f"race, round {number + 1}: {name}")
            costs[name] = finite(measure.cost(batches.run(schedule)).cpu().double(), measure.name)
        rounds.append(_Round(costs, place))
    standing = _Standing(rounds, bound_tails)
    first = min(names, key=lambda name: standing.mean(name))
    beaten = _ahead(standing, first)
    best = first if beaten else EVEN
    ranges = _ranges(batches)
    winners = {k: _winner(standing, k, names, beaten) for k in ranges}
    blind = min((n for n, one in known.items() if not isinstance(one, Thresholds)), key=standing.mean)
    too_few = looks + batches.held + 1  # budgets that looking would use up
    parts: dict[str, Part] = {
        name: replace(known[name], notes={}, fingerprint="", method=name)
        for name in dict.fromkeys([*winners.values(), *([blind] if looks else [])])
    }
    winner = torch.zeros(batches.budget + 1, dtype=torch.int64)
    for k, (low, high) in ranges.items():
        winner[low : high + 1] = list(parts).index(winners[k])
        if looks and isinstance(known[winners[k]], Thresholds):
            winner[low : min(high + 1, too_few)] = list(parts).index(blind)
    facts = batches.facts(
        {
            "measure": measure.name,
            "candidates": list(candidates),
            "look": look,
            "second_round": list(rounds[-1].costs) if len(rounds) > 1 else [],
            "overall": {"winner": best, "ahead_of_even_spacing": standing.ahead_of_even(best)},
            "ranges": [
                {
                    "from": low,
                    "to": high,
                    "winner": winners[k],
                    "ahead_of_even_spacing": standing.ahead_of_even(winners[k], k),
                }
                for k, (low, high) in ranges.items()
            ],
        }
    )
    # a candidate may come from other seeds, which know it as well as those of the race do
    seeds = dict.fromkeys([*facts["seeds"], *(seed for one in candidates.values() for seed in one.seeds)])
    return Raced(
        tuple(parts.values()), winner, **facts | {"objective": measure.name, "seeds": tuple(seeds)}, looks=looks
    )


class _Round(NamedTuple):
    """Costs by candidate, (n,) each, and the range of budgets each sample was run in, (n,)."""

    costs: dict[str, Tensor]
    place: Tensor


class _Standing:
    """Costs of all rounds so far, in units of what even spacing costs in the same range of budgets."""

    def __init__(self, rounds: list[_Round], bound_tails: bool = False) -> None:
        with_even = [one for one in rounds if EVEN in one.costs]
        costs = torch.cat([one.costs[EVEN].abs() for one in with_even])
        place = torch.cat([one.place for one in with_even])
        in_effect = float(costs.sum() ** 2 / costs.square().sum().clamp(min=1e-300))
        if bound_tails and in_effect < _FEW * len(costs):
            here = [costs[place == k] if bool((place == k).any()) else costs for k in range(_RANGES)]
            most = torch.stack([some.quantile(_BODY) for some in here])
            rounds = [_Round({n: c.minimum(most[r.place]) for n, c in r.costs.items()}, r.place) for r in rounds]
            costs = costs.minimum(most[place])
        self.rounds = rounds
        unit = torch.stack(
            [costs[place == k].mean() if bool((place == k).any()) else costs.mean() for k in range(_RANGES)]
        )
        self.unit = unit.clamp(min=max(_LEAST * float(unit.max()), 1e-300))

    def mean(self, name: str) -> float:
        """Of a candidate over all rounds it ran in."""
        ran = [one for one in self.rounds if name in one.costs]
        return float(torch.cat([one.costs[name] / self.unit[one.place] for one in ran]).mean())

    def gaps(self, name: str, other: str) -> tuple[Tensor, Tensor]:
        """What the one costs more than the other in the rounds of both, sample by sample, and the ranges, (m,)."""
        both = [one for one in self.rounds if name in one.costs and other in one.costs]
        gaps = [(one.costs[name] - one.costs[other]) / self.unit[one.place] for one in both]
        return torch.cat(gaps), torch.cat([one.place for one in both])

    def gap(self, name: str, other: str, k: int | None = None) -> tuple[float, float]:
        """The mean of the gaps and its standard error; in a range, whose neighbours count a little."""
        gaps, place = self.gaps(name, other)
        weight = torch.ones_like(gaps)
        if k is not None:
            away = (place - k).abs()
            weight = (away == 0) + _NEAR * (away == 1).double()
        total = weight.sum().clamp(min=1e-300)
        mean = (weight * gaps).sum() / total
        return float(mean), float((weight * (gaps - mean)).norm() / total)

    def ahead_of_even(self, name: str, k: int | None = None) -> list[float]:
        """By how much of even spacing's cost a candidate is ahead of it, and the standard error of that."""
        mean, se = self.gap(name, EVEN, k)
        return [0.0 - mean, se]


def _still_in(standing: _Standing, names: list[str]) -> list[str]:
    """The few that do best together: the first of all, even spacing if it is not clearly behind, and what adds most.

    What one adds is what the ranges cost less, each by the best of those kept.
    """
    first = min(names, key=standing.mean)
    costs = {name: torch.tensor([standing.gap(name, first, k)[0] for k in range(_RANGES)]) for name in names}

    def clearly_behind(name: str) -> bool:
        mean, se = standing.gap(name, first)
        return mean > _BEHIND * se

    kept = [first] if first == EVEN or clearly_behind(EVEN) else [first, EVEN]
    others = [n for n in names if n not in kept and (not clearly_behind(n) or bool((costs[n] < 0).any()))]
    while others and len(kept) < _SECOND_ROUND:
        best = torch.stack([costs[name] for name in kept]).min(dim=0).values
        new = min(others, key=lambda name: (float(torch.minimum(best, costs[name]).sum()), standing.mean(name)))
        kept.append(new)
        others.remove(new)
    return kept


def _ahead(standing: _Standing, name: str) -> bool:
    """Whether a candidate is ahead of even spacing by more than noise.

    Where a few rollouts part from full projection altogether, they make up most of the mean and of its standard error,
    which then hides what all others show. So being ahead in the mean has to be more than a standard error of the mean
    or, failing that, of the signed ranks of the gaps, to which no single rollout matters.
    """
    mean, se = standing.gap(name, EVEN)
    if mean >= 0:
        return False
    gaps = standing.gaps(name, EVEN)[0]
    gaps = gaps[gaps != 0]
    ranks = (gaps.abs().argsort().argsort() + 1.0).double()
    return mean < -se or float((ranks * gaps.sign()).sum()) < -float(ranks.norm())


def _winner(standing: _Standing, k: int, names: list[str], beaten: bool) -> str:
    """The winner of a range of budgets: the one with the least cost there, unless that is noise.

    Args:
        standing: Of the race.
        k: The range.
        names: Of those that ran in all rounds.
        beaten: Whether something is ahead of even spacing over all budgets by more than noise. If nothing is, a winner
            has to be so in the range by itself.
    """
    first = min(names, key=lambda name: standing.gap(name, names[0], k)[0])
    mean, se = standing.gap(first, EVEN, k)
    return first if mean < (0.0 if beaten else -se) else EVEN


def _spread(batches: Batches, seed: int) -> tuple[Tensor, Tensor]:
    """Budgets for all samples, as many in each range, (n,), and their ranges, (n,); small budgets lie closer."""
    n = batches.n
    order = uniform_numbers(torch.tensor([seed]), range(1), (n,), _SHUFFLES)[0, 0].argsort().argsort()
    share = (order + 0.5) / n
    spend = (share.square() * batches.spendable).ceil().long().clamp(1, batches.spendable)
    return spend + batches.held, (share * _RANGES).long()


def _ranges(batches: Batches) -> dict[int, tuple[int, int]]:
    """The first and last budget of each range, the closing projection included; few budgets leave some ranges empty."""
    ends = [int((((k + 1) / _RANGES) ** 2) * batches.spendable) + batches.held for k in range(_RANGES)]
    ends[-1] = batches.budget
    begins = [0, *(end + 1 for end in ends[:-1])]
    return {k: (low, high) for k, (low, high) in enumerate(zip(begins, ends, strict=True)) if low <= high}
