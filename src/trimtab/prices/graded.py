"""The price of one iteration: the dynamic program for corrections that are bought in parts.

A solver that iterates need not go all the way. With b iterations left and a defect s at step t, a sample may go on as
it is, with a residual r = s, or buy one iteration more, after which its defect is r1(s) and the question is the same:

    U[t, b](r) = r + E[ V[t+1, b](s') | r ],     V[t, b](s) = min( U[t, b](s),  E[ V[t, b-1](r1(s)) ] )

and lambda[t, b] is the defect from which on one more iteration pays. A whole projection is the case where r1 is 0. What
follows a residual, and what an iteration makes of a defect, is estimated from rollouts that stop at random places.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from trimtab.core.checks import check_integer, check_type
from trimtab.core.noise import uniform_numbers
from trimtab.core.record import Rollout
from trimtab.prices.batches import Batches
from trimtab.prices.dynamic import break_even
from trimtab.prices.explore import ExploreIterations
from trimtab.prices.pools import Array, Pooled
from trimtab.prices.thresholds import Thresholds, with_closing
from trimtab.prices.transitions import NODES, occupancy, quantile_nodes, shifted_neighbours

__all__ = [
    "IterationSteps",
    "explored_iterations",
    "graded_prices",
    "iteration_costs",
    "iteration_prices",
    "iteration_steps",
    "solve_graded",
]

_ORDER = 1 << 34  # a stream of noise of its own
_RANDOM_ROUNDS = 3
_NEAR_POLICY_ROUNDS = 2
_SHARE = 0.15  # of decisions made at random while staying near the policy
_ENOUGH_FOR = 0.9
_POOL = 6000  # pairs from as few steps as have so many


@dataclass(frozen=True, eq=False)
class IterationSteps:
    """What an iteration and what a step do to a defect, k nodes per step.

    Attributes:
        nodes: Defect levels, rising, (T, k).
        improved: The defect after one more iteration at each node, as weights of the nodes of the same step, (T, k, k).
        following: The next step's defect after a residual at each node, as weights of its nodes, (T - 1, k, k).
        start: The first defect, as weights of the first step's nodes, (k,).
        begin: What the first iteration of a step costs, in units, with what it takes to set the solver up.
        go_on: What each further one costs.
    """

    nodes: Tensor
    improved: Tensor
    following: Tensor
    start: Tensor
    begin: int = 1
    go_on: int = 1


def iteration_steps(runs: Sequence[Rollout]) -> IterationSteps:
    """Estimate both from rollouts that stopped at random places.

    Args:
        runs: Records of the same T. Where iterations were not counted, a projection is one.
    """
    records = list(runs) if isinstance(runs, list | tuple) else []
    if not records or not all(isinstance(run, Rollout) for run in records):
        raise TypeError(f"iteration_steps takes records of rollouts, at least one, in a list: got {runs!r:.80}")
    if len({part.shape[0] for run in records for part in (run.defects, run.residuals)}) > 1:
        raise ValueError("iteration_steps takes records of the same number of steps: got several numbers")
    defects = torch.cat([run.defects for run in runs], dim=1).cpu().double()
    residuals = torch.cat([run.residuals for run in runs], dim=1).cpu().double()
    T, n = defects.shape
    scale = max(float(defects.mean()), 1e-300)
    defects, residuals = defects / scale, residuals / scale
    pairs = [tuple(part / scale for part in _iterated(runs, t)) for t in range(T)]
    width = min(max(5, T // 10), -(-_POOL // (2 * n)))
    nodes, improved = [], []
    for t in range(T):
        near = slice(max(0, t - width), t + width + 1)
        before, after = (torch.cat([pair[k] for pair in pairs[near]]) for k in (0, 1))
        if len(before) < NODES:
            raise ValueError(
                f"around step {t} of {T} the calibration rollouts show only {len(before)} iterations; calibrate with "
                "more seeds or a larger budget"
            )
        seen = torch.cat([defects[near].flatten(), after]).sort().values
        nodes.append(torch.from_numpy(quantile_nodes(seen.numpy(), np.float32)))  # as every table so far was made
        improved.append(occupancy(nodes[t], _moved(before, after, nodes[t])))
    following = []
    for t in range(T - 1):
        near = slice(max(0, t - width), min(T - 1, t + width + 1))
        ahead = slice(near.start + 1, near.stop + 1)
        following.append(occupancy(nodes[t + 1], _moved(residuals[near].flatten(), defects[ahead].flatten(), nodes[t])))
    start = occupancy(nodes[0], defects[:1])[0]
    none = torch.empty(0, NODES, NODES, dtype=torch.float64)
    levels = scale * torch.stack(nodes)
    then = torch.stack(following) if T > 1 else none
    return IterationSteps(levels, torch.stack(improved), then, start, *iteration_costs(runs))


def iteration_costs(runs: Sequence[Rollout]) -> tuple[int, int]:
    """What the first iteration of a step and each further one cost on average, in whole units."""
    first, further = [], []
    for passes in (run.passes for run in runs):
        if passes is not None:
            opens = passes.step.diff(prepend=passes.step[:1] - 1) > 0
            first.append(passes.cost[opens].flatten())
            further.append(passes.cost[~opens].flatten())
    begin, go_on = (torch.cat(part) if part else torch.zeros(0) for part in (first, further))
    begin, go_on = begin[begin > 0], go_on[go_on > 0]
    one = max(1, round(float(begin.double().mean()))) if len(begin) else 1
    return one, max(1, round(float(go_on.double().mean()))) if len(go_on) else one


def _moved(x: Tensor, y: Tensor, nodes: Tensor) -> Tensor:
    """What y is for an x at each node, (k, m)."""
    order = x.argsort()
    here, there = x[order].numpy(), y[order].numpy()
    return torch.from_numpy(shifted_neighbours(Pooled(here, here, there), nodes.numpy()))


def _iterated(runs: Sequence[Rollout], t: int) -> tuple[Tensor, Tensor]:
    """The defects before and after every iteration of step t, (m,) each."""
    before, after = [], []
    for run in runs:
        passes, times = run.defects[:0], run.projected[t].int()  # a projection is one
        if run.passes is not None:
            here = run.passes.step == t
            passes, times = run.passes.defects[here], (run.passes.cost[here] > 0).sum(dim=0)
        seen = torch.cat([run.defects[t][None], passes]).cpu().double()
        times, left = times.cpu(), run.residuals[t].cpu().double()
        for k in range(1, int(times.max()) + 1):
            rows = times >= k
            before.append(seen[k - 1, rows])
            last = times == k
            after.append(torch.where(last, left, seen[k] if k < len(seen) else left)[rows])
    none = torch.empty(0, dtype=torch.float64)
    return torch.cat(before) if before else none, torch.cat(after) if after else none


class Solution(NamedTuple):
    """Prices of one iteration.

    Attributes:
        table: lambda, (T, B + 1).
        expected: The expected objective of a whole rollout with b units, (B + 1,).
        onward: The prices of going on within a step where those are others, (T, B + 1); None where not.
    """

    table: Tensor
    expected: Tensor
    onward: Tensor | None


def solve_graded(steps: IterationSteps, budget: int, weights: Tensor | None = None) -> Solution:
    """Solve backward for the prices of one iteration.

    Where beginning costs more than going on, a step has two values: V before its first iteration, from which on a
    sample is bought b - begin, and W within it, from which on it is bought b - go_on.

    Args:
        steps: See `iteration_steps`.
        budget: The largest number of iterations, B.
        weights: What a unit of residual costs at each step, (T,); 1 for path error.
    """
    check_type(steps, IterationSteps, "what solve_graded solves", "iteration_steps(records) makes it")
    T, B = len(steps.nodes), check_integer(budget, "the budget of solve_graded", 0)
    if weights is not None:
        usable = isinstance(weights, Tensor) and weights.shape == (T,) and weights.is_floating_point()
        if not usable or not bool((weights.isfinite() & (weights >= 0)).all()):
            raise ValueError(f"weights are {T} finite floats of at least 0, one for each step: got {weights!r:.80}")
    nodes, improved, following = (part.numpy() for part in (steps.nodes, steps.improved, steps.following))
    unit = np.ones(T) if weights is None else weights.double().numpy()
    table, onward = np.full((2, T, B + 1), np.inf)
    value: Array = np.zeros((B + 1, NODES))
    for t in reversed(range(T)):
        stay = np.broadcast_to(unit[t] * nodes[t], (B + 1, NODES)).copy()
        if t < T - 1:
            stay += value @ following[t].T
        value = within = _bought(nodes[t], improved[t], stay, None, steps.go_on, onward[t])
        if steps.begin != steps.go_on:
            value = _bought(nodes[t], improved[t], stay, within, steps.begin, table[t])
    expected = torch.from_numpy(value) @ steps.start
    if steps.begin == steps.go_on:
        return Solution(torch.from_numpy(onward), expected, None)
    return Solution(torch.from_numpy(table), expected, torch.from_numpy(onward))


def _bought(nodes: Array, improved: Array, stay: Array, then: Array | None, cost: int, prices: Array) -> Array:
    """The value of a state at each node with each budget where one iteration more can be bought, (B + 1, k).

    Args:
        nodes: (k,).
        improved: The defect after one more iteration, (k, k).
        stay: The value of leaving it at that, (B + 1, k).
        then: The value after the iteration, (B + 1, k); None for that which is being computed.
        cost: Of the iteration.
        prices: Written: the defect from which on it pays, (B + 1,).
    """
    value, sums = stay.copy(), np.empty((NODES, 1))
    after = value if then is None else then
    for b in range(cost, len(stay)):
        go = improved @ after[b - cost]
        prices[b] = break_even(nodes, (stay[b] - go)[:, None], sums)[0]
        value[b] = np.where(nodes >= prices[b], go, stay[b])
    return value


def _for_closing(run: Rollout) -> int:
    """What to keep back for a closing projection: enough for nine samples of ten; the others spend more."""
    return max(1, round(float(run.iterations[-1].double().quantile(_ENOUGH_FOR))))


def explored_iterations(batches: Batches, weights: Tensor | None) -> list[Rollout]:
    """Batches that stop at random places, then near the prices for these weights; cut.

    What the closing projection takes of a budget becomes known on the way, and is held back by the batches.
    """
    _hold(batches, batches.free)
    runs: list[Rollout] = []
    near: Thresholds | None = None
    for k in range(_RANDOM_ROUNDS + _NEAR_POLICY_ROUNDS):
        if k >= _RANDOM_ROUNDS:
            near = iteration_prices(batches, iteration_steps(runs), weights)[0]
        order = uniform_numbers(torch.tensor([k]), range(1), (batches.n,), _ORDER)[0, 0].argsort()
        budgets = ((order + 0.5) / batches.n * 1.5 * batches.spendable).long() + max(batches.held, 1)
        share = 1.0 if near is None else _SHARE
        run = batches.run(ExploreIterations(budgets, near, share, k, max(batches.held, 1)))
        _hold(batches, run)
        runs.append(batches.cut(run))
    return runs


def _hold(batches: Batches, run: Rollout) -> None:
    """Hold back what closing takes; a budget that leaves nothing beside it is refused."""
    if not batches.closing_reserve:
        return
    held = _for_closing(run)
    if run is batches.free and batches.budget <= held:
        raise ValueError(
            f"a budget of {batches.budget} iterations leaves nothing to choose: in the calibration rollouts the "
            f"closing projection alone took up to {held}; give more"
        )
    batches.hold(min(held, batches.budget - 1))


def iteration_prices(batches: Batches, steps: IterationSteps, weights: Tensor | None) -> tuple[Thresholds, list[float]]:
    """The prices for these weights, for all budgets up to the batches' own, and what is to be expected of each."""
    held, solved = batches.held, solve_graded(steps, batches.spendable, weights)
    onward = None if solved.onward is None else with_closing(solved.onward, held)
    prices = Thresholds(
        with_closing(solved.table, held), unit="iteration", closing_reserve=max(held, 1), onward=onward, method="dp"
    )
    return prices, [float(solved.expected[0])] * held + solved.expected.tolist()


def graded_prices(batches: Batches) -> Thresholds:
    """Calibrate prices of one iteration for all budgets up to the batches' own."""
    runs = explored_iterations(batches, batches.weights)
    prices, expected = iteration_prices(batches, iteration_steps(runs), batches.weights)
    return replace(prices, **batches.facts({"expected": expected}))
