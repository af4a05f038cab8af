"""Distances between two sets of samples, and the same for many ways of dealing the samples into two sets.

A test by relabelling needs the distance of the same samples under hundreds of labels, so each distance here takes a
pool of samples and many labellings of it and does the expensive part once: energy distance and kernel distance visit
each pair of samples once, in blocks, and the sliced Wasserstein distance sorts along each direction once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from trimtab.core.arrays import Form, numbers_of
from trimtab.core.checks import check_positive
from trimtab.core.errors import check_integer, unknown

__all__ = [
    "MEASURES",
    "Energy",
    "Kernel",
    "SetDistance",
    "Sliced",
    "as_rows",
    "energy_distance",
    "kernel_distance",
    "pooled",
    "set_distance",
    "sliced_wasserstein",
]

_BLOCK = 1024  # samples on a side of a block of pairs: 8 MB
_DIRECTIONS = 128
_MEDIAN_OF = 1000  # samples whose pairs set the width of the kernel
_SORTED = 1 << 22  # numbers that are sorted at once: 32 MB


class SetDistance(Protocol):
    """A distance between two sets of samples."""

    def relabelled(self, pool: Tensor, labels: Tensor) -> Tensor:
        """The distance of one part of a pool to the rest, (N, d) and labels (P, N) bool to (P,)."""
        ...

    def each(self, x: Tensor, y: Tensor) -> Tensor:
        """The distances of r pairs of small sets at once, (r, n, d) and (r, m, d) to (r,)."""
        ...


# ------------------------------------------------------------------ the three


def energy_distance(x: Any, y: Any) -> float:
    r"""The energy distance sqrt(2 E|X - Y| - E|X - X'| - E|Y - Y'|) of two sets, in the units of the samples.

    Args:
        x: (n, \*event).
        y: (m, \*event).

    Example:
        >>> import torch
        >>> energy_distance(torch.zeros(5, 3), torch.ones(4, 3)) ** 2 / 2  # the length of (1, 1, 1)
        1.732...
    """
    return _of_two("energy", x, y)


def sliced_wasserstein(x: Any, y: Any, directions: int = _DIRECTIONS, seed: int = 0) -> float:
    r"""The mean over random directions of the Wasserstein distance of order 1 along them, in the units of the samples.

    Args:
        x: (n, \*event).
        y: (m, \*event).
        directions: How many; samples of one number have only one.
        seed: Of the directions.

    Example:
        >>> import torch
        >>> sliced_wasserstein(torch.zeros(5), torch.full((4,), 2.0))
        2.0
    """
    check_integer(directions, "directions, along which samples are compared,")
    x, y = as_rows(x), as_rows(y)
    found = Sliced(_directions(x.shape[1], directions, seed).to(x.device))
    return float(found.relabelled(*pooled(x, y))[0])


def kernel_distance(x: Any, y: Any, bandwidth: float | None = None) -> float:
    r"""The squared maximum mean discrepancy under a Gaussian kernel, unbiased: at no difference it is 0 on average.

    Args:
        x: (n, \*event), at least two.
        y: (m, \*event), at least two.
        bandwidth: Of the kernel exp(-|a - b|² / (2 bandwidth²)); by default the median distance of two samples.

    Example:
        >>> import torch
        >>> kernel_distance(torch.zeros(5, 1), torch.ones(4, 1), bandwidth=0.01)  # far apart: two kinds of samples
        2.0
    """
    if bandwidth is None:
        return _of_two("kernel", x, y)
    kernel = Kernel(check_positive(bandwidth, "the bandwidth of a kernel"))
    return float(kernel.relabelled(*pooled(as_rows(x), as_rows(y)))[0])


@dataclass(frozen=True)
class Energy:
    """Energy distance."""

    def relabelled(self, pool: Tensor, labels: Tensor) -> Tensor:
        """As `SetDistance.relabelled`, by one visit to each pair."""
        xx, xy, yy = _pair_sums(pool, labels, torch.cdist)
        n, m = _sizes(labels)
        return (2 * xy / (n * m) - xx / n**2 - yy / m**2).clamp(min=0).sqrt()

    def each(self, x: Tensor, y: Tensor) -> Tensor:
        """As `SetDistance.each`."""
        within = torch.cdist(x, x).mean(dim=(1, 2)) + torch.cdist(y, y).mean(dim=(1, 2))
        return (2 * torch.cdist(x, y).mean(dim=(1, 2)) - within).clamp(min=0).sqrt()


@dataclass(frozen=True)
class Kernel:
    """Squared maximum mean discrepancy, unbiased, under a Gaussian kernel of this width."""

    bandwidth: float

    def relabelled(self, pool: Tensor, labels: Tensor) -> Tensor:
        """As `SetDistance.relabelled`, by one visit to each pair."""
        xx, xy, yy = _pair_sums(pool, labels, self._kernel)
        n, m = _sizes(labels)
        return xx / (n * (n - 1)) + yy / (m * (m - 1)) - 2 * xy / (n * m)

    def each(self, x: Tensor, y: Tensor) -> Tensor:
        """As `SetDistance.each`."""
        n, m = x.shape[1], y.shape[1]
        xx, yy = (self._kernel(z, z).sum(dim=(1, 2)) - z.shape[1] for z in (x, y))
        return xx / (n * (n - 1)) + yy / (m * (m - 1)) - 2 * self._kernel(x, y).mean(dim=(1, 2))

    def _kernel(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.cdist(x, y).div_(self.bandwidth).square_().mul_(-0.5).exp_()


@dataclass(frozen=True, eq=False)
class Sliced:
    """Sliced Wasserstein distance of order 1 along these directions, (L, d)."""

    directions: Tensor

    def relabelled(self, pool: Tensor, labels: Tensor) -> Tensor:
        """As `SetDistance.relabelled`, by sorting once along each direction."""
        weights = _weights(labels)
        total = torch.zeros(len(labels), dtype=pool.dtype, device=pool.device)
        at_once = max(1, _SORTED // len(pool))
        for i in range(0, len(self.directions), at_once):
            along, order = (self.directions[i : i + at_once] @ pool.T).sort(dim=1)
            gaps = along.diff(dim=1)
            for k, weight in enumerate(weights):
                total[k] += _area(weight[order], gaps).sum()
        return total / len(self.directions)

    def each(self, x: Tensor, y: Tensor) -> Tensor:
        """As `SetDistance.each`."""
        n, m = x.shape[1], y.shape[1]
        along, order = (self.directions @ torch.cat([x, y], dim=1).mT).sort(dim=2)  # (r, L, n + m)
        weight = _weights(torch.arange(n + m, device=x.device)[None] < n)[0].to(x.dtype)
        return _area(weight[order], along.diff(dim=2)).mean(dim=1)


def _area(weights: Tensor, gaps: Tensor) -> Tensor:
    """Between two distribution functions on a line, (…, N) signed weights in order and (…, N - 1) gaps to (…,)."""
    return weights.cumsum(dim=-1)[..., :-1].abs_().mul_(gaps).sum(dim=-1)


# ------------------------------------------------------------------ made for a pool


def _fitted_kernel(pool: Tensor, seed: int) -> Kernel:
    """A kernel as wide as the median distance of two samples of the pool, or of a thousand drawn from it."""
    if len(pool) > _MEDIAN_OF:
        generator = torch.Generator().manual_seed(seed)
        pool = pool[torch.randperm(len(pool), generator=generator)[:_MEDIAN_OF].to(pool.device)]
    apart = torch.nn.functional.pdist(pool)
    width = float(apart.median())
    if width == 0:  # more than half of the samples coincide: the rest says what is far
        width = float(apart.max()) or 1.0
    return Kernel(width)


def _directions(d: int, count: int, seed: int) -> Tensor:
    """Unit vectors, (count, d), or the only one there is."""
    if d == 1:
        return torch.ones(1, 1, dtype=torch.float64)
    drawn = torch.randn(count, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.nn.functional.normalize(drawn, dim=1)


MEASURES: Mapping[str, Callable[[Tensor, int], SetDistance]] = {
    "energy": lambda pool, seed: Energy(),
    "sliced": lambda pool, seed: Sliced(_directions(pool.shape[1], _DIRECTIONS, seed).to(pool.device)),
    "kernel": _fitted_kernel,
}
"""By name: how a distance is made for a pool of samples (N, d) and a seed."""


def set_distance(measure: str, pool: Tensor, seed: int = 0) -> SetDistance:
    """The distance of that name for a pool of samples, (N, d)."""
    if measure not in MEASURES:
        raise unknown("measure", measure, list(MEASURES))
    return MEASURES[measure](pool, seed)


# ------------------------------------------------------------------ sums over pairs


def _pair_sums(
    pool: Tensor, labels: Tensor, pairwise: Callable[[Tensor, Tensor], Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Sums of a symmetric function of two samples within x, between x and y, and within y, no sample with itself.

    Args:
        pool: (N, d).
        labels: Which samples are x, (P, N) bool.
        pairwise: (a, d) and (b, d) to (a, b).

    Returns:
        Three sums of each labelling, (P,) each; both orders of a pair count.
    """
    pool = pool - pool.mean(dim=0)  # distances are found from squares, which far from 0 would lose digits
    chosen = labels.T.to(pool.dtype)
    by_sample = torch.zeros(len(pool), dtype=pool.dtype, device=pool.device)
    xx = torch.zeros(len(labels), dtype=pool.dtype, device=pool.device)
    starts = range(0, len(pool), _BLOCK)
    for i in starts:
        for j in starts[i // _BLOCK :]:
            rows, columns = slice(i, i + _BLOCK), slice(j, j + _BLOCK)
            block = pairwise(pool[rows], pool[columns])
            if i == j:
                block.fill_diagonal_(0)
            else:
                by_sample[columns] += block.sum(dim=0)
            by_sample[rows] += block.sum(dim=1)
            xx += (1 if i == j else 2) * (chosen[rows] * (block @ chosen[columns])).sum(dim=0)
    x_any = by_sample @ chosen
    return xx, x_any - xx, by_sample.sum() - 2 * x_any + xx


def _sizes(labels: Tensor) -> tuple[int, int]:
    n = int(labels[0].sum())
    return n, labels.shape[1] - n


def _weights(labels: Tensor) -> Tensor:
    """1 / n for the samples of x and -1 / m for those of y, (P, N) bool to (P, N)."""
    n, m = _sizes(labels)
    return labels.double() * (1 / n + 1 / m) - 1 / m


def pooled(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Both sets in one, (n + m, d), and the label that tells them apart, (1, n + m)."""
    if x.shape[1] != y.shape[1]:
        raise ValueError(f"both sets need samples of the same shape: got {x.shape[1]} and {y.shape[1]} numbers")
    return torch.cat([x, y]), (torch.arange(len(x) + len(y), device=x.device) < len(x))[None]


def as_rows(x: Any) -> Tensor:
    """A set of samples, an array or a tree of arrays, as (n, d) float64."""
    form = Form(x, floats=False)
    if form.n < 2:
        raise ValueError(f"a set of samples has at least 2, one along the first dimension each: got {form.n}")
    rows = numbers_of(x)
    if not bool(rows.isfinite().all()):
        bad = int((~rows.isfinite().all(dim=1)).sum())
        raise ValueError(f"{bad} of {len(rows)} samples are not finite; leave them out, and say how many they were")
    return rows


def _of_two(measure: str, x: Any, y: Any) -> float:
    pool, labels = pooled(as_rows(x), as_rows(y))
    return float(set_distance(measure, pool).relabelled(pool, labels)[0])
