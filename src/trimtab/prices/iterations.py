"""Prices of single solver iterations, and the race in which they compete with whole projections.

A solver that iterates need not converge. What follows a residual, and what an iteration makes of a defect, is estimated
from rollouts that stop at random places; `trimtab.prices.program.solve_iterations` makes prices of it. Every candidate
of the race is a price of iterations: a whole projection is one that always continues once it has started.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trimtab.core.noise import uniform_numbers
from trimtab.core.quality import Quality
from trimtab.core.record import Rollout
from trimtab.core.schedule import ByIteration
from trimtab.core.view import StepView
from trimtab.loop.rollout import Problem
from trimtab.prices.collect import RANDOM_SHARE, Batches, ExploreIterations
from trimtab.prices.objective import describe
from trimtab.prices.price import Allowance, Raced, Thresholds, with_closing
from trimtab.prices.program import IterationSteps, solve, solve_iterations
from trimtab.prices.race import EVEN, Part, fixed_plans, goal_weights, measure_of, race
from trimtab.prices.sample_scale import SampleScale
from trimtab.prices.transitions import (
    NODES,
    Array,
    Pool,
    estimate_transitions,
    interpolation_weights,
    quantile_nodes,
    shifted_neighbours,
)

WHOLE = 10_000
"""More iterations than any step needs: the solver converges before."""

_ORDER, _TAU_ORDER = 1 << 34, 1 << 38  # streams of noise
_RANDOM_ROUNDS, _NEAR_ROUNDS = 3, 2
_ENOUGH_FOR = 0.9  # of the samples: what is kept for the closing projection
_POOL = 6000  # pairs; a pool takes as few steps as have so many
_TAUS, _TAU_TRIALS = 16, 2
_TAU_SPREAD = 1e-6  # of the largest defect: the least tau


# ------------------------------------------------------------------ prices of one iteration


def graded_prices(batches: Batches) -> Thresholds:
    """Calibrate prices of one iteration for all budgets up to the largest of the batches."""
    prices = _iteration_prices(batches, iteration_steps(_explored(batches, batches.weights)), batches.weights)
    return replace(prices, **batches.facts(dict(prices.notes)))


def _iteration_prices(batches: Batches, steps: IterationSteps, weights: Tensor | None) -> Thresholds:
    """Return the prices for these weights; their notes hold the expected objective for every budget."""
    solved = solve_iterations(steps, batches.spendable, weights)
    expected = [float(solved.expected[0])] * batches.held + solved.expected.tolist()
    return _as_price(batches, solved.table, solved.onward, method="dp", notes={"expected": expected})


def _as_price(batches: Batches, table: Tensor, onward: Tensor | None = None, **more: Any) -> Thresholds:
    """Return tables (T', B' + 1) of the free decisions as a price of iterations."""
    held = batches.held
    further = None if onward is None else with_closing(onward, held)
    closed = with_closing(table, held)
    return Thresholds(closed, unit="iteration", closing_reserve=max(held, 1), onward=further, **more)


def _explored(batches: Batches, weights: Tensor | None) -> list[Rollout]:
    """Run batches that stop at random places, then near the prices for these weights; return inner records.

    The runs show what the closing projection takes of a budget, and the batches hold it back.
    """
    _hold_closing(batches, batches.first)
    runs: list[Rollout] = []
    near, share = None, 1.0
    for k in range(_RANDOM_ROUNDS + _NEAR_ROUNDS):
        if k >= _RANDOM_ROUNDS:
            near, share = _iteration_prices(batches, iteration_steps(runs), weights), RANDOM_SHARE
        held = max(batches.held, 1)
        order = uniform_numbers(torch.tensor([k]), range(1), (batches.n,), _ORDER)[0, 0].argsort()
        budgets = ((order + 0.5) / batches.n * 1.5 * batches.spendable).long() + held
        run = batches.run(ExploreIterations(budgets, near, share, k, held))
        _hold_closing(batches, run)
        runs.append(batches.inner(run))
    return runs


def _hold_closing(batches: Batches, run: Rollout) -> None:
    """Reserve as many iterations as the closing projection took for 90% of the samples; raise if none are left."""
    if not batches.closing_reserve:
        return
    held = max(1, round(float(run.iterations[-1].double().quantile(_ENOUGH_FOR))))
    if run is batches.first and batches.budget <= held:
        raise ValueError(
            f"a budget of {batches.budget} iterations leaves nothing to choose: in the calibration rollouts the "
            f"closing projection alone took up to {held}; give more"
        )
    batches.held = min(held, batches.budget - 1)
    batches.spendable = batches.budget - batches.held


def iteration_steps(runs: Sequence[Rollout]) -> IterationSteps:
    """Estimate what an iteration and what a step do to a defect.

    Args:
        runs: Rollouts of the same T that stopped at random places. If iterations were not counted, a projection is one.
    """
    defects, residuals = (
        torch.cat([getattr(run, name) for run in runs], dim=1).cpu().double().numpy()
        for name in ("defects", "residuals")
    )
    T, n = defects.shape
    scale = max(float(defects.mean()), 1e-300)
    defects, residuals = defects / scale, residuals / scale
    pairs = [_iterated(runs, t) / scale for t in range(T)]
    width = min(max(5, T // 10), -(-_POOL // (2 * n)))
    nodes, improved = np.empty((T, NODES)), np.empty((T, NODES, NODES))
    for t in range(T):
        near = slice(max(0, t - width), t + width + 1)
        before, after = np.concatenate(pairs[near], axis=1)
        if len(before) < NODES:
            raise ValueError(
                f"around step {t} of {T} the calibration rollouts show only {len(before)} iterations; calibrate with "
                "more seeds or a larger budget"
            )
        nodes[t] = quantile_nodes(np.sort(np.concatenate([defects[near].ravel(), after])))
        improved[t] = interpolation_weights(nodes[t], _given(before, after, nodes[t]))
    following = np.empty((T - 1, NODES, NODES))
    for t in range(T - 1):
        low, high = max(0, t - width), min(T - 1, t + width + 1)
        seen = _given(residuals[low:high].ravel(), defects[low + 1 : high + 1].ravel(), nodes[t])
        following[t] = interpolation_weights(nodes[t + 1], seen)
    first = interpolation_weights(nodes[0], defects[:1])[0]
    levels, better, then, start = map(torch.from_numpy, (scale * nodes, improved, following, first))
    return IterationSteps(levels, better, then, start, *iteration_costs(runs))


def iteration_costs(runs: Sequence[Rollout]) -> tuple[int, int]:
    """Return what the first iteration of a step and each further one cost on average, in whole units."""
    first, further = [torch.zeros(0)], [torch.zeros(0)]
    for passes in (run.passes for run in runs):
        if passes is not None:
            opens = passes.step.diff(prepend=passes.step[:1] - 1) > 0
            first.append(passes.cost[opens].flatten())
            further.append(passes.cost[~opens].flatten())
    start, onward = (torch.cat(part).double() for part in (first, further))
    start, onward = start[start > 0], onward[onward > 0]
    one = max(1, round(float(start.mean()))) if len(start) else 1
    return one, max(1, round(float(onward.mean()))) if len(onward) else one


def _given(x: Array, y: Array, nodes: Array) -> Array:
    """Return the y of samples with an x at each node, (k, m)."""
    order = x.argsort()
    return shifted_neighbours(Pool(x[order], x[order], y[order]), nodes)


def _iterated(runs: Sequence[Rollout], t: int) -> Array:
    """Return the defects before and after every iteration of step t, (2, m)."""
    pairs = [torch.empty(2, 0, dtype=torch.float64)]
    for run in runs:
        passes, times = run.defects[:0], run.projected[t].int()  # without passes a projection is one iteration
        if run.passes is not None:
            here = run.passes.step == t
            passes, times = run.passes.defects[here], (run.passes.cost[here] > 0).sum(dim=0)
        seen = torch.cat([run.defects[t][None], passes]).cpu().double()
        times, left = times.cpu(), run.residuals[t].cpu().double()
        for k in range(1, int(times.max()) + 1):
            rows = times >= k
            after = torch.where(times == k, left, seen[k] if k < len(seen) else left)
            pairs.append(torch.stack([seen[k - 1, rows], after[rows]]))
    return torch.cat(pairs, dim=1).numpy()


# ------------------------------------------------------------------ counts


def even_counts(n_steps: int, budget: int, start: int = 1, onward: int = 1) -> Tensor:
    """Return one iteration at evenly spaced steps, and more for budgets that pay for them, (B + 1, T) int16.

    The first iteration of a step costs `start`, and each further one `onward`.

    Example:
        >>> even_counts(4, 6)[[2, 4, 6]].tolist()
        [[0, 1, 0, 1], [1, 1, 1, 1], [1, 2, 1, 2]]
    """
    b, steps = torch.arange(budget + 1)[:, None], torch.arange(n_steps + 1)
    corrected = (b // start).clamp(max=n_steps)
    more = ((b - n_steps * start) // onward).clamp(0, (WHOLE - 1) * n_steps)
    # the step after the last is the closing projection's, so that gaps are even up to it
    by_then = (steps * (corrected + 1)) // (n_steps + 1) + (steps * more) // n_steps
    return by_then.diff(dim=1).to(torch.int16)


def whole_counts(masks: Tensor, budget: int, cost: float) -> Tensor:
    """Return whole projections at planned steps, as many as a budget pays for, (B + 1, T) int16.

    Row m of `masks`, (M + 1, T) bool, holds the steps of m projections, and `cost` is the mean cost of one.
    """
    times = (torch.arange(budget + 1) / cost).round().long().clamp(max=len(masks) - 1)
    return WHOLE * masks[times].to(torch.int16)


def counts_with_closing(counts: Tensor, closing_reserve: int) -> Tensor:
    """Add a last step that corrects every sample to counts, (B + 1, T) to (B + k + 1, T + 1); see `with_closing`."""
    if not closing_reserve:
        return counts
    closed = torch.nn.functional.pad(counts, (0, 1), value=WHOLE)
    return torch.cat([torch.zeros_like(closed[:1]).expand(closing_reserve, -1), closed])


# ------------------------------------------------------------------ the race


def by_iteration_race(
    batches: Batches, quality: Quality | None, problem: Problem | None, more: Mapping[str, Part], look: float = 0.0
) -> Raced | Thresholds:
    """Race prices of iterations against whole projections and against rules that need no table."""
    batches.require()
    if not batches.has_choice:
        return graded_prices(batches)
    batches.prefetch_weights()
    weights = goal_weights(batches)
    runs = _explored(batches, batches.weights)
    steps, held, B = iteration_steps(runs), batches.held, batches.spendable
    tables, sample_scale, cost = _whole_projections(batches, weights)

    plans = fixed_plans(batches.n_choices, min(batches.n_choices, B))
    counts = {EVEN: even_counts(batches.n_choices, B, steps.start, steps.onward)}
    counts |= {f"whole projections, {name}": whole_counts(masks, B, cost) for name, masks in plans.items()}
    found: dict[str, Part] = {
        name: Allowance(counts_with_closing(some, held), max(held, 1), method=name) for name, some in counts.items()
    }
    found["until below one tau"] = _as_price(batches, _tau_table(batches))
    for goal, weight in weights.items():
        by_price = _iteration_prices(batches, steps, weight)
        whole = _in_iterations(batches, tables[goal], cost, sample_scale)
        objective = "path" if goal == "path" else describe(batches.objective)
        found[f"iterations by price for {goal}"] = replace(by_price, objective=objective)
        found[f"whole projections by price for {goal}"] = replace(whole, objective=objective)
    trusted = "whole projections by price for path" if quality is None else EVEN
    return race(batches, {**found, **more}, measure_of(batches, quality, problem), look, trusted)


def _whole_projections(
    batches: Batches, weights: Mapping[str, Tensor | None]
) -> tuple[dict[str, Tensor], SampleScale | None, float]:
    """Return tables of whole projections by goal, (T', B' + 1), the scale of samples, and the mean cost of one."""
    each = float(batches.stepwise.all_iterations.double().mean()) / batches.n_steps
    # at least one besides the closing projection, even if the budget pays for none: all are explored
    most = max(round(batches.spendable / max(each, 1.0)), batches.closing_reserve) + 1
    whole = batches.with_projection_budget(min(batches.n_steps, most))
    runs, sample_scale = whole.explored(None, near_rounds=1)
    steps = estimate_transitions(runs, sample_scale)
    tables = {goal: solve(steps, whole.spendable, weight).table for goal, weight in weights.items()}
    taken = torch.cat([run.iterations[run.projected] for run in runs]).double()
    return tables, sample_scale, max(1.0, float(taken.mean()) if len(taken) else each)


def _in_iterations(batches: Batches, table: Tensor, cost: float, scale: SampleScale | None) -> Thresholds:
    """Return prices of whole projections as prices of starting one; a started step always continues."""
    pays_for = (torch.arange(batches.spendable + 1) / cost).round().long().clamp(max=table.shape[1] - 1)
    start = table[:, pays_for]
    onward = torch.full_like(start, -torch.inf)
    onward[:, 0] = torch.inf
    return _as_price(batches, start, onward, sample_scale=scale)


@dataclass(frozen=True, eq=False)
class _UntilBelow(ByIteration):
    """Iterate at every step until the defect is below tau, (n,), with no limit."""

    tau: Tensor
    budget: Any = None

    def decide(self, view: StepView) -> Tensor:
        return view.defect >= self.tau

    def to(self, device: torch.device) -> _UntilBelow:
        return _UntilBelow(self.tau.to(device))


def _tau_table(batches: Batches) -> Tensor:
    """Return the table that iterates until the defect is below the tau that spends what is left evenly, (T', B' + 1).

    A few batches in which samples have different taus show what each tau costs per step.
    """
    T, B, n = batches.n_choices, batches.spendable, batches.n
    largest = max(float(batches.uncorrected.defects.max()), 1e-300)
    taus = np.geomspace(_TAU_SPREAD * largest, largest, _TAUS)
    paid, count = torch.zeros(2, _TAUS, dtype=torch.float64)
    for k in range(_TAU_TRIALS):
        order = uniform_numbers(torch.tensor([k]), range(1), (n,), _TAU_ORDER)[0, 0].argsort()
        # fewer samples than taus try others in each trial
        level = order % _TAUS if n >= _TAUS else ((order + (k + 0.5) / _TAU_TRIALS) * _TAUS / n).long()
        run = batches.inner(batches.run(_UntilBelow(torch.from_numpy(taus)[level])))
        per_step = run.iterations.sum(dim=0).double().cpu() / T
        paid.index_add_(0, level, per_step)
        count.index_add_(0, level, torch.ones_like(per_step))
    tried = count.nonzero()[:, 0]
    costs = np.interp(np.arange(_TAUS), tried, paid[tried] / count[tried])
    costs = np.minimum.accumulate(costs)  # a larger tau costs no more
    rate = np.arange(B + 1) / np.arange(T, 0, -1)[:, None]
    table = torch.from_numpy(np.exp(np.interp(rate, costs[::-1], np.log(taus[::-1]))))
    table[:, 0] = torch.inf
    return table
