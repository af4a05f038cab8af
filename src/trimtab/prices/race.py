"""A race of prices on calibration seeds: the best candidate by the measure wins, and even spacing is the baseline.

All candidates run the same samples on the same noise at the same budgets, which are spread over all rates, so every
comparison is paired. The cost of a sample is divided by what even spacing costs at similar budgets, so that all budgets
have a say. The few candidates that do best together run a second time. In each range of budgets the candidate with the
least cost wins, neighbouring ranges counting a little, if it is ahead of even spacing there and the lead is more than
noise, either over all budgets or in this range.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
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
GOALS = ("path", "influence")
"""What prices in the race are made for: path error, or path error with the weights of the objective."""

_KEPT = 0.05  # of the steps: those at the end that `KEPT` keeps corrections for
_RANGES = 5  # of budgets
_NEAR = 0.35  # how much a neighbouring range counts
_SECOND_ROUND = 3  # candidates at most
_FEW = 0.25  # if a smaller share of the rollouts makes up the mean of even spacing, costs are cut off
_BODY = 0.8  # at this quantile
_BEHIND = 2.5  # standard errors behind the first: no second round
_LEAST = 0.01  # of the largest range's cost: the least cost of a range
_SHUFFLES = 1 << 37  # a stream of noise


class Measure(NamedTuple):
    """What the race compares: a name, and a function that returns the cost of each sample of a record, (n,)."""

    name: str
    cost: Callable[[Rollout], Tensor]


def measure_of(batches: Batches, quality: Quality | None, problem: Problem | None) -> Measure:
    """Return the quality, or the objective, as a measure."""
    if quality is not None:
        return Measure(quality.name, lambda run: batches.per_decider(quality.costs(run.final, problem)))
    mix = objective_weights(batches.objective)

    def part(run: Rollout, name: str) -> Tensor:
        if name == "path":
            return run.residuals.double().sum(dim=0).cpu()
        return batches.per_decider(endpoint_distance(run, batches.stepwise, batches.distance).double().cpu())

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
    return race(batches, {**found, **more}, measure_of(batches, quality, problem), look)


def goal_weights(batches: Batches) -> dict[str, Tensor | None]:
    """Return the weights of residuals by goal."""
    if set(objective_weights(batches.objective)) == {"path"}:
        return {"path": None}
    return {"path": None, "influence": batches.weights}


def builtin_candidate_names(unit: Unit) -> set[str]:
    """Return the names of the race's candidates."""
    plans = fixed_plans(1, 0)
    if unit == "projection":
        return {*plans, "paper", KEPT, *(f"{how} for {goal}" for how in ("planned", "dp") for goal in GOALS)}
    priced = {f"{what} by price for {goal}" for what in ("iterations", "whole projections") for goal in GOALS}
    return {EVEN, "until below one tau", *(f"whole projections, {name}" for name in plans), *priced}


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
    bound_tails: bool = False,
) -> Raced:
    """Run the candidates against each other and keep the best.

    Args:
        batches: Runs calibration batches.
        candidates: By name; "even spacing" is among them.
        measure: What to compare.
        look: What one evaluation of the defect costs, in units of the budget. A candidate that looks at defects has
            that much less to spend, and cannot win a budget that looking would use up.
        bound_tails: Whether to cut costs off at a high quantile of even spacing's if a few rollouts make up its mean.
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
    names, rounds = list(known), list[_Round]()
    for number in range(2):
        if number:
            names = _second_round(_Scores(rounds, bound_tails), names)
        if len(names) == 1:
            break
        budgets, place = _spread(batches, seed=number)
        without_looks = (budgets - looks).clamp(min=held)
        schedules = {name: known[name].at(without_looks if name in looking else budgets) for name in names}
        batches.prefetch(list(schedules.values()))
        costs = {}
        for name, schedule in schedules.items():
            batches.progress(f"race, round {number + 1}: {name}")
            costs[name] = finite(measure.cost(batches.run(schedule)).cpu().double(), measure.name)
        rounds.append(_Round(costs, place))

    scores = _Scores(rounds, bound_tails)
    first = min(names, key=scores.mean)
    clear = _is_ahead(scores, first)
    best = first if clear else EVEN
    ranges = _ranges(batches)
    winners = {k: _winner(scores, k, names, clear) for k in ranges}
    blind = min((name for name in known if name not in looking), key=scores.mean)
    kept = list(dict.fromkeys([*winners.values(), *([blind] if looks else [])]))
    winner = torch.zeros(batches.budget + 1, dtype=torch.int64)
    for k, (low, high) in ranges.items():
        winner[low : high + 1] = kept.index(winners[k])
        if looks and winners[k] in looking:  # not for budgets that looking would use up
            winner[low : min(high + 1, looks + held + 1)] = kept.index(blind)
    facts = batches.facts(
        {
            "measure": measure.name,
            "candidates": list(candidates),
            "look": look,
            "second_round": list(rounds[-1].costs) if len(rounds) > 1 else [],
            "overall": {"winner": best, "ahead_of_even_spacing": scores.ahead_of_even(best)},
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
    return Raced(parts, winner, looks, **facts)


class _Round(NamedTuple):
    costs: dict[str, Tensor]  # by candidate, (n,) each
    place: Tensor  # the range of budgets that each sample was run in, (n,)


class _Scores:
    """Costs of all rounds so far, in units of what even spacing costs in the same range of budgets."""

    def __init__(self, rounds: list[_Round], bound_tails: bool = False) -> None:
        with_even = [one for one in rounds if EVEN in one.costs]
        costs = torch.cat([one.costs[EVEN].abs() for one in with_even])
        place = torch.cat([one.place for one in with_even])
        here = [costs[place == k] if bool((place == k).any()) else costs for k in range(_RANGES)]
        in_effect = float(costs.sum() ** 2 / costs.square().sum().clamp(min=1e-300))
        if bound_tails and in_effect < _FEW * len(costs):
            most = torch.stack([some.quantile(_BODY) for some in here])
            rounds = [_Round({n: c.minimum(most[r.place]) for n, c in r.costs.items()}, r.place) for r in rounds]
            here = [some.clamp(max=float(limit)) for some, limit in zip(here, most, strict=True)]
        self.rounds = rounds
        unit = torch.stack([some.mean() for some in here])
        self.unit = unit.clamp(min=max(_LEAST * float(unit.max()), 1e-300))

    def mean(self, name: str) -> float:
        """Return the mean cost of a candidate over all rounds that it ran in."""
        ran = [one for one in self.rounds if name in one.costs]
        return float(torch.cat([one.costs[name] / self.unit[one.place] for one in ran]).mean())

    def gaps(self, name: str, other: str) -> tuple[Tensor, Tensor]:
        """Return how much more one costs than the other per sample, in the rounds of both, and the ranges, (m,)."""
        both = [one for one in self.rounds if name in one.costs and other in one.costs]
        gaps = [(one.costs[name] - one.costs[other]) / self.unit[one.place] for one in both]
        return torch.cat(gaps), torch.cat([one.place for one in both])

    def gap(self, name: str, other: str, k: int | None = None) -> tuple[float, float]:
        """Return the mean of the gaps and its standard error; in range k its neighbours count a little."""
        gaps, place = self.gaps(name, other)
        weight = torch.ones_like(gaps)
        if k is not None:
            away = (place - k).abs()
            weight = (away == 0) + _NEAR * (away == 1).double()
        total = weight.sum().clamp(min=1e-300)
        mean = (weight * gaps).sum() / total
        return float(mean), float((weight * (gaps - mean)).norm() / total)

    def ahead_of_even(self, name: str, k: int | None = None) -> list[float]:
        """Return by which share of even spacing's cost a candidate is ahead of it, and the standard error."""
        mean, se = self.gap(name, EVEN, k)
        return [0.0 - mean, se]


