"""A motion planner among circles: RRT-connect, shortcuts, smoothing, timing. Many problems at once.

Everything is batched over problems and every random number belongs to a problem's own seed, so a trajectory does
not depend on the problems planned beside it. Collisions of a segment with a circle are solved exactly, never sampled.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trimtab.constraints.obstacles.geometry import from_segment
from trimtab.core.noise import Noise

from .maps import clearance

__all__ = ["Paths", "hits", "plan", "resample", "rrt_connect", "shortcut", "smooth", "states_from_positions"]

DURATION = 4.0
"""Time a trajectory takes. It only sets the unit of velocity, chosen to give it the spread of the positions."""

RAMP = 0.2
"""Share of the time spent speeding up, and again slowing down: start and goal are passed at rest."""


@dataclass(frozen=True, eq=False)
class Paths:
    """Polylines found by a planner, (n, k, 2); rows that are not `solved`, (n,) bool, hold no path."""

    points: Tensor
    solved: Tensor


def free_fraction(a: Tensor, b: Tensor, circles: Tensor, margin: float | Tensor = 0.0) -> Tensor:
    """How much of the way from `a` to `b` is free before the first circle.

    Args:
        a: (n, 2) segment starts.
        b: (n, 2) segment ends.
        circles: (n, m, 3).
        margin: Added to every radius; a number or (n,).

    Returns:
        (n,) in [0, 1]; 1 means that the whole segment is free.
    """
    along, off = (b - a)[:, None], a[:, None] - circles[..., :2]
    radius = circles[..., 2] + torch.as_tensor(margin, dtype=a.dtype).reshape(-1, 1)
    length2, dot = along.square().sum(-1), (off * along).sum(-1)
    outside = off.square().sum(-1) - radius.square()
    discriminant = dot.square() - length2 * outside
    enter = (-dot - discriminant.clamp(min=0).sqrt()) / length2.clamp(min=1e-12)
    hit = (discriminant > 0) & (enter >= 0) & (enter <= 1)
    first = torch.where(hit, enter, torch.ones_like(enter))
    return torch.where(outside < 0, torch.zeros_like(first), first).amin(dim=1)


def hits(positions: Tensor, circles: Tensor, margin: float = 0.0) -> Tensor:
    """Which segments of the paths touch a circle.

    Args:
        positions: (n, k, 2) waypoints.
        circles: (m, 3) or (n, m, 3).
        margin: Added to every radius; a negative one forgives touching.

    Returns:
        (n, k - 1) bool.
    """
    a, b = (ends.movedim(-1, 0)[..., None] for ends in (positions[:, :-1], positions[:, 1:]))
    x, y, radius = circles.to(positions.dtype).reshape(-1, 1, circles.shape[-2], 3).unbind(-1)
    _, dx, dy = from_segment(a, b, x, y)
    touched: Tensor = torch.hypot(dx, dy) < radius + margin
    return touched.any(dim=2)


def rrt_connect(
    noise: Noise,
    starts: Tensor,
    goals: Tensor,
    circles: Tensor,
    margin: float | Tensor = 0.0,
    reach: float = 0.4,
    iterations: int = 250,
) -> Paths:
    """RRT-connect: a tree from the start and one from the goal grow in turn until a free segment joins them.

    Args:
        noise: One seed a problem.
        starts: (n, 2).
        goals: (n, 2).
        circles: (n, m, 3).
        margin: Room kept from every circle, a number or (n,).
        reach: Longest branch grown in one go.
        iterations: Branches grown before a problem is given up.

    Returns:
        Polylines from start to goal, padded by repeating their ends.
    """
    n = len(starts)
    margin = torch.as_tensor(margin, dtype=starts.dtype).expand(n)
    nodes = torch.full((n, 2, iterations + 2, 2), 1e6, dtype=starts.dtype)  # unused nodes are near nothing
    nodes[:, 0, 0], nodes[:, 1, 0] = starts, goals
    parent = torch.zeros(n, 2, iterations + 2, dtype=torch.long)
    count = torch.ones(n, 2, dtype=torch.long)
    joint = torch.zeros(n, 2, dtype=torch.long)
    direct = free_fraction(starts, goals, circles, margin) == 1
    ends_free = (free_fraction(starts, starts, circles, margin) > 0) & (
        free_fraction(goals, goals, circles, margin) > 0
    )
    solved = direct.clone()

    def grow(rows: Tensor, side: int, target: Tensor, limit: float) -> tuple[Tensor, Tensor, Tensor]:
        """Grow tree `side` of the problems `rows` towards `target`: the new node, its index, target reached."""
        tree = nodes[rows, side, : int(count[rows, side].max())]
        root = (tree - target[:, None]).square().sum(-1).argmin(dim=1)
        origin = tree[torch.arange(len(rows)), root]
        way = target - origin
        end = origin + way * (limit / way.norm(dim=1).clamp(min=1e-12)).clamp(max=1.0)[:, None]
        fraction = free_fraction(origin, end, circles[rows], margin[rows])
        new = torch.where(fraction[:, None] == 1, end, origin + 0.95 * fraction[:, None] * (end - origin))
        index = count[rows, side]
        nodes[rows, side, index], parent[rows, side, index] = new, root
        count[rows, side] = index + 1
        return new, index, (fraction == 1) & (way.norm(dim=1) <= limit)

    for k in range(iterations):
        rows = (~solved & ends_free).nonzero()[:, 0]
        if len(rows) == 0:
            break
        side = k % 2
        anywhere = noise.uniform(k, (2,), stream=3)[rows] * 2 - 1
        new, index, _ = grow(rows, side, anywhere.to(starts.dtype), reach)
        _, other, met = grow(rows, 1 - side, new, 10.0)
        joint[rows, side], joint[rows, 1 - side] = index, other
        solved[rows[met]] = True

    depth = int(count.max())
    chains = []
    for side in (0, 1):
        at, steps = joint[:, side], []
        for _ in range(depth):
            steps.append(nodes[torch.arange(n), side, at])
            if bool((at == 0).all()):
                break
            at = parent[torch.arange(n), side, at]
        chains.append(torch.stack(steps, dim=1))
    return Paths(torch.cat([chains[0].flip(1), chains[1]], dim=1), solved)


def resample(points: Tensor, at: Tensor) -> Tensor:
    """Points of polylines by share of their length.

    Args:
        points: (n, k, 2).
        at: (j,) or (n, j) shares in [0, 1].

    Returns:
        (n, j, 2).
    """
    far = torch.nn.functional.pad(points.diff(dim=1).norm(dim=2).cumsum(dim=1), (1, 0))
    want = at.expand(len(points), -1) * far[:, -1:]
    right = torch.searchsorted(far, want.contiguous()).clamp(1, points.shape[1] - 1)
    low, high = far.gather(1, right - 1), far.gather(1, right)
    share = ((want - low) / (high - low).clamp(min=1e-12)).clamp(0, 1)[..., None]
    pick = right[..., None].expand(-1, -1, 2)
    return points.gather(1, pick - 1) * (1 - share) + points.gather(1, pick) * share


def shortcut(noise: Noise, points: Tensor, circles: Tensor, margin: Tensor, rounds: int = 120) -> Tensor:
    """Replace stretches of the paths by straight segments wherever these are free.

    Args:
        noise: One seed a path.
        points: (n, k, 2).
        circles: (n, m, 3).
        margin: Room kept from every circle, (n,).
        rounds: Stretches tried.

    Returns:
        (n, k, 2) shorter paths, evenly spaced.
    """
    k = points.shape[1]
    even = torch.linspace(0, 1, k, dtype=points.dtype)
    index = torch.arange(k)
    for r in range(rounds):
        cut = (noise.uniform(r, (2,), stream=4) * k).long().sort(dim=1).values
        a, b = (points.gather(1, cut[:, i, None, None].expand(-1, 1, 2))[:, 0] for i in (0, 1))
        free = free_fraction(a, b, circles, margin) == 1
        share = (index - cut[:, :1]) / (cut[:, 1:] - cut[:, :1]).clamp(min=1)
        line = a[:, None] + share[..., None] * (b - a)[:, None]
        within = free[:, None] & (index > cut[:, :1]) & (index < cut[:, 1:])
        points = torch.where(within[..., None], line, points)
        if r % 40 == 39:
            points = resample(points, even)
    return resample(points, even)


def smooth(points: Tensor, circles: Tensor, margin: Tensor, rounds: int = 40, stiffness: float = 2000.0) -> Tensor:
    """Bend the paths: in turn straighten them like a springy wire and push them out of the obstacles.

    Args:
        points: (n, k, 2), evenly spaced; the ends stay.
        circles: (n, m, 3).
        margin: Room wanted from every circle, (n,).
        rounds: Times both are done.
        stiffness: Of the wire, in units of the point spacing; larger is straighter.

    Returns:
        (n, k, 2). Not checked: a wire squeezed between two obstacles may still touch one.
    """
    k = points.shape[1]
    bend = torch.zeros(k - 2, k, dtype=points.dtype)
    for i, weight in enumerate((1.0, -2.0, 1.0)):
        bend[torch.arange(k - 2), torch.arange(k - 2) + i] = weight
    inner = slice(1, k - 1)
    stiff = stiffness * bend.T @ bend
    wire = torch.linalg.inv(torch.eye(k - 2, dtype=points.dtype) + stiff[inner, inner])
    pull = stiff[inner][:, [0, k - 1]]
    ends = points[:, [0, k - 1]]
    for r in range(rounds):
        inside = torch.einsum("ij,njd->nid", wire, points[:, inner] - torch.einsum("ij,njd->nid", pull, ends))
        points = torch.cat([ends[:, :1], inside, ends[:, 1:]], dim=1)
        if r == rounds - 1:
            break  # finish with the wire, so that the result is smooth
        off = points[:, :, None] - circles[:, None, :, :2]
        away = off.norm(dim=-1).clamp(min=1e-9)
        deep = (circles[:, None, :, 2] + margin[:, None, None] - away).clamp(min=0)
        push = (deep / away)[..., None] * off
        points = torch.cat([ends[:, :1], (points + push.sum(dim=2))[:, inner], ends[:, 1:]], dim=1)
    return points


def timing(waypoints: int) -> Tensor:
    """Share of the path passed at each waypoint, (waypoints,): speed up, cruise, slow down (a trapezium)."""
    t = torch.linspace(0, 1, waypoints, dtype=torch.float64)
    top = 1 / (1 - RAMP)
    slow_end = 1 - top * (1 - t).square() / (2 * RAMP)
    return torch.where(
        t < RAMP, top * t.square() / (2 * RAMP), torch.where(t > 1 - RAMP, slow_end, top * (t - RAMP / 2))
    )


def plan(
    noise: Noise, starts: Tensor, goals: Tensor, circles: Tensor, waypoints: int = 64, room: float = 0.005
) -> Paths:
    """Smooth, timed, collision-free trajectories from starts to goals.

    Args:
        noise: One seed a problem; another seed may go around the obstacles another way.
        starts: (n, 2).
        goals: (n, 2).
        circles: (m, 3) or (n, m, 3).
        waypoints: Of the result.
        room: Every segment of a solved trajectory keeps at least this distance from every circle.

    Returns:
        (n, waypoints, 2) positions; `solved` tells which problems have one.
    """
    circles = circles.to(starts.dtype).expand(len(starts), -1, 3)
    margin = 0.02 + 0.04 * noise.uniform(0, (), stream=5).to(starts.dtype)  # some hug obstacles, some keep off
    ends = torch.stack([starts, goals], dim=1)
    margin = torch.minimum(margin, 0.9 * clearance(ends, circles).amin(dim=1).clamp(min=0))
    found = rrt_connect(noise, starts, goals, circles, margin)
    dense = resample(found.points, torch.linspace(0, 1, 128, dtype=starts.dtype))
    dense = smooth(shortcut(noise, dense, circles, margin), circles, margin)
    timed = resample(dense, timing(waypoints).to(starts.dtype))
    timed = torch.cat([starts[:, None], timed[:, 1:-1], goals[:, None]], dim=1)
    inside = timed.abs().amax(dim=(1, 2)) <= 1
    return Paths(timed, found.solved & inside & ~hits(timed, circles, room).any(dim=1))


def states_from_positions(positions: Tensor) -> Tensor:
    """States of the sampler from positions.

    Args:
        positions: (n, w, 2).

    Returns:
        (n, 4, w): positions in channels 0 and 1, velocities by central differences in 2 and 3, at rest at both ends.
    """
    velocity = torch.zeros_like(positions)
    velocity[:, 1:-1] = (positions[:, 2:] - positions[:, :-2]) * ((positions.shape[1] - 1) / (2 * DURATION))
    return torch.cat([positions, velocity], dim=2).transpose(1, 2).contiguous()
