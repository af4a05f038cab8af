"""Train the flow on solved operating points; a run that was stopped goes on where it was."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from trimtab.evaluation.domains.flow_training import Fit, flow_pair, flow_times
from trimtab.evaluation.domains.grid.case import Grid
from trimtab.evaluation.domains.grid.data import solved_points, standard
from trimtab.evaluation.domains.grid.model import Flow, Model, fresh_flow, save_model

__all__ = ["TrainConfig", "train"]


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
    fit = Fit(
        config.steps,
        config.rate,
        weight_decay=1e-2,
        average=0.998,
        report_every=250,
        checkpoint_every=checkpoint_every,
        kind="grid training",
        recipe=asdict(config),
    )
    fit.run(
        network,
        averaged,
        lambda step: _batch(data, config.batch, config.seed * 1_000_003 + step),
        checkpoint,
        progress,
        lambda: f"held out {_loss(averaged, held_out):.4f}  ",
    )
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
    tau = flow_times(size, generator)
    z, target = flow_pair(noise, data[rows], tau)
    return z, tau, target


@torch.no_grad()
def _loss(network: Flow, data: Tensor) -> float:
    """The loss on data, at noise and times that are the same every time."""
    batches = [_batch(data, 512, -1 - i) for i in range(4)]
    return float(
        torch.stack([nn.functional.mse_loss(network.raw(z, tau), target) for z, tau, target in batches]).mean()
    )
