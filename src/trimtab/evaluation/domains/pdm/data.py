"""Training data: planned trajectories among the obstacles of many maps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from trimtab.core.files import load_tensors, save_tensors
from trimtab.core.noise import Noise

from .maps import random_map
from .pairs import start_goal_pairs
from .planner import plan

__all__ = ["DataConfig", "Trajectories", "load_data", "make_data"]

_KIND = "trajectories"
_FIRST_MAP = 1000  # keeps training maps apart from the shipped ones


@dataclass(frozen=True)
class DataConfig:
    """What data to make.

    Attributes:
        maps: How many maps.
        per_map: Planning problems a map; the few without a collision-free smooth answer are left out.
        waypoints: Of every trajectory.
        seed: Another seed gives other maps and other problems.
    """

    maps: int = 64
    per_map: int = 256
    waypoints: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse empty data and trajectories too short to have a middle."""
        if min(self.maps, self.per_map) < 1 or self.waypoints < 4 or self.seed < 0:
            raise ValueError(f"data needs at least 1 map, 1 problem a map, 4 waypoints and a seed >= 0, got {self}")


@dataclass(frozen=True, eq=False)
class Trajectories:
    """Planned trajectories.

    Attributes:
        positions: (n, w, 2) float32.
        map_index: Which map each belongs to, (n,).
        circles: The maps, (maps, m, 3) float32.
        config: How they were made.
    """

    positions: Tensor
    map_index: Tensor
    circles: Tensor
    config: DataConfig


def make_data(
    config: DataConfig, path: Path | None = None, progress: Callable[[str], None] | None = None
) -> Trajectories:
    """Plan trajectories between random starts and goals on random maps.

    Args:
        config: How much, and the seed. The result depends on nothing else.
        path: Where to write them as safetensors, if anywhere.
        progress: Told a line after each map.

    Returns:
        The trajectories, every one collision-free.
    """
    maps = torch.stack([random_map(_FIRST_MAP + config.seed * 100_000 + i) for i in range(config.maps)])
    positions, index = [], []
    for i, circles in enumerate(maps):
        seeds = torch.arange(config.per_map) + (config.seed * config.maps + i) * config.per_map
        starts, goals = start_goal_pairs(seeds, circles)
        planned = plan(Noise(seeds), starts, goals, circles, config.waypoints)
        positions.append(planned.points[planned.solved].float())
        index.append(torch.full((len(positions[-1]),), i))
        if progress is not None:
            found = sum(len(p) for p in positions)
            progress(f"map {i + 1}/{config.maps}: {found} trajectories of {(i + 1) * config.per_map} problems")
    data = Trajectories(torch.cat(positions), torch.cat(index), maps.float(), config)
    if path is not None:
        tensors = {"positions": data.positions, "map_index": data.map_index, "circles": data.circles}
        path.parent.mkdir(parents=True, exist_ok=True)
        save_tensors(path, _KIND, tensors, {"config": asdict(config)})
        if progress is not None:
            progress(f"wrote {path}")
    return data


def load_data(path: Path) -> Trajectories:
    """Read what `make_data` wrote."""
    if not path.is_file():
        raise FileNotFoundError(f"no trajectories at {path}: make them with `trimtab train-pdm data`")
    tensors, facts = load_tensors(path, _KIND)
    return Trajectories(**tensors, config=DataConfig(**facts["config"]))
