"""The price of a correction as a dynamic program over step, budget left and defect.

The paper calls lambda[t, b] the marginal price of a correction and guesses it from the height of defects. Here it is
computed. With b corrections left and a defect s at step t, a sample pays s if it goes on as it is and (nearly) nothing
if it is corrected; either way its next defect is drawn from a distribution that calibration rollouts show. The cost to
go therefore obeys

    V[t, b](s) = min( s + E[ V[t+1, b](s') | s, left alone ],  r + E[ V[t+1, b-1](s') | s, corrected ] )

and lambda[t, b] is the defect at which the two are equal: correcting pays above it. How long a correction lasts is in
the two expectations, which is what the height of a defect does not show.

A correction can leave a trace that the next defect alone does not show: what is left alone afterwards may grow back
faster than one that has been left alone for long. So there are two such functions, for samples fresh from a correction
and for those that have settled, which any step may turn a fresh one into. The price is one for both: that of the two
as they are mixed where b corrections are spread over the T - t steps to go.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trimtab.prices.transitions import NODES, Steps

__all__ = ["CostToGo", "solve"]

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class CostToGo:
    """The solution: prices, and what the rest of a rollout is expected to cost at its beginning.

    Attributes:
        table: lambda, (T, B + 1).
        expected: The expected objective of a whole rollout with b corrections, (B + 1,).
        nodes: Defects at which the cost to go is known, rising, (T, k).
        cost: The expected objective from each step on, before its decision, (T, B + 1, k); (0, B + 1, k) if not kept.
    """

    table: Tensor
    expected: Tensor
    nodes: Tensor
    cost: Tensor


def solve(steps: Steps, budget: int, weights: Tensor | None = None, *, keep_cost: bool = True) -> CostToGo:
    """Solve backward for the prices.

    With a correction left for every step to go all of them are spent, and one row stands for all such budgets: at step
    t the program has min(B, T - t) + 1 rows.

    Args:
        steps: What one step does to a defect (see `one_step`).
        budget: The largest budget, B.
        weights: What a unit of residual costs at each step, (T,); 1 for path error.
        keep_cost: Whether to return the cost to go of every step, T (B + 1) k numbers; otherwise it is empty.
    """
    T, B = len(steps.scale), budget
    unit = (steps.scale if weights is None else weights.double() * steps.scale).numpy()
    nodes, residual = steps.nodes.numpy(), steps.residual.numpy()
    alone, at_rest, corrected = (part.numpy() for part in (steps.alone, steps.settled, steps.corrected))
    settle = 1 / steps.fresh_steps
    table = np.full((T, B + 1), -np.inf)  # enough for all steps to go: spend
    table[:, 0] = np.inf
    costs = np.empty((T, B + 1, NODES) if keep_cost else (0, B + 1, NODES))
    fresh, settled = np.zeros((2, 1, NODES))  # cost to go from the next step on, by budgets up to the steps to go
    for t in reversed(range(T)):
        k = len(fresh)
        stay_fresh = stay_settled = np.broadcast_to(unit[t] * nodes[t], (k, NODES))
        go = np.broadcast_to(unit[t] * residual[t], (k, NODES))
        if t < T - 1:
            stay_fresh = stay_fresh + (fresh + settle * (settled - fresh)) @ alone[t].T
            stay_settled = stay_settled + settled @ at_rest[t].T
            go = go + fresh @ corrected[t].T
        # in single precision, as every table so far was made
        rate = (np.arange(min(B, T - t) + 1, dtype=np.float32) / np.float32(T - t)).astype(np.float64)[:, None]
        share = rate / (1 - (1 - rate) * (1 - settle))  # of fresh samples among those corrected at this rate
        defects = nodes[t] * float(steps.scale[t])
        mixed = stay_settled[1:] + share[1:k] * (stay_fresh[1:] - stay_settled[1:])
        table[t, 1:k] = _break_even(defects, mixed - go[:-1])  # a correction leaves one fewer
        spend = defects >= table[t, : len(share), None]
        spend[0] = False
        fresh, settled = (_decided(spend, go, stay) for stay in (stay_fresh, stay_settled))
        if keep_cost:
            costs[t, : len(share)] = settled + share * (fresh - settled)
            costs[t, len(share) :] = fresh[-1]
    expected = torch.from_numpy(settled) @ steps.start
    return CostToGo(torch.from_numpy(table), expected, steps.nodes * steps.scale[:, None], torch.from_numpy(costs))


def _decided(spend: Array, go: Array, stay: Array) -> Array:
    """What each budget costs before the decision: one correction fewer where it is spent, (rows, k)."""
    new = np.empty(spend.shape)
    new[: len(stay)] = stay
    np.copyto(new[1:], go[: len(spend) - 1], where=spend[1:])
    return new


def _break_even(defects: Array, gain: Array) -> Array:
    """The defect from which on correcting pays, for each budget.

    The gain is an estimate and may cross zero more than once; the cut that loses least is taken, and its place between
    two nodes is interpolated.

    Args:
        defects: The nodes, (k,).
        gain: Of correcting at each node, (B, k).

    Returns:
        (B,), -inf where correcting always pays and +inf where it never does.
    """
    rows = np.arange(len(gain))
    from_here_up = gain[:, ::-1].cumsum(axis=1)
    cut = from_here_up[:, ::-1].argmax(axis=1)
    best = from_here_up[rows, from_here_up.shape[1] - 1 - cut]
    below = np.maximum(cut - 1, 0)
    here, there = gain[rows, cut], gain[rows, below]
    between = here > there
    share = np.divide(here, here - there, where=between, out=np.zeros(len(gain))).clip(0, 1)
    price: Array = defects[cut] + share * (defects[below] - defects[cut])
    price[cut == 0] = -np.inf
    price[~(best > 0)] = np.inf
    return price
