"""Maps of round obstacles in the square [-1, 1]², and a motion planner on them: RRT-connect, shortcuts, smoothing.

A map is a tensor of circles, (m, 3) rows (x, y, radius). Circles keep a gap between them, so that the free space is
connected. The planner solves many problems at once, and every random number belongs to the seed of a problem, so a
trajectory does not depend on its batch. Collisions of a segment with a circle are solved exactly, not sampled.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from trimtab.core.noise import Noise, as_seeds
from trimtab_lab.obstacles.geometry import from_segment

__all__ = ["plan", "random_map", "rrt_connect", "shipped_map", "shipped_maps", "start_goal_pairs"]

SHIPPED_SEEDS = (0, 1, 2, 3)
"""Seeds of the maps of the experiments; the shipped model never saw them in training."""

DURATION = 4.0  # the time a trajectory takes; it gives velocities the spread of the positions
RAMP = 0.2  # the share of the time for speeding up, and again for slowing down: both ends are at rest
_ATTEMPTS, _SAME_LUCK = 32, 8  # pairs that a seed may try, and how many of them share random numbers of the planner


# ------------------------------------------------------------------ maps


def random_map(seed: int, count: int = 16, radius: tuple[float, float] = (0.09, 0.16), gap: float = 0.14) -> Tensor:
    """Return a map of circles, (count, 3) float64.

    Args:
        seed: The same seed gives the same map everywhere.
        count: The number of circles.
        radius: The smallest and the largest radius.
        gap: The least free distance between two circles.

    Example:
        >>> random_map(0).shape
        torch.Size([16, 3])
    """
    return _throw(seed, count, radius, gap, torch.empty(0, 3, dtype=torch.float64), stream=1)


def extra_circles(
    circles: Tensor, seed: int = 0, count: int = 6, radius: tuple[float, float] = (0.06, 0.1), gap: float = 0.1
) -> Tensor:
    """Return more circles in the free space of a map, (count, 3) float64: obstacles that the model does not know of."""
    return _throw(seed, count, radius, gap, circles.double(), stream=6)


def _throw(seed: int, count: int, radius: tuple[float, float], gap: float, standing: Tensor, stream: int) -> Tensor:
    """Throw circles at the square one by one, and keep those that leave `gap` to the ones before."""
    if not 0 < radius[0] <= radius[1]:
        raise ValueError(f"radius must be (smallest, largest) with 0 < smallest <= largest: got {radius}")
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
    """Return one of the maps of the experiments, (16, 3) float64."""
    if not 0 <= index < len(SHIPPED_SEEDS):
        raise ValueError(f"there are {len(SHIPPED_SEEDS)} shipped maps, 0 to {len(SHIPPED_SEEDS) - 1}: got {index}")
    return random_map(SHIPPED_SEEDS[index])


def shipped_maps() -> Tensor:
    """Return all maps of the experiments, (4, 16, 3) float64."""
    return torch.stack([shipped_map(i) for i in range(len(SHIPPED_SEEDS))])


def clearance(points: Tensor, circles: Tensor) -> Tensor:
    """Return the distance from points (n, k, 2) to the edge of the nearest circle, (n, k); negative inside.

    Circles are (m, 3) for all samples, or (n, m, 3).
    """
    away = torch.cdist(points, circles[..., :2].to(points.dtype).expand(len(points), -1, -1))
    return (away - circles[..., 2].to(points.dtype).reshape(-1, 1, circles.shape[-2])).amin(dim=2)


def start_goal_pairs(
    seeds: Iterable[int] | Tensor, circles: Tensor, room: float = 0.05, apart: float = 1.2, extent: float = 0.92
) -> tuple[Tensor, Tensor]:
    """Return starts and goals, (n, 2) float64 each, with a free path between them.

    Args:
        seeds: One for each pair; a pair depends on its seed and the map only.
        circles: The map, (m, 3).
        room: The least distance of a start or goal from every circle.
        apart: The least distance between start and goal.
        extent: Starts and goals lie in [-extent, extent]².
    """
    noise = Noise(as_seeds(seeds))
    n = len(noise.seeds)
    if circles.ndim != 2 or circles.shape[-1] != 3:
        raise ValueError(f"circles must be one map of rows (x, y, radius), (m, 3): got {tuple(circles.shape)}")
    ends = torch.empty(n, 2, 2, dtype=torch.float64)
    left = torch.arange(n)
    for attempt in range(_ATTEMPTS):
        draw = noise.take(left)
        tries = (draw.uniform(attempt, (256, 2, 2), stream=2) * 2 - 1) * extent
        clear = clearance(tries.flatten(1, 2), circles).reshape(len(left), -1, 2).amin(dim=2) >= room
        good = clear & ((tries[:, :, 0] - tries[:, :, 1]).norm(dim=-1) >= apart)
        pair = tries[torch.arange(len(left)), good.int().argmax(dim=1)]
        # a planner can fail on its random numbers, whatever the pair: later attempts get other ones
        luck = draw if attempt < _SAME_LUCK else Noise(draw.seeds + (attempt << 32))
        path = rrt_connect(luck, pair[:, 0], pair[:, 1], circles.expand(len(left), -1, -1), room / 2)
        fine = good.any(dim=1) & path.solved
        ends[left[fine]] = pair[fine]
        left = left[~fine]
        if len(left) == 0:
            return ends[:, 0], ends[:, 1]
    raise ValueError(
        f"no start and goal for seed {int(noise.seeds[left[0]])} ({len(left)} of {n} seeds): the map may be "
        f"closed by its obstacles, or room={room} and apart={apart} ask for too much"
    )


# ------------------------------------------------------------------ the planner


class Paths(NamedTuple):
    """Polylines, (n, k, 2), and the mask of those that are solved, (n,) bool."""

    points: Tensor
    solved: Tensor


def free_fraction(a: Tensor, b: Tensor, circles: Tensor, margin: float | Tensor = 0.0) -> Tensor:
    """Return the share of the way from a to b, (n, 2) each, before the first circle, (n,); 1 if all of it is free.

    Circles are (n, m, 3), and the margin, a number or (n,), is added to every radius.
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
    """Return which segments of paths (n, k, 2) touch a circle, (n, k - 1) bool; a negative margin forgives a touch."""
    a, b = (ends.movedim(-1, 0)[..., None] for ends in (positions[:, :-1], positions[:, 1:]))
    x, y, radius = circles.to(positions.dtype).reshape(-1, 1, circles.shape[-2], 3).unbind(-1)
    _, dx, dy = from_segment(a, b, x, y)
    touched: Tensor = torch.hypot(dx, dy) < radius + margin
    return touched.any(dim=2)


