"""What the learned samplers share: straight flows, x(tau) = (1 - tau) noise + tau data, and their training."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from trimtab.core.arrays import rowwise
from trimtab_lab.training import fit

__all__ = [
    "FlowMLP",
    "clock",
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


def fit_flow(
    make: Callable[[], Any],  # makes the network, which has `raw(x, tau)`
    data: Tensor,  # training data in standard units, (m, ...)
    checkpoint: Path,  # file to continue from; see `trimtab_lab.training.fit`
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
