"""Training of straight flows, x(tau) = (1 - tau) noise + tau data, which learned domains share.

Everything depends on the seed alone: batches are functions of it and of the step, so that a run that was stopped goes
on from its last checkpoint as if it had not been.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from trimtab.core.arrays import rowwise
from trimtab.core.files import load_tensors, save_tensors

__all__ = ["Fit", "flow_pair", "flow_times"]

Batch = tuple[Tensor, Tensor, Tensor]


def flow_pair(noise: Tensor, data: Tensor, tau: Tensor) -> tuple[Tensor, Tensor]:
    r"""A point of the flow and the network's target there, (n, \*event) each, at flow times (n,).

    The target has about unit variance at every time: the velocity, less what it would be if the data were white.
    """
    tau = rowwise(tau, noise)
    power = tau**2 + (1 - tau) ** 2
    x = (1 - tau) * noise + tau * data
    return x, ((data - noise) * power - (2 * tau - 1) * x) / power.sqrt()


def flow_times(size: int, generator: torch.Generator) -> Tensor:
    """One flow time in each of `size` equal parts, (size,): less variance than independent ones."""
    return (torch.arange(size) + torch.rand(size, generator=generator)) / size


@dataclass(frozen=True)
class Fit:
    """How a network is fitted to a flow.

    Attributes:
        steps: Optimiser steps.
        rate: Highest learning rate; it rises for 3% of the steps and falls along a cosine.
        weight_decay: Of AdamW.
        average: How slowly the averaged weights, which are the ones kept, follow the trained ones.
        report_every: Steps between lines.
        checkpoint_every: Steps between checkpoints.
        kind: What checkpoints say they are.
        recipe: All that the weights depend on; a checkpoint of another one is refused.
    """

    steps: int
    rate: float
    weight_decay: float
    average: float
    report_every: int
    checkpoint_every: int
    kind: str
    recipe: Mapping[str, Any]

    def run(
        self,
        network: nn.Module,
        averaged: nn.Module,
        batch: Callable[[int], Batch],
        checkpoint: Path,
        progress: Callable[[str], None],
        also: Callable[[], str] = lambda: "",
    ) -> None:
        """Fit the network, and let `averaged` follow it; from the checkpoint on, if there is one.

        Args:
            network: Whose `raw(x, tau)` is fitted.
            averaged: The same with the same weights at first.
            batch: Points of the flow, their times and targets for a step.
            checkpoint: Where to keep what is needed to go on; it is left there at the end.
            progress: Told a line now and then.
            also: More to say in each, once the loss is known.
        """
        averaged.requires_grad_(False)
        decay = self.weight_decay
        optimiser = torch.optim.AdamW(network.parameters(), lr=self.rate, betas=(0.9, 0.99), weight_decay=decay)
        begin = 0
        if checkpoint.exists():
            begin = self._restore(checkpoint, network, averaged, optimiser)
            progress(f"going on from {checkpoint} at step {begin}")
        clock, losses = perf_counter(), []
        for step in range(begin, self.steps):
            for group in optimiser.param_groups:
                group["lr"] = self.rate * _warmup_cosine(step / self.steps)
            x, tau, target = batch(step)
            loss = nn.functional.mse_loss(network.raw(x, tau), target)  # type: ignore[operator]
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimiser.step()
            keep = min(self.average, (step + 1) / (step + 10))
            with torch.no_grad():
                for average, parameter in zip(averaged.parameters(), network.parameters(), strict=True):
                    average.lerp_(parameter, 1 - keep)
            losses.append(float(loss.detach()))
            done = step + 1
            if done % self.report_every == 0 or done == self.steps:
                left = (perf_counter() - clock) / (done - begin) * (self.steps - done) / 60
                mean = sum(losses) / len(losses)
                progress(f"step {done:>6}/{self.steps}  loss {mean:.4f}  {also()}{left:.1f} min left")
                losses = []
            if done % self.checkpoint_every == 0 and done < self.steps:
                self._save(checkpoint, network, averaged, optimiser, done)

    def _save(
        self, path: Path, network: nn.Module, averaged: nn.Module, optimiser: torch.optim.Optimizer, done: int
    ) -> None:
        tensors = {f"network.{name}": value for name, value in network.state_dict().items()}
        tensors |= {f"averaged.{name}": value for name, value in averaged.state_dict().items()}
        for i, state in optimiser.state_dict()["state"].items():
            tensors |= {f"optimiser.{i}.{name}": value for name, value in state.items()}
        save_tensors(path, self.kind, tensors, {"recipe": dict(self.recipe), "done": done})

    def _restore(self, path: Path, network: nn.Module, averaged: nn.Module, optimiser: torch.optim.Optimizer) -> int:
        """Load a checkpoint into the three and return the steps it has done."""
        tensors, facts = load_tensors(path, self.kind)
        if facts.get("recipe") != dict(self.recipe):
            raise ValueError(
                f"{path}: a run with other settings was stopped here ({facts.get('recipe')}, now {dict(self.recipe)}); "
                "delete the file to begin anew, or give the same settings to go on"
            )
        for prefix, module in (("network.", network), ("averaged.", averaged)):
            own = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
            module.load_state_dict(own)
        states: dict[int, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            if name.startswith("optimiser."):
                _, index, key = name.split(".")
                states.setdefault(int(index), {})[key] = tensor
        optimiser.load_state_dict({"state": states, "param_groups": optimiser.state_dict()["param_groups"]})
        return int(facts["done"])


def _warmup_cosine(share: float) -> float:
    warmup = 0.03
    return share / warmup if share < warmup else 0.5 * (1 + math.cos(math.pi * (share - warmup) / (1 - warmup)))
