"""Paths through a roadmap: a collision-free path near any proposal, however far that is from one.

A roadmap is a set of free points and which of them see each other. A path whose waypoints are roadmap points and whose
neighbours see each other is free of collisions by construction, and the nearest such path is found by dynamic
programming over the waypoints. It gives a local search a start on the right side of every obstacle.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from trimtab.constraints.obstacles_geometry import Obstacles, gaps

__all__ = ["Roadmap", "roadmap", "route"]

_MARGIN = 5e-4  # roadmap points and their connections keep this far from obstacles
_SPACING = 0.08  # of the grid of points
_BEAM = 48  # cheapest points kept at each waypoint


class Roadmap(NamedTuple):
    """Free points, (2, M), and what passing from one to another costs, (M, M): 0 if they see each other, else inf."""

    points: Tensor
    toll: Tensor


@lru_cache(maxsize=8)
def roadmap(obstacles: Obstacles) -> Roadmap:
    """The roadmap of a map; made once and kept."""
    points = torch.cat([_grid(obstacles), _passages(obstacles)], dim=1)
    points = points[:, _clearance(obstacles, points, points) > _MARGIN]
    return Roadmap(points, _toll(obstacles, points[:, :, None], points[:, None, :]))


def _grid(obstacles: Obstacles) -> Tensor:
    steps = round(2 / _SPACING)
    axis = torch.linspace(-1, 1, steps + 1).to(obstacles.circles)
    return torch.stack(torch.meshgrid(axis, axis, indexing="ij")).flatten(1)


def _passages(obstacles: Obstacles) -> Tensor:
    """The middle of the passage between any two neighbouring obstacles, and between an obstacle and a wall."""
    x, y, r = obstacles.circles.T
    xmin, ymin, xmax, ymax = obstacles.boxes.T
    low = torch.stack([torch.cat([x - r, xmin]), torch.cat([y - r, ymin])])
    high = torch.stack([torch.cat([x + r, xmax]), torch.cat([y + r, ymax])])
    centre, half = (low + high) / 2, (high - low) / 2
    away = centre[:, None, :] - centre[:, :, None]
    distance = away.square().sum(0).sqrt()
    unit = away / distance.clamp(min=1e-9)
    # How far each obstacle reaches along the line of centres: the radius, or where the line leaves the box.
    box = (half[:, :, None] / unit.abs().clamp(min=1e-9)).amin(0)
    radius = torch.cat([r, torch.zeros_like(xmin)])[:, None].expand_as(box)
    is_circle = torch.arange(len(obstacles), device=r.device)[:, None] < len(r)
    extent = torch.where(is_circle, radius, box)
    near = torch.triu((distance - extent - extent.T).abs() < 3 * _SPACING, 1)
    middle = (centre[:, :, None] + unit * ((extent + distance - extent.T) / 2))[:, near]
    walls = [
        torch.stack([(high[0] + 1) / 2, centre[1]]),
        torch.stack([(low[0] - 1) / 2, centre[1]]),
        torch.stack([centre[0], (high[1] + 1) / 2]),
        torch.stack([centre[0], (low[1] - 1) / 2]),
    ]
    points = torch.cat([middle, *walls], dim=1)
    return points[:, (points.abs() <= 1).all(0)]


def _clearance(obstacles: Obstacles, a: Tensor, b: Tensor) -> Tensor:
    if not len(obstacles):
        return a.new_full(a.shape[1:], torch.inf)
    return gaps(obstacles, a, b).amin(0)


def _toll(obstacles: Obstacles, a: Tensor, b: Tensor) -> Tensor:
    """0 where a sees b and inf where it does not; a and b broadcast to (2, \\*shape)."""
    a, b = torch.broadcast_tensors(a, b)
    blocked = [
        _clearance(obstacles, a_part, b_part) <= _MARGIN
        for a_part, b_part in zip(a.flatten(1).split(65536, dim=1), b.flatten(1).split(65536, dim=1), strict=True)
    ]
    return torch.zeros(a.shape[1:]).to(a).masked_fill_(torch.cat(blocked).view(a.shape[1:]), torch.inf)


def route(obstacles: Obstacles, proposal: Tensor) -> tuple[Tensor, Tensor]:
    """Collision-free paths near the proposals over the roadmap.

    Args:
        obstacles: The map.
        proposal: Paths, (2, n, W), of which the first and the last waypoint are kept.

    Returns:
        The paths, (2, n, W), and whether there is one, (n,); rows without one hold the proposal.
    """
    points, toll = roadmap(obstacles)
    _, n, W = proposal.shape
    if points.shape[1] == 0:
        return proposal.clone(), torch.zeros(n, dtype=torch.bool, device=proposal.device)
    from_start = _toll(obstacles, proposal[:, :, :1], points[:, None, :])
    to_goal = _toll(obstacles, points[:, None, :], proposal[:, :, -1:])
    hops = _hops(to_goal, toll, W)
    found = (from_start + hops).amin(1) <= W - 2
    rows = found.nonzero().squeeze(1)
    path = proposal.clone()
    if len(rows):
        path[:, rows, 1:-1] = points[:, _cheapest(proposal[:, rows], from_start[rows], hops[rows], points, toll)]
    return path, found


def _hops(to_goal: Tensor, toll: Tensor, limit: int) -> Tensor:
    """How many segments each point is from the goal, (n, M); inf if more than `limit`."""
    sees = (toll == 0).to(toll.dtype)
    reached = to_goal == 0
    hops = torch.full_like(to_goal, torch.inf).masked_fill_(reached, 1)
    for k in range(2, limit):
        new = (reached.to(toll.dtype) @ sees > 0) & ~reached
        if not bool(new.any()):
            break
        hops.masked_fill_(new, k)
        reached = reached | new
    return hops


def _cheapest(proposal: Tensor, from_start: Tensor, hops: Tensor, points: Tensor, toll: Tensor) -> Tensor:
    """The roadmap point of each inner waypoint, (n, W - 2), of the cheapest path a beam search finds.

    Points that could not reach the goal in the segments that are left are never entered, so no beam runs dry.
    """
    _, n, W = proposal.shape
    beam = min(_BEAM, points.shape[1])
    came_from: list[Tensor] = []
    price = from_start
    for i in range(1, W - 1):
        pull = (points[:, None, :] - proposal[:, :, i, None]).square().sum(0)
        pull = (pull - pull.amin(1, keepdim=True)).masked_fill_(hops > W - 1 - i, torch.inf)
        price = price + pull
        if i == W - 2:
            break
        best, where = price.topk(beam, dim=1, largest=False, sorted=True)
        price, chosen = (best[:, :, None] + toll[where]).min(1)
        came_from.append(where.gather(1, chosen))
    at = price.argmin(1, keepdim=True)
    taken = [at]
    for previous in reversed(came_from):
        at = previous.gather(1, at)
        taken.append(at)
    return torch.cat(taken[::-1], dim=1)
