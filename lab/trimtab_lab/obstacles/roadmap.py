"""Paths through a roadmap: a collision-free path near any proposal, from which a local search can start.

A roadmap is a set of free points and which of them see each other. A path of roadmap points that see their neighbours
is free of collisions, and dynamic programming over the waypoints finds the nearest such path.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from trimtab_lab.obstacles.geometry import Obstacles, gaps

__all__ = ["Roadmap", "roadmap", "route"]

_MARGIN = 5e-4  # roadmap points and their connections keep this far from obstacles
_SPACING = 0.08  # of the grid of points
_BEAM = 64  # cheapest points kept at each waypoint, 255 at the most
_CHUNK = 65536  # lines of sight checked at a time


class Roadmap(NamedTuple):
    """Free points, (2, M), and whether one sees another, (M, M) as 0 and 1 in bytes."""

    points: Tensor
    sees: Tensor


@lru_cache(maxsize=8)
def roadmap(obstacles: Obstacles) -> Roadmap:
    """Build the roadmap of a map, once."""
    points = torch.cat([_grid(obstacles), _passages(obstacles)], dim=1)
    points = points[:, _clearance(obstacles, points, points) > _MARGIN]
    M = points.shape[1]
    return Roadmap(points, _sees(obstacles, points[:, :, None].expand(2, M, M), points[:, None].expand(2, M, M)).byte())


def _grid(obstacles: Obstacles) -> Tensor:
    steps = round(2 / _SPACING)
    axis = torch.linspace(-1, 1, steps + 1).to(obstacles.circles)
    return torch.stack(torch.meshgrid(axis, axis, indexing="ij")).flatten(1)


def _passages(obstacles: Obstacles) -> Tensor:
    """Return the middle of the passage between neighbouring obstacles, and between an obstacle and a wall."""
    x, y, r = obstacles.circles.T
    xmin, ymin, xmax, ymax = obstacles.boxes.T
    low = torch.stack([torch.cat([x - r, xmin]), torch.cat([y - r, ymin])])
    high = torch.stack([torch.cat([x + r, xmax]), torch.cat([y + r, ymax])])
    centre, half = (low + high) / 2, (high - low) / 2
    away = centre[:, None, :] - centre[:, :, None]
    distance = away.square().sum(0).sqrt()
    unit = away / distance.clamp(min=1e-9)
    # the reach of each obstacle along the line of centres: the radius, or where the line leaves the box
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


def _sees(obstacles: Obstacles, a: Tensor, b: Tensor) -> Tensor:
    """Return whether the way from each a to its b is free: two of (2, k, M) to (k, M)."""
    if not a[0].numel():  # a map may leave no point free
        return torch.zeros(a.shape[1:], dtype=torch.bool, device=a.device)
    rows = max(1, _CHUNK // a.shape[2])
    parts = [
        _clearance(obstacles, a[:, i : i + rows].flatten(1), b[:, i : i + rows].flatten(1)) > _MARGIN
        for i in range(0, a.shape[1], rows)
    ]
    return torch.cat(parts).view(a.shape[1:])


def route(obstacles: Obstacles, proposal: Tensor) -> tuple[Tensor, Tensor]:
    """Return collision-free paths near the proposals over the roadmap, (2, n, W), and whether there is one, (n,).

    The first and the last waypoint of a proposal are kept; rows without a path hold the proposal.
    """
    points, sees = roadmap(obstacles)
    _, n, W = proposal.shape
    path = proposal.clone()
    if points.shape[1] == 0 or W < 3:
        return path, torch.zeros(n, dtype=torch.bool, device=proposal.device)
    every = points[:, None, :].expand(2, n, -1)
    from_start = _sees(obstacles, proposal[:, :, :1].expand_as(every), every)
    to_goal = _sees(obstacles, proposal[:, :, -1:].expand_as(every), every)
    hops = _hops(to_goal, sees, W)
    price = torch.zeros_like(hops).masked_fill_(~from_start, torch.inf)
    found = (price + hops).amin(1) <= W - 2
    rows = found.nonzero().squeeze(1)
    if len(rows):
        path[:, rows, 1:-1] = points[:, _cheapest(proposal[:, rows], price[rows], hops[rows], points, sees)]
    return path, found


def _hops(to_goal: Tensor, sees: Tensor, limit: int) -> Tensor:
    """Return how many segments each point is from the goal, (n, M); inf if more than `limit`."""
    passage = sees.float()
    hops = torch.full(to_goal.shape, torch.inf, device=to_goal.device).masked_fill_(to_goal, 1)
    reached, new = to_goal, to_goal
    for k in range(2, limit):
        new = (new.float() @ passage > 0) & ~reached
        if not bool(new.any()):
            break
        hops.masked_fill_(new, k)
        reached = reached | new
    return hops


def _cheapest(proposal: Tensor, price: Tensor, hops: Tensor, points: Tensor, sees: Tensor) -> Tensor:
    """Return the roadmap point of each inner waypoint, (n, W - 2), of the cheapest path that a beam search finds.

    Points that cannot reach the goal in the remaining segments are never entered, so that no beam becomes empty.
    """
    _, n, W = proposal.shape
    M = points.shape[1]
    beam = min(_BEAM, M)
    # the beam is sorted by price, so that the cheapest way to a point is from the first that sees it
    rank = torch.arange(beam, 0, -1, dtype=torch.uint8, device=points.device)[:, None]
    came_from: list[Tensor] = []
    for i in range(1, W - 1):
        pull = (points[0] - proposal[0, :, i, None]).square_()
        pull += (points[1] - proposal[1, :, i, None]).square_()
        pull -= pull.amin(1, keepdim=True)
        price = (price + pull).masked_fill_(hops > W - 1 - i, torch.inf)
        if i == W - 2:
            break
        cheapest, where = price.topk(beam, dim=1, largest=False)
        ranked = sees.index_select(0, where.flatten()).view(n, beam, M).mul_(rank).amax(1)
        ranked = ranked.long().neg_().add_(beam)  # place in the beam; `beam` itself if no point sees it
        nowhere = ranked == beam
        ranked.clamp_(max=beam - 1)
        price = cheapest.gather(1, ranked).masked_fill_(nowhere, torch.inf)
        came_from.append(where.gather(1, ranked))
    at = price.argmin(1, keepdim=True)
    taken = [at]
    for previous in reversed(came_from):
        at = previous.gather(1, at)
        taken.append(at)
    return torch.cat(taken[::-1], dim=1)
