"""Training the trajectory model; the command is `trimtab train-pdm`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from trimtab.core.files import load_tensors, save_tensors

from .checkpoint import save_model
from .data import Trajectories
from .model import Model, Prior, Settings, conditioned_architecture, denoised, fit_prior, open_spread
from .network import RefineNet
from .planner import states_from_positions

__all__ = ["OUR_SETTINGS", "TrainConfig", "train"]

OUR_SETTINGS = Settings(sigma_max=1.0, sigma_min=0.0005, eps=0.6 * 0.0005**2)
"""Sampler defaults of our model. PDM's ten levels of 25 updates, its ratio of largest to smallest noise (2000) and its
step size relative to the noise (eps / sigma_min² = 0.6), ten times smaller: with start and goal known, trajectories
stray some 0.1 from the straight run, noise of 1 drowns that, and 0.0005 does not show between waypoints 0.03 apart."""

_KIND = "trajectory training"
Config = dict[str, dict[str, object]]


@dataclass(frozen=True)
class TrainConfig:
    """How to train.

    Attributes:
        steps: Optimiser steps.
        batch: Trajectories a step, each at a noise level of its own.
        rate: Highest learning rate; it rises over the first steps, then falls to 0 as a cosine.
        ema: How slowly the averaged weights, which are the ones kept, follow the trained ones.
        features: Channels of the network's finest stage.
        seed: Of initial weights, batches and noise.
        save_every: Steps between checkpoints.
    """

    steps: int = 3000
    batch: int = 96
    rate: float = 2e-3
    ema: float = 0.999
    features: int = 16
    seed: int = 0
    save_every: int = 250

    def __post_init__(self) -> None:
        """Refuse a training that would not train."""
        if min(self.steps, self.batch, self.features, self.save_every) < 1 or not 0 < self.ema < 1 or self.rate <= 0:
            raise ValueError(f"steps, batch, features, save_every, rate must be above 0 and 0 < ema < 1: got {self}")


def draw_batch(data: Trajectories, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Random trajectories and their maps, turned, mirrored and reversed at random.

    Returns:
        States (n, 4, w) and circles (n, m, 3).
    """
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
    """Denoising score matching on a random batch: squared error of the clean trajectory, 1 for the linear guess.

    The ends stay clean, as in sampling.
    """
    clean, circles = draw_batch(data, n, generator)
    level = torch.randint(settings.levels, (n,), generator=generator)
    sigma = torch.tensor(settings.sigmas)[level]
    disturb = torch.randn(clean.shape, generator=generator)
    disturb[..., [0, -1]] = 0
    guess = denoised(network, prior, clean + sigma[:, None, None] * disturb, level, sigma, circles)
    left_open = 2 * open_spread(prior.variances, sigma[:, None, None] ** 2).square().sum(dim=(1, 2))
    return ((guess - clean).square().sum(dim=(1, 2)) / left_open).mean()


def learning_rate(config: TrainConfig, step: int) -> float:
    """The rate at a step: a short rise, then a cosine down to 0."""
    rise = min(200, max(1, config.steps // 10))
    return config.rate * min(1.0, (step + 1) / rise) * 0.5 * (1 + math.cos(math.pi * step / config.steps))


def train(
    data: Trajectories,
    folder: Path,
    config: TrainConfig,
    settings: Settings = OUR_SETTINGS,
    progress: Callable[[str], None] | None = None,
    stop_after: int | None = None,
) -> Model:
    """Train a model, or go on where the last training in the folder stopped.

    Batches and noise are a function of seed and step, so an interrupted training ends with the same weights.

    Args:
        data: Trajectories to learn.
        folder: Gets `state.safetensors` (to go on from) and `model.safetensors` (averaged weights).
        config: How to train.
        settings: Noise levels and sampler defaults of the model.
        progress: Told a line now and then.
        stop_after: Stop at this step, saved, as an interruption would.

    Returns:
        The model with averaged weights.

    Raises:
        ValueError: If the folder holds a training with another configuration.
    """
    shape = conditioned_architecture(config.features, settings.levels, data.positions.shape[1])
    network, prior = RefineNet(shape, config.seed), fit_prior(states_from_positions(data.positions))
    average = {k: v.clone() for k, v in network.state_dict().items()}
    optimiser = torch.optim.Adam(network.parameters(), lr=config.rate, betas=(0.9, 0.99))
    told = {"train": asdict(config), "settings": asdict(settings), "data": asdict(data.config)}
    folder.mkdir(parents=True, exist_ok=True)
    state = folder / "state.safetensors"
    step, spent = _resume(state, told, network, average, optimiser) if state.exists() else (0, 0.0)
    began, losses = time.perf_counter() - spent, []
    last = min(config.steps, stop_after or config.steps)
    while step < last:
        generator = torch.Generator().manual_seed((config.seed << 32) + step)
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(config, step)
        optimiser.zero_grad(set_to_none=True)
        loss = denoising_loss(network, prior, settings, data, config.batch, generator)
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimiser.step()
        follow = min(config.ema, (1 + step) / (10 + step))
        with torch.no_grad():
            for name, value in network.state_dict().items():
                average[name].lerp_(value, 1 - follow)
        step += 1
        losses.append(float(loss.detach()))
        if step % config.save_every == 0 or step == last:
            spent = time.perf_counter() - began
            _save(state, told, step, spent, network, average, optimiser)
            save_model(folder / "model.safetensors", _averaged(network, average, prior, settings, told, step, spent))
            if progress is not None:
                progress(f"step {step}/{config.steps}  loss {sum(losses) / len(losses):.4f}  {spent:.0f} s")
            losses = []
    return _averaged(network, average, prior, settings, told, step, spent)


def _averaged(
    network: RefineNet,
    average: dict[str, Tensor],
    prior: Prior,
    settings: Settings,
    told: Config,
    step: int,
    spent: float,
) -> Model:
    kept = RefineNet(network.architecture)
    kept.load_state_dict(average)
    about = {**told, "steps_done": step, "training_seconds": round(spent, 1)}
    return Model(kept.eval().requires_grad_(False), settings, about, prior)


def _save(
    path: Path,
    told: Config,
    step: int,
    spent: float,
    network: RefineNet,
    average: dict[str, Tensor],
    optimiser: torch.optim.Adam,
) -> None:
    tensors = {f"network/{k}": v for k, v in network.state_dict().items()}
    tensors |= {f"average/{k}": v for k, v in average.items()}
    for name, parameter in network.named_parameters():
        tensors |= {f"optimiser/{k}/{name}": v for k, v in optimiser.state[parameter].items()}
    save_tensors(path, _KIND, tensors, {"told": told, "step": step, "seconds": spent})


def _resume(
    path: Path, told: Config, network: RefineNet, average: dict[str, Tensor], optimiser: torch.optim.Adam
) -> tuple[int, float]:
    """Fill network, averages and optimiser from a saved training; the step to go on from and the seconds spent."""
    tensors, facts = load_tensors(path, _KIND)
    if facts["told"] != told:
        raise ValueError(
            f"{path} belongs to another training ({facts['told']}) than the one asked for ({told}): "
            "use another folder, or remove it"
        )
    network.load_state_dict({k: tensors[f"network/{k}"] for k in average})
    for name, value in average.items():
        value.copy_(tensors[f"average/{name}"])
    for name, parameter in network.named_parameters():
        optimiser.state[parameter] = {k: tensors[f"optimiser/{k}/{name}"] for k in ("step", "exp_avg", "exp_avg_sq")}
    return int(facts["step"]), float(facts["seconds"])
