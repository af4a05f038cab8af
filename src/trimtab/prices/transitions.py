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
step, the dependence stands for a cause that stays. How much of it to take is for the caller to try (`with_memory`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trimtab.core.record import Rollout
from trimtab.prices.pools import Array, Pooled, Seen, neighbours
from trimtab.prices.sample_scale import SampleScale

__all__ = ["MEMORY", "NODES", "Steps", "estimate_transitions", "occupancy", "quantile_nodes", "shifted_neighbours"]

NODES = 24
"""Defect levels at which everything is known."""

MEMORY = 0.5
"""The share of a corrected sample's dependence on the defect it had that is taken unless another proves better."""

_RANKS = np.sin(np.linspace(0, np.pi / 2, NODES)) ** 2  # closer at both ends, where small and large budgets decide
_NEIGHBOURS = 512  # whose next defects stand for those of a node
_POOLS = 250  # in a rollout of twice as many steps or more, a few steps in a row share a pool, which spans more anyway


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

    def with_memory(self, memory: float) -> Steps:
        """The same with a share `memory` of a corrected sample's dependence on the defect it had."""
        return replace(self, corrected=torch.lerp(self.alike.expand_as(self.corrected), self.corrected, memory))


def estimate_transitions(runs: Sequence[Rollout], sample_scale: SampleScale | None = None) -> Steps:
    """Estimate the transitions of all steps.

    Args:
        runs: Records of rollouts in which corrections happened at random (see `Explore`), all of the same T and with
            the same noise.
        sample_scale: If given, everything is in units of each sample's own scale.
    """
    seen = Seen(runs, sample_scale)
    T = seen.n_steps
    nodes, residual = np.empty((2, T, NODES))
    settled, alone, corrected = np.empty((3, T - 1, NODES, NODES))
    alike = np.empty((T - 1, 1, NODES))
    effect, noise = np.zeros((2, 3, T - 1))
    reached = np.zeros((T - 1, NODES), dtype=np.bool_)  # by samples that have settled
    estimates: list[Array] = []  # from coarse to fine
    block = max(1, min(T // _POOLS, seen.width))
    for begin in range(0, T, block):
        these = slice(begin, begin + block)
        centre = min(begin + block // 2, max(begin, T - 2))
        pool = seen.around(centre)
        levels = quantile_nodes(pool.defects)
        first, count = neighbours(pool.corrected.defect, levels, _NEIGHBOURS)
        nodes[these] = levels
        residual[these] = pool.corrected.residual[first[:, None] + np.arange(count)].mean(axis=1)
        if begin:  # from the last step of the block before to this one
            for found, weights in zip((alike, corrected, alone, settled), _occupancy(levels, estimates), strict=True):
                found[begin - 1] = weights
        if centre < T - 1:
            finer = [shifted_neighbours(some, levels) for some in (pool.corrected, pool.alone, pool.settled)]
            estimates = [pool.corrected.following[None], *finer]
            reached[these] = pool.settled.reaches(levels)
            differ, by_chance = _differences(estimates, reached[begin])
            effect[:, these], noise[:, these] = differ[:, None], by_chance[:, None]
            if block > 1:
                for found, weights in zip(
                    (alike, corrected, alone, settled), _occupancy(levels, estimates), strict=True
                ):
                    found[begin : begin + block - 1] = weights
    return _trusted(seen, len(runs), nodes, residual, (alike, corrected, alone, settled), effect, noise, reached)


def _trusted(
    seen: Seen,
    n_runs: int,
    nodes: Array,
    residual: Array,
    coarse_to_fine: tuple[Array, Array, Array, Array],
    effect: Array,
    noise: Array,
    reached: NDArray[np.bool_],
) -> Steps:
    """Each estimate as far as it differs from the coarser one before it by more than noise, over steps close by."""
    alike, corrected, alone, settled = map(torch.from_numpy, coarse_to_fine)
    steps = torch.arange(seen.n_steps - 1)
    near_step = (-0.5 * ((steps[:, None] - steps) / seen.widest) ** 2).exp().double()
    # batches share their noise, so that all of them together tell no more about it than one; but settled samples are
    # compared with a pool that they are part of, and what they share with it cancels
    shared = torch.tensor([n_runs, n_runs, 1.0], dtype=torch.float64)[:, None]
    by_chance, differ = (torch.from_numpy(each) @ near_step for each in (noise, effect))
    trust = (1 - shared * by_chance / differ.clamp(min=1e-300)).clamp(min=0)
    corrected = torch.lerp(alike.expand_as(corrected), corrected, trust[0, :, None, None])
    alone = torch.lerp(corrected, alone, trust[1, :, None, None])
    settled = torch.lerp(alone, settled, (trust[2, :, None] * torch.from_numpy(reached))[:, :, None])
    levels = torch.from_numpy(nodes)
    start = occupancy(levels[0], torch.from_numpy(seen.first_defects[None]))[0]
    left = torch.from_numpy(residual)
    scale = torch.from_numpy(seen.scale)
    return Steps(scale, levels, left, alone, settled, corrected, alike, start, trust, seen.fresh_steps)


def quantile_nodes(values: Array, precision: type[np.floating[Any]] = np.float64) -> Array:
    """Nodes among values in rising order, (m,) to (k,), with ties kept apart.

    Args:
        values: (m,).
        precision: Of the 1e-12 by which ties are apart, which shows in the last bits of small defects.
    """
    apart = np.arange(NODES, dtype=precision) * precision(1e-12)
    levels: Array = values[np.round(_RANKS * (len(values) - 1)).astype(np.intp)] + apart
    return levels


def occupancy(nodes: Tensor, x: Tensor) -> Tensor:
    """The mean over each row of x (k, m), read off at the nodes (n,), as weights of the nodes, (k, n).

    Their product with values at the nodes is the mean of the values at x: linear between nodes and a
    little beyond the last.
    """
    return torch.from_numpy(_occupancy(nodes.numpy(), [x.numpy()])[0]).to(x.dtype)


def _occupancy(nodes: Array, groups: Sequence[Array]) -> list[Array]:
    """The same for several groups of rows at once, each with its own m."""
    n, n_rows = len(nodes), sum(map(len, groups))
    x = np.concatenate([each.ravel() for each in groups])
    left = _intervals(nodes, x)
    share = x - nodes.take(left)
    share /= np.diff(nodes).take(left)
    np.clip(share, 0, 2, out=share)  # nodes may lie close together
    row = begin = 0
    for each in groups:  # cells of a row of its own for each row
        cells = left[begin : begin + each.size].reshape(each.shape)
        cells += n * np.arange(row, row + len(each))[:, None]
        row, begin = row + len(each), begin + each.size
    many, right = (np.bincount(left, each, minlength=n * n_rows).reshape(n_rows, n) for each in (None, share))
    weights = many - right
    weights[:, 1:] += right[:, :-1]
    ends = accumulate(map(len, groups))
    return [weights[end - len(each) : end] / each.shape[1] for end, each in zip(ends, groups, strict=True)]


def _intervals(nodes: Array, x: Array) -> NDArray[np.intp]:
    """Which of the intervals between nodes (n,) each value (m,) lies in or next to, from 0 to n - 2."""
    if len(nodes) > 64:
        return np.searchsorted(nodes[1:-1], x)
    # with so few nodes, comparing all values with each of them is several times faster than a search for each value
    below = np.zeros(len(x), dtype=np.uint8)
    above = np.empty(len(x), dtype=np.bool_)
    for node in nodes[1:-1]:
        below += np.greater(x, node, out=above).view(np.uint8)
    return below.astype(np.intp)


def shifted_neighbours(pool: Pooled, nodes: Array) -> Array:
    """The next defects of a sample at each node, (k, neighbours).

    They are those of the node's neighbours, each moved by how far the neighbour is from the node times the slope of
    the next defect on the present one. Averaging the neighbours as they are would blur the cost to go at every step,
    and defects that last for many steps would be lost in the blur.
    """
    x, y = pool.defect, pool.following
    first, count = neighbours(x, nodes, _NEIGHBOURS)
    slopes = _slopes(x, y, *neighbours(x, nodes, 3 * _NEIGHBOURS))[:, None]
    near = first[:, None] + np.arange(count)
    moved = nodes[:, None] - x.take(near)
    moved *= slopes
    moved += y.take(near)
    return np.maximum(moved, 0, out=moved)


def _slopes(x: Array, y: Array, first: NDArray[np.intp], count: int) -> Array:
    """Of y on x (m,) among the `count` neighbours that begin at each of `first` (k,), from sums up to there: (k,)."""
    sums = np.empty((4, len(x) + 1))
    sums[:, 0] = 0
    for row, each in zip(sums, (x, y, x * x, x * y), strict=True):
        np.cumsum(each, out=row[1:])
    mean_x, mean_y, xx, xy = (sums[:, first + count] - sums[:, first]) / count
    slope: Array = (xy - mean_x * mean_y) / np.maximum(xx - mean_x**2, 1e-12)
    return slope.clip(0, 1.5)


def _differences(estimates: Sequence[Array], reached: NDArray[np.bool_]) -> tuple[Array, Array]:
    """How much the mean of each estimate (k or 1, m) differs from that before it, squared, and how much by chance.

    Both are sums over the nodes; for the last estimate, over those nodes (k,) that it reaches.
    """
    means, chance = np.empty((2, len(estimates), NODES))
    for i, each in enumerate(estimates):
        mean = each.mean(axis=1)
        around = each - mean[:, None]
        means[i] = mean
        chance[i] = np.einsum("ij,ij->i", around, around) / each.shape[1] ** 2
    effect, by_chance = np.diff(means, axis=0) ** 2, chance[1:] + chance[:-1]
    effect[-1] *= reached
    by_chance[-1] *= reached
    return effect.sum(axis=1), by_chance.sum(axis=1)
