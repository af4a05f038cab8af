"""Solutions of a reaction–diffusion equation, sampled by a learned flow, with conditions and mass balance kept.

The flow network knows solutions in general. A sample's own initial profile and inflow enter through the constraint
only: the field must begin with that profile and keep the balance of mass (see `projection`).
What is left open is the diffusivity.

What is projected is a choice. At flow time tau the state x is mostly noise at first, and asking noise to balance mass
means little; the network's guess of the clean field, u = x + (1 - tau) v, is a field at all times. With
`target="clean"` the state of the sampler is the pair of that guess and the noise it implies, x - tau v: the next point
of the flow is between the two, so an unprojected step is exactly Euler's, and a projected one moves the clean field and
keeps the noise. With `target="state"` the field x itself is projected.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from trimtab.constraints.states import check_states
from trimtab.core.checks import check_positive
from trimtab.core.constraint import Constraint, Improvement, Projection
from trimtab.core.errors import check_integer, unknown
from trimtab.core.noise import Noise, as_seeds
from trimtab.evaluation.domains.base import Domain, Problem, View, renamed
from trimtab.evaluation.domains.reaction_flow.equation import CELLS, TIMES, Conditions, draw_conditions
from trimtab.evaluation.domains.reaction_flow.network import MEAN, SPREAD, FlowNetwork, shipped_network, start_field
from trimtab.evaluation.domains.reaction_flow.projection import MassBalance

__all__ = ["CleanBalance", "CleanFlow", "StateFlow", "given_conditions", "make"]

Target = Literal["clean", "state"]
_CONDITIONS_STREAM = 1  # the start of the flow uses stream 0


@dataclass(frozen=True, eq=False)
class StateFlow:
    """Euler steps of the flow; the state is the field x(tau) itself, (n, TIMES, CELLS), in the equation's units."""

    network: FlowNetwork = field(default_factory=shipped_network)
    n_steps: int = 100
    dtype: torch.dtype = torch.float32

    def start(self, noise: Noise) -> Tensor:
        """A Gaussian field."""
        return MEAN + SPREAD * start_field(noise)

    def step(self, x: Tensor, t: int, noise: Noise) -> Tensor:
        """One Euler step, x + v / n_steps."""
        scaled = (x - MEAN) / SPREAD
        tau = torch.full((len(x),), t / self.n_steps, dtype=x.dtype, device=x.device)
        velocity: Tensor = self.network(scaled, tau)
        return x + SPREAD / self.n_steps * velocity


@dataclass(frozen=True, eq=False)
class CleanFlow:
    """The same flow; the state is the pair (clean field, noise), (n, 2, TIMES, CELLS), in the equation's units."""

    network: FlowNetwork = field(default_factory=shipped_network)
    n_steps: int = 100
    dtype: torch.dtype = torch.float32

    def start(self, noise: Noise) -> Tensor:
        """A Gaussian field as the noise; the clean field is the data's mean until the first step replaces it."""
        first = MEAN + SPREAD * start_field(noise)
        return torch.stack([torch.full_like(first, MEAN), first], dim=1)

    def step(self, x: Tensor, t: int, noise: Noise) -> Tensor:
        """The network's clean field and noise at the point of the flow between those of `x`."""
        tau = t / self.n_steps
        clean, first = x.unbind(dim=1)
        between = torch.lerp(first, clean, tau)
        times = torch.full((len(x),), tau, dtype=x.dtype, device=x.device)
        velocity = SPREAD * self.network((between - MEAN) / SPREAD, times)
        return torch.stack([between + (1 - tau) * velocity, between - tau * velocity], dim=1)


@dataclass(frozen=True, eq=False)
class CleanBalance(Constraint):
    """The constraint of `CleanFlow`: `MassBalance` of the clean field; the noise is left alone."""

    balance: MassBalance

    improves = True

    def project(self, x: Tensor) -> Projection:
        """(n, 2, TIMES, CELLS) to the same."""
        self._check(x)
        answer = self.balance.project(x[:, 0])
        return Projection(torch.stack([answer.x, x[:, 1]], dim=1), answer.converged, answer.iterations)

    def defect(self, x: Tensor) -> Tensor:
        """Of the clean field, (n,)."""
        self._check(x)
        return self.balance.defect(x[:, 0])

    def improve(self, x: Tensor, state: tuple[Tensor, ...] | None = None, **context: Any) -> Improvement:
        """One iteration on the clean field."""
        self._check(x)
        answer = self.balance.improve(x[:, 0], state)
        return answer._replace(x=torch.stack([answer.x, x[:, 1]], dim=1))

    def cheaper(self) -> dict[str, Constraint]:
        """As for the balance."""
        return {name: CleanBalance(other) for name, other in self.balance.cheaper().items()}

    def take(self, rows: Tensor) -> CleanBalance:
        """Of the samples `rows`."""
        return CleanBalance(self.balance.take(rows))

    def _check(self, x: Tensor) -> None:
        check_states(x, "CleanBalance", (2, TIMES, CELLS), samples=len(self.balance.conditions.inflow))


def field_distance(a: Tensor, b: Tensor) -> Tensor:
    """Root-mean-square distance of fields over space and time (of the clean ones, where the states are pairs), (n,)."""
    if a.ndim == 4:
        a, b = a[:, 0], b[:, 0]
    return (a - b).square().mean(dim=(1, 2)).sqrt()


def given_conditions(seeds: Iterable[int] | Tensor) -> tuple[Conditions, Tensor]:
    """The initial profile and inflow each seed asks for, and a diffusivity to go with them, (n,), in float64."""
    return draw_conditions(Noise(as_seeds(seeds)), _CONDITIONS_STREAM)


def _last_profile(x: Tensor) -> Tensor:
    """Place and value of the field at its last moment, to (m, cells, 2)."""
    field = x[:, 0] if x.ndim == 4 else x  # the clean field, where states are pairs of it and the noise
    cells = field.shape[-1]
    places = ((torch.arange(cells, dtype=x.dtype) + 0.5) / cells).expand(len(x), cells)
    return torch.stack([places, field[:, -1]], dim=2)


_VIEW = View("Reaction-Flow", "the final field at its last moment, along x", ("x", "u"), _last_profile, final=True)


def make(n_steps: int = 100, target: Target = "clean", tolerance: float = 1e-6, *, steps: int | None = None) -> Domain:
    """The domain.

    Args:
        n_steps: T, Euler steps of the flow.
        target: What is projected: the "clean" field the network foresees, or the "state" of the flow as it is.
        tolerance: Of the projection, root mean square.
        steps: What `n_steps` was called before version 0.2.
    """
    n_steps = check_integer(renamed(n_steps, steps, "n_steps", "steps"), "n_steps")
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
        view=_VIEW,
    )
