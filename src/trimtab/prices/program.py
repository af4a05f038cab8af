"""The price of a correction as a dynamic program over step, budget left and defect.

The paper calls lambda[t, b] the marginal price of a correction and guesses it from the height of defects. Here it is
computed. A sample with defect s at step t and budget b pays s if it is left alone and its (small) residual r if it is
corrected; in both cases calibration rollouts show how its next defect s' is distributed. The cost to go is

    V[t, b](s) = min( s + E[ V[t+1, b](s') | s, left alone ],  r + E[ V[t+1, b - 1](s') | s, corrected ] )

and lambda[t, b] is the defect at which both are equal: correcting pays above it.
`solve_iterations` is the same for a solver that is bought iteration by iteration.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from trimtab.prices.transitions import Array, Steps


class Solution(NamedTuple):
    """The prices, and what they are expected to achieve.

    Attributes:
        table: lambda, (T, B + 1).
        expected: Expected objective of a whole rollout with budget b, (B + 1,).
        onward: Prices of the second and later iterations of a step, (T, B + 1); None if they equal `table`.
    """

    table: Tensor
    expected: Tensor
    onward: Tensor | None = None


def solve(steps: Steps, budget: int, weights: Tensor | None = None) -> Solution:
    """Solve backward for the prices of whole projections.

    Args:
        steps: What one step does to a defect; see `estimate_transitions`.
        budget: The largest budget, B.
        weights: What a unit of residual costs at each step, (T,); 1 for path error.
    """
    T = len(steps.scale)
    unit = np.ones(T) if weights is None else weights.double().numpy()
    scale, nodes, residual = steps.scale.numpy(), steps.nodes.numpy(), steps.residual.numpy()
    alone, corrected = steps.alone.numpy(), steps.corrected.numpy()
    table = np.full((T, budget + 1), np.inf)
    value = np.zeros((budget + 1, nodes.shape[1]))  # the cost to go V[t + 1, b](s)
    for t in reversed(range(T)):
        stay = go = value  # nothing lies ahead of the last step
        if t < T - 1:
            stay, go = value @ alone[t].T, value @ corrected[t].T
        defects = scale[t] * nodes[t]
        stay, go = stay + unit[t] * defects, go + unit[t] * scale[t] * residual[t]
        go = np.concatenate([np.full_like(go[:1], np.inf), go[:-1]])  # with one correction less
        table[t, 1:] = _break_even(defects, (stay - go)[1:])
        table[t, T - t :] = -np.inf  # a correction for every step to go: spend it
        value = np.where(defects >= table[t][:, None], go, stay)
    return Solution(torch.from_numpy(table), torch.from_numpy(value) @ steps.start)


def _break_even(defects: Array, gain: Array) -> Array:
    """Return the defect from which on correcting pays, (B,): -inf if it always does, +inf if it never does.

    The gain is an estimate and may change its sign more than once. The cut that loses least is taken, interpolated
    between two nodes. `defects` are the nodes, (k,), and `gain` is what correcting gains there, (B, k).
    """
    above = gain[:, ::-1].cumsum(axis=1)[:, ::-1]  # correcting from each node up
    cut, rows = above.argmax(axis=1), np.arange(len(gain))
    below = np.maximum(cut - 1, 0)
    here, apart = gain[rows, cut], gain[rows, cut] - gain[rows, below]
    share = np.divide(here, apart, where=apart > 0, out=np.zeros(len(cut))).clip(0, 1)
    price: Array = defects[cut] + share * (defects[below] - defects[cut])
    price[cut == 0] = -np.inf
    price[~(above[rows, cut] > 0)] = np.inf
    return price


# ------------------------------------------------------------------ iterations


@dataclass(frozen=True, eq=False)
class IterationSteps:
    """What an iteration and what a step do to a defect, k nodes per step.

    Attributes:
        nodes: Defect levels, ascending, (T, k).
        improved: The defect after one more iteration at each node, as weights of the nodes of the same step, (T, k, k).
        following: The next step's defect after a residual at each node, as weights of its nodes, (T - 1, k, k).
        first: The first defect, as weights of the first step's nodes, (k,).
        start: What the first iteration of a step costs, set-up of the solver included.
        onward: What each further iteration costs.
    """

    nodes: Tensor
    improved: Tensor
    following: Tensor
    first: Tensor
    start: int = 1
    onward: int = 1


def solve_iterations(steps: IterationSteps, budget: int, weights: Tensor | None = None) -> Solution:
    """Solve backward for the prices of one iteration.

    With b iterations left and a defect s at step t, a sample may be left with the residual r = s, or buy one iteration,
    after which its defect is r1(s) and the question is the same:

        U[t, b](r) = r + E[ V[t+1, b](s') | r ],     V[t, b](s) = min( U[t, b](s),  E[ V[t, b - c](r1(s)) ] )

    If the first iteration of a step costs more than the others, V has one value before it and one after it.

    Args:
        steps: See `trimtab.prices.iterations.iteration_steps`.
        budget: The largest number of iterations, B.
        weights: What a unit of residual costs at each step, (T,); 1 for path error.
    """
    nodes, improved, following = (part.numpy() for part in (steps.nodes, steps.improved, steps.following))
    T, k = nodes.shape
    unit = np.ones(T) if weights is None else weights.double().numpy()
    table, onward = np.full((2, T, budget + 1), np.inf)
    value = np.zeros((budget + 1, k))

    def bought(t: int, stay: Array, after: Array | None, cost: int, prices: Array) -> Array:
        """Return V at each budget and node, (B + 1, k), and write the price of an iteration at each budget.

        Args:
            t: The step.
            stay: U, the value without an iteration, (B + 1, k).
            after: The value after an iteration, (B + 1, k); None if it is V itself.
            cost: Units that the iteration takes.
            prices: Receives the prices, (B + 1,).
        """
        found = stay.copy()
        after = found if after is None else after
        for b in range(cost, budget + 1):
            go = improved[t] @ after[b - cost]
            prices[b] = _break_even(nodes[t], (stay[b] - go)[None])[0]
            found[b] = np.where(nodes[t] >= prices[b], go, stay[b])
        return found

    for t in reversed(range(T)):
        stay = unit[t] * nodes[t] + (value @ following[t].T if t < T - 1 else value)
        value = within = bought(t, stay, None, steps.onward, onward[t])
        if steps.start != steps.onward:
            value = bought(t, stay, within, steps.start, table[t])
    expected = torch.from_numpy(value) @ steps.first
    if steps.start == steps.onward:
        return Solution(torch.from_numpy(onward), expected)
    return Solution(torch.from_numpy(table), expected, torch.from_numpy(onward))
