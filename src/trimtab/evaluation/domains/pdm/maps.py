"""Maps of round obstacles in the square [-1, 1]², made from a seed.

A map is a tensor of circles, (m, 3) rows (x, y, radius). Circles of one map keep a gap between them, so that the
free space hangs together and every clear start reaches every clear goal.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trimtab.core.noise import Noise, as_seeds

__all__ = [
    "SHIPPED_SEEDS",
    "clearance",
    "extra_circles",
    "random_map",
    "shipped_map",
    "shipped_maps",
]

SHIPPED_SEEDS = (0, 1, 2, 3)
"""Seeds of the maps that experiments run on; the shipped model never saw them in training."""


def random_map(seed: int, count: int = 16, radius: tuple[float, float] = (0.09, 0.16), gap: float = 0.14) -> Tensor:
    """A map of circles thrown one after another, each kept if it leaves room around the ones before.

    Args:
        seed: Names the map; the same seed gives the same map everywhere.
        count: How many circles.
        radius: Smallest and largest radius, drawn evenly between.
        gap: Least free distance between two circles.

    Returns:
        (count, 3) float64 rows (x, y, radius).

    Example:
        >>> random_map(0).shape
        torch.Size([16, 3])
    """
    return _throw(seed, count, radius, gap, torch.empty(0, 3, dtype=torch.float64), stream=1)


def extra_circles(
    circles: Tensor, seed: int = 0, count: int = 6, radius: tuple[float, float] = (0.06, 0.1), gap: float = 0.1
) -> Tensor:
    """More circles in the free space of a map: obstacles that turn up only when sampling, as in PDM's experiments.

    Args:
        circles: The map, (m, 3), that a model is told of.
        seed: Names the extra circles.
        count: How many.
        radius: Smallest and largest radius.
        gap: Least free distance between an extra circle and any other.

    Returns:
        (count, 3) float64; `torch.cat([circles, extra])` is the map that a constraint enforces.

    Example:
        >>> extra_circles(shipped_map()).shape
        torch.Size([6, 3])
    """
    return _throw(seed, count, radius, gap, circles.double(), stream=6)


def _throw(seed: int, count: int, radius: tuple[float, float], gap: float, standing: Tensor, stream: int) -> Tensor:
    """(count, 3) circles thrown at the square one by one, kept where they leave `gap` to those standing before."""
    if not 0 < radius[0] <= radius[1]:
        raise ValueError(f"radius must be (smallest, largest) with 0 < smallest <= largest, got {radius}")
    darts = Noise(as_seeds([seed])).uniform(0, (4000, 3), stream=stream)[0]
    darts[:, :2] = darts[:, :2] * 1.9 - 0.95
    darts[:, 2] = radius[0] + darts[:, 2] * (radius[1] - radius[0])
    placed = standing
    for dart in darts:
        apart = (placed[:, :2] - dart[:2]).norm(dim=1) - placed[:, 2] - dart[2]
        if bool((apart >= gap).all()):
            placed = torch.cat([placed, dart[None]])
        if len(placed) == len(standing) + count:
            return placed[len(standing) :]
    raise ValueError(
        f"only {len(placed) - len(standing)} of {count} circles of radius {radius} fit with a gap of {gap}: "
        "ask for fewer or smaller circles, or a smaller gap"
    )


def shipped_map(index: int = 0) -> Tensor:
    """One of the maps that experiments run on, (16, 3) float64 circles (x, y, radius)."""
    if not 0 <= index < len(SHIPPED_SEEDS):
        raise ValueError(f"there are {len(SHIPPED_SEEDS)} shipped maps, 0 to {len(SHIPPED_SEEDS) - 1}: got {index}")
    return random_map(SHIPPED_SEEDS[index])


def shipped_maps() -> Tensor:
    """All maps that experiments run on, (4, 16, 3) float64."""
    return torch.stack([shipped_map(i) for i in range(len(SHIPPED_SEEDS))])


def clearance(points: Tensor, circles: Tensor) -> Tensor:
    """Distance from points to the nearest circle's edge, negative inside.

    Args:
        points: (n, k, 2).
        circles: (m, 3) for all samples, or (n, m, 3) with a map for each.

    Returns:
        (n, k).
    """
    away = torch.cdist(points, circles[..., :2].to(points.dtype).expand(len(points), -1, -1))
    return (away - circles[..., 2].to(points.dtype).reshape(-1, 1, circles.shape[-2])).amin(dim=2)
