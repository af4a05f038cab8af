"""Trajectories that keep clear of circles and boxes, from a fixed start to a fixed goal.

    min Σᵢ |pᵢ - qᵢ|²  such that every segment pᵢ pᵢ₊₁ stays out of every obstacle,
                       p₀ = start, p_last = goal, and every pᵢ in [-1, 1]²

The set is not convex, and a search finds one of many local minima. The backends are described in
`trimtab_lab.obstacles.batched` (the default) and `trimtab_lab.obstacles.ipopt`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

import torch
from torch import Tensor

from trimtab.constraints.partial import FewIterations
from trimtab.constraints.states import check_states, with_settings
from trimtab.core.checks import check_integer, check_number, check_positive, check_type, unknown
from trimtab.core.constraint import Constraint, Improvement, Projection
from trimtab_lab.obstacles.batched import Effort, improve_paths, project_paths, segments, violations
from trimtab_lab.obstacles.geometry import Obstacles, gaps, penetration, scattered_circles

if TYPE_CHECKING:
    from trimtab_lab.obstacles.ipopt import IpoptPaths

__all__ = ["AvoidObstacles", "Obstacles", "scattered_circles"]

Backend = Literal["batched", "ipopt"]

_FARTHEST = 1e4  # proposals are taken to be no farther out than this, so that squares stay finite in float32


@lru_cache(maxsize=16)
def _converted(obstacles: Obstacles, dtype: torch.dtype, device: torch.device) -> Obstacles:
    """Return the obstacles in another dtype, always the same object, so that their roadmap is built once."""
    return obstacles.to(torch.empty(0, dtype=dtype, device=device))


@dataclass(frozen=True, eq=False)
class AvoidObstacles(Constraint):
    """Trajectories whose segments keep out of obstacles, with the first and last waypoint fixed.

    States are (n, C, W) with C at least 2: channels 0 and 1 are the positions x and y of W waypoints; other channels
    (velocities) are returned unchanged. The projection keeps positions in [-1, 1].

    The defect is the penetration depth summed over segments and obstacles. Positions outside the square do not count: a
    sampler at high noise is outside almost everywhere, and that would hide the collisions. A wrong first or last
    waypoint does not count either. The projection corrects both.

    A sample has converged when no segment is deeper in any obstacle than `tolerance`. The solvers aim at a tenth of
    that, and a state within a tenth of it is returned unchanged.

    Attributes:
        obstacles: The obstacles to avoid.
        start: The first waypoint of each trajectory, (n, 2), or (2,) for all the same.
        goal: The last waypoint, (n, 2) or (2,).
        backend: "batched" is a local search that falls back to a roadmap, in C if the package was built with it and in
            torch otherwise; "ipopt" continues from there, sample by sample, with CasADi's IPOPT.
        tolerance: Largest penetration of a converged sample.
        settled: The batched search ends when a round moves a free path by less than this share of its distance to the
            proposal.
        workers: Processes of the "ipopt" backend; 1 solves in this process, 0 uses every core.

    Example:
        >>> import torch
        >>> disc = Obstacles(torch.tensor([[0.0, 0.0, 0.3]]))
        >>> across = torch.stack([torch.linspace(-0.9, 0.9, 16), torch.full((16,), 0.1)])[None]
        >>> avoid = AvoidObstacles(disc, start=across[:, :, 0], goal=across[:, :, -1])
        >>> avoid.free(across), avoid.free(avoid.project(across).x)
        (tensor([False]), tensor([True]))
    """

    improves = True

    obstacles: Obstacles
    start: Tensor
    goal: Tensor
    backend: Backend = "batched"
    tolerance: float = 1e-3
    settled: float = 0.03
    workers: int = 1
    _ipopt: IpoptPaths | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        """Check the settings, and that starts and goals are free."""
        if self.backend not in get_args(Backend):
            raise unknown("backend", self.backend, get_args(Backend))
        check_type(self.obstacles, Obstacles, "obstacles", "as in Obstacles(torch.tensor([[x, y, r]]))")
        check_number(self.settled, "settled", 0, 1)
        check_positive(self.tolerance, "tolerance")
        check_integer(self.workers, "workers", 0)
        for name in ("start", "goal"):
            check_type(getattr(self, name), Tensor, name, "give x and y, as in torch.tensor([-0.9, 0.0])")
        if self.start.shape != self.goal.shape:
            raise ValueError(
                f"start and goal must have the same shape: got {tuple(self.start.shape)} and {tuple(self.goal.shape)}"
            )
        for name in ("start", "goal"):
            _check_end(name, getattr(self, name), self.obstacles, self._aim)
        if self.backend == "ipopt":
            from trimtab_lab.obstacles.ipopt import IpoptPaths

            object.__setattr__(self, "_ipopt", IpoptPaths(self.obstacles, self.tolerance, self.workers))

    @property
    def _aim(self) -> float:
        return self.tolerance / 10

    def defect(self, x: Tensor) -> Tensor:
        """Return the penetration summed over segments and obstacles, (n, C, W) to (n,)."""
        self._check(x)
        if not len(self.obstacles):
            return x.new_zeros(len(x))
        depth = penetration(_converted(self.obstacles, x.dtype, x.device), *segments(x[:, :2].transpose(0, 1)))
        return depth.sum(0).view(len(x), x.shape[2] - 1).sum(1)

    def project(self, x: Tensor) -> Projection:
        """Return the nearest collision-free trajectories found, (n, C, W), with an outcome for each.

        A sample for which none is found (its start and goal may not be connected), or that is not finite, has
        `converged` False; the rest of the batch is not affected.
        """
        raw = self._path(x)
        start, goal = (end.to(x).expand(raw.shape[1], 2).T for end in (self.start, self.goal))
        finite = raw.isfinite().all(2).all(0)
        proposal = torch.where(finite[:, None], raw, 0.0).clamp_(-_FARTHEST, _FARTHEST)
        proposal[:, :, 0], proposal[:, :, -1] = start, goal
        obstacles = _converted(self.obstacles, x.dtype, x.device)
        solution = project_paths(obstacles, proposal, self._aim, Effort(settled=self.settled))
        converged = finite & (solution.violation <= self.tolerance)
        path, rounds = solution.path, solution.rounds
        if self._ipopt is not None:
            path, converged, rounds = self._ipopt.solve(proposal, path)
            converged &= finite
        y = x.clone()
        y[:, :2] = torch.where(finite[:, None], path, raw).transpose(0, 1)
        return Projection(y, converged, rounds, self.defect(y))

    def cheaper(self) -> dict[str, Constraint]:
        """Return cheaper variants by name, the one to try first in front."""
        if self.backend == "ipopt":
            return {"batched search": with_settings(self, backend="batched", _ipopt=None)}
        sooner = with_settings(self, settled=0.2)
        return {"1 iteration": FewIterations(self, 1), "search that settles sooner": sooner}

    def improve(self, x: Tensor, state: tuple[Tensor, ...] | None = None, **context: Any) -> Improvement:
        """Solve one convex problem of the local search, in torch; carries its multipliers and the proposal.

        Only `project` uses the roadmap, which helps a search that is caught behind an obstacle.
        """
        raw = self._path(x).detach()
        start, goal = (end.to(x).expand(raw.shape[1], 2).T for end in (self.start, self.goal))
        path = raw.clamp(-1, 1)
        path[:, :, 0], path[:, :, -1] = start, goal
        y = x.clone()
        if not len(self.obstacles):
            y[:, :2] = path.transpose(0, 1)
            return Improvement(y, self.defect(y), torch.ones(len(x), dtype=torch.bool, device=x.device), ())
        obstacles = _converted(self.obstacles, x.dtype, x.device)
        path, final, carried = improve_paths(obstacles, path, state, self._aim, Effort(settled=self.settled))
        y[:, :2] = path.transpose(0, 1)
        return Improvement(y, self.defect(y), final, carried)

    def take(self, rows: Tensor) -> Self:
        """Return the same constraint for some samples."""
        if self.start.ndim == 1:
            return self
        return with_settings(self, start=self.start[rows], goal=self.goal[rows])

    def violation(self, x: Tensor) -> Tensor:
        """Return the deepest penetration of each trajectory, (n, C, W) to (n,)."""
        path = self._path(x)
        if not len(self.obstacles):
            return x.new_zeros(len(x))
        return violations(_converted(self.obstacles, x.dtype, x.device), path)

    def free(self, x: Tensor) -> Tensor:
        """Return which trajectories are free of collisions up to the tolerance, (n, C, W) to (n,) bool."""
        return self.violation(x) <= self.tolerance

    def _path(self, x: Tensor) -> Tensor:
        """Check the states and return their positions, (2, n, W)."""
        self._check(x)
        return x[:, :2].transpose(0, 1)

    def _check(self, x: Tensor) -> None:
        samples = len(self.start) if self.start.ndim == 2 else None
        check_states(x, "AvoidObstacles", ("C", "W"), samples=samples)
        if x.shape[1] < 2 or x.shape[2] < 2:
            raise ValueError(
                "trajectories must be (n, C, W) with x and y in channels 0 and 1 and at least two waypoints: got "
                f"{tuple(x.shape)}"
            )


def _check_end(name: str, point: Tensor, obstacles: Obstacles, aim: float) -> None:
    if point.ndim not in (1, 2) or point.shape[-1] != 2 or not point.is_floating_point():
        raise ValueError(
            f"{name} must be a floating-point (n, 2) or (2,) tensor of x and y, got {tuple(point.shape)} "
            f"{str(point.dtype).removeprefix('torch.')}"
        )
    flat = point.reshape(-1, 2).T.to(obstacles.circles)
    outside = ~(flat.abs() <= 1).all(0)
    if bool(outside.any()):
        raise ValueError(f"{name} must be in [-1, 1]²; it is outside for {_samples(outside)}: move it inside")
    inside = penetration(obstacles, flat, flat).amax(0) > aim if len(obstacles) else torch.zeros_like(outside)
    if bool(inside.any()):
        row = int(inside.nonzero()[0])
        which = int(gaps(obstacles, flat[:, row : row + 1], flat[:, row : row + 1]).argmin())
        m = len(obstacles.circles)
        obstacle = f"circle {which}" if which < m else f"box {which - m}"
        raise ValueError(
            f"{name} is inside an obstacle for {_samples(inside)} (first: {flat[:, row].tolist()} in {obstacle}); "
            "no trajectory can be free there: move it or remove the obstacle"
        )


def _samples(mask: Tensor) -> str:
    rows = mask.nonzero().squeeze(1).tolist()
    more = f" and {len(rows) - 8} more" if len(rows) > 8 else ""
    return f"{'sample' if len(rows) == 1 else 'samples'} {', '.join(map(str, rows[:8]))}{more}"
