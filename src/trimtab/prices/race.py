"""A race of prices on calibration seeds: two candidates need no proof, and all others must prove themselves.

All candidates run the same samples on the same noise at the same budgets, which are spread over all rates, so every
comparison is paired. The cost of a sample is divided by what even spacing costs at similar budgets, so that all budgets
have a say. The few candidates that do best together run a second time.

Even spacing needs no proof, and neither does the dynamic program for path error, unless a quality decides: path error
is seen at every step, so a few rollouts are enough to lower it, while the final state is seen once per rollout. It is
the usual choice in ranges of budgets in which it seems to be ahead by a margin, also in the mean; differences between
ranges are believed as far as standard errors allow. In each range another candidate takes its place if it is proven to
be ahead there: in the mean of costs whose tails are cut, in the signed ranks and in the plain mean, at a level that all
comparisons share. So few rollouts, which prove little, leave the usual choice.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import NormalDist
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trimtab.core.budget import Unit
from trimtab.core.metrics import endpoint_distance
from trimtab.core.noise import uniform_numbers
from trimtab.core.problem import Problem
from trimtab.core.quality import Quality
from trimtab.core.record import Rollout
from trimtab.prices.collect import Batches
from trimtab.prices.objective import describe, finite, objective_weights
from trimtab.prices.plan import planned_masks
from trimtab.prices.price import Allowance, Plan, Price, Raced, Thresholds
from trimtab.prices.program import solve
from trimtab.prices.quantile import quantile_table
from trimtab.prices.transitions import estimate_transitions

Part = Thresholds | Plan | Allowance
"""What can race."""

EVEN = "even spacing"
KEPT = "dp for path, last steps kept"
AT_END = "once at the end"
"""No correction but a closing projection, whatever the budget; the uncorrected batch shows what that costs."""

GOALS = ("path", "influence")
"""What prices in the race are made for: path error, or path error with the weights of the objective."""

_KEPT = 0.05  # of the steps: those at the end that `KEPT` keeps corrections for
_RANGES = 5  # of budgets
_NEAR = 0.35  # how much a neighbouring range counts
_SECOND_ROUND = 3  # candidates at most
_TAIL = 4.0  # medians of even spacing's costs in a range: costs are cut off there
_MARGIN = 0.05  # of even spacing's cost: what a candidate without proof must seem to be ahead by
_LEVEL = 0.05  # the chance that any of the comparisons proves something that is not so
_LEAST = 0.01  # of the largest range's cost: the least cost of a range
_SHUFFLES = 1 << 37  # a stream of noise


class Measure(NamedTuple):
    """What the race compares: a name, and a function that returns the cost of each sample of a record, (n,)."""

    name: str
    cost: Callable[[Rollout], Tensor]


def measure_of(batches: Batches, quality: Quality | None, problem: Problem | None) -> Measure:
    """Return the quality, or the objective, as a measure."""
    if quality is not None:
        return Measure(quality.name, lambda run: quality.costs(run.final, problem))
    mix = objective_weights(batches.objective)

    def part(run: Rollout, name: str) -> Tensor:
        if name == "path":
            return run.residuals.double().sum(dim=0).cpu()
        return endpoint_distance(run, batches.stepwise, batches.distance).double().cpu()

    def cost(run: Rollout) -> Tensor:
        return torch.stack([weight * part(run, name) for name, weight in mix.items()]).sum(dim=0)

    return Measure(describe(batches.objective), cost)


# ------------------------------------------------------------------ candidates


def fixed_plans(n_steps: int, budget: int) -> dict[str, Tensor]:
    """Return even spacing and two windows as masks for every budget, (B + 1, T) bool."""
    steps, b = torch.arange(n_steps), torch.arange(budget + 1)[:, None]
    # the step after the last is the closing projection's, so that gaps are even up to it
    even = ((steps + 1) * (b + 1)) // (n_steps + 1) > (steps * (b + 1)) // (n_steps + 1)
    plans = {EVEN: even}
    for name, stop in (("last steps", n_steps), ("window before the last quarter", (3 * n_steps) // 4)):
        end = torch.maximum(torch.tensor(stop), b)
        plans[name] = (steps >= end - b) & (steps < end)
    return plans


def by_race(
    batches: Batches, quality: Quality | None, problem: Problem | None, more: Mapping[str, Part], look: float = 0.0
) -> Raced | Thresholds:
    """Race all candidates for whole projections."""
    batches.require()
    uncorrected, budget = batches.uncorrected, batches.spendable
    paper = quantile_table(uncorrected.defects, budget)
    if not batches.has_choice:
        return batches.thresholds(paper, "dp")
    batches.prefetch_weights()
    runs, sample_scale = batches.explored(None, near_rounds=1)
    steps = estimate_transitions(runs, sample_scale)
    plans = fixed_plans(batches.n_choices, budget)
    found: dict[str, Part] = {name: batches.plan(masks, name) for name, masks in plans.items()}
    found["paper"] = batches.thresholds(paper, "paper", objective="path")
    for goal, weights in goal_weights(batches).items():
        named: dict[str, Any] = {"objective": "path"} if goal == "path" else {}
        found[f"planned for {goal}"] = batches.plan(
            planned_masks(runs, budget, weights), f"planned for {goal}", **named
        )
        table = solve(steps, budget, weights).table
        found[f"dp for {goal}"] = batches.thresholds(table, f"dp for {goal}", sample_scale=sample_scale, **named)
    priced = found["dp for path"]
    assert isinstance(priced, Thresholds)
    found[KEPT] = replace(priced.keep_last(max(1, round(_KEPT * batches.n_choices))), method=KEPT)
    trusted = "dp for path" if quality is None else EVEN
    return race(batches, {**found, **more}, measure_of(batches, quality, problem), look, trusted)


def goal_weights(batches: Batches) -> dict[str, Tensor | None]:
    """Return the weights of residuals by goal."""
    if set(objective_weights(batches.objective)) == {"path"}:
        return {"path": None}
    return {"path": None, "influence": batches.weights}


def builtin_candidate_names(unit: Unit) -> set[str]:
    """Return the names of the race's candidates."""
    plans = fixed_plans(1, 0)
    if unit == "projection":
        return {*plans, AT_END, "paper", KEPT, *(f"{how} for {goal}" for how in ("planned", "dp") for goal in GOALS)}
    priced = {f"{what} by price for {goal}" for what in ("iterations", "whole projections") for goal in GOALS}
    return {EVEN, AT_END, "until below one tau", *(f"whole projections, {name}" for name in plans), *priced}


