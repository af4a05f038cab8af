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

__all__ = ["CostToGo", "break_even", "solve"]

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
        steps: What one step does to a defect (see `estimate_transitions`).
        budget: The largest budget, B.
        weights: What a unit of residual costs at each step, (T,); 1 for path error.
        keep_cost: Whether to return the cost to go of every step, T (B + 1) k numbers; otherwise it is empty.
    """
    T, B, k = len(steps.scale), budget, NODES
    defects = (steps.nodes * steps.scale[:, None]).numpy()
    levels = torch.from_numpy(defects)[:, :, None]
    settle = 1 / steps.fresh_steps
    to_fresh, to_settled, to_corrected = _one_step_ahead(steps, weights)
    table = np.full((T, B + 1), -np.inf)  # enough for all steps to go: spend
    table[:, 0] = np.inf
    costs = np.empty((T if keep_cost else 0, B + 1, k))
    # The cost to go from the next step on and from this one: rows for a settled sample, a row of ones, rows for a fresh
    # one; columns are budgets. Their memory is taken once: new arrays at every step would cost more than the sums.
    ahead, now = np.zeros((2, 2 * k + 1, B + 1))
    left_fresh = np.empty((k + 1, B + 1))  # of a fresh sample left alone, which may settle: a mean of both, and ones
    ahead[k] = now[k] = left_fresh[k] = 1.0
    after_correction, gains, sums = np.empty((3, k, B + 1))
    counts = np.arange(B + 1, dtype=np.float32)
    as_tensor = torch.from_numpy  # torch multiplies, mixes and chooses faster than numpy, which cuts arrays faster
    for t in reversed(range(T)):
        known = min(B, T - t - 1) + 1  # budgets that the next step tells apart
        after, here, go = ahead[:, :known], now[:, :known], after_correction[:, :known]
        either = as_tensor(left_fresh[:, :known])
        torch.lerp(as_tensor(after[k + 1 :]), as_tensor(after[:k]), settle, out=either[:k])
        torch.mm(to_settled[t], as_tensor(after[: k + 1]), out=as_tensor(here[:k]))
        torch.mm(to_fresh[t], either, out=as_tensor(here[k + 1 :]))
        torch.mm(to_corrected[t], as_tensor(after[k:]), out=as_tensor(go))
        share = _fresh_share(counts[: min(B, T - t) + 1], T - t, settle)
        if known > 1:
            gain = gains[:, : known - 1]
            # a correction leaves one fewer
            settled, fresh, gone, mixed = map(as_tensor, (here[:k, 1:], here[k + 1 :, 1:], go[:, :-1], gain))
            torch.lerp(settled, fresh, as_tensor(share[1:known]), out=mixed).sub_(gone)
            price = table[t, 1:known] = break_even(defects[t], gain, sums[:, : known - 1])
            # 1 where to spend, 0 elsewhere: mixing by such weights is choosing, exactly, in half the time
            spend = torch.ge(levels[t], as_tensor(price), out=mixed)
            for stay in (settled, fresh):
                torch.lerp(stay, gone, spend, out=stay)
        if known < len(share):  # a correction for every step to go
            now[:k, known] = now[k + 1 :, known] = go[:, -1]
        if keep_cost:
            settled, fresh = (as_tensor(rows[:, : len(share)]) for rows in (now[:k], now[k + 1 :]))
            costs[t, : len(share)] = torch.lerp(settled, fresh, as_tensor(share)).T
            costs[t, len(share) :] = fresh[:, -1]
        ahead, now = now, ahead
    return CostToGo(*map(as_tensor, (table, steps.start.numpy() @ ahead[:k], defects, costs)))


def _one_step_ahead(steps: Steps, weights: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """What a fresh sample, a settled one and a corrected one cost, as products with the cost to go from the next step.

    Returns:
        (T, k, k + 1) each, by node. What is paid at this step is multiplied with the row of ones, which comes after the
        rows for a sample left alone and before those for a corrected one.
    """
    unit = steps.scale if weights is None else weights.double() * steps.scale
    T, k = steps.nodes.shape
    # nothing is ahead of the last step
    fresh, settled, corrected = torch.zeros(3, T, k, k + 1, dtype=torch.float64)
    fresh[:-1, :, :k], settled[:-1, :, :k], corrected[:-1, :, 1:] = steps.alone, steps.settled, steps.corrected
    fresh[:, :, k] = settled[:, :, k] = unit[:, None] * steps.nodes
    corrected[:, :, 0] = unit[:, None] * steps.residual
    return fresh, settled, corrected


def _fresh_share(counts: NDArray[np.float32], steps_to_go: int, settle: float) -> Array:
    """The share of fresh samples among those with so many corrections for the steps to go, (m,) to (m,)."""
    # in single precision, as every table so far was made
    rate = (counts / np.float32(steps_to_go)).astype(np.float64)
    under = np.subtract(1, rate)
    under *= 1 - settle
    share: Array = np.divide(rate, np.subtract(1, under, out=under), out=under)
    return share


def break_even(defects: Array, gain: Array, from_here_up: Array) -> Array:
    """The defect from which on correcting pays, for each budget.

    The gain is an estimate and may cross zero more than once; the cut that loses least is taken, and its place between
    two nodes is interpolated.

    Args:
        defects: The nodes, (k,).
        gain: Of correcting at each node, (k, B).
        from_here_up: Memory for its sums, (k, B).

    Returns:
        (B,), -inf where correcting always pays and +inf where it never does.
    """
    above = from_here_up[-1]
    np.copyto(above, gain[-1])
    for row in range(len(gain) - 2, -1, -1):  # several times faster than cumsum along a column
        above = np.add(above, gain[row], from_here_up[row])
    best, cut = (found.numpy() for found in torch.from_numpy(from_here_up).max(dim=0))  # of equal ones the first
    below, budgets = np.maximum(cut - 1, 0), np.arange(len(cut))
    here, there = gain[cut, budgets], gain[below, budgets]
    apart, upper, lower = here - there, defects.take(cut), defects.take(below)
    share = np.divide(here, apart, where=apart > 0, out=np.zeros(len(cut)))
    price: Array = upper + np.minimum(np.maximum(share, 0), 1) * (lower - upper)
    price[cut == 0] = -np.inf
    price[~(best > 0)] = np.inf
    return price
