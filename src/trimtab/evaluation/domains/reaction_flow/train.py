"""Train the flow network on solutions of the equation: `python -m trimtab.evaluation.domains.reaction_flow.train --out FILE`."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from trimtab.core.noise import Noise, as_seeds
from trimtab.evaluation.domains.flow_training import Fit, flow_pair, flow_times
from trimtab.evaluation.domains.reaction_flow.equation import CELLS, TIMES, draw_conditions, solve
from trimtab.evaluation.domains.reaction_flow.network import (
    MEAN,
    SPREAD,
    fresh_network,
    gaussian_field,
    save_network,
)

__all__ = ["solutions", "train"]

_FIRST_DATA_SEED = 10**9  # far from the seeds samples are drawn with


def solutions(count: int, first: int = _FIRST_DATA_SEED) -> Tensor:
    """Solutions for random conditions and diffusivities, (count, TIMES, CELLS) float32, from seeds `first` on."""
    parts = []
    for begin in range(first, first + count, 1024):
        noise = Noise(as_seeds(range(begin, min(begin + 1024, first + count))))
        parts.append(solve(*draw_conditions(noise)).float())
    return torch.cat(parts)


def train(
    out: Path,
    *,
    steps: int = 6000,
    batch: int = 32,
    data: int = 8192,
    rate: float = 2e-3,
    seed: int = 0,
    checkpoint_every: int = 500,
) -> None:
    """Train from scratch, or go on from the checkpoint beside `out`, and write the averaged weights to `out`.

    Args:
        out: Where the weights go; the checkpoint is the same name with `.training` added, removed at the end.
        steps: Optimiser steps.
        batch: Solutions a step.
        data: Solutions in the training set.
        rate: Highest learning rate; it rises for 3% of the steps and falls along a cosine.
        seed: Of initial weights and batches.
        checkpoint_every: Steps between checkpoints.
    """
    checkpoint = out.with_name(out.name + ".training")
    recipe = {"steps": steps, "batch": batch, "data": data, "rate": rate, "seed": seed}
    network, averaged = fresh_network(seed), fresh_network(seed)
    progress = partial(print, flush=True)
    progress(f"solving the equation {data} times")
    fields = (solutions(data) - MEAN) / SPREAD
    fit = Fit(
        steps,
        rate,
        weight_decay=1e-3,
        average=0.999,
        report_every=100,
        checkpoint_every=checkpoint_every,
        kind="flow training",
        recipe=recipe,
    )
    fit.run(network, averaged, lambda step: _batch(fields, batch, seed * 1_000_003 + step), checkpoint, progress)
    save_network(out, averaged, dict(recipe))
    checkpoint.unlink(missing_ok=True)
    progress(f"wrote {out}")


def _batch(fields: Tensor, size: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Points of the flow, their times and the network's targets, from a generator of their own."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(len(fields), (size,), generator=generator)
    noise = gaussian_field(torch.randn(size, TIMES, CELLS, generator=generator))
    tau = flow_times(size, generator)
    x, target = flow_pair(noise, fields[rows], tau)
    return x, tau, target


def main(arguments: list[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m trimtab.evaluation.domains.reaction_flow.train",
        description="Train the flow network of the reaction-flow domain.",
    )
    parser.add_argument("--out", type=Path, default=Path("reaction_flow.safetensors"), help="where the weights go")
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--data", type=int, default=8192, help="solutions in the training set")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    train(given.out, steps=given.steps, batch=given.batch, data=given.data, seed=given.seed)


if __name__ == "__main__":
    main()