def rrt_connect(
    noise: Noise,  # noise of n problems
    starts: Tensor,  # (n, 2)
    goals: Tensor,  # (n, 2)
    circles: Tensor,  # (n, m, 3)
    margin: float | Tensor = 0.0,  # room kept from every circle, a number or (n,)
    reach: float = 0.4,  # longest branch
    iterations: int = 250,  # number of branches after which a problem counts as unsolved
) -> Paths:
    """Find free polylines by RRT-connect: a tree from the start and one from the goal grow in turn until they meet.

    Returns:
        Polylines from start to goal, padded by repeating their ends.
    """
    n = len(starts)
    every = torch.arange(n)
    margin = torch.as_tensor(margin, dtype=starts.dtype).expand(n)
    nodes = torch.full((n, 2, iterations + 2, 2), 1e6, dtype=starts.dtype)  # unused nodes are near nothing
    nodes[:, 0, 0], nodes[:, 1, 0] = starts, goals
    parent = torch.zeros(n, 2, iterations + 2, dtype=torch.long)
    count = torch.ones(n, 2, dtype=torch.long)
    joint = torch.zeros(n, 2, dtype=torch.long)
    solved = free_fraction(starts, goals, circles, margin) == 1
    ends_free = torch.stack([free_fraction(end, end, circles, margin) > 0 for end in (starts, goals)]).all(dim=0)

    def grow(rows: Tensor, side: int, target: Tensor, limit: float) -> tuple[Tensor, Tensor, Tensor]:
        """Grow tree `side` of the problems `rows` towards `target`; return new node, its index, target reached."""
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

    chains = []
    for side in (0, 1):
        at = joint[:, side]
        steps = [nodes[every, side, at]]
        while bool((at != 0).any()):
            at = parent[every, side, at]
            steps.append(nodes[every, side, at])
        chains.append(torch.stack(steps, dim=1))
    return Paths(torch.cat([chains[0].flip(1), chains[1]], dim=1), solved)


