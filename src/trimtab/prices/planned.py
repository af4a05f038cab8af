"""The best times fixed in advance: one mask for all samples, and no defect looked at online.

A correction puts a sample back onto the constraint set, so what follows depends mostly on when that was. Explored
rollouts show the mean defect at step u of samples last corrected at step v; summed between two corrections that is
what the gap costs, and the best times are the cheapest way through the steps in B + 1 gaps.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trimtab.core.record import Rollout
from trimtab.core.schedule import last_corrections

__all__ = ["cheapest_times", "gap_costs", "mean_defects", "planned_masks"]


def planned_masks(runs: Sequence[Rollout], budget: int, weights: Tensor | None = None) -> Tensor:
    """The best mask for every budget from 0 to B, (B + 1, T) bool, from explored rollouts.

    Args:
        runs: Records of rollouts in which corrections happened at random times, all of the same T.
        budget: The largest budget, B.
        weights: What a unit of residual costs at each step, (T,); 1 for path error.
    """
    costs = gap_costs(mean_defects(runs), weights)
    return cheapest_times(costs[None], budget)[:, :, 0]


def mean_defects(runs: Sequence[Rollout]) -> Tensor:
    """The mean defect at step u of samples last corrected after step v, (T + 1, T); row 0 is "never", row v + 1 is v.

    Only u > v is meaningful. Cells with few samples borrow from neighbours: steps close by, and gaps of similar length.
    """
    defects = torch.cat([run.defects for run in runs], dim=1).cpu().double()
    projected = torch.cat([run.projected for run in runs], dim=1).cpu()
    T = len(defects)
    steps = torch.arange(T)
    last = last_corrections(projected)
    gap = steps[:, None] + 1 - last  # updates since then

    scale = defects.mean(dim=1).clamp(min=1e-300)
    relative = defects / scale[:, None]
    total, count = torch.zeros(2, T, T + 1, dtype=torch.float64)  # by step and gap
    never = last == 0
    # samples never corrected count as well: there the gap is as long as the rollout so far, which few others show
    cell = (steps[:, None] * (T + 1) + gap).flatten()
    total.view(-1).index_add_(0, cell, relative.flatten())
    count.view(-1).index_add_(0, cell, torch.ones_like(relative.flatten()))
    mean = _kernel_mean(total, count)

    out = torch.zeros(T + 1, T, dtype=torch.float64)
    alone, many = torch.where(never, relative, 0.0).sum(dim=1), never.sum(dim=1)
    free = torch.where(many > 0, alone / many.clamp(min=1), 0.0)
    # late steps that nobody reached uncorrected: as long a gap as any, as seen from the first steps
    out[0] = torch.where(many > 0, free, mean[steps, steps + 1])
    for u in range(T):
        out[1 : u + 1, u] = mean[u, u - steps[:u]]
    return out * scale


def _kernel_mean(total: Tensor, count: Tensor) -> Tensor:
    """Means over (step, gap) cells, smoothed over neighbouring steps and over gaps of similar length."""
    T = len(total)
    steps = torch.arange(T, dtype=torch.float64)
    gaps = torch.arange(T + 1, dtype=torch.float64).clamp(min=0.5).log()
    near_step = (-0.5 * ((steps[:, None] - steps) / max(2.0, T / 10)) ** 2).exp()
    near_gap = (-0.5 * ((gaps[:, None] - gaps) / 0.2) ** 2).exp()
    far_step = (-0.5 * ((steps[:, None] - steps) / (T / 4)) ** 2).exp()
    far_gap = (-0.5 * ((gaps[:, None] - gaps) / 0.5) ** 2).exp()
    # the wide kernel has a small say, which decides only where the narrow one has seen next to nothing
    weighted = near_step @ total @ near_gap.T + 1e-3 * (far_step @ total @ far_gap.T)
    weight = near_step @ count @ near_gap.T + 1e-3 * (far_step @ count @ far_gap.T)
    return weighted / weight.clamp(min=1e-300)


def gap_costs(defects: Tensor, weights: Tensor | None = None) -> Tensor:
    """What it costs to leave a sample alone from one correction to the next.

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
    """The cheapest way through the steps with b corrections, for every b from 0 to B and every sample at once.

    Args:
        costs: Of the gaps, (n, T + 1, T + 1), as `gap_costs` gives them.
        budget: B.

    Returns:
        (B + 1, T, n) bool.
    """
    n, T = len(costs), costs.shape[-1] - 1
    to_step, to_end = costs[:, :, :T], costs[:, :, T]
    reached = torch.full((n, T + 1), torch.inf, dtype=costs.dtype, device=costs.device)
    reached[:, 0] = 0.0
    samples = torch.arange(n, device=costs.device)
    came_from: list[Tensor] = []
    masks = torch.zeros(budget + 1, T, n, dtype=torch.bool, device=costs.device)
    for b in range(1, budget + 1):
        best, origin = (reached[:, :, None] + to_step).min(dim=1)
        reached = torch.nn.functional.pad(best, (1, 0), value=torch.inf)
        came_from.append(origin)
        row = (reached + to_end).argmin(dim=1)
        for origin in reversed(came_from):
            masks[b, row - 1, samples] = True
            row = origin[samples, row - 1]
    return masks
