"""What one step does to a defect, with and without a correction, estimated from explored rollouts.

The next defect of a sample is described at a few levels of the present one (nodes), as weights of the nodes of the next
step. The mean of anything that is known at the nodes is then a product with a small matrix.

The estimates form a chain from coarse to fine: all corrected samples alike, corrected given the defect, left alone
given the defect. Each is shrunk towards the one before it by how far their difference exceeds its standard error. If
defects do not last, what remains is the assumption of the paper's rule: a correction is worth the height of the defect.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from torch import Tensor

from trimtab.prices.sample_scale import SampleScale, Traced

Array = NDArray[np.float64]

NODES = 24
"""Defect levels at which everything is known."""

_RANKS = np.sin(np.linspace(0, np.pi / 2, NODES)) ** 2  # denser at both ends, where small and large budgets decide
_NEIGHBOURS = 512  # samples whose next defects stand for those of a node
_POOL = 6000  # samples of either action in a pool; it takes as few steps as have so many


@dataclass(frozen=True, eq=False)
class Steps:
    """One-step transitions at every step, k nodes each.

    Attributes:
        scale: The usual defect at each step, (T,).
        nodes: Defect levels in units of `scale`, ascending, (T, k).
        residual: What a correction leaves at each node, in the same units, (T, k).
        alone: The next defect of a sample that is left alone at each node, as weights of the next nodes, (T - 1, k, k).
        corrected: The same for a sample that is corrected.
        start: The first defect, as weights of the first nodes, (k,).
        trust: How far the dependence of the next defect on the present one is believed, for corrected samples and for
            those left alone, (2, T - 1), from 0 to 1.
    """

    scale: Tensor
    nodes: Tensor
    residual: Tensor
    alone: Tensor
    corrected: Tensor
    start: Tensor
    trust: Tensor


def estimate_transitions(
    runs: Sequence[Traced], sample_scale: SampleScale | None = None, *, widen: bool = True
) -> Steps:
    """Estimate the transitions of all steps.

    Args:
        runs: Rollouts in which corrections happened at random (see `Explore`), all of the same T and on the same noise.
        sample_scale: If given, everything is in units of each sample's scale.
        widen: Whether to look at more steps around one at which only one of the two actions is seen, instead of raising
            an error.
    """
    pools = Pools(runs, sample_scale)
    T = pools.n_steps
    nodes, residual = np.empty((2, T, NODES))
    alike, corrected, alone = np.empty((3, T - 1, NODES, NODES))
    effect, noise = np.empty((2, 2, T - 1))
    before: tuple[Array, ...] = ()  # next defects seen from the step before, from coarse to fine
    for t in range(T):
        pool = pools.around(t, widen)
        nodes[t] = quantile_nodes(pool.defects)
        first, count = neighbours(pool.corrected.defect, nodes[t], _NEIGHBOURS)
        residual[t] = pool.corrected.residual[first[:, None] + np.arange(count)].mean(axis=1)
        if t:
            alike[t - 1], corrected[t - 1], alone[t - 1] = (interpolation_weights(nodes[t], each) for each in before)
        if t < T - 1:
            given = (shifted_neighbours(some, nodes[t]) for some in (pool.corrected, pool.alone))
            before = (pool.corrected.following[None], *given)
            effect[:, t], noise[:, t] = _differences(before)

    near = np.arange(T - 1)
    kernel = np.exp(-0.5 * ((near[:, None] - near) / pools.widest) ** 2)
    # runs share their noise, so that all of them together say no more about it than one
    trust = np.maximum(1 - len(runs) * (noise @ kernel) / np.maximum(effect @ kernel, 1e-300), 0)
    corrected = alike + trust[0, :, None, None] * (corrected - alike)
    alone = corrected + trust[1, :, None, None] * (alone - corrected)
    start = interpolation_weights(nodes[0], pools.first_defects[None])[0]
    return Steps(*map(torch.from_numpy, (pools.scale, nodes, residual, alone, corrected, start, trust)))


def _differences(estimates: Sequence[Array]) -> tuple[Array, Array]:
    """Return the squared differences of successive estimates' means, each (k, m), and those expected by chance."""
    means, chance = np.empty((2, len(estimates), NODES))
    for i, each in enumerate(estimates):
        means[i] = each.mean(axis=1)
        chance[i] = each.var(axis=1) / each.shape[1]
    return (np.diff(means, axis=0) ** 2).sum(axis=1), (chance[1:] + chance[:-1]).sum(axis=1)


# ------------------------------------------------------------------ nodes and neighbours


def quantile_nodes(values: Array, spacing: float = 1e-12) -> Array:
    """Return the nodes among ascending values, (m,) to (k,), kept apart by `spacing` if values are tied."""
    levels: Array = values[np.round(_RANKS * (len(values) - 1)).astype(np.intp)] + spacing * np.arange(NODES)
    return levels


def interpolation_weights(nodes: Array, x: Array) -> Array:
    """Return the mean over each row of x, (m, j), as weights of the nodes (k,), (m, k).

    The product of the weights with values at the nodes is the mean of the values at x, interpolated linearly between
    nodes and extrapolated a little beyond the last.
    """
    left = np.searchsorted(nodes[1:-1], x)
    share = ((x - nodes[left]) / np.diff(nodes)[left]).clip(0, 2)
    cell = left + len(nodes) * np.arange(len(x))[:, None]
    size = len(nodes) * len(x)
    count = np.bincount(cell.ravel(), minlength=size).reshape(len(x), -1)
    right = np.bincount(cell.ravel(), share.ravel(), minlength=size).reshape(len(x), -1)
    weights = count - right
    weights[:, 1:] += right[:, :-1]
    mean: Array = weights / x.shape[1]
    return mean


