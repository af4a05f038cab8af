"""The price of a correction as a dynamic program over step, budget left and defect.

The paper calls lambda[t, b] the marginal price of a correction and guesses it from the height of defects. Here it is
computed. With b corrections left and a defect s at step t, a sample pays s if it goes on as it is and (nearly) nothing
if it is corrected; either way its next defect is drawn from a distribution that calibration rollouts show. The cost to
go therefore obeys

    V[t, b](s) = min( s + E[ V[t+1, b](s') | s, left alone ],  r + E[ V[t+1, b-1](s') | s, corrected ] )

and lambda[t, b] is the defect at which the two are equal: correcting pays above it. How long a correction lasts is in
the two expectations, which is what the height of a defect does not show.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trimtab.record import Rollout
from trimtab.scale import OwnScale

__all__ = ["CostToGo", "solve"]

_NODES = 24  # defect levels at which the cost to go is kept
_ALONE = 64  # neighbours whose next defects stand for those of a node that is left alone
_CORRECTED = 256  # and for one that is corrected: there the next defect hardly depends on this one
_SAMPLES = 400  # of each action, pooled over neighbouring steps until there are as many


@dataclass(frozen=True, eq=False)
class CostToGo:
    """The solution: prices, and what the rest of a rollout is expected to cost at its beginning.

    Attributes:
        table: lambda, (T, B + 1).
        expected: The expected objective of a whole rollout with b corrections, (B + 1,).
    """

    table: Tensor
    expected: Tensor


def solve(
    runs: Sequence[Rollout], budget: int, weights: Tensor | None = None, own_scale: OwnScale | None = None
) -> CostToGo:
    """Estimate one-step transitions from explored rollouts and solve backward for the prices.

    Args:
        runs: Records of rollouts in which corrections happened at random (see `Explore`), all of the same T.
        budget: The largest budget, B.
        weights: What a unit of residual costs at each step, (T,); 1 for path error.
        own_scale: If given, everything is solved in units of each sample's own scale.
    """
    seen = _Transitions(runs, own_scale)
    T, B = len(seen.defects), budget
    weights = torch.ones(T, dtype=torch.float64) if weights is None else weights.double()
    table = torch.empty(T, B + 1, dtype=torch.float64)
    # quantiles of the defects seen, closer together at the top, where most decisions are
    ranks = 1 - (1 - torch.linspace(0, 1, _NODES, dtype=torch.float64)) ** 1.5
    left = torch.arange(B + 1)

    cost, nodes = torch.zeros(B + 1, _NODES, dtype=torch.float64), torch.arange(_NODES, dtype=torch.float64)
    for t in reversed(range(T)):
        alone, corrected = seen.around(t)
        grid = torch.cat([alone.defect, corrected.defect]).quantile(ranks) + torch.arange(_NODES) * 1e-12  # ties apart
        price_of_residual = weights[t] * seen.scale[t]
        stay = price_of_residual * grid
        near = _neighbours(corrected.defect, grid, _CORRECTED)
        go = price_of_residual * corrected.residual[near].mean(dim=1)
        if t < T - 1:
            stay = stay + cost @ _occupancy(nodes, _transported(alone, grid)).T
            go = go + cost @ _occupancy(nodes, corrected.following[near]).T
        stay, go = stay.expand(B + 1, _NODES), go.expand(B + 1, _NODES)
        table[t, 0] = torch.inf
        price = _break_even(grid * seen.scale[t], stay[1:] - go[:-1])  # a correction leaves one fewer
        table[t, 1:] = torch.where(left[1:] >= T - t, -torch.inf, price)  # enough for every step left: spend it
        spend = grid * seen.scale[t] >= table[t][:, None]
        cost = torch.where(spend, go.roll(1, dims=0), stay)  # row 0 never spends, so what is rolled into it is not read
        nodes = grid
    return CostToGo(table, cost @ _occupancy(nodes, seen.defects[:1] / seen.scale[0])[0])


class _Transitions:
    """Defects, decisions and residuals of all runs side by side, in units of each step's usual defect."""

    def __init__(self, runs: Sequence[Rollout], own_scale: OwnScale | None) -> None:
        self.defects = torch.cat([run.defects for run in runs], dim=1).cpu().double()
        self.projected = torch.cat([run.projected for run in runs], dim=1).cpu()
        self.residuals = torch.cat([run.residuals for run in runs], dim=1).cpu().double()
        if own_scale is not None:
            scale = own_scale.along(self.defects, self.projected)
            self.defects, self.residuals = self.defects / scale, self.residuals / scale
        self.scale = _smooth(self.defects.mean(dim=1)).clamp(min=1e-12)
        self.last = len(self.defects) - 1
        # how many steps either side of each step hold enough samples of both actions
        n = self.defects.shape[1]
        corrected = self.projected.sum(dim=1)
        self.half_width = []
        for t in range(self.last + 1):
            width = 0
            while width < max(5, len(self.defects) // 10):
                count = int(corrected[max(0, t - width) : t + width + 1].sum())
                total = n * len(range(max(0, t - width), min(self.last, t + width) + 1))
                if min(count, total - count) >= _SAMPLES:
                    break
                width += 1
            self.half_width.append(width)

    def around(self, t: int) -> tuple[_Pooled, _Pooled]:
        """Samples of step t and its neighbours: those left alone, and those corrected."""
        low, high = max(0, t - self.half_width[t]), min(self.last, t + self.half_width[t])
        if t < self.last:
            high = min(high, self.last - 1)  # these have a next defect
        rows, next_rows = slice(low, high + 1), slice(low + 1, high + 2)
        projected = self.projected[rows].flatten()
        if bool(projected.all()) or not bool(projected.any()):
            raise ValueError(
                f"around step {t} of {self.last + 1} the calibration rollouts show only one of the two actions "
                f"({int(projected.sum())} of {len(projected)} corrected); calibrate with more seeds"
            )
        defect = (self.defects[rows] / self.scale[rows, None]).flatten()
        residual = (self.residuals[rows] / self.scale[rows, None]).flatten()
        following = defect  # at the last step there is none, and none is asked for
        if t < self.last:
            following = (self.defects[next_rows] / self.scale[next_rows, None]).flatten()
        order = defect.argsort()
        return tuple(  # type: ignore[return-value]
            _Pooled(defect[some], residual[some], following[some])
            for some in (order[~projected[order]], order[projected[order]])
        )


@dataclass(frozen=True, eq=False)
class _Pooled:
    """Samples of one action in order of their defects, (m,) each."""

    defect: Tensor
    residual: Tensor
    following: Tensor


def _smooth(x: Tensor, half_width: int = 5) -> Tensor:
    """A moving average of (T,) that ends with the series' own ends."""
    padded = torch.cat([x[:1].expand(half_width), x, x[-1:].expand(half_width)])
    return padded.unfold(0, 2 * half_width + 1, 1).mean(dim=1)


def _neighbours(x: Tensor, at: Tensor, count: int) -> Tensor:
    """Positions of the `count` neighbours (or all) of each of `at` (k,) in sorted `x` (m,): (k, count)."""
    count = min(count, len(x))
    first = (torch.searchsorted(x, at) - count // 2).clamp(0, len(x) - count)
    return first[:, None] + torch.arange(count)


def _transported(alone: _Pooled, grid: Tensor) -> Tensor:
    """The next defects of a sample at each node that is left alone, (k, neighbours).

    They are those of the node's neighbours, each moved by how far the neighbour is from the node times the slope of
    the next defect on the present one. Averaging the neighbours as they are would blur the cost to go at every step,
    and defects that last for many steps would be lost in the blur.
    """
    x, y = alone.defect, alone.following
    wide, near = _neighbours(x, grid, 3 * _ALONE), _neighbours(x, grid, _ALONE)
    dx, dy = x[wide], y[wide]
    dx, dy = dx - dx.mean(dim=1, keepdim=True), dy - dy.mean(dim=1, keepdim=True)
    slope = ((dx * dy).sum(dim=1) / (dx**2).sum(dim=1).clamp(min=1e-12)).clamp(0, 1.5)
    return (y[near] + slope[:, None] * (grid[:, None] - x[near])).clamp(min=0)


def _occupancy(nodes: Tensor, x: Tensor) -> Tensor:
    """The mean over each row of x (k, m), read off at the nodes (n,), as weights of the nodes, (k, n).

    Their product with values at the nodes is the mean of the values at x: linear between nodes and beyond the last.
    """
    right = torch.searchsorted(nodes, x).clamp(1, len(nodes) - 1)
    share = ((x - nodes[right - 1]) / (nodes[right] - nodes[right - 1])).clamp(min=0)
    weights = torch.zeros(len(x), len(nodes), dtype=x.dtype)
    weights.scatter_add_(1, right - 1, 1 - share).scatter_add_(1, right, share)
    return weights / x.shape[1]


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
