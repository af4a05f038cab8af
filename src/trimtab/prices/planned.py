"""The best times fixed in advance: one mask for all samples, and no defect looked at online.

A correction puts a sample back onto the constraint set, so what follows depends mostly on when that was. Explored
rollouts show the mean defect at step u of samples last corrected at step v; summed between two corrections that is
what the gap costs, and the best times are the cheapest way through the steps in B + 1 gaps.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trimtab.core.record import Rollout
from trimtab.core.view import last_corrections

__all__ = ["cheapest_times", "gap_costs", "mean_defects", "planned_masks", "smoothed_means"]


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
    mean = smoothed_means(total, count)

    out = torch.zeros(T + 1, T, dtype=torch.float64)
    alone, many = torch.where(never, relative, 0.0).sum(dim=1), never.sum(dim=1)
    free = torch.where(many > 0, alone / many.clamp(min=1), 0.0)
    # late steps that nobody reached uncorrected: as long a gap as any, as seen from the first steps
    out[0] = torch.where(many > 0, free, mean[steps, steps + 1])
    after, by_gap = out[1:].numpy(), mean.numpy()
    for v in range(T - 1):  # from a correction after step v, a row, to each step u: gap by gap, which is a diagonal
        after[v, v + 1 :] = by_gap.diagonal(-v)[1:]
    return out.mul_(scale)


def smoothed_means(total: Tensor, count: Tensor) -> Tensor:
    """Means over (step, gap) cells, smoothed over neighbouring steps and over gaps of similar length."""
    T = len(total)
    steps = torch.arange(T, dtype=torch.float64)
    gaps = torch.arange(T + 1, dtype=torch.float64).clamp(min=0.5).log()
    along_steps = _gaussian(steps, max(2.0, T / 10)), _gaussian(steps, T / 4)
    along_gaps = _gaussian(gaps, 0.2), _gaussian(gaps, 0.5)
    # the wide kernel has a small say, which decides only where the narrow one has seen next to nothing
    says, both = (1.0, 1e-3), torch.cat(along_steps, dim=1)

    def smooth(cells: Tensor) -> Tensor:
        seen = torch.tensor_split(both.T @ cells, (along_steps[0].shape[1],))
        # from the smallest products outwards, and one product of the size of the cells for both kernels
        return both @ torch.cat([say * ((c @ b) @ b.T) for say, c, b in zip(says, seen, along_gaps, strict=True)])

    return smooth(total).div_(smooth(count).clamp_(min=1e-300))


def _gaussian(x: Tensor, width: float) -> Tensor:
    """A factor F, (n, r), with F Fᵀ = exp(-(x - x')² / 2 width²) to rounding, r in proportion to the range of x.

    The kernel is the overlap of two Gaussians of width / √2, an integral over their common centre; the trapezoidal rule
    with three points to a width makes an error below 1e-18. So smoothing T cells costs T r, not T².
    """
    spacing = width / 3
    low, high = float(x.min()) - 4.5 * width, float(x.max()) + 4.5 * width
    centres = torch.arange(low, high + spacing, spacing, dtype=x.dtype)
    scale = (spacing / width) ** 0.5 * (2 / torch.pi) ** 0.25
    factor: Tensor = scale * (-(((x[:, None] - centres) / width) ** 2)).exp()
    return factor


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
    if n == 1 and T > _LONG and costs.device.type == "cpu":
        ends, before = _walk_blocks(costs[0].double().numpy(), budget)
        return torch.from_numpy(_traced(ends[:, None], before[:, None]))
    to_step, to_end = costs[:, :, :T], costs[:, :, T]
    reached = torch.full((n, T + 1), torch.inf, dtype=costs.dtype, device=costs.device)
    reached[:, 0] = 0.0
    last, came_from = [torch.zeros(n, dtype=torch.int64)], []
    for _ in range(budget):
        best, origin = (reached[:, :, None] + to_step).min(dim=1)
        reached = torch.nn.functional.pad(best, (1, 0), value=torch.inf)
        came_from.append(origin.cpu())
        last.append((reached + to_end).argmin(dim=1).cpu())
    origins = torch.stack(came_from) if came_from else torch.zeros(0, n, T, dtype=torch.int64)
    return torch.from_numpy(_traced(torch.stack(last).numpy(), origins.numpy())).to(costs.device)


def _traced(last: NDArray[np.int64], origins: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Masks from where every budget's way ends and where each correction comes from: all budgets walk back together.

    Args:
        last: The row of the last correction (0: none), (B + 1, n).
        origins: The row before the (b + 1)-th correction at each step, (B, n, T).

    Returns:
        (B + 1, T, n).
    """
    B, n, T = origins.shape
    masks = np.zeros((B + 1, T, n), dtype=np.bool_)
    samples, row = np.arange(n), last[1:]
    for back in range(B):  # the budgets b > back have a correction left to trace
        budgets = np.arange(back, B)
        masks[budgets[:, None] + 1, row - 1, samples] = True
        row = origins[budgets[:, None] - back, samples, row - 1][1:]
    return masks


_LONG = 200  # steps from which on one sample's gaps are searched in blocks
_BLOCK = 64  # rows


def _walk_blocks(costs: NDArray[np.float64], budget: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The forward pass of `cheapest_times` for one sample: last corrections, (B + 1,), and origins, (B, T).

    The gap before a correction at step w may begin at any row. Rows are taken in blocks. The most promising one is
    looked into first, and another only if the least cost to reach one of its rows and the least cost of a gap from one
    of them to w together are no more than what was found. Ties go to the earliest row, as everywhere.

    Args:
        costs: (T + 1, T + 1).
        budget: B.
    """
    T = len(costs) - 1
    blocks = -(-(T + 1) // _BLOCK)
    padded = np.full((T, blocks * _BLOCK), np.inf)
    padded[:, : T + 1] = costs[:, :T].T
    gaps = padded.reshape(T * blocks, _BLOCK)
    least_gap = gaps.min(axis=1).reshape(T, blocks)
    reached = np.full(blocks * _BLOCK, np.inf)
    reached[0] = 0.0
    rows, steps = reached.reshape(blocks, _BLOCK), np.arange(T)
    last, origins = np.zeros(budget + 1, dtype=np.int64), np.zeros((budget, T), dtype=np.int64)

    def cheapest(step: NDArray[np.int64], block: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """The least cost of a correction at each step (k,) whose gap begins in a block (k,), and that row."""
        found = gaps.take(step * blocks + block, axis=0)
        found += rows.take(block, axis=0)
        place = found.argmin(axis=1)
        return found[np.arange(len(place)), place], block * _BLOCK + place

    for b in range(budget):
        out = b // _BLOCK  # after b corrections the step is b at the least
        bound = least_gap[b:, out:] + rows[out:].min(axis=1)
        likely = bound.argmin(axis=1)
        first, origin = cheapest(steps[b:], likely + out)
        bound[steps[: T - b], likely] = np.inf
        later, other = np.nonzero((bound <= first[:, None]) & (bound < np.inf))
        value, row = cheapest(later + b, other + out)
        best = first.copy()
        np.minimum.at(best, later, value)
        origin[best < first] = T + 1
        hit = value == best[later]
        np.minimum.at(origin, later[hit], row[hit])
        origins[b, b:] = origin
        reached[: b + 1], reached[b + 1 : T + 1] = np.inf, best
        last[b + 1] = (reached[: T + 1] + costs[:, T]).argmin()
    return last, origins