def check_candidates(candidates: Mapping[str, Price], batches: Batches) -> dict[str, Part]:
    """Return the user's candidates; raise if one was made for other runs, or has the name of a built-in one."""
    found: dict[str, Part] = {}
    T, most, closing, unit = batches.n_steps, batches.budget, batches.closing, batches.unit
    for name, one in candidates.items():
        if name in builtin_candidate_names(unit):
            raise ValueError(f"{name!r} is a built-in candidate; choose another name")
        words = ""
        if not isinstance(one, Part):
            words = "is the winner of another race, which cannot be raced; give its parts"
        elif one.unit != unit:
            words = f"counts {one.unit}s, and this race {unit}s"
        elif one.n_steps != T:
            words = f"is for T = {one.n_steps} steps, and these runs have {T}: calibrate, or use price.resample({T})"
        elif one.closing not in ("", closing):
            words = f"was made for closing={one.closing!r}, and these runs have closing={closing!r}: calibrate for that"
        elif one.budget < most:
            words = f"goes up to a budget of {one.budget}, and this race up to {most}: race up to its own"
        if words or not isinstance(one, Part):
            raise ValueError(f"the candidate {name!r} {words}")
        found[name] = one
    return found


# ------------------------------------------------------------------ the race


def race(
    batches: Batches,
    candidates: Mapping[str, Part],
    measure: Measure,
    look: float = 0.0,
    trusted: str = EVEN,
) -> Raced:
    """Run the candidates against each other and keep the best.

    Args:
        batches: Runs calibration batches.
        candidates: By name; "even spacing" is among them.
        measure: What to compare.
        look: What one evaluation of the defect costs, in units of the budget. A candidate that looks at defects has
            that much less to spend; budgets that looking would use up go to even spacing.
        trusted: The candidate that needs no proof, besides even spacing.
    """
    looks, held = math.ceil(look * batches.n_steps), batches.held
    for name, one in candidates.items():
        if one.closing_reserve != max(held, 1):
            raise ValueError(
                f"the candidate {name!r} keeps {one.closing_reserve} of a budget for the closing projection, and this "
                f"race {max(held, 1)}: calibrate it on the same samples"
            )
    # these run on calibration seeds, which schedules with seeds would reject
    known = {name: replace(one, seeds=()) for name, one in candidates.items()}
    looking = {name for name, one in known.items() if isinstance(one, Thresholds)}
    at_end = finite(measure.cost(batches.first).cpu().double(), measure.name)
    if "stepwise" in vars(batches):  # it has been run for the weights of the objective
        _warn_of_worse_reference(measure.cost(batches.stepwise).cpu().double(), at_end, measure.name)
    names, rounds = list(known), list[_Round]()
    for number in range(2):
        if number:
            names = _second_round(_Scores(rounds), names, trusted)
        if len(names) == 1:
            break
        budgets, place = _spread(batches, seed=number)
        without_looks = (budgets - looks).clamp(min=held)
        schedules = {name: known[name].at(without_looks if name in looking else budgets) for name in names}
        batches.prefetch(list(schedules.values()))
        costs = {AT_END: at_end}
        for name, schedule in schedules.items():
            batches.progress(f"race, round {number + 1}: {name}")
            costs[name] = finite(measure.cost(batches.run(schedule)).cpu().double(), measure.name)
        rounds.append(_Round(costs, place))

    scores, ranges = _Scores(rounds), _ranges(batches)
    winners = _winners(scores, list(ranges), trusted)
    serving = [EVEN if name == AT_END else name for name in winners.values()]
    kept = list(dict.fromkeys([*([EVEN] if looks else []), *serving]))
    winner, spend = torch.zeros(batches.budget + 1, dtype=torch.int64), torch.arange(batches.budget + 1)
    for (k, (low, high)), name in zip(ranges.items(), serving, strict=True):
        winner[low : high + 1] = kept.index(name)
        if winners[k] == AT_END:
            spend[low : high + 1] = spend[low : high + 1].clamp(max=held)
        if looks and name in looking:  # nothing else is proven for budgets that looking would use up
            winner[low : min(high + 1, looks + held + 1)] = kept.index(EVEN)
    facts = batches.facts(
        {
            "measure": measure.name,
            "candidates": [*candidates, AT_END],
            "look": look,
            "second_round": names if len(rounds) > 1 else [],
            "ranges": [
                {
                    "from": low,
                    "to": high,
                    "winner": winners[k],
                    "ahead_of_even_spacing": scores.ahead_of_even(winners[k], k),
                }
                for k, (low, high) in ranges.items()
            ],
        }
    )
    # the seeds of a candidate made elsewhere must not be evaluated on either
    seeds = dict.fromkeys([*facts["seeds"], *(seed for one in candidates.values() for seed in one.seeds)])
    facts |= {"objective": measure.name, "seeds": tuple(seeds)}
    parts = tuple(replace(known[name], notes={}, fingerprint="", method=name) for name in kept)
    return Raced(parts, winner, looks, spend if AT_END in winners.values() else None, **facts)


