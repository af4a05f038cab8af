"""Maps of obstacles and proposals among them, for all tests of the obstacle constraint."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from trimtab_lab.obstacles import AvoidObstacles, Obstacles, scattered_circles
from trimtab_lab.obstacles.geometry import gaps, penetration

SIGMAS = [10 * (0.005 / 10) ** (k / 9) for k in range(10)]

BOXES = torch.tensor([[-0.6, -0.3, -0.3, 0.4], [0.2, -0.8, 0.5, -0.1], [0.1, 0.3, 0.7, 0.5]])


def maps() -> dict[str, Obstacles]:
    circles = scattered_circles(24, seed=3)
    few = scattered_circles(6, seed=5, radius=(0.05, 0.09)).circles
    clear = penetration(Obstacles(torch.zeros(0, 3), BOXES.float()), few[:, :2].T, few[:, :2].T)
    return {
        "circles": circles,
        "boxes": Obstacles(torch.zeros(0, 3), BOXES),
        "both": Obstacles(few[clear.amax(0) == 0], BOXES),
    }


MAPS = maps()


def free_points(obstacles: Obstacles, n: int, generator: torch.Generator) -> Tensor:
    points = torch.zeros(2, 0)
    while points.shape[1] < n:
        drawn = torch.rand(2, 8 * n, generator=generator) * 1.96 - 0.98
        points = torch.cat([points, drawn[:, gaps(obstacles, drawn, drawn).amin(0) > 0.02]], dim=1)
    return points[:, :n].T


def proposals(
    obstacles: Obstacles, n: int, sigma: float, seed: int, waypoints: int = 64, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, AvoidObstacles]:
    """Bent lines between free points with noise of size sigma on every inner waypoint, and velocities."""
    g = torch.Generator().manual_seed(seed)
    start, goal = (free_points(obstacles, n, g).to(dtype) for _ in range(2))
    t = torch.linspace(0, 1, waypoints, dtype=dtype)
    x = start[:, :, None] * (1 - t) + goal[:, :, None] * t
    for k in (1, 2, 3):
        x = x + torch.randn(n, 2, 1, generator=g).to(dtype) * 0.25 / k * torch.sin(k * math.pi * t)
    x = x + sigma * torch.randn(n, 2, waypoints, generator=g).to(dtype)
    x[:, :, 0], x[:, :, -1] = start, goal
    x = torch.cat([x, torch.randn(n, 2, waypoints, generator=g).to(dtype)], dim=1)
    return x, AvoidObstacles(obstacles, start, goal)


def distance(x: Tensor, y: Tensor) -> Tensor:
    return (x - y)[:, :2].square().sum((1, 2)).sqrt()
