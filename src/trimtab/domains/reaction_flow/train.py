"""Train the flow network on solutions of the equation: `python -m trimtab.domains.reaction_flow.train --out FILE`.

Everything depends on the seed alone: data and batches are functions of it and of the step, so a run that was stopped
goes on from its last checkpoint as if it had not been.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

import torch
from torch import Tensor, nn

from trimtab.core.files import load_tensors, save_tensors
from trimtab.core.noise import Noise, as_seeds
from trimtab.domains.reaction_flow.equation import CELLS, TIMES, draw_conditions, solve
from trimtab.domains.reaction_flow.network import (
    MEAN,
    SPREAD,
    FlowNetwork,
    flow_pair,
    fresh_network,
    gaussian_field,
    save_network,
)

__all__ = ["solutions", "train"]

_FIRST_DATA_SEED = 10**9  # far from the seeds samples are drawn with
_KIND = "flow training"


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
    network = fresh_network(seed)
    averaged = fresh_network(seed).requires_grad_(False)
    optimiser = torch.optim.AdamW(network.parameters(), lr=rate, betas=(0.9, 0.99), weight_decay=1e-3)
    begin = _restore(checkpoint, network, averaged, optimiser, recipe) if checkpoint.exists() else 0
    print(f"solving the equation {data} times", flush=True)
    fields = (solutions(data) - MEAN) / SPREAD
    clock, loss_sum, loss_count = perf_counter(), 0.0, 0
    for step, (noise, data_batch, tau) in enumerate(_batches(fields, batch, seed, begin, steps), begin):
        for group in optimiser.param_groups:
            group["lr"] = rate * _warmup_cosine(step / steps)
        x, target = flow_pair(noise, data_batch, tau)
        loss = nn.functional.mse_loss(network.raw(x, tau), target)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimiser.step()
        keep = min(0.999, (step + 1) / (step + 10))
        with torch.no_grad():
            for average, parameter in zip(averaged.parameters(), network.parameters(), strict=True):
                average.lerp_(parameter, 1 - keep)
        loss_sum, loss_count = loss_sum + float(loss.detach()), loss_count + 1
        done = step + 1
        if done % 100 == 0 or done == steps:
            left = (perf_counter() - clock) / (done - begin) * (steps - done)
            print(f"step {done:>6}/{steps}  loss {loss_sum / loss_count:.4f}  {left / 60:.1f} min left", flush=True)
            loss_sum, loss_count = 0.0, 0
        if done % checkpoint_every == 0 and done < steps:
            _save(checkpoint, network, averaged, optimiser, recipe, done)
    save_network(out, averaged, dict(recipe))
    checkpoint.unlink(missing_ok=True)
    print(f"wrote {out}", flush=True)


def _batches(fields: Tensor, batch: int, seed: int, begin: int, end: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Noise, data and flow times of the steps `begin` to `end`, each from a generator of its own."""
    for step in range(begin, end):
        generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
        rows = torch.randint(len(fields), (batch,), generator=generator)
        noise = gaussian_field(torch.randn(batch, TIMES, CELLS, generator=generator))
        # one flow time in each of `batch` equal parts: less variance than independent ones
        tau = (torch.arange(batch) + torch.rand(batch, generator=generator)) / batch
        yield noise, fields[rows], tau


def _warmup_cosine(share: float) -> float:
    warmup = 0.03
    return share / warmup if share < warmup else 0.5 * (1 + math.cos(math.pi * (share - warmup) / (1 - warmup)))


def _save(
    path: Path,
    network: FlowNetwork,
    averaged: FlowNetwork,
    optimiser: torch.optim.Optimizer,
    recipe: dict[str, float],
    done: int,
) -> None:
    tensors = {f"network.{name}": value for name, value in network.state_dict().items()}
    tensors |= {f"averaged.{name}": value for name, value in averaged.state_dict().items()}
    for i, state in optimiser.state_dict()["state"].items():
        tensors |= {f"optimiser.{i}.{name}": value for name, value in state.items()}
    save_tensors(path, _KIND, tensors, {"recipe": recipe, "done": done})


def _restore(
    path: Path,
    network: FlowNetwork,
    averaged: FlowNetwork,
    optimiser: torch.optim.Optimizer,
    recipe: dict[str, float],
) -> int:
    """Load a checkpoint into the three and return the steps it has done."""
    tensors, facts = load_tensors(path, _KIND)
    if facts["recipe"] != recipe:
        raise ValueError(
            f"{path}: a run with other settings was stopped here ({facts['recipe']}, now {recipe}); delete the file "
            "to begin anew, or give the same settings to go on"
        )
    for prefix, module in (("network.", network), ("averaged.", averaged)):
        module.load_state_dict({name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)})
    whole = optimiser.state_dict()
    states: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith("optimiser."):
            _, index, key = name.split(".")
            states.setdefault(int(index), {})[key] = tensor
    optimiser.load_state_dict({"state": states, "param_groups": whole["param_groups"]})
    print(f"going on from {path} at step {facts['done']}", flush=True)
    return int(facts["done"])


def main(arguments: list[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m trimtab.domains.reaction_flow.train",
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
