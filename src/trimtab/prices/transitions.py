"""What one step does to a defect, with and without a correction: estimated from explored rollouts.

The next defect of a sample is described at a few levels of the present one (nodes), as weights of the nodes of the next
step: the mean of anything known at those nodes is then a product of small matrices. Each estimate is only trusted as
far as it differs from a simpler one by more than its own noise. A sample that was corrected is taken to go on like any
other that was corrected, one that was left alone like one that was corrected, and one that has settled, its last
correction being long past, like any that was left alone, until the rollouts show otherwise. Where defects do not last,
what is left is exactly the assumption of the paper's rule, that a correction is worth the height of the defect, with no
noise on top.

One thing a single step cannot show. Where the next defect of a corrected sample depends on the one it was corrected of,
the cause may stay (a trajectory that is caught behind an obstacle) or pass (a burst of noise). Chained from step to
step, the dependence stands for a cause that stays. How much of it to take is for the caller to try (`remembering`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from trimtab.core.record import Rollout
from trimtab.core.schedule import last_corrections
from trimtab.prices.own_scale import OwnScale

__all__ = ["MEMORY", "NODES", "Steps", "occupancy", "one_step"]

NODES = 24
"""Defect levels at which everything is known."""

MEMORY = 0.5
"""The share of a corrected sample's dependence on the defect it had that is taken unless another proves better."""

_NEIGHBOURS = 512  # whose next defects stand for those of a node
_FEW = 64  # settled samples: too few to tell them from others
_POOL = 6000  # samples of either action, from as few steps as have so many


@dataclass(frozen=True, eq=False)
class Steps:
    """One-step transitions at every step, k nodes each.

    Attributes:
        scale: The usual defect at each step, (T,).
        nodes: Defect levels, rising, in units of `scale`, (T, k).
        residual: What a correction leaves at each node, in the same units, (T, k).
        alone: The next defect of a sample that is left alone at each node, as weights of the next step's nodes,
            (T - 1, k, k).
        settled: The same for one whose last correction, if any, is long past.
        corrected: The same for one that is corrected.
        alike: The same for any that is corrected, whatever its defect, (T - 1, 1, k).
        start: The first defect, as weights of the first step's nodes, (k,).
        trust: How far the dependence of the next defect on the present one is believed, for samples corrected and for
            those left alone, and how far that of settled ones is believed to be another, (3, T - 1), from 0 to 1.
        fresh_steps: After so many steps without a correction a sample has settled.
    """

    scale: Tensor
    nodes: Tensor
    residual: Tensor
    alone: Tensor
    settled: Tensor
    corrected: Tensor
    alike: Tensor
    start: Tensor
    trust: Tensor
    fresh_steps: int

    def remembering(self, memory: float) -> Steps:
        """The same with a share `memory` of a corrected sample's dependence on the defect it had."""
        return replace(self, corrected=torch.lerp(self.alike.expand_as(self.corrected), self.corrected, memory))


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
    pools = [seen.around(t) for t in range(T)]
    nodes = torch.stack([pool.defects[(ranks * (len(pool.defects) - 1)).round().long()] for pool in pools])
    nodes += torch.arange(NODES) * 1e-12  # ties apart

    residual = torch.empty(T, NODES, dtype=torch.float64)
    settled, alone, corrected = torch.empty(3, T - 1, NODES, NODES, dtype=torch.float64)
    alike = torch.empty(T - 1, 1, NODES, dtype=torch.float64)
    effect, noise = torch.zeros(2, 3, T - 1, dtype=torch.float64)
    reached = torch.zeros(T - 1, NODES, dtype=torch.bool)  # by samples that have settled
    for t, pool in enumerate(pools):
        first, count = _neighbours(pool.corrected.defect, nodes[t], _NEIGHBOURS)
        residual[t] = pool.corrected.residual.unfold(0, count, 1)[first].mean(dim=1)
        if t == T - 1:
            break
        finer = [_transported(some, nodes[t]) for some in (pool.corrected, pool.alone, pool.settled)]
        coarse_to_fine = [pool.corrected.following[None], *finer]
        alike[t], corrected[t], alone[t], settled[t] = (occupancy(nodes[t + 1], each) for each in coarse_to_fine)
        reached[t] = pool.settled.reaches(nodes[t])
        effect[:, t], noise[:, t] = _differences(coarse_to_fine, reached[t])
    near_step = (-0.5 * ((torch.arange(T - 1)[:, None] - torch.arange(T - 1)) / seen.widest) ** 2).exp().double()
    # batches share their noise, so that all of them together tell no more about it than one; but settled samples are
    # compared with a pool that they are part of, and what they share with it cancels
    shared = torch.tensor([len(runs), len(runs), 1.0], dtype=torch.float64)[:, None]
    trust = (1 - shared * (noise @ near_step) / (effect @ near_step).clamp(min=1e-300)).clamp(min=0)
    corrected = torch.lerp(alike.expand_as(corrected), corrected, trust[0, :, None, None])
    alone = torch.lerp(corrected, alone, trust[1, :, None, None])
    settled = torch.lerp(alone, settled, (trust[2, :, None] * reached)[:, :, None])
    start = occupancy(nodes[0], seen.defects[:1] / seen.scale[0])[0]
    return Steps(seen.scale, nodes, residual, alone, settled, corrected, alike, start, trust, seen.fresh_steps)


