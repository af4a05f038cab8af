"""How far two sets of samples are apart beyond noise: the energy distance without its bias, with a standard error.

The energy distance of two finite sets is never 0, not even where nothing differs: the noise floor. With few samples of
many numbers the floor is most of it, and two schedules that differ look alike. The square has an unbiased estimate,
which may fall below 0.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trimtab.core.metrics import Summary
from trimtab.core.set_distances import as_rows, pooled

__all__ = ["energy_excess"]


def energy_excess(x: Any, y: Any, less: Any = None) -> Summary:
    r"""The squared energy distance 2 E|X - Y| - E|X - X'| - E|Y - Y'| of two sets, unbiased: 0 on average if alike.

    Memory grows with the number of pairs.

    Args:
        x: (n, \*event), at least 3.
        y: (m, \*event), at least 3.
        less: A set that is paired with `x` sample by sample, (n, \*event): the estimate is then by how much farther
            `x` is from `y` than this set, and the standard error is that of the difference.

    Returns:
        The estimate, in the units of the samples, with a standard error by leaving out one sample at a time.

    Example:
        >>> import torch
        >>> drawn = torch.randn(3, 200, 2, generator=torch.Generator().manual_seed(0))
        >>> alike, apart = energy_excess(drawn[0], drawn[1]), energy_excess(drawn[0] + 1, drawn[1])
        >>> abs(alike.mean) < 3 * alike.se, apart.mean > 5 * apart.se
        (True, True)
    """
    rows, others = as_rows(x), as_rows(y)
    pooled(rows, others)  # refuses samples of two shapes
    if min(len(rows), len(others)) < 3:
        raise ValueError(f"a standard error needs at least 3 samples of each set: got {len(rows)} and {len(others)}")
    found = _left_out(rows, others)
    if less is not None:
        beside = as_rows(less)
        if beside.shape != rows.shape:
            raise ValueError(
                f"paired sets have as many samples of the same shape: got {tuple(rows.shape)} and {tuple(beside.shape)}"
            )
        found = [one - other for one, other in zip(found, _left_out(beside, others), strict=True)]
    whole, without_x, without_y = found
    variance = sum((len(part) - 1) / len(part) * (part - part.mean()).square().sum() for part in (without_x, without_y))
    return Summary(float(whole), float(torch.as_tensor(variance).sqrt()), len(rows))


def _left_out(x: Tensor, y: Tensor) -> list[Tensor]:
    """The estimate, and the estimates without each sample of x and of y: (), (n,), (m,)."""
    n, m = len(x), len(y)
    between, of_x, of_y = _apart(x, y), _apart(x, x).sum(dim=1), _apart(y, y).sum(dim=1)
    xy, xx, yy = between.sum(), of_x.sum(), of_y.sum()

    def estimate(xy: Tensor, xx: Tensor, yy: Tensor, n: int, m: int) -> Tensor:
        return 2 * xy / (n * m) - xx / (n * (n - 1)) - yy / (m * (m - 1))

    return [
        estimate(xy, xx, yy, n, m),
        estimate(xy - between.sum(dim=1), xx - 2 * of_x, yy, n - 1, m),
        estimate(xy - between.sum(dim=0), xx, yy - 2 * of_y, n, m - 1),
    ]


def _apart(x: Tensor, y: Tensor) -> Tensor:
    """Distances of all pairs, without the short cut that would lose digits."""
    return torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist")