def _warn_of_worse_reference(full: Tensor, at_end: Tensor, name: str) -> None:
    """Warn if samples corrected at every step cost more than those corrected once, at the end, (n,) each."""
    gap = full - at_end
    more, error = float(gap.mean()), float(gap.std()) / len(gap) ** 0.5
    if more > 2 * error:
        warnings.warn(
            f"by {name}, projecting at every step is worse than once at the end on the calibration samples, by "
            f"{more:.3g} ± {error:.1g}: full projection is no reference here, and nearness to it is no gain",
            stacklevel=5,
        )


class _Round(NamedTuple):
    costs: dict[str, Tensor]  # by candidate, (n,) each
    place: Tensor  # the range of budgets that each sample was run in, (n,)


class _Gap(NamedTuple):
    """How much more one candidate costs than another, in units of even spacing's cost.

    Attributes:
        mean: Of costs whose tails are cut.
        se: Its standard error.
        n: The number of equally weighted samples that it stands for.
        plain: The mean of the costs as they are.
        ranks: The sum of the signed ranks in units of its standard error.
    """

    mean: float
    se: float
    n: float
    plain: float
    ranks: float

    def proves(self, errors: float) -> bool:
        """Return whether the first costs less by more than `errors` standard errors; few samples need a wider gap."""
        more = 1 + (errors**2 + 1) / (4 * max(self.n - 1, 1.0))  # as the quantiles of Student's t
        return self.plain < 0 and self.ranks < -errors and self.mean < -errors * more * self.se


