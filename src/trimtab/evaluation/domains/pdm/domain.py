"""Projected diffusion for trajectories: a learned annealed-Langevin sampler among obstacles."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from trimtab.constraints.obstacles import AvoidObstacles
from trimtab.constraints.obstacles.avoid import Backend
from trimtab.constraints.obstacles.geometry import Obstacles
from trimtab.core.errors import check_integer, unknown
from trimtab.core.files import read_json
from trimtab.core.noise import as_seeds
from trimtab.evaluation.domains.base import Domain, Problem, View
from trimtab.evaluation.domains.pdm import AnnealedLangevin, extra_circles, load_model, shipped_map, start_goal_pairs
from trimtab.evaluation.domains.pdm.quality import trajectory_quality
from trimtab.evaluation.domains.pdm.scores import SCORES, scored_paths

__all__ = ["judge", "load_map", "make", "path_distance"]


def load_map(path: str | Path) -> Tensor:
    """Circles (m, 3) from a JSON file: a list of [x, y, r] or of {"x", "y", "r"}, or lists of those under names.

    The named lists are joined, so that a map and the obstacles added to it can stand in one file.
    """
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
    """Root mean squared distance of the waypoints' positions, (n, 4, w) twice to (n,)."""
    return (x[:, :2] - y[:, :2]).square().sum(dim=1).mean(dim=1).sqrt()


def judge(x: Tensor, constraint: AvoidObstacles) -> dict[str, Tensor]:
    """Final states (n, 4, w) as trajectories: free of collisions, length, roughness and jump at the ends, (n,)."""
    found = trajectory_quality(x, constraint.obstacles.circles)
    return {
        "collision_free": 1 - found.collides,
        "length": found.length,
        "roughness": found.roughness,
        "jump": found.jump,
    }


def _positions(x: Tensor) -> Tensor:
    """The way in the plane, (m, 4, w) to (m, w, 2)."""
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
    """The domain `pdm`.

    Args:
        checkpoint: Weights of ours or a public PDM checkpoint; the shipped model by default.
        circles: A JSON file with the map; the first shipped map by default, with six more circles that turn up only in
            the constraint. As in PDM's experiments the model does not know of those: a model that does is nearly
            collision-free by itself, and leaves little to correct.
        eligible_from: First noise level whose updates may be corrected, and T counts those alone. PDM's own code
            projects from level 6 on, where corrections last; 0, the default, counts all of them, as the paper does.
        inner_steps: Langevin updates a level; the model's own number by default.
        defect: What schedules look at and path errors add up: "segment-depth", "waypoint-depth", "colliding-segments"
            or "residual"; see `trimtab.evaluation.domains.pdm.scores`.
        effective_from: First noise level at which a projection does anything; below it one is paid for and changes
            nothing, which is how PDM's code behaves if every update is taken to be eligible.
        backend: "batched" or "ipopt".
        workers: Processes of the "ipopt" backend.
    """
    for name, path in (("checkpoint", checkpoint), ("circles", circles)):
        if not isinstance(path, str | Path | None):
            raise TypeError(f"{name} is the path of a file: got {path!r:.60} of type {type(path).__name__}")
    model = load_model(None if checkpoint is None else Path(checkpoint))
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
    obstacles = Obstacles(enforced.float())

    def problem(seeds: Iterable[int] | Tensor) -> Problem:
        each, which = torch.unique(as_seeds(seeds), return_inverse=True)  # finding a pair takes a planner
        starts, goals = (ends.float()[which] for ends in start_goal_pairs(each, enforced))
        sampler = AnnealedLangevin(
            model,
            starts,
            goals,
            chart if model.conditioned else None,
            inner_steps=inner_steps,
            eligible_from=eligible_from,
        )
        constraint = scored_paths(
            AvoidObstacles(obstacles, starts, goals, backend=backend, workers=workers),  # type: ignore[arg-type]
            defect,
            0 if effective_from is None else max(0, effective_from - eligible_from) * sampler.updates_a_level,
        )
        return Problem(sampler, constraint, seeds, path_distance)

    settings: dict[str, Any] = {
        "checkpoint": checkpoint,
        "circles": circles,
        "eligible_from": eligible_from,
        "inner_steps": inner_steps,
        "defect": defect,
        "effective_from": effective_from,
        "backend": backend,
    }
    return Domain(
        name="pdm",
        summary="trajectories among obstacles, sampled by a learned score (projected diffusion)",
        problem=problem,
        distance=path_distance,
        quality=judge,
        settings={name: value for name, value in settings.items() if value is not None},
        view=View("PDM", "the final trajectory among the obstacles", ("x", "y"), _positions, final=True),
    )
