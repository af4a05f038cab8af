"""How far a trajectory is from free of collisions, in four ways, and path errors under all of them from one run.

The paper does not say which one it used. They differ in what they need and in what they see:

- "segment-depth": how deep segments are in obstacles, summed. No solver; the default.
- "waypoint-depth": the same for waypoints. It misses what happens between two of them.
- "colliding-segments": how many of the segments enter an obstacle. It does not see how deep.
- "residual": the distance to the projection, norm(x - Π(x)). Every look costs a projection.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from trimtab.constraints.obstacles import AvoidObstacles, Obstacles
from trimtab.constraints.obstacles.batched import segments
from trimtab.constraints.obstacles.geometry import penetration
from trimtab.core.constraint import Constraint, Projection
from trimtab.core.errors import unknown
from trimtab.core.record import Rollout

__all__ = ["SCORES", "ScoredPaths", "path_errors", "score", "scored_paths"]

SCORES = ("segment-depth", "waypoint-depth", "colliding-segments", "residual")


def score(name: str, x: Tensor, constraint: AvoidObstacles) -> Tensor:
    """One of the four scores of states: (n, C, W) to (n,), at least 0.

    Args:
        name: One of `SCORES`.
        x: States whose first two channels are positions.
        constraint: The obstacles, starts and goals of exactly these samples.
    """
    if name == "segment-depth":
        return constraint.defect(x)
    if name == "residual":
        moved = constraint.project(x).x
        residual: Tensor = (x - moved)[:, :2].flatten(1).norm(dim=1)
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
    """Trajectories free of collisions, with one of the four scores as the defect.

    Attributes:
        avoid: The obstacles, starts and goals, and the projection.
        by: One of `SCORES`.
        effective_from: First update location at which a projection does anything; it is counted from the first on.
    """

    avoid: AvoidObstacles
    by: str = "segment-depth"
    effective_from: int = 0

    needs = ("t",)

    @property
    def defect_is_projection(self) -> bool:  # type: ignore[override]
        """Of the residual alone; each look is counted as a projection then."""
        return self.by == "residual"

    @property
    def obstacles(self) -> Obstacles:
        """What to stay out of."""
        return self.avoid.obstacles

    def project(self, x: Tensor, *, t: int = 0) -> Projection:
        """The nearest free trajectories found, (n, C, W) to the same; the states themselves before `effective_from`."""
        if t < self.effective_from:
            return Projection(x.clone(), torch.ones(len(x), dtype=torch.bool, device=x.device))
        answer = self.avoid.project(x)
        return answer if self.by == "segment-depth" else answer._replace(residual=None)

    def defect(self, x: Tensor, *, t: int = 0) -> Tensor:
        """The score of states, (n, C, W) to (n,)."""
        return score(self.by, x, self.avoid)

    def take(self, rows: Tensor) -> ScoredPaths:
        """Of the samples `rows`."""
        return replace(self, avoid=self.avoid.take(rows))


def scored_paths(avoid: AvoidObstacles, by: str, effective_from: int = 0) -> AvoidObstacles | ScoredPaths:
    """The constraint with one of `SCORES` as its defect; `avoid` itself where that is what it has already."""
    if by not in SCORES:
        raise unknown("defect", by, SCORES)
    if by == "segment-depth" and effective_from == 0:
        return avoid
    return ScoredPaths(avoid, by, effective_from)


def path_errors(
    run: Rollout, constraint: AvoidObstacles | ScoredPaths, names: tuple[str, ...] = SCORES
) -> dict[str, Tensor]:
    """The path error of one recorded run under several scores: sums over its states, (n,) each.

    Args:
        run: A rollout with its states kept.
        constraint: What it ran with.
        names: Of the scores wanted.
    """
    if run.states is None:
        raise ValueError("this rollout has no states; run it with keep_states=True")
    avoid = constraint.avoid if isinstance(constraint, ScoredPaths) else constraint
    totals = {}
    for name in names:
        steps = [score(name, x, avoid) for x in run.states[1:]]
        totals[name] = torch.stack(steps).double().sum(dim=0)
    return totals
