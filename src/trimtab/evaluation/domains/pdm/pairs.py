"""Starts and goals on a map, far apart, with a free path between them."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from trimtab.core.noise import Noise, as_seeds

from .maps import clearance
from .planner import rrt_connect

__all__ = ["start_goal_pairs"]

_ATTEMPTS, _SAME_LUCK = 32, 8  # pairs a seed may try, and how many of them with the same random numbers for the planner


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
