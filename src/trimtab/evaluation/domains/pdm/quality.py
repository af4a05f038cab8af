"""How good are sampled trajectories? Collisions, smoothness, length and jumps, beside planned ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trimtab.core.errors import missing_extra
from trimtab.core.noise import Noise, as_seeds

from .maps import SHIPPED_SEEDS, shipped_map, shipped_maps
from .model import Model
from .pairs import start_goal_pairs
from .planner import hits, plan
from .sampler import AnnealedLangevin

__all__ = ["Quality", "figure", "sample", "trajectory_quality", "validate"]


@dataclass(frozen=True, eq=False)
class Quality:
    """What a set of trajectories is like, one number a trajectory, (n,).

    Attributes:
        collides: 1 where some segment enters an obstacle, else 0.
        hit_share: Share of segments that enter an obstacle.
        length: Of the path.
        roughness: Mean turn between successive segments in radians, each weighted by how long they are: 0 is straight.
        jump: Longer of the first and last segment: near 0 where a trajectory leaves and arrives at rest.
    """

    collides: Tensor
    hit_share: Tensor
    length: Tensor
    roughness: Tensor
    jump: Tensor

    def means(self) -> dict[str, float]:
        """Means over the trajectories."""
        return {name: round(float(value.mean()), 4) for name, value in vars(self).items()}


def trajectory_quality(x: Tensor, circles: Tensor) -> Quality:
    """Judge trajectories as trajectories.

    Args:
        x: States (n, 4, w) or positions (n, w, 2).
        circles: (m, 3) or (n, m, 3).
    """
    positions = (x[:, :2].transpose(1, 2) if x.shape[1] == 4 and x.shape[2] != 2 else x).double()
    hit = hits(positions, circles, margin=-1e-3).double()
    steps = positions.diff(dim=1)
    long = steps.norm(dim=2)
    before, after = steps[:, :-1], steps[:, 1:]
    turn = torch.atan2(
        before[..., 0] * after[..., 1] - before[..., 1] * after[..., 0], (before * after).sum(dim=2)
    ).abs()
    weight = torch.minimum(long[:, :-1], long[:, 1:])
    return Quality(
        hit.amax(dim=1),
        hit.mean(dim=1),
        long.sum(dim=1),
        (turn * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=1e-12),
        torch.maximum(long[:, 0], long[:, -1]),
    )


def sample(sampler: AnnealedLangevin, seeds: Sequence[int] | range | Tensor) -> Tensor:
    """Unconstrained samples, (n, 4, w), one a seed."""
    noise = Noise(as_seeds(seeds))
    x = sampler.start(noise)
    for t in range(sampler.n_steps):
        x = sampler.step(x, t, noise)
    return x


def validate(
    model: Model, per_map: int = 64, inner_steps: int | None = None, seed: int = 10_000
) -> dict[str, dict[str, float]]:
    """Unconstrained samples and planned trajectories on the shipped maps, for the same starts and goals.

    Args:
        model: A conditioned model.
        per_map: Start–goal pairs a map.
        inner_steps: Langevin updates a level; the model's own unless told.
        seed: First seed of pairs and noise.

    Returns:
        Mean quality of "samples", of "planned" and of "straight" runs from start to goal.
    """
    made = _samples_and_plans(model, per_map, inner_steps, seed)
    names = ("samples", "planned", "straight")
    return {name: trajectory_quality(made[name], made["circles"]).means() for name in names}


def _samples_and_plans(model: Model, per_map: int, inner_steps: int | None, seed: int) -> dict[str, Tensor]:
    """Samples, plans and straight runs for the same problems on every shipped map; unsolved problems left out."""
    parts: dict[str, list[Tensor]] = {"samples": [], "planned": [], "straight": [], "circles": []}
    for i in range(len(SHIPPED_SEEDS)):
        circles, seeds = shipped_map(i), range(seed + i * per_map, seed + (i + 1) * per_map)
        starts, goals = start_goal_pairs(seeds, circles)
        planned = plan(Noise(as_seeds(seeds)), starts, goals, circles, model.network.architecture.waypoints)
        x = sample(AnnealedLangevin(model, starts, goals, circles, inner_steps), seeds)
        share = torch.linspace(0, 1, x.shape[2], dtype=x.dtype)[:, None]
        parts["samples"].append(x[:, :2].transpose(1, 2)[planned.solved])
        parts["planned"].append(planned.points[planned.solved])
        parts["straight"].append((starts[:, None] + share * (goals - starts)[:, None])[planned.solved])
        parts["circles"].append(circles.expand(int(planned.solved.sum()), -1, -1))
    return {name: torch.cat(values) for name, values in parts.items()}


def figure(model: Model, path: Path, per_map: int = 24, inner_steps: int | None = None, seed: int = 20_000) -> None:
    """Draw planned trajectories above unconstrained samples on the shipped maps, with their quality beside them."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise missing_extra("matplotlib", "studies", "a figure of trajectories") from error
    made = _samples_and_plans(model, per_map, inner_steps, seed)
    maps = shipped_maps()
    drawing = Figure(figsize=(3.2 * len(maps), 7.4), layout="constrained")
    axes = drawing.subplots(2, len(maps), squeeze=False)
    for row, name in enumerate(("planned", "samples")):
        quality = trajectory_quality(made[name], made["circles"]).means()
        for column, circles in enumerate(maps):
            mine = (made["circles"] == circles).all(dim=(1, 2))
            _draw(axes[row][column], made[name][mine], circles)
        told = ", ".join(f"{key.replace('_', ' ')} {value:.3f}" for key, value in quality.items())
        axes[row][0].set_title(f"{name}: {told}", loc="left", fontsize=9)
    drawing.savefig(path, dpi=110)


def _draw(axes: Any, positions: Tensor, circles: Tensor) -> None:
    """Trajectories (n, w, 2) among circles (m, 3)."""
    from matplotlib.patches import Circle

    for x, y, r in circles.tolist():
        axes.add_patch(Circle((x, y), r, color="0.82", linewidth=0))
    for line in positions:
        axes.plot(line[:, 0].tolist(), line[:, 1].tolist(), linewidth=0.8)
        axes.plot(*line[[0, -1]].T.tolist(), linestyle="", marker="o", markersize=2.5, color="black")
    axes.set(xlim=(-1.05, 1.05), ylim=(-1.05, 1.05), aspect="equal", xticks=[-1, 0, 1], yticks=[-1, 0, 1])