def neighbours(x: Array, at: Array, count: int) -> tuple[NDArray[np.intp], int]:
    """Return the index of the first neighbour of each point, (k,), and the number of neighbours.

    Args:
        x: Sorted values, (m,).
        at: Points whose neighbours in x are wanted, (k,).
        count: The number of neighbours; all of x if it has fewer.
    """
    count = min(count, len(x))
    return (np.searchsorted(x, at) - count // 2).clip(0, len(x) - count), count


def shifted_neighbours(pool: Pool, nodes: Array) -> Array:
    """Return the next defects of a sample at each node, (k, neighbours).

    They are those of the node's neighbours, each moved by its distance from the node times the slope of the next defect
    on the present one. Without the move every step would blur the cost to go, and lasting defects would be lost.
    """
    x, y = pool.defect, pool.following
    first, count = neighbours(x, nodes, _NEIGHBOURS)
    near = first[:, None] + np.arange(count)
    slopes = _slopes(x, y, *neighbours(x, nodes, 3 * _NEIGHBOURS))
    moved: Array = np.maximum(y[near] + slopes[:, None] * (nodes[:, None] - x[near]), 0)
    return moved


def _slopes(x: Array, y: Array, first: NDArray[np.intp], count: int) -> Array:
    """Return the slope of y on x (m,) among `count` neighbours from each of `first` on, (k,)."""
    sums = np.pad(np.cumsum([x, y, x * x, x * y], axis=1), ((0, 0), (1, 0)))
    mean_x, mean_y, xx, xy = (sums[:, first + count] - sums[:, first]) / count
    slope: Array = (xy - mean_x * mean_y) / np.maximum(xx - mean_x**2, 1e-12)
    return slope.clip(0, 1.5)


# ------------------------------------------------------------------ pools


class Pool(NamedTuple):
    """Samples of one action in ascending order of their defects, (m,) each."""

    defect: Array
    residual: Array
    following: Array


class PoolsOfStep(NamedTuple):
    """Samples around a step: those left alone, those corrected, and the defects of all."""

    alone: Pool
    corrected: Pool
    defects: Array


class Pools:
    """Defects, decisions and residuals of all runs, in units of the usual defect of each step.

    Attributes:
        n_steps: T.
        scale: The usual defect at each step, (T,).
        first_defects: The defects of the first step, in units of its scale, (n,).
        widest: The largest number of steps that a pool reaches to either side.
        width: The number of steps that it reaches.
    """

    def __init__(self, runs: Sequence[Traced], sample_scale: SampleScale | None = None) -> None:
        """Concatenate the runs along the samples, and scale their defects."""
        defects, residuals = (
            torch.cat([getattr(run, name) for run in runs], dim=1).cpu().double() for name in ("defects", "residuals")
        )
        projected = torch.cat([run.projected for run in runs], dim=1).cpu()
        if sample_scale is not None:
            scale = sample_scale.along(defects, projected)
            defects, residuals = defects / scale, residuals / scale
        self.n_steps = len(defects)
        self.scale = np.maximum(_smooth(defects.mean(dim=1).numpy()), 1e-12)
        relative = defects.numpy() / self.scale[:, None]
        self.first_defects: Array = relative[0]
        self.widest = max(2, self.n_steps // 10)  # wider pools would blur defects that depend on the step
        self.width = min(self.widest, -(-_POOL // (2 * relative.shape[1])))
        following = np.concatenate([relative[1:], relative[-1:]])  # the last row is never asked for
        columns = relative, residuals.numpy() / self.scale[:, None], following, projected.numpy()
        order = relative.argsort(axis=1, kind="stable")  # a pool of sorted steps is sorted faster
        self._columns = [np.take_along_axis(each, order, axis=1) for each in columns]

    def around(self, t: int, widen: bool) -> PoolsOfStep:
        """Return the samples of step t and its neighbours; with `widen`, of as many as show both actions."""
        last, seen = self.n_steps - 1, self._columns[3].mean(axis=1)  # the share of samples that were corrected
        for width in range(self.width, max(self.n_steps if widen else 0, self.width + 1)):
            high = min(last, t + width)
            rows = np.arange(max(0, t - width), (min(high, last - 1) if t < last else high) + 1)
            if 0 < seen[rows].mean() < 1:
                break
        rows = rows[np.abs(rows - t).argsort(kind="stable")]  # of equal defects those of the nearest steps come first
        order = self._columns[0][rows].argsort(axis=None, kind="stable")
        defect, residual, following, projected = (each[rows].take(order) for each in self._columns)
        if projected.all() or not projected.any():
            raise ValueError(
                f"around step {t} of {self.n_steps} the calibration rollouts show only one of the two actions "
                f"({projected.sum()} of {len(projected)} corrected); calibrate with more seeds or a larger budget"
            )
        alone, corrected = (
            Pool(defect[some], residual[some], following[some]) for some in (~projected, projected.astype(bool))
        )
        return PoolsOfStep(alone, corrected, defect)


def _smooth(x: Array) -> Array:
    """Return a moving average of (T,) over a tenth of the steps, padded with the first and the last value."""
    half_width = max(1, min(5, (len(x) + 10) // 20))  # 5 from T = 90 on
    smoothed: Array = sliding_window_view(np.pad(x, half_width, mode="edge"), 2 * half_width + 1).mean(axis=1)
    return smoothed
