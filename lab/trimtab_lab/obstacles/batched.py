"""Nearest collision-free paths, for a whole batch at once.

The projection of a path q is min |p - q|² such that every segment of p clears every obstacle. It is solved by a
sequence of convex problems: at the current path each nearby (obstacle, segment) pair and (obstacle, waypoint) pair is
a half-plane, and the quadratic problem over those half-planes is solved in its dual by an accelerated gradient.
Waypoint pairs look redundant next to segment pairs, but without them a segment much shorter than an obstacle spins.
Pairs of all samples lie in one flat list; each sample stops on its own test and leaves the batch when it is done.

`nearest_paths` is the search in torch, for any device. On a CPU the same search runs in C (`search_paths`) if the
package was built with a C compiler; it takes the same steps, more than ten times as fast.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib import import_module
from types import ModuleType
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from trimtab.constraints.states import host_array
from trimtab_lab.obstacles.geometry import Obstacles, contacts, gaps
from trimtab_lab.obstacles.roadmap import route

__all__ = [
    "Effort",
    "Solution",
    "compiled_search",
    "improve_paths",
    "nearest_paths",
    "project_paths",
    "search_paths",
    "segments",
    "violations",
]


def _import_compiled() -> ModuleType | None:
    try:
        return import_module("trimtab_lab.obstacles._search")
    except ImportError:  # installed without a C compiler
        return None


_COMPILED = _import_compiled()


def compiled_search() -> ModuleType | None:
    """Return the compiled module, or None if the package was built without it."""
    return _COMPILED


@dataclass(frozen=True)
class Effort:
    """Limits of the search for paths.

    Attributes:
        rounds: Convex problems solved in one search at most.
        sweeps: Dual steps on each.
        step: Longest move of a waypoint in one round, per coordinate.
        reach: Gap up to which a pair is part of the convex problem.
        damping: Pull towards the last path, in units of the pull towards the proposal. It keeps a round from
            overshooting if the half-planes turn quickly.
        stiffening: Factor on the damping after a round that did not halve the violation.
        settled: A free path is final when the last round moved it by less than this share of its distance,
        stale: or when this many rounds have found no better one.
        patience: Rounds after which a search that started from the proposal must violate less than `hopeless`.
        hopeless: A search above this violation is given up for one from the roadmap.
        leap: Length from which a colliding segment of the start ends the search at once: the local search will not
            find the way round, but the roadmap will.
        overhang: How far outside the square a waypoint of the proposal still pulls harder.
    """

    rounds: int = 30
    sweeps: int = 20
    step: float = 0.15
    reach: float = 0.05
    damping: float = 3.0
    stiffening: float = 1.3
    settled: float = 0.03
    stale: int = 5
    patience: int = 10
    hopeless: float = 1e-3
    leap: float = 0.7
    overhang: float = 2.0


class Solution(NamedTuple):
    """Paths found, (2, n, W), their deepest violation, (n,), and the rounds they took, (n,)."""

    path: Tensor
    violation: Tensor
    rounds: Tensor


def segments(path: Tensor) -> tuple[Tensor, Tensor]:
    """Return both ends of every segment, flat: (2, n, W) to two of (2, n * (W - 1))."""
    return path[:, :, :-1].reshape(2, -1), path[:, :, 1:].reshape(2, -1)


def violations(obstacles: Obstacles, path: Tensor) -> Tensor:
    """Return the deepest overlap of each path with an obstacle, (2, n, W) to (n,)."""
    _, n, W = path.shape
    return gaps(obstacles, *segments(path)).view(len(obstacles), n, W - 1).amin((0, 2)).neg().clamp(min=0)


def project_paths(obstacles: Obstacles, proposal: Tensor, aim: float, effort: Effort) -> Solution:
    """Find the nearest collision-free paths in [-1, 1]²: by a local search, and if that fails from a roadmap's path.

    The first and last waypoints of the proposals, (2, n, W), are free and stay where they are. A violation above `aim`
    means that no free path was found; the least bad one is returned.
    """
    inside = proposal.clamp(-1, 1)
    if not len(obstacles) or not len(proposal[0]):
        nothing = proposal.new_zeros(proposal.shape[1])
        return Solution(inside, nothing, nothing.long())
    # Far outside the square the pull is straight outwards anyway; bounded, it needs no large multipliers.
    proposal = proposal.clamp(-1 - effort.overhang, 1 + effort.overhang)
    answer = _search(obstacles, proposal, inside, aim, 0.0, effort)
    failed = (answer.violation > aim).nonzero().squeeze(1)
    if len(failed) == 0:
        return answer
    path, found = route(obstacles, proposal[:, failed])
    rows = failed[found]
    # A route is free at the start, and the rounds after it that are not must not count as failures.
    patient = replace(effort, patience=effort.rounds, stale=3 * effort.stale, leap=torch.inf)
    again = _search(obstacles, proposal[:, rows], path[:, found], aim, effort.damping, patient)
    answer.rounds[rows] += again.rounds
    better = again.violation <= answer.violation[rows]
    rows = rows[better]
    answer.path[:, rows], answer.violation[rows] = again.path[:, better], again.violation[better]
    return answer


def _search(
    obstacles: Obstacles, proposal: Tensor, start: Tensor, aim: float, damping: float, effort: Effort
) -> Solution:
    compiled = proposal.device.type == "cpu" and compiled_search() is not None
    return (search_paths if compiled else nearest_paths)(obstacles, proposal, start, aim, damping, effort)


def search_paths(
    obstacles: Obstacles, proposal: Tensor, start: Tensor, aim: float, damping: float, effort: Effort
) -> Solution:
    """Do what `nearest_paths` does, in C; `module.c` checks everything that it is given."""
    module = compiled_search()
    assert module is not None
    n = proposal.shape[1]
    path, violation, rounds = host_array(start).copy(), np.empty(n), np.empty(n, dtype=np.int64)
    e = effort
    module.nearest_paths(
        host_array(obstacles.circles),
        host_array(obstacles.boxes),
        host_array(proposal),
        path,
        violation,
        rounds,
        (e.rounds, e.sweeps, e.stale, e.patience),
        (aim, damping, e.step, e.reach, e.damping, e.stiffening, e.settled, e.hopeless, e.leap),
    )
    return Solution(torch.from_numpy(path).to(start), torch.from_numpy(violation).to(start), torch.from_numpy(rounds))


class _Batch(NamedTuple):
    """The samples still being solved; every tensor has its n rows in dimension -2 or, for (n,), -1."""

    rows: Tensor
    q: Tensor
    p: Tensor
    damping: Tensor
    before: Tensor
    moved: Tensor
    stale: Tensor
    dual: Tensor

    def take(self, keep: Tensor) -> _Batch:
        return _Batch(*(x.index_select(-1 if x.ndim == 1 else -2, keep) for x in self))


def nearest_paths(
    obstacles: Obstacles, proposal: Tensor, start: Tensor, aim: float, damping: float, effort: Effort
) -> Solution:
    """Find collision-free paths near the proposals by a local search.

    Of the paths that a search passes through, it keeps the one nearest to its proposal, (2, n, W), among those that
    violate nothing by more than `aim`; without such a path, the one with the smallest violation. It starts from
    `start`, (2, n, W) in [-1, 1], with `damping` in the first round and that of `effort` later.
    """
    _, n, W = proposal.shape
    m, rows = len(obstacles), torch.arange(n, device=start.device)
    unknown, nothing = start.new_full((n,), torch.inf), start.new_zeros(n)
    best, distance = Solution(start.clone(), unknown.clone(), torch.zeros_like(rows)), unknown.clone()
    dual = start.new_zeros(2 * m, n, W - 1)
    now = _Batch(rows, proposal, start, nothing + damping, unknown, unknown, nothing, dual)
    for r in range(effort.rounds + 1):
        gap = gaps(obstacles, *segments(now.p)).view(m, -1, W - 1)
        violation = gap.amin((0, 2)).neg_().clamp_(min=0)
        far = (now.p - now.q).square().sum((0, 2)).sqrt()
        known, nearest = best.violation[now.rows], distance[now.rows]
        free = violation <= aim
        better = torch.where(known <= aim, free & (far < nearest), free | (violation < known))
        kept = now.rows[better]
        best.path[:, kept] = now.p[:, better]
        best.violation[kept], distance[kept] = violation[better], far[better]
        best.rounds[now.rows] = r
        stale = torch.where(better, 0.0, now.stale + 1)
        done = free & ((now.moved <= effort.settled * far + 1e-5) | (far == 0))
        done |= (known <= aim) & (stale >= effort.stale)
        if r == 0:
            done |= _leaps(obstacles, now.p, effort.leap)
        if r == effort.patience:
            done |= violation > effort.hopeless
        if r == effort.rounds or bool(done.all()):
            break
        now = now._replace(damping=_stiffened(now, violation, aim, effort), before=violation, stale=stale)
        if bool(done.any()):
            keep = (~done).nonzero().squeeze(1)
            now, gap = now.take(keep), gap[:, keep]
        now = _round(obstacles, now, gap.flatten(1), effort)
    return best


def improve_paths(
    obstacles: Obstacles, path: Tensor, state: tuple[Tensor, ...] | None, aim: float, effort: Effort
) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """Make one round of the local search on paths (2, n, W) in [-1, 1], without the roadmap.

    Returns the paths, which of them are final, (n,), and the state to carry: proposal (n, 2, W), damping, violation and
    move (n,), and multipliers (n, 2 m, W - 1); it is None at the first round.
    """
    _, n, W = path.shape
    m = len(obstacles)
    if state is None:
        nothing, unknown = path.new_zeros(n), path.new_full((n,), torch.inf)
        state = (path.transpose(0, 1), nothing, unknown, unknown, path.new_zeros(n, 2 * m, W - 1))
    proposal, damping, before, moved, dual = state
    q, rows = proposal.transpose(0, 1), torch.arange(n, device=path.device)
    now = _Batch(rows, q, path, damping, before, moved, torch.zeros_like(moved), dual.transpose(0, 1).contiguous())
    gap = gaps(obstacles, *segments(path)).view(m, -1, W - 1)
    violation = gap.amin((0, 2)).neg().clamp(min=0)
    now = now._replace(damping=_stiffened(now, violation, aim, effort))
    far = (path - q).square().sum((0, 2)).sqrt()
    final = (violation <= aim) & ((moved <= effort.settled * far + 1e-5) | (far == 0))
    new = _round(obstacles, now, gap.flatten(1), effort)
    kept = torch.where(final[:, None], path, new.p)
    far = (kept - q).square().sum((0, 2)).sqrt()
    final |= (violations(obstacles, kept) <= aim) & (new.moved <= effort.settled * far + 1e-5)
    return kept, final, (proposal, new.damping, violation, new.moved, new.dual.transpose(0, 1).contiguous())


def _stiffened(now: _Batch, violation: Tensor, aim: float, effort: Effort) -> Tensor:
    """Return the damping, (n,), raised for samples whose violation did not halve."""
    slow = (violation > aim) & (violation > 0.5 * now.before)
    return torch.where(slow, now.damping * effort.stiffening, now.damping).clamp(max=100)


def _leaps(obstacles: Obstacles, path: Tensor, leap: float) -> Tensor:
    """Return whether a path has a colliding segment too long for a local search to find the way round, (n,)."""
    _, n, W = path.shape
    a, b = segments(path)
    long = (a - b).square().sum(0) > leap * leap
    which = long.nonzero().squeeze(1)
    long[which] = gaps(obstacles, a[:, which], b[:, which]).amin(0) < 0
    return long.view(n, W - 1).any(1)


def _round(obstacles: Obstacles, now: _Batch, gap: Tensor, effort: Effort) -> _Batch:
    """Solve one convex problem for each sample; `gap` is (m, n * (W - 1))."""
    q, p = now.q, now.p
    pairs = _linearise(obstacles, p, gap, effort.reach)
    low, high = (p - effort.step).clamp_(min=-1), (p + effort.step).clamp_(max=1)
    for bound in (low, high):
        bound[:, :, 0], bound[:, :, -1] = q[:, :, 0], q[:, :, -1]
    pull = now.damping[:, None]
    target, weight = (q + pull * p) / (1 + pull), (1 + pull).expand_as(p)
    dual = now.dual.flatten()
    new, multipliers = _solve_convex(
        pairs, target.flatten(), weight.flatten(), low.flatten(), high.flatten(), dual[pairs.key], effort.sweeps
    )
    dual = torch.zeros_like(dual).index_put_((pairs.key,), multipliers).view_as(now.dual)
    new = new.view_as(p)
    moved = (new - p).square().sum((0, 2)).sqrt()
    return now._replace(p=new, damping=now.damping.clamp(min=effort.damping), moved=moved, dual=dual)


class _Pairs(NamedTuple):
    """P linearised pairs, each a row of the constraint matrix.

    `at` (4, P) are the flat indices of the two waypoints' x, then y; `row` (4, P) the coefficients there;
    `edge` (P,) the right-hand side; `key` (P,) where the pair's multiplier is kept between rounds.
    """

    at: Tensor
    row: Tensor
    edge: Tensor
    key: Tensor


def _linearise(obstacles: Obstacles, path: Tensor, gap: Tensor, reach: float) -> _Pairs:
    """Return the half-planes of all pairs within `reach`; `gap` is (m, N)."""
    n, W = path.shape[1:]
    which, segment = (gap < reach).nonzero().unbind(1)
    a, b = (end[:, segment] for end in segments(path))
    side = contacts(obstacles, which, a, b)
    corner = contacts(obstacles, which, a, a)
    # If the nearest point of a segment is one of its ends, the pair of that waypoint says the same.
    inner = ((side.t > 0) & (side.t < 1)).nonzero().squeeze(1)
    outer = (corner.gap < reach).nonzero().squeeze(1)
    t = torch.cat([side.t[inner], torch.zeros_like(outer, dtype=path.dtype)])
    nx, ny, edge = (torch.cat([s[inner], c[outer]]) for s, c in zip(side[2:], corner[2:], strict=True))
    both = torch.cat([segment[inner], segment[outer]])
    first = both + both.div(W - 1, rounding_mode="floor")  # segment i of sample k starts at waypoint k * W + i
    pair = which * gap.shape[1] + segment
    at = torch.stack([first, first + 1, first + n * W, first + n * W + 1])
    row = torch.stack([nx * (1 - t), nx * t, ny * (1 - t), ny * t])
    return _Pairs(at, row, edge, torch.cat([pair[inner], pair[outer] + gap.numel()]))


def _solve_convex(
    pairs: _Pairs, target: Tensor, weight: Tensor, low: Tensor, high: Tensor, dual: Tensor, sweeps: int
) -> tuple[Tensor, Tensor]:
    """Minimise Σ weight |p - target|² / 2 within [low, high] and the half-planes; everything flat.

    For given multipliers the best p is known, so only the multipliers are searched: an accelerated projected
    gradient, scaled pair by pair with row sums, which bound the dual's curvature.
    """
    at, row = pairs.at.flatten(), pairs.row
    free = (high > low).to(target.dtype) / weight
    share = row * free.index_select(0, at).view_as(row)
    size = row.square()
    size = torch.stack([size[0] + size[2], size[1] + size[3]]).sqrt_()
    spread = torch.zeros_like(target).scatter_add_(0, pairs.at[:2].flatten(), size.flatten())
    curvature = (size * (spread * free)[pairs.at[:2]]).sum(0)
    step = 1 / curvature.clamp(min=1e-2)
    ahead = dual
    for sweep in range(sweeps):
        p = target.scatter_add(0, at, (share * ahead).flatten()).clamp_(low, high)
        gain = pairs.edge - p.index_select(0, at).view_as(row).mul_(row).sum(0)
        new = gain.mul_(step).add_(ahead).clamp_(min=0)
        ahead = new + (new - dual) * (sweep / (sweep + 3))
        dual = new
    return target.scatter_add(0, at, (share * dual).flatten()).clamp_(low, high), dual