def resample(points: Tensor, at: Tensor) -> Tensor:
    """Return the points of polylines (n, k, 2) at shares of their length, (j,) or (n, j), as (n, j, 2)."""
    far = torch.nn.functional.pad(points.diff(dim=1).norm(dim=2).cumsum(dim=1), (1, 0))
    want = at.expand(len(points), -1) * far[:, -1:]
    right = torch.searchsorted(far, want.contiguous()).clamp(1, points.shape[1] - 1)
    low, high = far.gather(1, right - 1), far.gather(1, right)
    share = ((want - low) / (high - low).clamp(min=1e-12)).clamp(0, 1)[..., None]
    pick = right[..., None].expand(-1, -1, 2)
    return points.gather(1, pick - 1) * (1 - share) + points.gather(1, pick) * share


def _shortcut(noise: Noise, points: Tensor, circles: Tensor, margin: Tensor, rounds: int = 120) -> Tensor:
    """Replace random stretches of paths (n, k, 2) by straight segments if these are free; space the points evenly."""
    k = points.shape[1]
    even, index = torch.linspace(0, 1, k, dtype=points.dtype), torch.arange(k)
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


def _smooth(points: Tensor, circles: Tensor, margin: Tensor, rounds: int = 40, stiffness: float = 2000.0) -> Tensor:
    """Straighten paths (n, k, 2) and push them out of the obstacles, in turn; the ends stay.

    The result is not checked: a wire between two obstacles may still touch one.
    """
    k = points.shape[1]
    inner = slice(1, k - 1)
    bend = torch.eye(k, dtype=points.dtype).diff(n=2, dim=0)
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
    """Return the share of the path at each waypoint, (waypoints,): speed up, cruise, slow down."""
    t = torch.linspace(0, 1, waypoints, dtype=torch.float64)
    top = 1 / (1 - RAMP)
    slow_end = 1 - top * (1 - t).square() / (2 * RAMP)
    return torch.where(
        t < RAMP, top * t.square() / (2 * RAMP), torch.where(t > 1 - RAMP, slow_end, top * (t - RAMP / 2))
    )


def plan(
    noise: Noise, starts: Tensor, goals: Tensor, circles: Tensor, waypoints: int = 64, room: float = 0.005
) -> Paths:
    """Plan smooth, timed, collision-free trajectories, (n, waypoints, 2), from starts to goals, (n, 2) each.

    Another seed may go around the obstacles another way. Every segment of a solved trajectory keeps the distance
    `room` from every circle; circles are (m, 3) or (n, m, 3).
    """
    circles = circles.to(starts.dtype).expand(len(starts), -1, 3)
    margin = 0.02 + 0.04 * noise.uniform(0, (), stream=5).to(starts.dtype)  # some pass close to obstacles, some do not
    ends = torch.stack([starts, goals], dim=1)
    margin = torch.minimum(margin, 0.9 * clearance(ends, circles).amin(dim=1).clamp(min=0))
    found = rrt_connect(noise, starts, goals, circles, margin)
    dense = resample(found.points, torch.linspace(0, 1, 128, dtype=starts.dtype))
    dense = _smooth(_shortcut(noise, dense, circles, margin), circles, margin)
    timed = resample(dense, timing(waypoints).to(starts.dtype))
    timed = torch.cat([starts[:, None], timed[:, 1:-1], goals[:, None]], dim=1)
    inside = timed.abs().amax(dim=(1, 2)) <= 1
    return Paths(timed, found.solved & inside & ~hits(timed, circles, room).any(dim=1))


def states_from_positions(positions: Tensor) -> Tensor:
    """Return states (n, 4, w) of positions (n, w, 2): positions, and velocities that are 0 at both ends."""
    velocity = torch.zeros_like(positions)
    velocity[:, 1:-1] = (positions[:, 2:] - positions[:, :-2]) * ((positions.shape[1] - 1) / (2 * DURATION))
    return torch.cat([positions, velocity], dim=2).transpose(1, 2).contiguous()
