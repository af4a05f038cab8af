"""Samples of neighbouring steps side by side: what the estimates of one step are made from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from trimtab.core.record import Rollout
from trimtab.core.view import last_corrections
from trimtab.prices.sample_scale import SampleScale

__all__ = ["Array", "Pooled", "Pools", "Seen", "neighbours"]

Array = NDArray[np.float64]

_FEW = 64  # settled samples: too few to tell them from others
_POOL = 6000  # samples of either action, from as few steps as have so many


@dataclass(frozen=True, eq=False)
class Pooled:
    """Samples of one action in order of their defects, (m,) each."""

    defect: Array
    residual: Array
    following: Array

    def reaches(self, nodes: Array) -> NDArray[np.bool_]:
        """Which of the nodes lie among these samples rather than at or beyond their outermost."""
        few = len(self.defect) // 50
        among: NDArray[np.bool_] = (nodes >= self.defect[few]) & (nodes <= self.defect[-1 - few])
        return among


class Pools(NamedTuple):
    """Samples left alone long after a correction, all that were left alone, those corrected, and the defects of all."""

    settled: Pooled
    alone: Pooled
    corrected: Pooled
    defects: Array


class Seen:
    """Defects, decisions and residuals of all runs side by side, in units of each step's usual defect.

    Attributes:
        n_steps: T.
        scale: The usual defect at each step, (T,).
        first_defects: Those of the first step, in units of its scale, (n,).
        widest: Steps either side that a pool reaches at most.
        width: Steps either side that it reaches.
        fresh_steps: After so many steps without a correction a sample has settled.
    """

    def __init__(self, runs: Sequence[Rollout], sample_scale: SampleScale | None) -> None:
        """Put the records side by side."""
        defects = torch.cat([run.defects for run in runs], dim=1).cpu().double()
        residuals = torch.cat([run.residuals for run in runs], dim=1).cpu().double()
        projected = torch.cat([run.projected for run in runs], dim=1).cpu()
        if sample_scale is not None:
            scale = sample_scale.along(defects, projected)
            defects, residuals = defects / scale, residuals / scale
        self.n_steps = T = len(defects)
        self.scale = np.maximum(_smooth(defects.mean(dim=1).numpy()), 1e-12)
        relative = defects.numpy() / self.scale[:, None]
        self.first_defects: Array = relative[0]
        self.widest = max(5, T // 10)
        self.width = min(self.widest, -(-_POOL // (2 * relative.shape[1])))  # of a pool, either side
        last = last_corrections(projected).numpy()
        self.fresh_steps = max(2, T // 25)
        fresh = (last > 0) & (np.arange(T)[:, None] + 1 - last <= self.fresh_steps)
        # Each step's samples in order of their defects: a pool of steps is then sorted by merging a few ordered runs.
        # At the last step there is no next defect, and none is asked for.
        order = relative.argsort(axis=1, kind="stable")
        following = np.concatenate([relative[1:], relative[-1:]])
        self._relative, self._residuals, self._following, self._projected, self._fresh = (
            np.take_along_axis(each, order, axis=1)
            for each in (relative, residuals.numpy() / self.scale[:, None], following, projected.numpy(), fresh)
        )

    def around(self, t: int) -> Pools:
        """Samples of step t and its neighbours."""
        last = self.n_steps - 1
        low, high = max(0, t - self.width), min(last, t + self.width)
        if t < last:
            high = min(high, last - 1)  # these have a next defect
        rows = np.arange(low, high + 1)
        rows = rows[np.abs(rows - t).argsort(kind="stable")]  # of equal defects those of the nearest steps come first
        order = self._relative[rows].argsort(axis=None, kind="stable")
        defect, residual, following, projected, fresh = (
            each[rows].take(order)
            for each in (self._relative, self._residuals, self._following, self._projected, self._fresh)
        )
        corrected, alone = np.flatnonzero(projected), np.flatnonzero(~projected)
        if not len(alone) or not len(corrected):
            raise ValueError(
                f"around step {t} of {self.n_steps} the calibration rollouts show only one of the two actions "
                f"({len(corrected)} of {len(projected)} corrected); calibrate with more seeds"
            )
        settled = np.flatnonzero(~projected & ~fresh)
        if len(settled) < _FEW:
            settled = alone
        settled_ones, left_alone, those_corrected = (
            Pooled(defect[some], residual[some], following[some]) for some in (settled, alone, corrected)
        )
        return Pools(settled_ones, left_alone, those_corrected, defect)


def neighbours(x: Array, at: Array, count: int) -> tuple[NDArray[np.intp], int]:
    """Where the `count` neighbours (or all) of each of `at` (k,) begin in sorted `x` (m,), (k,), and their number."""
    count = min(count, len(x))
    return (np.searchsorted(x, at) - count // 2).clip(0, len(x) - count), count


def _smooth(x: Array, half_width: int = 5) -> Array:
    """A moving average of (T,) that ends with the series' own ends."""
    padded = np.pad(x, half_width, mode="edge")
    smoothed: Array = sliding_window_view(padded, 2 * half_width + 1).mean(axis=1)
    return smoothed
