"""What the learned samplers share: straight flows, x(tau) = (1 - tau) noise + tau data, and one training loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from trimtab.core.arrays import rowwise
from trimtab.core.files import load_tensors, save_tensors

__all__ = [
    "FlowMLP",
    "clock",
    "fit",
    "fit_flow",
    "flow_loss",
    "flow_pair",
    "fresh",
    "pair_step",
    "velocity",
    "warmup_cosine",
]

_OCTAVES = 8  # of flow time
Network = TypeVar("Network", bound=nn.Module)


def fresh(make: Callable[[], Network], seed: int) -> Network:
    """Return a network whose initial weights depend on `seed` only; the global generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


# ------------------------------------------------------------------ straight flows


def flow_pair(noise: Tensor, data: Tensor, tau: Tensor, spread: Tensor | float = 1.0) -> tuple[Tensor, Tensor]:
    r"""Return points of the flow and the targets of the network there, (n, \*event) each, at flow times (n,).

    The target is the velocity minus the velocity for independent normal data whose standard deviation is `spread`, a
    number or (\*event). It is scaled to about unit variance at every time.
    """
    tau = rowwise(tau, noise)
    power = (tau * spread) ** 2 + (1 - tau) ** 2
    x = (1 - tau) * noise + tau * data
    return x, ((data - noise) * power - ((1 + spread**2) * tau - 1) * x) / (spread * power.sqrt())


def velocity(raw: Callable[[Tensor, Tensor], Tensor], x: Tensor, tau: Tensor, spread: Tensor | float = 1.0) -> Tensor:
    r"""Return the velocity of the flow, (n, \*event), from the output `raw(x, tau)` of a network for `flow_pair`."""
    times = rowwise(tau, x)
    power = (times * spread) ** 2 + (1 - times) ** 2
    return ((1 + spread**2) * times - 1) / power * x + spread * raw(x, tau) / power.sqrt()


def clock(tau: Tensor, octaves: int = _OCTAVES) -> Tensor:
    """Return sines and cosines of flow times, (n,) to (n, 2 octaves)."""
    angles = tau[:, None] * (2.0 ** torch.arange(octaves, dtype=tau.dtype, device=tau.device) * (math.pi / 4))
    return torch.cat([angles.sin(), angles.cos()], dim=1)


def pair_step(between: Tensor, speed: Tensor, tau: float) -> Tensor:
    r"""Return the clean point and the noise that a point of the flow and its velocity imply, (n, 2, \*event).

    The next point of the flow lies between the two, so a step without a correction is exactly Euler's.
    """
    return torch.stack([between + (1 - tau) * speed, between - tau * speed], dim=1)


def flow_loss(
    network: Any,
    data: Tensor,
    size: int,
    seed: int,
    color: Callable[[Tensor], Tensor] = lambda x: x,
    spread: Tensor | float = 1.0,
    times: Callable[[Tensor], Tensor] = lambda share: share,
) -> Tensor:
    """Return the loss of a network on a random batch that depends on `seed` only.

    Args:
        network: Has `raw(x, tau)`.
        data: The training data, (m, ...).
        size: The size of the batch. There is one number in each of `size` equal parts of (0, 1), which has less
            variance than independent numbers.
        seed: The seed of rows, noise and times.
        color: Turns white noise into the noise of the flow.
        spread: See `flow_pair`.
        times: Turns those numbers, (size,), into flow times.
    """
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(len(data), (size,), generator=generator)
    noise = color(torch.randn(size, *data.shape[1:], generator=generator))
    tau = times((torch.arange(size) + torch.rand(size, generator=generator)) / size)
    x, target = flow_pair(noise, data[rows], tau, spread)
    return nn.functional.mse_loss(network.raw(x, tau), target)


class FlowMLP(nn.Module):
    """The velocity v(z, tau) of states in standard units; see `flow_pair` for the target of the network."""

    spread: Tensor

    def __init__(self, dimension: int, width: int, blocks: int, spread: Tensor | float = 1.0) -> None:
        """Make a residual network of `blocks` blocks for data of some `spread`, a number or (dimension,)."""
        super().__init__()
        self.register_buffer("spread", torch.as_tensor(spread), persistent=False)
        self.lift = nn.Linear(dimension + 2 * _OCTAVES, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
            for _ in range(blocks)
        )
        self.out = nn.Sequential(nn.LayerNorm(width), nn.GELU(), nn.Linear(width, dimension))

    def raw(self, z: Tensor, tau: Tensor) -> Tensor:
        """Return the output before scaling, (n, d), at flow times (n,)."""
        times = tau[:, None]
        power = ((times * self.spread) ** 2 + (1 - times) ** 2).sqrt()
        h = self.lift(torch.cat([z / power, clock(tau)], dim=1))
        for block in self.blocks:
            h = h + block(h)
        out: Tensor = self.out(h)
        return out

    def forward(self, z: Tensor, tau: Tensor) -> Tensor:
        """Return the velocity, (n, d), at flow times (n,)."""
        return velocity(self.raw, z, tau, self.spread)


# ------------------------------------------------------------------ training


def warmup_cosine(step: int, steps: int) -> float:
    """Return the learning rate at a step as a share of the largest: it rises for 3% of the steps, then falls."""
    share, warmup = step / steps, 0.03
    return share / warmup if share < warmup else 0.5 * (1 + math.cos(math.pi * (share - warmup) / (1 - warmup)))


