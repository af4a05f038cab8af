"""What races in a calibration: the paper's rule, plans, dynamic programs, even spacing and windows, on the measure."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from trimtab.core.budget import Unit
from trimtab.core.metrics import endpoint_distance
from trimtab.core.problem import Problem
from trimtab.core.quality import Quality
from trimtab.core.record import Rollout
from trimtab.prices.batches import Batches
from trimtab.prices.dynamic import solve
from trimtab.prices.graded import explored_iterations, graded_prices
from trimtab.prices.iteration_race import WholeProjections, iteration_candidates
from trimtab.prices.methods import FEWEST, as_plan, as_thresholds, by_dp, explored
from trimtab.prices.objective import objective_weights
from trimtab.prices.planned import planned_masks
from trimtab.prices.quantile import quantile_table
from trimtab.prices.race import EVEN, Measure, fixed_plans, race
from trimtab.prices.raced import Part, Price, Raced
from trimtab.prices.thresholds import Thresholds
from trimtab.prices.transitions import MEMORY, estimate_transitions

__all__ = ["builtin_candidate_names", "by_iteration_race", "by_race", "check_candidates", "valid_candidates"]

_GOALS = ("path", "influence")  # that prices in the race are made for


def builtin_candidate_names(unit: Unit) -> set[str]:
    """What the race calls its own candidates."""
    plans = fixed_plans(1, 0)
    if unit == "projection":
        return {*plans, "paper", *(f"{how} for {goal}" for how in ("planned", "dp") for goal in _GOALS)}
    priced = {f"{what} by price for {goal}" for what in ("iterations", "whole projections") for goal in _GOALS}
    return {EVEN, "until below one tau", *(f"whole projections, {name}" for name in plans), *priced}


def valid_candidates(candidates: Mapping[str, Price], unit: Unit) -> dict[str, Part]:
    """The prices that were handed in, if they can race whatever the runs are like."""
    found: dict[str, Part] = {}
    for name, one in candidates.items():
        if isinstance(one, Raced):
            raise ValueError(
                f"the candidate {name!r}: the winner of another race cannot be raced; give what it is made of"
            )
        if one.unit != unit:
            raise ValueError(f"the candidate {name!r}: its prices count {one.unit}s, and this race {unit}s")
        if name in builtin_candidate_names(unit):
            raise ValueError(f"the candidate {name!r}: the race has one of that name already; call yours otherwise")
        found[name] = one
    return found


def check_candidates(candidates: Mapping[str, Part], n_steps: int, budget: int, closing: str) -> None:
    """Refuse prices that were made for other runs than those of the race, or for less than its largest budget."""
    for name, one in candidates.items():
        if one.n_steps != n_steps:
            raise ValueError(
                f"the candidate {name!r} is for T = {one.n_steps} steps, and these runs have {n_steps}: calibrate it "
                f"for those, or use price.resample({n_steps})"
            )
        if one.closing not in ("", closing):
            raise ValueError(
                f"the candidate {name!r} was made for closing={one.closing!r}, and these runs have "
                f"closing={closing!r}: calibrate it with the one that is used"
            )
        if one.budget < budget:
            raise ValueError(
                f"the candidate {name!r} goes up to a budget of {one.budget}, and this race up to {budget}: calibrate "
                "it with that budget, or race up to its own"
            )


def by_race(
    batches: Batches, quality: Quality | None, problem: Problem | None, more: Mapping[str, Part], look: float = 0.0
) -> Raced | Thresholds:
    """Everything there is, tried out on the measure that was asked for."""
    batches.enough(FEWEST)
    if not batches.has_choice:
        return by_dp(batches)
    path_only = set(objective_weights(batches.objective)) == {"path"}
    batches.expect_weights()
    free = batches.cut(batches.free)
    runs, sample_scale = explored(batches, None, near_rounds=1)
    steps = estimate_transitions([*runs, free], sample_scale).with_memory(MEMORY)
    weights = {"path": None} | ({} if path_only else {"influence": batches.weights})
    candidates: dict[str, Part] = {
        name: as_plan(batches, masks, name) for name, masks in fixed_plans(batches.n_choices, batches.spendable).items()
    }
    candidates["paper"] = as_thresholds(batches, quantile_table(free.defects, batches.spendable), "paper", {})
    for name, weight in weights.items():
        candidates[f"planned for {name}"] = as_plan(
            batches, planned_masks([*runs, free], batches.spendable, weight), f"planned for {name}"
        )
        table = solve(steps, batches.spendable, weight, keep_cost=False).table
        candidates[f"dp for {name}"] = as_thresholds(batches, table, f"dp for {name}", {}, sample_scale=sample_scale)
    return race(batches, {**candidates, **more}, _measure(batches, quality, problem), look)


def by_iteration_race(
    batches: Batches, quality: Quality | None, problem: Problem | None, more: Mapping[str, Part], look: float = 0.0
) -> Raced | Thresholds:
    """Prices of iterations against whole projections and what needs no table, tried out on the measure."""
    batches.enough(FEWEST)
    if not batches.has_choice:
        return graded_prices(batches)
    path_only = set(objective_weights(batches.objective)) == {"path"}
    batches.expect_weights()
    weights = {"path": None} | ({} if path_only else {"influence": batches.weights})
    runs = explored_iterations(batches, batches.weights)
    each = float(batches.stepwise.all_iterations.double().mean()) / batches.n_steps
    # one at the least beside the closing projection, even where the budget pays for none: all are explored
    most = max(round(batches.spendable / max(each, 1.0)), batches.closing_reserve) + 1
    whole = batches.in_projections(min(batches.n_steps, most))
    random, sample_scale = explored(whole, None, near_rounds=1)
    steps = estimate_transitions([*random, whole.cut(whole.free)], sample_scale).with_memory(MEMORY)
    tables = {name: solve(steps, whole.spendable, weight, keep_cost=False).table for name, weight in weights.items()}
    taken = torch.cat([run.iterations[run.projected] for run in random]).double()
    projections = WholeProjections(tables, sample_scale, max(1.0, float(taken.mean()) if len(taken) else each))
    candidates: dict[str, Part] = {**iteration_candidates(batches, runs, weights, projections), **more}
    # a few samples may end far away, and more often so by chance than by a candidate
    return race(batches, candidates, _measure(batches, quality, problem), look, bound_tails=quality is None)


def _measure(batches: Batches, quality: Quality | None, problem: Problem | None) -> Measure:
    """What a batch of final samples, or its path, costs: lower is better, (n,)."""
    if quality is not None:
        chosen = quality
        return Measure(chosen.name, lambda run: batches.per_decider(chosen.costs(run.final, problem)))
    mix = objective_weights(batches.objective)

    def cost(run: Rollout) -> Tensor:
        parts = {"path": lambda: run.residuals.double().sum(dim=0).cpu()}
        parts["endpoint"] = lambda: batches.per_decider(
            endpoint_distance(run, batches.stepwise, batches.distance).double().cpu()
        )
        return torch.stack([weight * parts[name]() for name, weight in mix.items()]).sum(dim=0)

    return Measure(batches.facts({})["objective"], cost)
