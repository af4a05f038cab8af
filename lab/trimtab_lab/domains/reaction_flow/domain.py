"""Solutions of a reaction-diffusion equation, sampled by a learned flow, with initial profile and mass balance given.

The flow network knows solutions in general. The initial profile and the inflow of a sample enter through the constraint
only (`equation.MassBalance`); the diffusivity stays open.

At flow time tau the state x is mostly noise at first, and a mass balance of noise means little. The network's guess of
the clean field, x + (1 - tau) v, is a field at all times. With `target="clean"` the state of the sampler is the pair of
that guess and the noise it implies: a projection moves the clean field and keeps the noise. With `target="state"` the
field x itself is projected.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import as_file, files
from typing import Any, Literal

import torch
from torch import Tensor, nn

from trimtab.constraints.states import check_states
from trimtab.core.checks import check_integer, check_positive, unknown
from trimtab.core.constraint import Constraint, Improvement, Projection
from trimtab.core.files import load_tensors, save_tensors
from trimtab.core.noise import Noise, as_seeds
from trimtab_lab.domains.base import Domain, Problem, View
from trimtab_lab.domains.learned import clock, fresh, pair_step, velocity

from .equation import CELLS, TIMES, Conditions, MassBalance, draw_conditions

__all__ = ["CleanBalance", "CleanFlow", "FlowNetwork", "StateFlow", "given_conditions", "load_network", "make"]

Target = Literal["clean", "state"]
WIDTH, LAYERS, MODES = 24, 4, (10, 16)
MEAN, SPREAD = 0.58, 0.33  # of the data, so that the network sees numbers of order one
_KIND = "flow network"
_CONDITIONS_STREAM = 1  # the start of the flow uses stream 0


# ------------------------------------------------------------------ the network


def cosine_modes(modes: int, size: int) -> Tensor:
    """Return the first orthonormal cosine (DCT-II) modes on `size` cells, (modes, size) float64."""
    place = (torch.arange(size, dtype=torch.float64) + 0.5) / size
    waves = torch.cos(math.pi * torch.arange(modes, dtype=torch.float64)[:, None] * place) * math.sqrt(2 / size)
    waves[0] /= math.sqrt(2)
    return waves


@cache
def _spectrum() -> tuple[Tensor, Tensor, Tensor]:
    """Return the cosine modes of both axes and the standard deviation of each coefficient of the noise."""
    k = torch.arange(TIMES, dtype=torch.float64)[:, None] / 3
    m = torch.arange(CELLS, dtype=torch.float64)[None, :] / 4
    deviation = 1 / (1 + k**2 + m**2)
    deviation *= math.sqrt(TIMES * CELLS / float((deviation**2).sum()))  # a variance of one, averaged over the grid
    return cosine_modes(TIMES, TIMES), cosine_modes(CELLS, CELLS), deviation


def gaussian_field(white: Tensor) -> Tensor:
    """Return smooth Gaussian fields of unit variance on average, from white noise, (n, TIMES, CELLS)."""
    time, space, deviation = (part.to(white) for part in _spectrum())
    return time.T @ (white * deviation) @ space


class SpectralLayer(nn.Module):
    """Mixes channels by one matrix for each low mode, and by one matrix at every point.

    Space and time are not periodic, so the modes are cosines. There are few, so that the transforms are two small
    matrix products.
    """

    def __init__(self, width: int, modes: tuple[int, int]) -> None:
        """Make weights for `modes` = (time, space) low modes."""
        super().__init__()
        self.modes = modes
        self.weight = nn.Parameter(torch.randn(modes[0] * modes[1], width, width) / width)
        self.point = nn.Linear(width, width)
        self.modulate = nn.Linear(width, 2 * width)

    def forward(self, h: Tensor, clock: Tensor, time: Tensor, space: Tensor) -> Tensor:
        """Map (n, TIMES, CELLS, width) to the same; `clock` is (n, width)."""
        (n, _, _, width), (k, m) = h.shape, self.modes
        low = time @ (space @ h).reshape(n, -1, m * width)  # (n, k, m * width)
        low = torch.bmm(low.reshape(n, k * m, width).transpose(0, 1), self.weight).transpose(0, 1)
        high = time.T @ low.reshape(n, k, m * width)
        mixed = space.T @ high.reshape(n, -1, m, width) + self.point(h)
        scale, shift = self.modulate(clock)[:, None, None, :].chunk(2, dim=-1)
        return h + nn.functional.gelu(mixed * (1 + scale) + shift, approximate="tanh")


class FlowNetwork(nn.Module):
    """A small Fourier operator for the velocity of the flow, v(x, tau); see `learned.flow_pair` for its target."""

    time_modes: Tensor
    space_modes: Tensor
    place: Tensor

    def __init__(self, width: int = WIDTH, layers: int = LAYERS, modes: tuple[int, int] = MODES) -> None:
        """Make `layers` spectral layers."""
        super().__init__()
        self.lift = nn.Linear(3, width)
        self.clock = nn.Sequential(nn.Linear(16, width), nn.GELU(approximate="tanh"), nn.Linear(width, width))
        self.layers = nn.ModuleList([SpectralLayer(width, modes) for _ in range(layers)])
        self.out = nn.Sequential(nn.Linear(width, width), nn.GELU(approximate="tanh"), nn.Linear(width, 1))
        self.register_buffer("time_modes", cosine_modes(modes[0], TIMES).float(), persistent=False)
        self.register_buffer("space_modes", cosine_modes(modes[1], CELLS).float(), persistent=False)
        place = torch.meshgrid(torch.linspace(-1, 1, TIMES), torch.linspace(-1, 1, CELLS), indexing="ij")
        self.register_buffer("place", torch.stack(place, dim=-1), persistent=False)

    def raw(self, x: Tensor, tau: Tensor) -> Tensor:
        """Return the output before scaling, (n, TIMES, CELLS), at flow times (n,)."""
        scaled = x / (tau**2 + (1 - tau) ** 2).sqrt()[:, None, None]
        now = nn.functional.gelu(self.clock(clock(tau)))
        h = self.lift(torch.cat([scaled[..., None], self.place.expand(len(x), -1, -1, -1)], dim=-1))
        for layer in self.layers:
            h = layer(h, now, self.time_modes, self.space_modes)
        out: Tensor = self.out(h)[..., 0]
        return out

    def forward(self, x: Tensor, tau: Tensor) -> Tensor:
        """Return the velocity, (n, TIMES, CELLS), at flow times (n,), in scaled units."""
        return velocity(self.raw, x, tau)


def save_network(path: str | os.PathLike[str], network: FlowNetwork, facts: dict[str, object]) -> None:
    """Write the weights as safetensors, with the facts of their training."""
    save_tensors(path, _KIND, network.state_dict(), facts)


def load_network(path: str | os.PathLike[str]) -> FlowNetwork:
    """Read the weights that `save_network` wrote."""
    tensors, _ = load_tensors(path, _KIND)
    network = fresh(FlowNetwork, 0)
    try:
        network.load_state_dict(tensors)
    except RuntimeError as error:
        raise ValueError(f"{path}: these are not the weights of a {LAYERS}-layer flow network: {error}") from error
    return network.eval().requires_grad_(False)


@cache
def shipped_network() -> FlowNetwork:
    """Return the trained network that comes with the package."""
    with as_file(files(__package__) / "weights" / "reaction_flow.safetensors") as path:
        return load_network(path)


# ------------------------------------------------------------------ samplers and constraint


@dataclass(frozen=True, eq=False)
class StateFlow:
    """Euler steps of the flow; the state is the field x(tau), (n, TIMES, CELLS), in the units of the equation."""

    network: FlowNetwork = field(default_factory=shipped_network)
    n_steps: int = 100
    dtype: torch.dtype = torch.float32

    def start(self, noise: Noise) -> Tensor:
        """Draw Gaussian fields."""
        return MEAN + SPREAD * gaussian_field(noise.start((TIMES, CELLS)))

    def step(self, x: Tensor, t: int, noise: Noise) -> Tensor:
        """Return x + v / n_steps."""
        return x + SPREAD / self.n_steps * self.speed(x, t)

    def speed(self, x: Tensor, t: int) -> Tensor:
        """Return the velocity of fields at step t, (n, TIMES, CELLS), in units of SPREAD."""
        tau = torch.full((len(x),), t / self.n_steps, dtype=x.dtype, device=x.device)
        scaled: Tensor = self.network((x - MEAN) / SPREAD, tau)
        return scaled


@dataclass(frozen=True, eq=False)
class CleanFlow(StateFlow):
    """The same flow; the state is the pair (clean field, noise), (n, 2, TIMES, CELLS)."""

    def start(self, noise: Noise) -> Tensor:
        """Draw Gaussian fields as the noise; the clean field is the mean of the data until the first step."""
        first = super().start(noise)
        return torch.stack([torch.full_like(first, MEAN), first], dim=1)

    def step(self, x: Tensor, t: int, noise: Noise) -> Tensor:
        """Return the clean field and the noise at the point of the flow between those of `x`."""
        tau = t / self.n_steps
        clean, first = x.unbind(dim=1)
        between = torch.lerp(first, clean, tau)
        return pair_step(between, SPREAD * self.speed(between, t), tau)


@dataclass(frozen=True, eq=False)
class CleanBalance(Constraint):
    """The constraint of `CleanFlow`: `MassBalance` of the clean field; the noise stays as it is."""

    balance: MassBalance

    improves = True

    def project(self, x: Tensor) -> Projection:
        """Project the clean fields of (n, 2, TIMES, CELLS)."""
        answer = self.balance.project(self._clean(x))
        return answer._replace(x=torch.stack([answer.x, x[:, 1]], dim=1))

    def defect(self, x: Tensor) -> Tensor:
        """Return the defect of the clean field, (n,)."""
        return self.balance.defect(self._clean(x))

    def improve(self, x: Tensor, state: tuple[Tensor, ...] | None = None, **context: Any) -> Improvement:
        """Do one iteration on the clean field."""
        answer = self.balance.improve(self._clean(x), state)
        return answer._replace(x=torch.stack([answer.x, x[:, 1]], dim=1))

    def cheaper(self) -> dict[str, Constraint]:
        """Return the cheaper variants of the balance, for the clean field."""
        return {name: CleanBalance(other) for name, other in self.balance.cheaper().items()}

    def take(self, rows: Tensor) -> CleanBalance:
        """Return the constraint of some samples, a (k,) index tensor."""
        return CleanBalance(self.balance.take(rows))

    def _clean(self, x: Tensor) -> Tensor:
        check_states(x, "CleanBalance", (2, TIMES, CELLS), samples=len(self.balance.conditions.inflow))
        return x[:, 0]


# ------------------------------------------------------------------ the domain


def clean_field(x: Tensor) -> Tensor:
    """Return the fields, (n, TIMES, CELLS), of states of either kind."""
    return x[:, 0] if x.ndim == 4 else x


def field_distance(a: Tensor, b: Tensor) -> Tensor:
    """Return the root-mean-square distance of the (clean) fields over space and time, (n,)."""
    return (clean_field(a) - clean_field(b)).square().mean(dim=(1, 2)).sqrt()


def given_conditions(seeds: Iterable[int] | Tensor) -> tuple[Conditions, Tensor]:
    """Return the profile and inflow given to each seed, and a diffusivity to go with them, (n,), in float64."""
    return draw_conditions(Noise(as_seeds(seeds)), _CONDITIONS_STREAM)


def _last_profile(x: Tensor) -> Tensor:
    """Return place and value of the field at its last time, (m, CELLS, 2)."""
    last = clean_field(x)[:, -1]
    places = (torch.arange(last.shape[1], dtype=x.dtype) + 0.5) / last.shape[1]
    return torch.stack([places.expand_as(last), last], dim=2)


def make(n_steps: int = 100, target: Target = "clean", tolerance: float = 1e-6) -> Domain:
    """Return the domain `reaction-flow`.

    Args:
        n_steps: The number of Euler steps of the flow, T.
        target: What is projected: the "clean" field that the network predicts, or the "state" of the flow.
        tolerance: The tolerance of the projection, root mean square.
    """
    check_integer(n_steps, "n_steps")
    check_positive(tolerance, "tolerance")
    if target not in ("clean", "state"):
        raise unknown("target", str(target), ("clean", "state"))

    def problem(seeds: Iterable[int] | Tensor) -> Problem:
        balance = MassBalance(given_conditions(seeds)[0], tolerance)
        if target == "clean":
            return Problem(CleanFlow(n_steps=n_steps), CleanBalance(balance), seeds, field_distance)
        return Problem(StateFlow(n_steps=n_steps), balance, seeds, field_distance)

    return Domain(
        "reaction-flow",
        "fields of a reaction-diffusion equation from a learned flow, with given initial profile and mass balance",
        problem,
        field_distance,
        {"n_steps": n_steps, "target": target, "tolerance": tolerance},
        view=View("Reaction-Flow", "the final field at its last time, along x", ("x", "u"), _last_profile, final=True),
    )
