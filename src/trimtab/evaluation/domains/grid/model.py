"""The learned flow between Gaussian noise and operating points: a residual network of a million weights.

The flow is the straight one, x(tau) = (1 - tau) noise + tau data with tau from 0 to 1, over standardised states. The
model knows operating points in general and nothing of the total demand a sample is asked for.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from functools import cache
from importlib.resources import as_file, files
from typing import Any

import torch
from torch import Tensor, nn

from trimtab.core.files import load_tensors, save_tensors

__all__ = ["Flow", "Model", "fresh_flow", "load_model", "save_model", "shipped_model"]

WIDTH, BLOCKS, OCTAVES = 384, 3, 8
_KIND = "grid flow"


class Flow(nn.Module):
    """The velocity v(z, tau) of standardised states.

    The network's output is scaled so that its target has about unit variance at every tau, and added to the velocity
    that would be right if the data were Gaussian with unit variance.
    """

    def __init__(self, dimension: int, width: int = WIDTH, blocks: int = BLOCKS) -> None:
        """Weights from the global generator (see `fresh_flow`)."""
        super().__init__()
        self.lift = nn.Linear(dimension + 2 * OCTAVES, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
            for _ in range(blocks)
        )
        self.out = nn.Sequential(nn.LayerNorm(width), nn.GELU(), nn.Linear(width, dimension))

    def raw(self, z: Tensor, tau: Tensor) -> Tensor:
        """The network's own output: (n, d) and (n,) to (n, d)."""
        power = (tau**2 + (1 - tau) ** 2).sqrt()[:, None]
        octaves = 2.0 ** torch.arange(OCTAVES, dtype=z.dtype, device=z.device) * (math.pi / 4)
        angles = tau[:, None] * octaves
        h = self.lift(torch.cat([z / power, angles.sin(), angles.cos()], dim=1))
        for block in self.blocks:
            h = h + block(h)
        out: Tensor = self.out(h)
        return out

    def forward(self, z: Tensor, tau: Tensor) -> Tensor:
        """The velocity: (n, d) and (n,) to (n, d)."""
        power = (tau**2 + (1 - tau) ** 2)[:, None]
        return (2 * tau - 1)[:, None] / power * z + self.raw(z, tau) / power.sqrt()


def fresh_flow(dimension: int, seed: int = 0) -> Flow:
    """A network with initial weights that depend on `seed` only; the global generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Flow(dimension)


@dataclass(frozen=True, eq=False)
class Model:
    """A flow, and how states are standardised for it.

    Attributes:
        case: The grid it was trained for.
        flow: Over standardised states.
        mean: Of every number of a state, (d,) float64.
        scale: Its standard deviation, not below a tenth of the median one, (d,) float64.
        facts: How it was made.
    """

    case: str
    flow: Flow
    mean: Tensor
    scale: Tensor
    facts: dict[str, Any]

    def standardise(self, x: Tensor) -> Tensor:
        """(…, d) in per unit to standard units."""
        return (x - self.mean) / self.scale

    def restore(self, z: Tensor) -> Tensor:
        """(…, d) in standard units to per unit."""
        return self.mean + self.scale * z

    def velocity(self, z: Tensor, tau: float) -> Tensor:
        """Of the standardised states z, (n, d) float64, at flow time tau."""
        single = z.float()
        times = torch.full((len(z),), tau, dtype=single.dtype, device=z.device)
        with torch.no_grad():
            found: Tensor = self.flow(single, times)
        return found.to(z)


def save_model(path: str | os.PathLike[str], model: Model) -> None:
    """Write the weights in half precision, mean and scale in double."""
    tensors = {f"flow.{name}": value.half() for name, value in model.flow.state_dict().items()}
    tensors |= {"mean": model.mean, "scale": model.scale}
    save_tensors(path, _KIND, tensors, {"case": model.case, **model.facts})


def load_model(path: str | os.PathLike[str]) -> Model:
    """Read what `save_model` wrote."""
    tensors, facts = load_tensors(path, _KIND)
    try:
        mean, scale = tensors.pop("mean"), tensors.pop("scale")
        flow = fresh_flow(len(mean))
        flow.load_state_dict({name.removeprefix("flow."): value.float() for name, value in tensors.items()})
        case = str(facts.pop("case"))
    except (KeyError, RuntimeError) as error:
        raise ValueError(f"{path}: these are not the weights of a grid flow: {error}") from error
    return Model(case, flow.eval().requires_grad_(False), mean, scale, facts)


@cache
def shipped_model(case: str) -> Model:
    """The trained model of a case that comes with the package."""
    with as_file(files("trimtab.evaluation.domains.grid") / "weights" / f"{case}.safetensors") as path:
        return load_model(path)
