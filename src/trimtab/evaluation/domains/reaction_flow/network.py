"""A small Fourier-operator network for the velocity of a flow between Gaussian fields and solutions.

The flow is the straight one: x(tau) = (1 - tau) noise + tau data with tau from 0 to 1, the noise a Gaussian field with
a decaying spectrum. Space and time are not periodic, so the modes are cosines; as only a few are kept, the transforms
are two small matrix products rather than an FFT.
"""

from __future__ import annotations

import math
import os
from functools import cache
from importlib.resources import as_file, files

import torch
from torch import Tensor, nn

from trimtab.core.files import load_tensors, save_tensors
from trimtab.core.noise import Noise
from trimtab.evaluation.domains.reaction_flow.equation import CELLS, TIMES

__all__ = ["FlowNetwork", "gaussian_field", "load_network", "save_network", "shipped_network"]

WIDTH, LAYERS, MODES = 24, 4, (10, 16)
MEAN, SPREAD = 0.58, 0.33  # of the data, so that the network sees numbers of order one
_KIND = "flow network"


def cosine_modes(modes: int, size: int) -> Tensor:
    """The first orthonormal cosine (DCT-II) modes on `size` cells, (modes, size) float64."""
    place = (torch.arange(size, dtype=torch.float64) + 0.5) / size
    waves = torch.cos(math.pi * torch.arange(modes, dtype=torch.float64)[:, None] * place) * math.sqrt(2 / size)
    waves[0] /= math.sqrt(2)
    return waves


@cache
def _spectrum() -> tuple[Tensor, Tensor, Tensor]:
    """Cosine modes of both axes and the standard deviation of each coefficient of the noise."""
    time, space = cosine_modes(TIMES, TIMES), cosine_modes(CELLS, CELLS)
    k = torch.arange(TIMES, dtype=torch.float64)[:, None] / 3
    m = torch.arange(CELLS, dtype=torch.float64)[None, :] / 4
    deviation = 1 / (1 + k**2 + m**2)
    deviation *= math.sqrt(TIMES * CELLS / float((deviation**2).sum()))  # a variance of one, averaged over the grid
    return time, space, deviation


def gaussian_field(white: Tensor) -> Tensor:
    """Smooth Gaussian fields from white noise: (n, TIMES, CELLS) to (n, TIMES, CELLS), unit variance on average."""
    time, space, deviation = (part.to(white) for part in _spectrum())
    return time.T @ (white * deviation) @ space


class SpectralLayer(nn.Module):
    """Mixes channels by a matrix of its own for each low mode, and by one matrix for each point."""

    def __init__(self, width: int, modes: tuple[int, int]) -> None:
        """Weights of `modes` = (time, space) low modes."""
        super().__init__()
        self.modes = modes
        self.weight = nn.Parameter(torch.randn(modes[0] * modes[1], width, width) / width)
        self.point = nn.Linear(width, width)
        self.modulate = nn.Linear(width, 2 * width)

    def forward(self, h: Tensor, clock: Tensor, time: Tensor, space: Tensor) -> Tensor:
        """(n, TIMES, CELLS, width) to the same; `clock` is (n, width)."""
        (n, _, _, width), (k, m) = h.shape, self.modes
        low = time @ (space @ h).reshape(n, -1, m * width)  # (n, k, m * width)
        low = torch.bmm(low.reshape(n, k * m, width).transpose(0, 1), self.weight).transpose(0, 1)
        high = time.T @ low.reshape(n, k, m * width)
        mixed = space.T @ high.reshape(n, -1, m, width) + self.point(h)
        scale, shift = self.modulate(clock)[:, None, None, :].chunk(2, dim=-1)
        return h + nn.functional.gelu(mixed * (1 + scale) + shift, approximate="tanh")


class FlowNetwork(nn.Module):
    """The velocity of the flow, v(x, tau).

    The network's output is scaled so that it has a target of unit variance at every tau, and added to the velocity that
    would be right if the data were white with unit variance.
    """

    def __init__(self, width: int = WIDTH, layers: int = LAYERS, modes: tuple[int, int] = MODES) -> None:
        """A network of `layers` spectral layers; the initial weights use the global generator (see `fresh_network`)."""
        super().__init__()
        self.width = width
        self.lift = nn.Linear(3, width)
        self.clock = nn.Sequential(nn.Linear(16, width), nn.GELU(approximate="tanh"), nn.Linear(width, width))
        self.layers = nn.ModuleList([SpectralLayer(width, modes) for _ in range(layers)])
        self.out = nn.Sequential(nn.Linear(width, width), nn.GELU(approximate="tanh"), nn.Linear(width, 1))
        self.register_buffer("time_modes", cosine_modes(modes[0], TIMES).float(), persistent=False)
        self.register_buffer("space_modes", cosine_modes(modes[1], CELLS).float(), persistent=False)
        place = torch.meshgrid(torch.linspace(-1, 1, TIMES), torch.linspace(-1, 1, CELLS), indexing="ij")
        self.register_buffer("place", torch.stack(place, dim=-1), persistent=False)

    time_modes: Tensor
    space_modes: Tensor
    place: Tensor

    def raw(self, x: Tensor, tau: Tensor) -> Tensor:
        """The network's own output: (n, TIMES, CELLS) and (n,) to (n, TIMES, CELLS)."""
        power = (tau**2 + (1 - tau) ** 2).sqrt()
        scaled = x / power[:, None, None]
        octaves = 2.0 ** torch.arange(8, dtype=x.dtype, device=x.device) * (math.pi / 4)
        angles = tau[:, None] * octaves
        clock = nn.functional.gelu(self.clock(torch.cat([angles.sin(), angles.cos()], dim=1)))
        h = self.lift(torch.cat([scaled[..., None], self.place.expand(len(x), -1, -1, -1)], dim=-1))
        for layer in self.layers:
            h = layer(h, clock, self.time_modes, self.space_modes)
        out: Tensor = self.out(h)[..., 0]
        return out

    def forward(self, x: Tensor, tau: Tensor) -> Tensor:
        """The velocity: (n, TIMES, CELLS) and (n,) to (n, TIMES, CELLS), in scaled units."""
        power = (tau**2 + (1 - tau) ** 2)[:, None, None]
        white = (2 * tau - 1)[:, None, None] / power
        return white * x + self.raw(x, tau) / power.sqrt()


def fresh_network(seed: int) -> FlowNetwork:
    """A network with initial weights that depend on `seed` only; the global generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return FlowNetwork()


def start_field(noise: Noise) -> Tensor:
    """The flow's initial state of each sample, (n, TIMES, CELLS): a Gaussian field from its seed."""
    return gaussian_field(noise.normal(-1, (TIMES, CELLS)))


def save_network(path: str | os.PathLike[str], network: FlowNetwork, facts: dict[str, object]) -> None:
    """Write the weights as safetensors, with how they were made."""
    save_tensors(path, _KIND, network.state_dict(), facts)


def load_network(path: str | os.PathLike[str]) -> FlowNetwork:
    """Read what `save_network` wrote."""
    tensors, _ = load_tensors(path, _KIND)
    network = fresh_network(0)
    try:
        network.load_state_dict(tensors)
    except RuntimeError as error:
        raise ValueError(f"{path}: these are not the weights of a {LAYERS}-layer flow network: {error}") from error
    return network.eval().requires_grad_(False)


@cache
def shipped_network() -> FlowNetwork:
    """The trained network that comes with the package."""
    with as_file(files("trimtab.evaluation.domains.reaction_flow") / "weights" / "reaction_flow.safetensors") as path:
        return load_network(path)
