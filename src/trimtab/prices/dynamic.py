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

import torch
from torch import Tensor

from trimtab.prices.transitions import NODES, Steps

__all__ = ["CostToGo", "solve"]


@dataclass(frozen=True, eq=False)
class CostToGo:
    """The solution: prices, and what the rest of a rollout is expected to cost at its beginning.

    Attributes:
        table: lambda, (T, B + 1).
        expected: The expected objective of a whole rollout with b corrections, (B + 1,).
        nodes: Defects at which the cost to go is known, rising, (T, k).
        cost: The expected objective from each step on, before its decision, (T, B + 1, k).
    """

    table: Tensor
    expected: Tensor
    nodes: Tensor
    cost: Tensor


def solve(steps: Steps, budget: int, weights: Tensor | None = None) -> CostToGo:
    """Solve backward for the prices.

    Args:
        steps: What one step does to a defect (see `one_step`).
        budget: The largest budget, B.
        weights: What a unit of residual costs at each step, (T,); 1 for path error.
    """
    T, B = len(steps.scale), budget
    unit = steps.scale if weights is None else weights.double() * steps.scale
    left, settle = torch.arange(B + 1), 1 / steps.fresh_steps
    table = torch.empty(T, B + 1, dtype=torch.float64)
    costs = torch.empty(T, B + 1, NODES, dtype=torch.float64)
    fresh, settled = torch.zeros(2, B + 1, NODES, dtype=torch.float64)  # cost to go from the next step on
    for t in reversed(range(T)):
        stay_fresh = stay_settled = unit[t] * steps.nodes[t].expand(B + 1, NODES)
        go = unit[t] * steps.residual[t].expand(B + 1, NODES)
        if t < T - 1:
            stay_fresh = stay_fresh + torch.lerp(fresh, settled, settle) @ steps.alone[t].T
            stay_settled = stay_settled + settled @ steps.settled[t].T
            go = go + fresh @ steps.corrected[t].T
        rate = (left / (T - t)).clamp(max=1)[:, None].double()
        share = rate / (1 - (1 - rate) * (1 - settle))  # of fresh samples among those corrected at this rate
        defects = steps.nodes[t] * steps.scale[t]
        gain = torch.lerp(stay_settled, stay_fresh, share)[1:] - go[:-1]  # a correction leaves one fewer
        table[t, 0] = torch.inf
        table[t, 1:] = torch.where(left[1:] >= T - t, -torch.inf, _break_even(defects, gain))  # enough for all: spend
        spend = defects >= table[t][:, None]
        # row 0 never spends: what is rolled into it is not read
        fresh, settled = (torch.where(spend, go.roll(1, dims=0), stay) for stay in (stay_fresh, stay_settled))
        costs[t] = torch.lerp(settled, fresh, share)
    return CostToGo(table, settled @ steps.start, steps.nodes * steps.scale[:, None], costs)


def _break_even(defects: Tensor, gain: Tensor) -> Tensor:
    """The defect from which on correcting pays, for each budget.

    The gain is an estimate and may cross zero more than once; the cut that loses least is taken, and its place between
    two nodes is interpolated.

    Args:
        defects: The nodes, (k,).
        gain: Of correcting at each node, (B, k).

    Returns:
        (B,), -inf where correcting always pays and +inf where it never does.
    """
    from_here_up = gain.flip(1).cumsum(dim=1).flip(1)
    best, cut = from_here_up.max(dim=1)
    below = (cut - 1).clamp(min=0)
    here, there = gain.gather(1, cut[:, None])[:, 0], gain.gather(1, below[:, None])[:, 0]
    share = torch.where(here > there, here / (here - there), 0.0).clamp(0, 1)
    price = torch.lerp(defects[cut], defects[below], share)
    price = torch.where(cut == 0, -torch.inf, price)
    return torch.where(best > 0, price, torch.inf)
