"""What one step does to a defect, with and without a correction: estimated from explored rollouts.

The next defect of a sample is described at a few levels of the present one (nodes), as weights of the nodes of the next
step: the mean of anything known at those nodes is then a product of small matrices. Each estimate is only trusted as
far as it differs from a simpler one by more than its own noise. A sample that was corrected is taken to go on like any
other that was corrected, and one that was left alone like one that was corrected, until the rollouts show otherwise.
Where defects do not last, what is left is exactly the assumption of the paper's rule, that a correction is worth the
height of the defect, with no noise on top.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trimtab.record import Rollout
from trimtab.scale import OwnScale

__all__ = ["NODES", "Steps", "occupancy", "one_step"]

NODES = 24
"""Defect levels at which everything is known."""

_ALONE = 512  # neighbours whose next defects stand for those of a node that is left alone
_CORRECTED = 256  # and for one that is corrected: there the next defect hardly depends on this one
_CLOSE = 400  # corrected samples, pooled over as few steps as have so many
_WIDE = 6000  # samples of either action, likewise


@dataclass(frozen=True, eq=False)
class Steps:
    """One-step transitions at every step, k nodes each.

    Attributes:
        scale: The usual defect at each step, (T,).
        nodes: Defect levels, rising, in units of `scale`, (T, k).
        residual: What a correction leaves at each node, in the same units, (T, k).
        alone: The next defect of a sample that is left alone at each node, as weights of the next step's nodes,
            (T - 1, k, k).
        corrected: The same for one that is corrected.
        start: The first defect, as weights of the first step's nodes, (k,).
        trust: How far the dependence of the next defect on the present one is believed, for samples corrected and for
            those left alone, (2, T - 1), from 0 to 1.
    """

    scale: Tensor
    nodes: Tensor
    residual: Tensor
    alone: Tensor
    corrected: Tensor
    start: Tensor
    trust: Tensor


def one_step(runs: Sequence[Rollout], own_scale: OwnScale | None = None) -> Steps:
    """Estimate the transitions of all steps.

    Args:
        runs: Records of rollouts in which corrections happened at random (see `Explore`), all of the same T and with
            the same noise.
        own_scale: If given, everything is in units of each sample's own scale.
    """
    seen = _Seen(runs, own_scale)
    T = seen.n_steps
    # closer together at both ends, where small and large budgets decide
    ranks = (torch.linspace(0, torch.pi / 2, NODES, dtype=torch.float64)).sin() ** 2
    wide = [seen.around(t, seen.wide) for t in range(T)]
    nodes = torch.stack([torch.cat([some.defect for some in pool]).quantile(ranks) for pool in wide])
    nodes += torch.arange(NODES) * 1e-12  # ties apart

    residual = torch.empty(T, NODES, dtype=torch.float64)
    alone, corrected = torch.empty(2, T - 1, NODES, NODES, dtype=torch.float64)
    plain = torch.empty(T - 1, 1, NODES, dtype=torch.float64)
    effect, noise = torch.zeros(2, 2, T - 1, dtype=torch.float64)
    for t in range(T):
        _, close = seen.around(t, seen.half_width(t))
        near = _neighbours(close.defect, nodes[t], _CORRECTED)
        residual[t] = close.residual[near].mean(dim=1)
        if t == T - 1:
            break
        left_alone, anyone = wide[t]
        coarse_to_fine = anyone.following[None], close.following[near], _transported(left_alone, nodes[t])
        plain[t], corrected[t], alone[t] = (occupancy(nodes[t + 1], following) for following in coarse_to_fine)
        for i in range(2):
            effect[i, t], noise[i, t] = _difference(coarse_to_fine[i + 1], coarse_to_fine[i])
    near_step = (-0.5 * ((torch.arange(T - 1)[:, None] - torch.arange(T - 1)) / seen.widest) ** 2).exp().double()
    # batches share their noise, so that all of them together tell no more about it than one
    trust = (1 - len(runs) * (noise @ near_step) / (effect @ near_step).clamp(min=1e-300)).clamp(min=0)
    corrected = torch.lerp(plain.expand_as(corrected), corrected, trust[0, :, None, None])
    alone = torch.lerp(corrected, alone, trust[1, :, None, None])
    start = occupancy(nodes[0], seen.defects[:1] / seen.scale[0])[0]
    return Steps(seen.scale, nodes, residual, alone, corrected, start, trust)


def occupancy(nodes: Tensor, x: Tensor) -> Tensor:
    """The mean over each row of x (k, m), read off at the nodes (n,), as weights of the nodes, (k, n).

    Their product with values at the nodes is the mean of the values at x: linear between nodes and beyond the last.
    """
    right = torch.searchsorted(nodes, x).clamp(1, len(nodes) - 1)
    share = ((x - nodes[right - 1]) / (nodes[right] - nodes[right - 1])).clamp(min=0)
    weights = torch.zeros(len(x), len(nodes), dtype=x.dtype)
    weights.scatter_add_(1, right - 1, 1 - share).scatter_add_(1, right, share)
    return weights / x.shape[1]


@dataclass(frozen=True, eq=False)
class _Pooled:
    """Samples of one action in order of their defects, (m,) each."""

    defect: Tensor
    residual: Tensor
    following: Tensor


class _Seen:
    """Defects, decisions and residuals of all runs side by side, in units of each step's usual defect."""

    def __init__(self, runs: Sequence[Rollout], own_scale: OwnScale | None) -> None:
        defects = torch.cat([run.defects for run in runs], dim=1).cpu().double()
        residuals = torch.cat([run.residuals for run in runs], dim=1).cpu().double()
        self.projected = torch.cat([run.projected for run in runs], dim=1).cpu()
        if own_scale is not None:
            scale = own_scale.along(defects, self.projected)
            defects, residuals = defects / scale, residuals / scale
        self.scale = _smooth(defects.mean(dim=1)).clamp(min=1e-12)
        self.defects, self.relative, self.residuals = defects, defects / self.scale[:, None], residuals
        self.residuals = residuals / self.scale[:, None]
        self.n_steps = len(defects)
        self.widest = max(5, self.n_steps // 10)
        self.wide = min(self.widest, -(-_WIDE // (2 * defects.shape[1])))
        self.count = torch.nn.functional.pad(self.projected.sum(dim=1).cumsum(dim=0), (1, 0))  # corrected before each

    def half_width(self, t: int) -> int:
        """How many steps either side of t hold enough corrected samples."""
        for width in range(self.widest):
            low, high = max(0, t - width), min(self.n_steps, t + width + 1)
            if int(self.count[high] - self.count[low]) >= _CLOSE:
                return width
        return self.widest

    def around(self, t: int, width: int) -> tuple[_Pooled, _Pooled]:
        """Samples of step t and its neighbours: those left alone, and those corrected."""
        last = self.n_steps - 1
        low, high = max(0, t - width), min(last, t + width)
        if t < last:
            high = min(high, last - 1)  # these have a next defect
        rows, next_rows = slice(low, high + 1), slice(low + 1, high + 2)
        projected = self.projected[rows].flatten()
        if bool(projected.all()) or not bool(projected.any()):
            raise ValueError(
                f"around step {t} of {self.n_steps} the calibration rollouts show only one of the two actions "
                f"({int(projected.sum())} of {len(projected)} corrected); calibrate with more seeds"
            )
        defect, residual = self.relative[rows].flatten(), self.residuals[rows].flatten()
        # at the last step there is no next defect, and none is asked for
        following = self.relative[next_rows].flatten() if t < last else defect
        order = defect.argsort()
        left_alone, corrected = (
            _Pooled(defect[some], residual[some], following[some])
            for some in (order[~projected[order]], order[projected[order]])
        )
        return left_alone, corrected


def _smooth(x: Tensor, half_width: int = 5) -> Tensor:
    """A moving average of (T,) that ends with the series' own ends."""
    padded = torch.cat([x[:1].expand(half_width), x, x[-1:].expand(half_width)])
    return padded.unfold(0, 2 * half_width + 1, 1).mean(dim=1)


def _neighbours(x: Tensor, at: Tensor, count: int) -> Tensor:
    """Positions of the `count` neighbours (or all) of each of `at` (k,) in sorted `x` (m,): (k, count)."""
    count = min(count, len(x))
    first = (torch.searchsorted(x, at) - count // 2).clamp(0, len(x) - count)
    return first[:, None] + torch.arange(count)


def _transported(alone: _Pooled, nodes: Tensor) -> Tensor:
    """The next defects of a sample at each node that is left alone, (k, neighbours).

    They are those of the node's neighbours, each moved by how far the neighbour is from the node times the slope of
    the next defect on the present one. Averaging the neighbours as they are would blur the cost to go at every step,
    and defects that last for many steps would be lost in the blur.
    """
    x, y = alone.defect, alone.following
    wide, near = _neighbours(x, nodes, 3 * _ALONE), _neighbours(x, nodes, _ALONE)
    dx, dy = x[wide], y[wide]
    dx, dy = dx - dx.mean(dim=1, keepdim=True), dy - dy.mean(dim=1, keepdim=True)
    slope = ((dx * dy).sum(dim=1) / (dx**2).sum(dim=1).clamp(min=1e-12)).clamp(0, 1.5)
    return (y[near] + slope[:, None] * (nodes[:, None] - x[near])).clamp(min=0)


def _difference(fine: Tensor, coarse: Tensor) -> tuple[Tensor, Tensor]:
    """How much the means of two estimates (k, m) and (k or 1, l) differ, squared, and how much by chance alone."""
    by_chance = fine.var(dim=1, correction=0) / fine.shape[1] + coarse.var(dim=1, correction=0) / coarse.shape[1]
    return (fine.mean(dim=1) - coarse.mean(dim=1)).square().mean(), by_chance.mean()