def occupancy(nodes: Tensor, x: Tensor) -> Tensor:
    """The mean over each row of x (k, m), read off at the nodes (n,), as weights of the nodes, (k, n).

    Their product with values at the nodes is the mean of the values at x: linear between nodes and a
    little beyond the last.
    """
    left = torch.searchsorted(nodes, x).sub_(1).clamp_(0, len(nodes) - 2)
    share = ((x - nodes[left]) / nodes.diff()[left]).clamp_(0, 2)  # nodes may lie close together
    weights = torch.zeros(len(x), len(nodes), dtype=x.dtype)
    weights.scatter_add_(1, left, 1 - share)
    weights[:, 1:].scatter_add_(1, left, share)
    return weights / x.shape[1]


@dataclass(frozen=True, eq=False)
class _Pooled:
    """Samples of one action in order of their defects, (m,) each."""

    defect: Tensor
    residual: Tensor
    following: Tensor

    def reaches(self, nodes: Tensor) -> Tensor:
        """Which of the nodes lie among these samples rather than at or beyond their outermost."""
        few = len(self.defect) // 50
        return (nodes >= self.defect[few]) & (nodes <= self.defect[-1 - few])


class _Pools(NamedTuple):
    """Samples left alone long after a correction, all that were left alone, those corrected, and the defects of all."""

    settled: _Pooled
    alone: _Pooled
    corrected: _Pooled
    defects: Tensor


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
        last = last_corrections(self.projected)
        self.fresh_steps = max(2, self.n_steps // 25)
        self.fresh = (last > 0) & (torch.arange(self.n_steps)[:, None] + 1 - last <= self.fresh_steps)
        self.width = min(self.widest, -(-_POOL // (2 * defects.shape[1])))  # of a pool, either side

    def around(self, t: int) -> _Pools:
        """Samples of step t and its neighbours."""
        last = self.n_steps - 1
        low, high = max(0, t - self.width), min(last, t + self.width)
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
        settled = ~projected & ~self.fresh[rows].flatten()
        if int(settled.sum()) < _FEW:
            settled = ~projected
        settled_ones, left_alone, corrected = (
            _Pooled(defect[some], residual[some], following[some])
            for some in (order[group[order]] for group in (settled, ~projected, projected))
        )
        return _Pools(settled_ones, left_alone, corrected, defect[order])


def _smooth(x: Tensor, half_width: int = 5) -> Tensor:
    """A moving average of (T,) that ends with the series' own ends."""
    padded = torch.cat([x[:1].expand(half_width), x, x[-1:].expand(half_width)])
    return padded.unfold(0, 2 * half_width + 1, 1).mean(dim=1)


def _neighbours(x: Tensor, at: Tensor, count: int) -> tuple[Tensor, int]:
    """Where the `count` neighbours (or all) of each of `at` (k,) begin in sorted `x` (m,), (k,), and their number."""
    count = min(count, len(x))
    return (torch.searchsorted(x, at) - count // 2).clamp(0, len(x) - count), count


def _transported(pool: _Pooled, nodes: Tensor) -> Tensor:
    """The next defects of a sample at each node, (k, neighbours).

    They are those of the node's neighbours, each moved by how far the neighbour is from the node times the slope of
    the next defect on the present one. Averaging the neighbours as they are would blur the cost to go at every step,
    and defects that last for many steps would be lost in the blur.
    """
    x, y = pool.defect, pool.following
    first, count = _neighbours(x, nodes, _NEIGHBOURS)
    near_x, near_y = (values.unfold(0, count, 1)[first] for values in (x, y))  # rows of neighbours, (k, count)
    slopes = _slopes(x, y, *_neighbours(x, nodes, 3 * _NEIGHBOURS))
    return (near_y + slopes[:, None] * (nodes[:, None] - near_x)).clamp(min=0)


def _slopes(x: Tensor, y: Tensor, first: Tensor, count: int) -> Tensor:
    """Of y on x (m,) among the `count` neighbours that begin at each of `first` (k,), from sums up to there: (k,)."""
    sums = torch.nn.functional.pad(torch.stack([x, y, x * x, x * y]).cumsum(dim=1), (1, 0))
    mean_x, mean_y, xx, xy = (sums[:, first + count] - sums[:, first]) / count
    slope: Tensor = (xy - mean_x * mean_y) / (xx - mean_x**2).clamp(min=1e-12)
    return slope.clamp(0, 1.5)


def _differences(estimates: Sequence[Tensor], reached: Tensor) -> tuple[Tensor, Tensor]:
    """How much the mean of each estimate (k or 1, m) differs from that before it, squared, and how much by chance.

    Both are sums over the nodes; for the last estimate, over those nodes (k,) that it reaches.
    """
    moments = [torch.var_mean(each, dim=1, correction=0) for each in estimates]
    means = torch.stack([mean.expand(NODES) for _, mean in moments])
    chance = torch.stack(
        [(var / each.shape[1]).expand(NODES) for (var, _), each in zip(moments, estimates, strict=True)]
    )
    counted = torch.ones(len(estimates) - 1, NODES, dtype=means.dtype)
    counted[-1] = reached
    effect, by_chance = means.diff(dim=0).square() * counted, (chance[1:] + chance[:-1]) * counted
    return effect.sum(dim=1), by_chance.sum(dim=1)
