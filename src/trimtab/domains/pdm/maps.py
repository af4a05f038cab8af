"""Maps of round obstacles in the square [-1, 1]², made from a seed, and start–goal pairs on them.

A map is a tensor of circles, (m, 3) rows (x, y, radius). Circles of one map keep a gap between them, so that the
free space hangs together and every clear start reaches every clear goal.
"""

from __future__ import annotations

from collections.abc import Iterable

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
    "start_goal_pairs",
]

SHIPPED_SEEDS = (0, 1, 2, 3)
"""Seeds of the maps that experiments run on; the shipped model never saw them in training."""

_ATTEMPTS, _SAME_LUCK = 32, 8  # pairs a seed may try, and how many of them with the same random numbers for the planner


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


def start_goal_pairs(
    seeds: Iterable[int] | Tensor,
    circles: Tensor,
    room: float = 0.05,
    apart: float = 1.2,
    extent: float = 0.92,
) -> tuple[Tensor, Tensor]:
    """Starts and goals clear of the obstacles, far apart, with a free path between them.

    Args:
        seeds: One a pair; a pair depends on its seed and the map alone.
        circles: The map, (m, 3).
        room: Least distance of a start or goal from every circle.
        apart: Least distance between start and goal.
        extent: Starts and goals lie in [-extent, extent]².

    Returns:
        Starts (n, 2) and goals (n, 2), float64.

    Raises:
        ValueError: If a seed finds no pair: the map is closed, or `room` or `apart` ask for too much.
    """
    from .planner import rrt_connect  # the planner needs this module's clearance

    noise = Noise(as_seeds(seeds))
    n = len(noise.seeds)
    if circles.ndim != 2 or circles.shape[-1] != 3:
        raise ValueError(f"circles must be one map of rows (x, y, radius), (m, 3): got {tuple(circles.shape)}")
    ends = torch.empty(n, 2, 2, dtype=torch.float64)
    open_rows = torch.arange(n)
    for attempt in range(_ATTEMPTS):
        draw = noise.take(open_rows)
        tries = (draw.uniform(attempt, (256, 2, 2), stream=2) * 2 - 1) * extent
        clear = clearance(tries.flatten(1, 2), circles).reshape(len(draw.seeds), -1, 2).amin(dim=2) >= room
        good = clear & ((tries[:, :, 0] - tries[:, :, 1]).norm(dim=-1) >= apart)
        first = good.int().argmax(dim=1)
        pair = tries[torch.arange(len(first)), first]
        # A planner can be out of luck with its random numbers, whatever the pair: later attempts get other ones.
        luck = draw if attempt < _SAME_LUCK else Noise(draw.seeds + (attempt << 32))
        path = rrt_connect(luck, pair[:, 0], pair[:, 1], circles.expand(len(first), -1, -1), room / 2)
        fine = good.any(dim=1) & path.solved
        ends[open_rows[fine]] = pair[fine]
        open_rows = open_rows[~fine]
        if len(open_rows) == 0:
            return ends[:, 0], ends[:, 1]
    raise ValueError(
        f"no start and goal for seed {int(noise.seeds[open_rows[0]])} ({len(open_rows)} of {n} seeds): the map may be "
        f"closed by its obstacles, or room={room} and apart={apart} ask for too much"
    )
