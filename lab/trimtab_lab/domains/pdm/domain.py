"""Projected diffusion for trajectories: a learned annealed-Langevin sampler among obstacles.

The paper does not say which defect it used on trajectories. Four are offered:

- "segment-depth": how deep segments are in obstacles, summed. It needs no solver and is the default.
- "waypoint-depth": the same for waypoints. It misses what happens between two of them.
- "colliding-segments": the number of segments that enter an obstacle. It does not see how deep.
- "residual": the distance to the projection, norm(x - Π(x)). Each measurement costs a projection.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor

from trimtab.core.checks import check_integer, check_positive, unknown
from trimtab.core.constraint import Constraint, Projection
from trimtab.core.noise import Noise, as_seeds
from trimtab.core.record import Rollout
from trimtab_lab.domains.base import Domain, Problem, View
from trimtab_lab.files import read_json
from trimtab_lab.obstacles import AvoidObstacles, Obstacles
from trimtab_lab.obstacles.avoid import Backend
from trimtab_lab.obstacles.batched import segments
from trimtab_lab.obstacles.geometry import penetration

from .model import Model, load_model
from .planner import extra_circles, hits, shipped_map, start_goal_pairs

__all__ = [
    "SCORES",
    "AnnealedLangevin",
    "Quality",
    "ScoredPaths",
    "make",
    "path_errors",
    "sample",
    "trajectory_quality",
]


# ------------------------------------------------------------------ the sampler


@dataclass(frozen=True, eq=False)
class AnnealedLangevin:
    """Langevin steps at falling noise levels, with fixed start and goal.

    A state is (n, 4, w): positions in channels 0 and 1, velocities in 2 and 3, over w waypoints. At level k, with
    noise sigma_k and step size a = eps (sigma_k / sigma_min)², one update is

        x + a/2 · score(x, k) + sqrt(a) · normal

    after which the first and the last waypoint are set to the start and the goal, at rest.
    """

    model: Model  # score, and the settings it was made for
    starts: Tensor  # (n, 2)
    goals: Tensor  # (n, 2)
    circles: Tensor | None = None  # obstacles that the model sees, (m, 3) or (n, m, 3); only for a conditioned model
    # number of Langevin updates at each level, L; by default the model's
    inner_steps: int = None  # type: ignore[assignment]  # filled in by __post_init__
    # step size at the last level; by default the model's
    eps: float = None  # type: ignore[assignment]
    # first level whose updates can be corrected. The levels before it run inside `start`, with the noise they would
    # have had as steps
    eligible_from: int = 0

    dtype = torch.float32  # the weights are float32, and so are the states

    def __post_init__(self) -> None:
        """Check shapes and settings, and fill in the defaults of the model."""
        for name, ends in (("starts", self.starts), ("goals", self.goals)):
            if ends.ndim != 2 or ends.shape[1] != 2 or ends.shape != self.starts.shape:
                raise ValueError(f"{name} must be one point for each sample, (n, 2) as starts: got {tuple(ends.shape)}")
        defaults = self.model.settings
        for name in ("inner_steps", "eps"):
            if getattr(self, name) is None:
                object.__setattr__(self, name, getattr(defaults, name))
        check_integer(self.inner_steps, "inner_steps")
        check_positive(self.eps, "eps")
        check_integer(self.eligible_from, "eligible_from, a noise level,", 0, defaults.levels - 1)
        self.model.check_circles(self.circles, len(self.starts))

    @property
    def n_steps(self) -> int:
        """The number of updates that can be corrected."""
        return self.inner_steps * (self.model.settings.levels - self.eligible_from)

    @property
    def event(self) -> tuple[int, int]:
        """The shape of one state, (4, w)."""
        return 4, self.model.network.architecture.waypoints

    def start(self, noise: Noise) -> Tensor:
        """Return the states before the first eligible update, (n, 4, w): uniform numbers, then the levels skipped."""
        if len(noise.seeds) != len(self.starts):
            raise ValueError(f"got noise for {len(noise.seeds)} samples, and {len(self.starts)} starts and goals")
        x = self.pin(noise.uniform(-1, self.event))
        for t in range(self.inner_steps * self.eligible_from):
            x = self._update(x, t, noise)
        return x

    def step(self, x: Tensor, t: int, noise: Noise) -> Tensor:
        """Return the proposals of step t, counted from the first eligible update, (n, 4, w)."""
        if not 0 <= t < self.n_steps:
            raise ValueError(f"t must be a step, 0 to {self.n_steps - 1}: got {t}")
        return self._update(x, t + self.inner_steps * self.eligible_from, noise)

    def level(self, t: int) -> int:
        """Return the noise level of step t."""
        return self.eligible_from + t // self.inner_steps

    def pin(self, x: Tensor) -> Tensor:
        """Return a copy of `x` with the first waypoint at the start and the last at the goal, both at rest."""
        rest = torch.zeros_like(self.starts)
        first, last = (torch.cat([p, rest], dim=1).to(x.dtype)[:, :, None] for p in (self.starts, self.goals))
        return torch.cat([first, x[:, :, 1:-1], last], dim=2)

    def take(self, rows: Tensor) -> AnnealedLangevin:
        """Return the sampler of some samples, a (k,) index tensor."""
        circles = self.circles
        if circles is not None and circles.ndim == 3:
            circles = circles[rows]
        return replace(self, starts=self.starts[rows], goals=self.goals[rows], circles=circles)

    @torch.no_grad()
    def _update(self, x: Tensor, t: int, noise: Noise) -> Tensor:
        """Return one Langevin update; `t` counts from the noisiest level."""
        level, settings = t // self.inner_steps, self.model.settings
        size = self.eps * (settings.sigmas[level] / settings.sigma_min) ** 2
        drift = self.model.score(x, level, self.circles)
        return self.pin(x + 0.5 * size * drift + size**0.5 * noise.normal(t, self.event))


def sample(sampler: AnnealedLangevin, seeds: Iterable[int] | Tensor) -> Tensor:
    """Return samples without a constraint, (n, 4, w), one for each seed."""
    noise = Noise(as_seeds(seeds))
    x = sampler.start(noise)
    for t in range(sampler.n_steps):
        x = sampler.step(x, t, noise)
    return x


# ------------------------------------------------------------------ four defects

SCORES = ("segment-depth", "waypoint-depth", "colliding-segments", "residual")


def score(name: str, x: Tensor, constraint: AvoidObstacles) -> Tensor:
    """Return one of `SCORES` of states (n, C, W) whose first two channels are positions, (n,)."""
    if name == "segment-depth":
        return constraint.defect(x)
    if name == "residual":
        residual: Tensor = (x - constraint.project(x).x)[:, :2].flatten(1).norm(dim=1)
        return residual
    path, obstacles = x[:, :2].transpose(0, 1), constraint.obstacles.to(x)
    if name == "waypoint-depth":
        points = path.flatten(1)
        return penetration(obstacles, points, points).sum(dim=0).view(len(x), -1).sum(dim=1)
    if name == "colliding-segments":
        inside = (penetration(obstacles, *segments(path)) > constraint.tolerance).any(dim=0)
        return inside.view(len(x), -1).to(x.dtype).sum(dim=1)
    raise unknown("score", name, SCORES)


@dataclass(frozen=True, eq=False)
class ScoredPaths(Constraint):
    """Trajectories free of collisions, with one of the four scores as the defect."""

    avoid: AvoidObstacles  # obstacles, starts and goals, and the projection
    by: str = "segment-depth"  # one of `SCORES`
    effective_from: int = 0  # first step at which a projection does anything; before it one is counted all the same

    needs = ("t",)

    @property
    def defect_is_projection(self) -> bool:  # type: ignore[override]
        """True for the residual: each measurement counts as a projection."""
        return self.by == "residual"

    @property
    def obstacles(self) -> Obstacles:
        """The obstacles."""
        return self.avoid.obstacles

    def project(self, x: Tensor, *, t: int = 0) -> Projection:
        """Return the nearest free trajectories found, (n, C, W); before `effective_from` the states themselves."""
        if t < self.effective_from:
            return Projection(x.clone(), torch.ones(len(x), dtype=torch.bool, device=x.device))
        answer = self.avoid.project(x)
        return answer if self.by == "segment-depth" else answer._replace(residual=None)

    def defect(self, x: Tensor, *, t: int = 0) -> Tensor:
        """Return the score of states, (n, C, W) to (n,)."""
        return score(self.by, x, self.avoid)

    def take(self, rows: Tensor) -> ScoredPaths:
        """Return the constraint of some samples, a (k,) index tensor."""
        return replace(self, avoid=self.avoid.take(rows))


def path_errors(
    run: Rollout, constraint: AvoidObstacles | ScoredPaths, names: tuple[str, ...] = SCORES
) -> dict[str, Tensor]:
    """Return the path error of a run, recorded with `keep_states=True`, under several scores, (n,) each."""
    if run.states is None:
        raise ValueError("this rollout has no states; run it with keep_states=True")
    avoid = constraint.avoid if isinstance(constraint, ScoredPaths) else constraint
    return {name: torch.stack([score(name, x, avoid) for x in run.states[1:]]).double().sum(dim=0) for name in names}


# ------------------------------------------------------------------ quality


class Quality(NamedTuple):
    """The quality of trajectories, (n,) each."""

    collides: Tensor  # 1 if some segment enters an obstacle, else 0
    hit_share: Tensor  # share of segments that enter an obstacle
    length: Tensor  # length of the path
    roughness: Tensor  # mean turn between successive segments in radians, weighted by their length; 0 is straight
    jump: Tensor  # longer of the first and last segment; near 0 if a trajectory starts and ends at rest

    def means(self) -> dict[str, float]:
        """Return the means over the trajectories by name."""
        return {name: round(float(value.mean()), 4) for name, value in self._asdict().items()}


def trajectory_quality(x: Tensor, circles: Tensor) -> Quality:
    """Return the quality of states (n, 4, w) or positions (n, w, 2) among circles (m, 3) or (n, m, 3)."""
    positions = (x[:, :2].transpose(1, 2) if x.shape[1] == 4 and x.shape[2] != 2 else x).double()
    hit = hits(positions, circles, margin=-1e-3).double()
    steps = positions.diff(dim=1)
    long = steps.norm(dim=2)
    before, after = steps[:, :-1], steps[:, 1:]
    cross = before[..., 0] * after[..., 1] - before[..., 1] * after[..., 0]
    turn = torch.atan2(cross, (before * after).sum(dim=2)).abs()
    weight = torch.minimum(long[:, :-1], long[:, 1:])
    return Quality(
        hit.amax(dim=1),
        hit.mean(dim=1),
        long.sum(dim=1),
        (turn * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=1e-12),
        torch.maximum(long[:, 0], long[:, -1]),
    )


def judge(x: Tensor, constraint: AvoidObstacles | ScoredPaths) -> dict[str, Tensor]:
    """Return the quality of final states (n, 4, w) by name, (n,) each."""
    found = trajectory_quality(x, constraint.obstacles.circles)._asdict()
    return {"collision_free": 1 - found["collides"], **{name: found[name] for name in ("length", "roughness", "jump")}}


# ------------------------------------------------------------------ the domain


def load_map(path: str | Path) -> Tensor:
    """Read circles (m, 3) from JSON: a list of [x, y, r] or {"x", "y", "r"}, or named lists, which are joined."""
    try:
        content = read_json(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: cannot be read as a map ({error}); expected JSON circles [x, y, r]") from error
    if isinstance(content, dict):
        content = content.get("circles", content)
    try:
        if isinstance(content, dict):
            content = [circle for name in sorted(content) for circle in content[name]]
        rows = [[float(c[k]) for k in (("x", "y", "r") if isinstance(c, dict) else (0, 1, 2))] for c in content]
        return torch.tensor(rows, dtype=torch.float64).reshape(-1, 3)
    except (TypeError, KeyError, IndexError, ValueError) as error:
        raise ValueError(f"{path}: not a list of circles, each [x, y, r] or {{x, y, r}} ({error!r})") from error


def path_distance(x: Tensor, y: Tensor) -> Tensor:
    """Return the root-mean-square distance of the waypoints of x and y, (n, 4, w) each, as (n,)."""
    return (x[:, :2] - y[:, :2]).square().sum(dim=1).mean(dim=1).sqrt()


def _positions(x: Tensor) -> Tensor:
    return x[:, :2].transpose(1, 2)


def make(
    checkpoint: str | None = None,
    circles: str | None = None,
    eligible_from: int = 0,
    inner_steps: int | None = None,
    defect: str = "segment-depth",
    effective_from: int | None = None,
    backend: str = "batched",
    workers: int = 1,
) -> Domain:
    """Return the domain `pdm`.

    Args:
        checkpoint: Weights of ours or a public PDM checkpoint; the shipped model by default.
        circles: A JSON file with the map; the first shipped map by default, with six more circles that turn up only in
            the constraint. As in PDM's experiments the model does not know of those: a model that does is nearly
            collision-free by itself, and leaves little to correct.
        eligible_from: First noise level whose updates may be corrected, and T counts those alone. PDM's own code
            projects from level 6 on, where corrections last; 0, the default, counts all of them, as the paper does.
        inner_steps: Langevin updates a level; the model's own number by default.
        defect: What schedules look at and path errors add up: "segment-depth", "waypoint-depth", "colliding-segments"
            or "residual"; see `trimtab_lab.domains.pdm.scores`.
        effective_from: First noise level at which a projection does anything; below it one is paid for and changes
            nothing, which is how PDM's code behaves if every update is taken to be eligible.
        backend: "batched" or "ipopt".
        workers: The number of processes of the "ipopt" backend.
    """
    for name, path in (("checkpoint", checkpoint), ("circles", circles)):
        if not isinstance(path, str | Path | None):
            raise TypeError(f"{name} must be the path of a file: got {path!r:.60} of type {type(path).__name__}")
    model = load_model(checkpoint)
    check_integer(eligible_from, "eligible_from, a noise level,", 0, model.settings.levels - 1)
    if inner_steps is not None:
        check_integer(inner_steps, "inner_steps")
    if effective_from is not None:
        check_integer(effective_from, "effective_from, a noise level,", 0, model.settings.levels)
    if defect not in SCORES:
        raise unknown("defect", defect, SCORES)
    if backend not in get_args(Backend):
        raise unknown("backend", backend, get_args(Backend))
    check_integer(workers, "workers", 0)
    chart = shipped_map() if circles is None else load_map(circles)
    enforced = torch.cat([chart, extra_circles(chart)]) if circles is None else chart
    shown, obstacles = chart if model.conditioned else None, Obstacles(enforced.float())

    def problem(seeds: Iterable[int] | Tensor) -> Problem:
        each, which = torch.unique(as_seeds(seeds), return_inverse=True)  # to find a pair takes a planner
        starts, goals = (ends.float()[which] for ends in start_goal_pairs(each, enforced))
        sampler = AnnealedLangevin(model, starts, goals, shown, inner_steps, eligible_from=eligible_from)  # type: ignore[arg-type]
        constraint: Any = AvoidObstacles(obstacles, starts, goals, backend=backend, workers=workers)  # type: ignore[arg-type]
        first = max(0, (effective_from or 0) - eligible_from) * sampler.inner_steps
        if defect != "segment-depth" or first:
            constraint = ScoredPaths(constraint, defect, first)
        return Problem(sampler, constraint, seeds, path_distance)

    settings = {"checkpoint": checkpoint, "circles": circles, "eligible_from": eligible_from, "backend": backend}
    settings |= {"inner_steps": inner_steps, "defect": defect, "effective_from": effective_from}
    return Domain(
        name="pdm",
        summary="trajectories among obstacles, sampled by a learned score (projected diffusion)",
        problem=problem,
        distance=path_distance,
        quality=judge,
        settings={name: value for name, value in settings.items() if value is not None},
        view=View("PDM", "the final trajectory among the obstacles", ("x", "y"), _positions, final=True),
    )
