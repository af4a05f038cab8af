"""The best times fixed in advance: one mask for all samples, and no defect looked at online.

A correction puts a sample back onto the constraint set, so what follows depends mostly on when that was. Explored
rollouts show the mean defect at step u of samples last corrected after step v. Summed between two corrections this is
what the gap costs, and the best times are the cheapest path through the steps in B + 1 gaps.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trimtab.core.record import Rollout
from trimtab.prices.price import Plan
from trimtab.prices.sample_scale import mean_defects
from trimtab.prices.schedule import Planned

__all__ = ["Plan", "Planned", "cheapest_times", "gap_costs", "planned_masks"]


def planned_masks(runs: Sequence[Rollout], budget: int, weights: Tensor | None = None) -> Tensor:
    """Return the best mask for every budget from 0 to B, (B + 1, T) bool, from rollouts corrected at random times.

    `weights` are what a unit of residual costs at each step, (T,); 1 for path error.
    """
    costs = gap_costs(mean_defects(runs), weights)
    return cheapest_times(costs[None], budget)[:, :, 0]


def gap_costs(defects: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return what it costs to leave a sample alone from one correction to the next.

    Args:
        defects: By step of the last correction (row 0: none) and present step, (…, T + 1, T).
        weights: What a unit of residual costs at each step, (T,).

    Returns:
        (…, T + 1, T + 1): from row v to a correction at step w (not counted), or to the end, w = T; inf for w <= v.
    """
    T = defects.shape[-1]
    steps = torch.arange(T + 1, device=defects.device)
    after = steps[:T] >= steps[:, None]  # row v + 1 stands for v, so u > v is u >= row
    paid = torch.where(after, defects if weights is None else defects * weights, 0.0)
    costs = torch.nn.functional.pad(paid.cumsum(dim=-1), (1, 0))  # up to but not including w
    return costs.masked_fill(steps < steps[:, None], torch.inf)


def cheapest_times(costs: Tensor, budget: int) -> Tensor:
    """Return the cheapest times of b corrections, for every b from 0 to B and every sample, (B + 1, T, n) bool.

    Args:
        costs: Of the gaps, (n, T + 1, T + 1), as `gap_costs` gives them.
        budget: B.
    """
    n, T = len(costs), costs.shape[-1] - 1
    to_step, to_end = costs[:, :, :T], costs[:, :, T]
    reached = torch.full((n, T + 1), torch.inf, dtype=costs.dtype, device=costs.device)
    reached[:, 0] = 0.0  # the least cost of b corrections of which the last is at row v
    last, origins = [], []
    for _ in range(budget):
        best, origin = (reached[:, :, None] + to_step).min(dim=1)
        reached = torch.nn.functional.pad(best, (1, 0), value=torch.inf)
        origins.append(origin)
        last.append((reached + to_end).argmin(dim=1))
    masks = torch.zeros(budget + 1, T, n, dtype=torch.bool, device=costs.device)
    if not budget:
        return masks
    row, before = torch.stack(last), torch.stack(origins)  # (B, n), (B, n, T)
    samples = torch.arange(n, device=costs.device)
    for back in range(budget):  # all budgets above `back` walk back together, one correction at a time
        b = torch.arange(back, budget, device=costs.device)[:, None]
        masks[b + 1, row - 1, samples] = True
        row = before[b - back, samples, row - 1][1:]
    return masks
