"""The lab's constraints with states to project, for the laws that the library states over its own."""

from __future__ import annotations

import torch
from torch import Tensor

from constraint_case import Case, N, numbers
from obstacle_cases import MAPS, free_points
from trimtab.core.noise import Noise, as_seeds
from trimtab_lab.domains.reaction_flow.equation import CELLS, TIMES, MassBalance, draw_conditions
from trimtab_lab.obstacles import AvoidObstacles


def trajectories(name: str) -> Case:
    """A map of `obstacle_cases` between fixed ends, and bent and noisy ways from one end to the other."""
    generator = torch.Generator().manual_seed(1)
    start, goal = (ends.to(torch.float64) for ends in free_points(MAPS[name], 2 * N, generator).chunk(2))

    def draw(seed: int, scale: float) -> Tensor:
        share = torch.linspace(0, 1, 17, dtype=torch.float64)
        straight = start[:, :, None] * (1 - share) + goal[:, :, None] * share
        x = (straight + 0.1 * scale * numbers(N, 2, 17, seed=seed)).clamp(-1, 1)
        x[:, :, 0], x[:, :, -1] = start, goal
        return torch.cat([x, numbers(N, 1, 17, seed=seed + 1)], dim=1)

    return Case(lambda: AvoidObstacles(MAPS[name], start, goal), (3, 17), 1e-3, nearest=False, draw=draw)


CASES = {f"trajectories, {name}": trajectories(name) for name in MAPS} | {
    "mass balance": Case(
        lambda: MassBalance(draw_conditions(Noise(as_seeds(range(N))))[0], tolerance=1e-9),
        (TIMES, CELLS),
        1e-9,
        nearest=False,
        draw=lambda seed, scale: 0.5 + 0.3 * scale * numbers(N, TIMES, CELLS, seed=seed),
    )
}
