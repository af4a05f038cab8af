"""Train the flow on solved operating points.

Everything depends on the seed alone: points and batches are functions of it and of the step, so a run that was stopped
goes on from its last checkpoint as if it had not been.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter

import torch
from torch import Tensor, nn

from trimtab.core.files import load_tensors, save_tensors
from trimtab.domains.grid.case import Grid
from trimtab.domains.grid.data import solved_points, standard
from trimtab.domains.grid.model import Flow, Model, flow_pair, fresh_flow, save_model

__all__ = ["TrainConfig", "train"]

_KIND = "grid training"
_AVERAGE = 0.998


@dataclass(frozen=True)
class TrainConfig:
    """How to train.

    Attributes:
        points: Operating points to learn from.
        held_out: Further ones that only measure.
        steps: Optimiser steps.
        batch: Points a step.
        rate: Highest learning rate; it rises for 3% of the steps and falls along a cosine.
        seed: Of initial weights and batches.
    """

    points: int = 2500
    held_out: int = 300
    steps: int = 4000
    batch: int = 256
    rate: float = 1e-3
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse numbers that make no training."""
        for name in ("points", "held_out", "steps", "batch"):
            if getattr(self, name) < (2 if name == "points" else 1):
                raise ValueError(f"{name} must be at least {2 if name == 'points' else 1}: got {getattr(self, name)}")
        if not self.rate > 0:
            raise ValueError(f"rate must be above 0: got {self.rate}")


def train(
    grid: Grid,
    folder: Path,
    config: TrainConfig | None = None,
    progress: Callable[[str], None] = print,
    checkpoint_every: int = 500,
) -> Path:
    """Solve the points, train on them, and write `CASE.safetensors` into `folder`; returns its path.

    A run that was stopped goes on where it was.
    """
    config = config or TrainConfig()
    folder.mkdir(parents=True, exist_ok=True)
    out, checkpoint = (folder / f"{grid.case}{end}" for end in (".safetensors", ".training.safetensors"))
    everything = solved_points(
        grid, config.points + config.held_out, folder / f"{grid.case}.points.safetensors", progress
    )
    mean, scale = standard(everything[: config.points])
    scaled = ((everything - mean) / scale).float()
    data, held_out = scaled[: config.points], scaled[config.points :]
    network, averaged = fresh_flow(grid.dimension, config.seed), fresh_flow(grid.dimension, config.seed)
    averaged.requires_grad_(False)
    optimiser = torch.optim.AdamW(network.parameters(), lr=config.rate, betas=(0.9, 0.99), weight_decay=1e-2)
    begin = _restore(checkpoint, network, averaged, optimiser, config) if checkpoint.exists() else 0
    clock, losses = perf_counter(), []
    for step in range(begin, config.steps):
        for group in optimiser.param_groups:
            group["lr"] = config.rate * _warmup_cosine(step / config.steps)
        z, tau, target = _batch(data, config.batch, config.seed * 1_000_003 + step)
        loss = nn.functional.mse_loss(network.raw(z, tau), target)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimiser.step()
        keep = min(_AVERAGE, (step + 1) / (step + 10))
        with torch.no_grad():
            for average, parameter in zip(averaged.parameters(), network.parameters(), strict=True):
                average.lerp_(parameter, 1 - keep)
        losses.append(float(loss.detach()))
        done = step + 1
        if done % 250 == 0 or done == config.steps:
            left = (perf_counter() - clock) / (done - begin) * (config.steps - done)
            progress(
                f"step {done:>5}/{config.steps}  loss {sum(losses) / len(losses):.4f}  "
                f"held out {_loss(averaged, held_out):.4f}  {left / 60:.1f} min left"
            )
            losses = []
        if done % checkpoint_every == 0 and done < config.steps:
            _save(checkpoint, network, averaged, optimiser, config, done)
    facts = {**asdict(config), "held_out_loss": _loss(averaged, held_out)}
    save_model(out, Model(grid.case, averaged, mean, scale, facts))
    checkpoint.unlink(missing_ok=True)
    progress(f"wrote {out}")
    return out


def _batch(data: Tensor, size: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Points of the flow, their times and the network's targets, from a generator of their own."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(len(data), (size,), generator=generator)
    noise = torch.randn(size, data.shape[1], generator=generator)
    # one flow time in each of `size` equal parts: less variance than independent ones
    tau = (torch.arange(size) + torch.rand(size, generator=generator)) / size
    z, target = flow_pair(noise, data[rows], tau)
    return z, tau, target


@torch.no_grad()
def _loss(network: Flow, data: Tensor) -> float:
    """The loss on data, at noise and times that are the same every time."""
    batches = [_batch(data, 512, -1 - i) for i in range(4)]
    return float(
        torch.stack([nn.functional.mse_loss(network.raw(z, tau), target) for z, tau, target in batches]).mean()
    )


def _warmup_cosine(share: float) -> float:
    warmup = 0.03
    return share / warmup if share < warmup else 0.5 * (1 + math.cos(math.pi * (share - warmup) / (1 - warmup)))


def _save(
    path: Path, network: Flow, averaged: Flow, optimiser: torch.optim.Optimizer, config: TrainConfig, done: int
) -> None:
    tensors = {f"network.{name}": value for name, value in network.state_dict().items()}
    tensors |= {f"averaged.{name}": value for name, value in averaged.state_dict().items()}
    for i, state in optimiser.state_dict()["state"].items():
        tensors |= {f"optimiser.{i}.{name}": value for name, value in state.items()}
    save_tensors(path, _KIND, tensors, {"config": asdict(config), "done": done})


def _restore(path: Path, network: Flow, averaged: Flow, optimiser: torch.optim.Optimizer, config: TrainConfig) -> int:
    """Load a checkpoint into the three and return the steps it has done."""
    tensors, facts = load_tensors(path, _KIND)
    if facts["config"] != asdict(config):
        raise ValueError(
            f"{path}: a run with other settings was stopped here ({facts['config']}, now {asdict(config)}); delete the "
            "file to begin anew, or give the same settings to go on"
        )
    for prefix, module in (("network.", network), ("averaged.", averaged)):
        module.load_state_dict({name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)})
    states: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith("optimiser."):
            _, index, key = name.split(".")
            states.setdefault(int(index), {})[key] = tensor
    optimiser.load_state_dict({"state": states, "param_groups": optimiser.state_dict()["param_groups"]})
    return int(facts["done"])