class _Scores:
    """Costs of all rounds so far, in units of what even spacing costs in the same range of budgets."""

    def __init__(self, rounds: list[_Round]) -> None:
        costs, place = (
            torch.cat(parts) for parts in zip(*((r.costs[EVEN].abs(), r.place) for r in rounds), strict=True)
        )
        here = [costs[place == k] if bool((place == k).any()) else costs for k in range(_RANGES)]
        typical = [float(some.median()) for some in here]
        self.most = torch.tensor(
            [_TAIL * t if t > 0 else float(some.max()) for t, some in zip(typical, here, strict=True)]
        )
        unit = torch.stack([some.clamp(max=float(most)).mean() for some, most in zip(here, self.most, strict=True)])
        self.unit = unit.clamp(min=max(_LEAST * float(unit.max()), 1e-300))
        self.rounds = rounds

    def gap(self, name: str, other: str, k: int) -> _Gap:
        """Return how much more `name` costs than `other` in the k-th range of budgets, in the rounds that have both."""
        both = [one for one in self.rounds if name in one.costs and other in one.costs]
        place = torch.cat([one.place for one in both])
        costs = [torch.cat([one.costs[each] for one in both]) for each in (name, other)]
        plain = (costs[0] - costs[1]) / self.unit[place]
        cut = [each.clamp(-self.most[place], self.most[place]) for each in costs]
        gaps, weight = (cut[0] - cut[1]) / self.unit[place], _nearness(place)[k]
        total = weight.sum().clamp(min=1e-300)
        mean = (weight * gaps).sum() / total
        n = float(total**2 / weight.square().sum().clamp(min=1e-300))
        se = float((weight * (gaps - mean)).norm() / total) * math.sqrt(n / max(n - 1, 0.5))
        seen = gaps[(weight > 0) & (gaps != 0)]
        ranks = (seen.abs().argsort().argsort() + 1.0).double()
        signed = float((ranks * seen.sign()).sum() / ranks.norm().clamp(min=1e-300))
        return _Gap(float(mean), se, n, float((weight * plain).sum() / total), signed)

    def usual_lead(self, name: str) -> Tensor:
        """Return by what share a candidate usually costs less than even spacing in each range of budgets, (k,).

        Shares are those of both costs together, so that no sample counts more than another. The part of the differences
        between ranges that their standard errors explain is removed.
        """
        both = [one for one in self.rounds if name in one.costs]
        ours, even = (torch.cat([one.costs[each] for one in both]) for each in (name, EVEN))
        shares = 2 * (even - ours) / (even.abs() + ours.abs()).clamp(min=1e-300)
        weight = _nearness(torch.cat([one.place for one in both]))
        weight = weight / weight.sum(dim=1, keepdim=True).clamp(min=1e-300)
        lead, overall = weight @ shares, shares.mean()
        variance = (weight.square() * (shares - lead[:, None]).square()).sum(dim=1)
        spread = (lead - overall).square().mean().clamp(min=1e-300)
        trust = (1 - variance.mean() / spread).clamp(min=0)
        return overall + trust * (lead - overall)

    def ahead_of_even(self, name: str, k: int) -> list[float]:
        """Return how much less a candidate costs than even spacing, as a share of its cost, and the standard error."""
        gap = self.gap(name, EVEN, k)
        return [0.0 - gap.mean, gap.se]


def _nearness(place: Tensor) -> Tensor:
    """Return how much samples, by their range of budgets, (n,), count in each range, (k, n)."""
    away = (place - torch.arange(_RANGES)[:, None]).abs()
    return (away == 0) + _NEAR * (away == 1).double()


def _second_round(scores: _Scores, names: list[str], trusted: str) -> list[str]:
    """Return the candidates that need no proof, and the few that lower the cost most, with the best in each range."""
    costs = {name: torch.tensor([scores.gap(name, EVEN, k).mean for k in range(_RANGES)]) for name in names}
    kept = list(dict.fromkeys([EVEN, trusted]))
    best = torch.stack([costs[name] for name in kept]).amin(dim=0)
    while len(kept) < _SECOND_ROUND:
        new = min(names, key=lambda name: float(torch.minimum(best, costs[name]).sum()))
        if new in kept or not bool((costs[new] < best).any()):
            break
        kept.append(new)
        best = torch.minimum(best, costs[new])
    return kept


def _winners(scores: _Scores, ranges: list[int], trusted: str) -> dict[int, str]:
    """Return the winner of each range: the usual choice, unless another candidate is proven to be ahead of it."""
    names, lead = list(scores.rounds[0].costs), scores.usual_lead(trusted)
    errors = NormalDist().inv_cdf(1 - _LEVEL / ((len(names) - 1) * len(ranges)))
    winners = {}
    for k in ranges:
        usual = trusted if lead[k] > _MARGIN and scores.gap(trusted, EVEN, k).plain < 0 else EVEN
        gaps = {name: scores.gap(name, usual, k) for name in names if name != usual}
        proven = [name for name, gap in gaps.items() if gap.proves(errors)]
        winners[k] = min(proven, key=lambda name: gaps[name].mean, default=usual)
    return winners


def _spread(batches: Batches, seed: int) -> tuple[Tensor, Tensor]:
    """Return budgets for all samples, (n,), denser for small ones, and their ranges, (n,)."""
    n = batches.n
    order = uniform_numbers(torch.tensor([seed]), range(1), (n,), _SHUFFLES)[0, 0].argsort().argsort()
    share = (order + 0.5) / n
    spend = (share.square() * batches.spendable).ceil().long().clamp(1, batches.spendable)
    return spend + batches.held, (share * _RANGES).long()


def _ranges(batches: Batches) -> dict[int, tuple[int, int]]:
    """Return the first and last budget of each range, the closing projection included; empty ranges are left out."""
    ends = [int((((k + 1) / _RANGES) ** 2) * batches.spendable) + batches.held for k in range(_RANGES)]
    ends[-1] = batches.budget
    starts = [0, *(end + 1 for end in ends[:-1])]
    return {k: (low, high) for k, (low, high) in enumerate(zip(starts, ends, strict=True)) if low <= high}