def fit(
    network: nn.Module,  # the network to train
    averaged: nn.Module,  # a copy with the same initial weights; its weights are the ones to keep
    loss: Callable[[int], Tensor],  # `loss(step)` returns the loss of the network on the batch of a step
    rate: Callable[[int], float],  # `rate(step)` returns the learning rate
    checkpoint: Path,  # file to continue from. It is also there at the end; the caller may remove it
    # all that the weights depend on, as JSON. A checkpoint with another recipe raises an error
    recipe: Mapping[str, Any],
    *,
    steps: int,  # number of optimiser steps
    average: float,  # how slowly `averaged` follows, below 1
    weight_decay: float = 0.0,  # weight decay of AdamW
    every: int = 250,  # number of steps between checkpoints, and between lines of progress
    progress: Callable[[str], None] = print,  # called with a line of text
    also: Callable[[], str] = lambda: "",  # returns more text for that line
) -> None:
    """Train a network, and let `averaged` follow its weights; continue from the checkpoint if there is one.

    The loss is a function of the step, so a training that was stopped ends with the same weights.
    """
    averaged.requires_grad_(False)
    optimiser = torch.optim.AdamW(network.parameters(), betas=(0.9, 0.99), weight_decay=weight_decay)
    first = 0
    if checkpoint.exists():
        first = _restore(checkpoint, recipe, network, averaged, optimiser)
        progress(f"continuing from {checkpoint} at step {first}")
    started, losses = perf_counter(), []
    for step in range(first, steps):
        for group in optimiser.param_groups:
            group["lr"] = rate(step)
        optimiser.zero_grad()
        value = loss(step)
        torch.autograd.backward(value)
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimiser.step()
        keep = min(average, (step + 1) / (step + 10))
        with torch.no_grad():
            for mean, parameter in zip(averaged.parameters(), network.parameters(), strict=True):
                mean.lerp_(parameter, 1 - keep)
        losses.append(float(value.detach()))
        done = step + 1
        if done % every == 0 or done == steps:
            _save(checkpoint, recipe, network, averaged, optimiser, done)
            left = (perf_counter() - started) / (done - first) * (steps - done) / 60
            progress(f"step {done}/{steps}  loss {sum(losses) / len(losses):.4f}  {also()}{left:.1f} min left")
            losses = []


def fit_flow(
    make: Callable[[], Any],  # makes the network, which has `raw(x, tau)`
    data: Tensor,  # training data in standard units, (m, ...)
    checkpoint: Path,  # file to continue from; see `fit`
    recipe: Mapping[str, Any],  # with steps, batch, rate (the largest learning rate) and seed; see `fit`
    *,
    color: Callable[[Tensor], Tensor] = lambda x: x,  # turns white noise into the noise of the flow
    spread: Tensor | float = 1.0,  # standard deviation of the data; see `flow_pair`
    times: Callable[[Tensor], Tensor] = lambda share: share,  # turns uniform numbers into flow times
    held_out: Tensor | None = None,  # more data, whose loss is shown with the progress
    **options: Any,  # of `fit`
) -> tuple[Any, float]:
    """Train a straight flow; return the averaged network, and its loss on the data held out (NaN if there are none)."""
    seed, steps = recipe["seed"], recipe["steps"]
    network, averaged = fresh(make, seed), fresh(make, seed)

    def held_out_loss() -> float:
        if held_out is None:
            return math.nan
        with torch.no_grad():
            losses = [flow_loss(averaged, held_out, 512, -1 - i, color, spread, times) for i in range(4)]
            return float(torch.stack(losses).mean())

    fit(
        network,
        averaged,
        lambda step: flow_loss(network, data, recipe["batch"], seed * 1_000_003 + step, color, spread, times),
        lambda step: recipe["rate"] * warmup_cosine(step, steps),
        checkpoint,
        recipe,
        steps=steps,
        also=lambda: "" if held_out is None else f"held out {held_out_loss():.4f}  ",
        **options,
    )
    return averaged, held_out_loss()


_KIND = "training"


def _save(
    path: Path, recipe: Mapping[str, Any], network: nn.Module, averaged: nn.Module, optimiser: Any, done: int
) -> None:
    tensors = {f"network/{name}": value for name, value in network.state_dict().items()}
    tensors |= {f"averaged/{name}": value for name, value in averaged.state_dict().items()}
    for i, state in optimiser.state_dict()["state"].items():
        tensors |= {f"optimiser/{i}/{name}": value for name, value in state.items()}
    save_tensors(path, _KIND, tensors, {"recipe": dict(recipe), "done": done})


def _restore(path: Path, recipe: Mapping[str, Any], network: nn.Module, averaged: nn.Module, optimiser: Any) -> int:
    """Load a checkpoint and return the number of steps it has done."""
    tensors, facts = load_tensors(path, _KIND)
    if facts.get("recipe") != dict(recipe):
        raise ValueError(
            f"{path} belongs to another training ({facts.get('recipe')}, now {dict(recipe)}); "
            "give the same settings to continue, or delete the file or use another folder to start again"
        )
    states: dict[int, dict[str, Tensor]] = {}
    parts: dict[str, dict[str, Tensor]] = {"network": {}, "averaged": {}}
    for key, tensor in tensors.items():
        part, _, name = key.partition("/")
        if part == "optimiser":
            index, _, name = name.partition("/")
            states.setdefault(int(index), {})[name] = tensor
        else:
            parts[part][name] = tensor
    network.load_state_dict(parts["network"])
    averaged.load_state_dict(parts["averaged"])
    optimiser.load_state_dict({"state": states, "param_groups": optimiser.state_dict()["param_groups"]})
    return int(facts["done"])
