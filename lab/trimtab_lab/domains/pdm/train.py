"""Train the trajectory model, and validate it: planned data, training, quality (`trimtab train pdm`)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trimtab.core.checks import check_integer, check_positive
from trimtab.core.files import load_tensors, save_tensors
from trimtab.core.noise import Noise, as_seeds
from trimtab_lab.training import fit

from .domain import AnnealedLangevin, sample, trajectory_quality
from .model import Model, Prior, Settings, conditioned_architecture, denoised, fit_prior, open_spread, save_model
from .network import RefineNet
from .planner import plan, random_map, shipped_maps, start_goal_pairs, states_from_positions

__all__ = ["OUR_SETTINGS", "Trajectories", "load_data", "make_data", "train", "validate"]

OUR_SETTINGS = Settings(sigma_max=1.0, sigma_min=0.0005, eps=0.6 * 0.0005**2)
"""Sampler defaults of our model: PDM's ten levels of 25 updates, its ratio of largest to smallest noise (2000) and its
relative step size (eps / sigma_min² = 0.6), at a tenth of its noise. With start and goal known, trajectories deviate
from the straight run by about 0.1: noise of 1 hides that, and 0.0005 is small next to waypoints 0.03 apart."""

_KIND = "trajectories"
_FIRST_MAP = 1000  # keeps training maps apart from the shipped ones

Progress = Callable[[str], None]


def _silent(line: str) -> None:
    """Print nothing."""


# ------------------------------------------------------------------ data


class Trajectories(NamedTuple):
    """Planned positions (n, w, 2), the map of each trajectory (n,), the maps (maps, m, 3), and how they were made."""

    positions: Tensor
    map_index: Tensor
    circles: Tensor
    recipe: dict[str, int]


def make_data(
    path: Path | None = None,
    progress: Progress = _silent,  # called with a line of text
    *,
    maps: int = 64,  # number of maps
    per_map: int = 256,  # planning problems of each map; the few without a smooth, free answer are left out
    waypoints: int = 64,  # waypoints of every trajectory
    seed: int = 0,  # another seed gives other maps and other problems
) -> Trajectories:
    """Plan trajectories between random starts and goals on random maps, and write them to `path` if there is one."""
    recipe = {"maps": maps, "per_map": per_map, "waypoints": waypoints, "seed": seed}
    for name, least in {"maps": 1, "per_map": 1, "waypoints": 4, "seed": 0}.items():
        check_integer(recipe[name], name, least)
    circles = torch.stack([random_map(_FIRST_MAP + seed * 100_000 + i) for i in range(maps)])
    positions, index = [], []
    for i in range(maps):
        seeds = torch.arange(per_map) + (seed * maps + i) * per_map
        planned = plan(Noise(seeds), *start_goal_pairs(seeds, circles[i]), circles[i], waypoints)
        positions.append(planned.points[planned.solved].float())
        index.append(torch.full((len(positions[-1]),), i))
        found = sum(len(p) for p in positions)
        progress(f"map {i + 1}/{maps}: {found} trajectories of {(i + 1) * per_map} problems")
    data = Trajectories(torch.cat(positions), torch.cat(index), circles.float(), recipe)
    if path is not None:
        tensors = {"positions": data.positions, "map_index": data.map_index, "circles": data.circles}
        path.parent.mkdir(parents=True, exist_ok=True)
        save_tensors(path, _KIND, tensors, {"config": recipe})
        progress(f"wrote {path}")
    return data


def load_data(path: Path) -> Trajectories:
    """Read the trajectories that `make_data` wrote."""
    if not path.is_file():
        raise FileNotFoundError(f"no trajectories at {path}: make them with `trimtab train pdm data`")
    tensors, facts = load_tensors(path, _KIND)
    return Trajectories(**tensors, recipe=facts["config"])


# ------------------------------------------------------------------ training


def draw_batch(data: Trajectories, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw trajectories as states (n, 4, w) and their maps (n, m, 3), turned, mirrored and reversed at random."""
    rows = torch.randint(len(data.positions), (n,), generator=generator)
    positions, circles = data.positions[rows], data.circles[data.map_index[rows]].clone()
    coins = torch.randint(2, (n, 4), generator=generator).bool()
    positions = torch.where(coins[:, 3, None, None], positions.flip(1), positions)
    signs = 1.0 - 2.0 * coins[:, None, :2]
    swap = coins[:, 2, None, None]
    positions = torch.where(swap, positions.flip(2), positions) * signs
    centres = circles[..., :2]
    circles[..., :2] = torch.where(swap, centres.flip(2), centres) * signs
    return states_from_positions(positions), circles