def _second_round(scores: _Scores, names: list[str]) -> list[str]:
    """Return the few that do best together: the first, even spacing if not clearly behind, and those that add most.

    A candidate adds what the ranges cost less if each is served by the best of those kept.
    """
    first = min(names, key=scores.mean)
    costs = {name: torch.tensor([scores.gap(name, first, k)[0] for k in range(_RANGES)]) for name in names}

    def clearly_behind(name: str) -> bool:
        mean, se = scores.gap(name, first)
        return mean > _BEHIND * se

    kept = [first] if first == EVEN or clearly_behind(EVEN) else [first, EVEN]
    others = [n for n in names if n not in kept and (not clearly_behind(n) or bool((costs[n] < 0).any()))]
    while others and len(kept) < _SECOND_ROUND:
        best = torch.stack([costs[name] for name in kept]).min(dim=0).values
        new = min(others, key=lambda name: (float(torch.minimum(best, costs[name]).sum()), scores.mean(name)))
        kept.append(new)
        others.remove(new)
    return kept


def _is_ahead(scores: _Scores, name: str) -> bool:
    """Return whether a candidate is ahead of even spacing by more than noise.

    A few rollouts that end far away can make up most of the mean and of its standard error, and hide what all others
    show. So the lead must exceed one standard error of the mean or of the signed ranks.
    """
    mean, se = scores.gap(name, EVEN)
    if mean >= 0:
        return False
    gaps = scores.gaps(name, EVEN)[0]
    gaps = gaps[gaps != 0]
    ranks = (gaps.abs().argsort().argsort() + 1.0).double()
    return mean < -se or float((ranks * gaps.sign()).sum()) < -float(ranks.norm())


def _winner(scores: _Scores, k: int, names: list[str], clear: bool) -> str:
    """Return the candidate with the least cost in range k, or even spacing if the lead may be noise.

    `clear` says that some candidate is ahead over all budgets; if none is, the lead in the range must be clear.
    """
    first = min(names, key=lambda name: scores.gap(name, names[0], k)[0])
    mean, se = scores.gap(first, EVEN, k)
    return first if mean < (0.0 if clear else -se) else EVEN


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
