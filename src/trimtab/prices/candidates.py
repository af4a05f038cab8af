"""What races in a calibration: the paper's rule, plans, dynamic programs, even spacing and windows, on the measure."""

from __future__ import annotations

import torch
from torch import Tensor

from trimtab.core.metrics import endpoint_distance
from trimtab.core.problem import Problem
from trimtab.core.quality import Quality
from trimtab.core.record import Rollout
from trimtab.prices.batches import Batches
from trimtab.prices.dynamic import solve
from trimtab.prices.graded import explored_iterations, graded_prices
from trimtab.prices.iteration_race import WholeProjections, iteration_candidates
from trimtab.prices.methods import FEWEST, as_plan, as_thresholds, by_dp, explored
from trimtab.prices.objective import as_mix
from trimtab.prices.planned import planned_masks
from trimtab.prices.quantile import quantile_table
from trimtab.prices.race import Measure, fixed_plans, race
from trimtab.prices.raced import Part, Price, Raced
from trimtab.prices.thresholds import Thresholds
from trimtab.prices.transitions import MEMORY, one_step

__all__ = ["by_iteration_race", "by_race"]


def by_race(
    batches: Batches, quality: Quality | None, problem: Problem | None, more: dict[str, Price], look: float = 0.0
) -> Raced | Thresholds:
    """Everything there is, tried out on the measure that was asked for."""
    batches.enough(FEWEST)
    if not batches.has_choice:
        return by_dp(batches)
    path_only = set(as_mix(batches.objective)) == {"path"}
    batches.expect_weights()
    free = batches.cut(batches.free)
    runs, own_scale = explored(batches, None, near_rounds=1)
    steps = one_step([*runs, free], own_scale).remembering(MEMORY)
    weights = {"path": None} | ({} if path_only else {"influence": batches.weights})
    candidates: dict[str, Price] = {
        name: as_plan(batches, masks, name) for name, masks in fixed_plans(batches.n_choices, batches.spendable).items()
    }
    candidates["paper"] = as_thresholds(batches, quantile_table(free.defects, batches.spendable), "paper", {})
    for name, weight in weights.items():
        candidates[f"planned for {name}"] = as_plan(
            batches, planned_masks([*runs, free], batches.spendable, weight), f"planned for {name}"
        )
        table = solve(steps, batches.spendable, weight, keep_cost=False).table
        candidates[f"dp for {name}"] = as_thresholds(batches, table, f"dp for {name}", {}, own_scale=own_scale)
    return race(batches, candidates | more, _measure(batches, quality, problem), look)


def by_iteration_race(
    batches: Batches, quality: Quality | None, problem: Problem | None, more: dict[str, Price], look: float = 0.0
) -> Raced | Thresholds:
    """Prices of iterations against whole projections and what needs no table, tried out on the measure."""
    batches.enough(FEWEST)
    path_only = set(as_mix(batches.objective)) == {"path"}
    batches.expect_weights()
    weights = {"path": None} | ({} if path_only else {"influence": batches.weights})
    runs = explored_iterations(batches, batches.weights)
    if not batches.has_choice:
        return graded_prices(batches)
    each = float(batches.stepwise.all_iterations.double().mean()) / batches.n_steps
    whole = batches.in_projections(min(batches.n_steps, round(batches.spendable / max(each, 1.0)) + 1))
    random, own_scale = explored(whole, None, near_rounds=1)
    steps = one_step([*random, whole.cut(whole.free)], own_scale).remembering(MEMORY)
    tables = {name: solve(steps, whole.spendable, weight, keep_cost=False).table for name, weight in weights.items()}
    taken = torch.cat([run.iterations[run.projected] for run in random]).double()
    projections = WholeProjections(tables, own_scale, max(1.0, float(taken.mean()) if len(taken) else each))
    candidates: dict[str, Part | Raced] = {**iteration_candidates(batches, runs, weights, projections)}
    # a few samples may end far away, and more often so by chance than by a candidate
    return race(batches, candidates | more, _measure(batches, quality, problem), look, bound_tails=quality is None)


def _measure(batches: Batches, quality: Quality | None, problem: Problem | None) -> Measure:
    """What a batch of final samples, or its path, costs: lower is better, (n,)."""
    if quality is not None:
        chosen = quality
        return Measure(chosen.name, lambda run: batches.per_unit(chosen.costs(run.final, problem)))
    mix = as_mix(batches.objective)

    def cost(run: Rollout) -> Tensor:
        parts = {"path": lambda: run.residuals.double().sum(dim=0).cpu()}
        parts["endpoint"] = lambda: batches.per_unit(
            endpoint_distance(run, batches.stepwise, batches.distance).double().cpu()
        )
        if set(mix) - set(parts):
            raise ValueError("a race goes by 'endpoint', 'path' or a quality; state error can be priced by method='dp'")
        return torch.stack([weight * parts[name]() for name, weight in mix.items()]).sum(dim=0)

    return Measure(batches.facts({})["objective"], cost)