def denoising_loss(
    network: RefineNet, prior: Prior, settings: Settings, data: Trajectories, n: int, generator: torch.Generator
) -> Tensor:
    """Return the squared error of the clean trajectory on a random batch; 1 is the error of the linear guess."""
    clean, circles = draw_batch(data, n, generator)
    level = torch.randint(settings.levels, (n,), generator=generator)
    sigma = torch.tensor(settings.sigmas)[level]
    disturb = torch.randn(clean.shape, generator=generator)
    disturb[..., [0, -1]] = 0  # the ends stay clean, as in sampling
    guess = denoised(network, prior, clean + sigma[:, None, None] * disturb, level, sigma, circles)
    left_open = 2 * open_spread(prior.variances, sigma[:, None, None] ** 2).square().sum(dim=(1, 2))
    return ((guess - clean).square().sum(dim=(1, 2)) / left_open).mean()


def train(
    data: Trajectories,
    folder: Path,  # gets `state.safetensors`, the checkpoint, and in the end `model.safetensors`
    progress: Progress = _silent,  # called with a line of text
    *,
    settings: Settings = OUR_SETTINGS,  # noise levels and sampler defaults of the model
    steps: int = 3000,  # number of optimiser steps
    batch: int = 96,  # number of trajectories in a step, each at a random noise level
    rate: float = 2e-3,  # largest learning rate; it rises over the first steps, then falls to 0 along a cosine
    ema: float = 0.999,  # how slowly the averaged weights, which are the ones kept, follow the trained ones
    features: int = 16,  # channels of the network's finest stage
    seed: int = 0,  # seed of initial weights, batches and noise
    save_every: int = 250,  # number of steps between checkpoints
) -> Model:
    """Train a model, or continue the training in the folder, and return the model with averaged weights."""
    sizes = {"steps": steps, "batch": batch, "features": features, "save_every": save_every}
    for name, value in sizes.items():
        check_integer(value, name)
    check_positive(rate, "rate")
    chosen = sizes | {"rate": rate, "ema": ema, "seed": seed}
    recipe: dict[str, Any] = {"train": chosen, "settings": asdict(settings), "data": data.recipe}
    shape = conditioned_architecture(features, settings.levels, data.positions.shape[1])
    network, averaged = RefineNet(shape, seed), RefineNet(shape, seed)
    prior = fit_prior(states_from_positions(data.positions))
    folder.mkdir(parents=True, exist_ok=True)

    def loss(step: int) -> Tensor:
        generator = torch.Generator().manual_seed((seed << 32) + step)
        return denoising_loss(network, prior, settings, data, batch, generator)

    def rate_at(step: int) -> float:
        rise = min(200, max(1, steps // 10))
        return rate * min(1.0, (step + 1) / rise) * 0.5 * (1 + math.cos(math.pi * step / steps))

    checkpoint = folder / "state.safetensors"
    fit(
        network,
        averaged,
        loss,
        rate_at,
        checkpoint,
        recipe,
        steps=steps,
        average=ema,
        every=save_every,
        progress=progress,
    )
    model = Model(averaged.eval(), settings, {**recipe, "steps_done": steps}, prior)
    save_model(folder / "model.safetensors", model)
    return model


# ------------------------------------------------------------------ validation


def validate(
    model: Model, per_map: int = 64, inner_steps: int | None = None, seed: int = 10_000
) -> dict[str, dict[str, float]]:
    """Compare free samples of a conditioned model, planned trajectories and straight runs on the shipped maps.

    Problems that the planner does not solve are left out.

    Args:
        model: The model.
        per_map: The number of starts and goals on each map.
        inner_steps: The number of Langevin updates at each level; by default the model's.
        seed: The first seed of pairs and noise.

    Returns:
        The mean quality of "samples", "planned" and "straight".
    """
    parts: dict[str, list[Tensor]] = {"samples": [], "planned": [], "straight": [], "circles": []}
    for i, circles in enumerate(shipped_maps()):
        seeds = range(seed + i * per_map, seed + (i + 1) * per_map)
        starts, goals = start_goal_pairs(seeds, circles)
        planned = plan(Noise(as_seeds(seeds)), starts, goals, circles, model.network.architecture.waypoints)
        x = sample(AnnealedLangevin(model, starts, goals, circles, inner_steps), seeds)  # type: ignore[arg-type]
        share = torch.linspace(0, 1, x.shape[2], dtype=x.dtype)[:, None]
        parts["samples"].append(x[:, :2].transpose(1, 2)[planned.solved])
        parts["planned"].append(planned.points[planned.solved])
        parts["straight"].append((starts[:, None] + share * (goals - starts)[:, None])[planned.solved])
        parts["circles"].append(circles.expand(int(planned.solved.sum()), -1, -1))
    circles = torch.cat(parts.pop("circles"))
    return {name: trajectory_quality(torch.cat(paths), circles).means() for name, paths in parts.items()}
