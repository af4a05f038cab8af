"""Rotations: `so3`, and `so3-impulse` with bursts of noise.

States are matrices A, (n, 3, 3); the constraint is that A is a rotation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from trimtab.constraints.rotation import SO3, nearest_rotation, rotation_angle
from trimtab.core.noise import Noise
from trimtab_lab.domains.base import Domain, View, synthetic
from trimtab_lab.domains.dynamics import Bursts, Chain, Flow

__all__ = ["SAMPLERS", "RotationChain", "RotationFlow", "hat", "make", "rotation_pull", "rotation_score"]

# The modes are the identity F and a third of a turn about (1, 1, 1), G, which permutes the axes: they are 120° apart.
_TURNED = [1, 2, 0]  # the row of the one in each column of G
_CONCENTRATION = 2.0


def rotation_score(a: Tensor) -> Tensor:
    """Return Aᵀ times the ambient gradient of the log density, up to scale, (n, 3, 3).

    The density has two matrix Fisher modes, exp(c tr(FᵀA)) + exp(c tr(GᵀA)). Its gradient is a mean of F and G,
    weighted by the share of each mode at A.
    """
    turned = a[:, _TURNED]
    traces = (a - turned).diagonal(dim1=1, dim2=2).sum(dim=1)  # tr(FᵀA) - tr(GᵀA)
    weight = torch.sigmoid(_CONCENTRATION * traces)[:, None, None]
    return torch.lerp(turned, a, weight).mT


def rotation_pull(a: Tensor) -> Tensor:
    """Return (I - AᵀA) / 2, (n, 3, 3), which leads towards SO(3) when A multiplies it from the left.

    For A = R (I + S) with a small symmetric S, A times this is -R S to first order: the way to the nearest rotation,
    without a projection.
    """
    return (torch.eye(3).to(a) - a.mT @ a) / 2


def hat(w: Tensor) -> Tensor:
    """Return the matrix of the cross product with w, (n, 3) to (n, 3, 3)."""
    x, y, z = w.unbind(1)
    zero = torch.zeros_like(x)
    return torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], dim=1).reshape(-1, 3, 3)


@dataclass(frozen=True)
class RotationChain(Chain):
    """A Langevin chain: A' = A + A (drift skew(Aᵀ score(A)) + kappa pull(A)) + noise."""

    summary: ClassVar[str] = "rotation matrices, drifting towards two modes"

    def start(self, noise: Noise) -> Tensor:
        """Draw rotations from the uniform distribution, (n, 3, 3)."""
        return nearest_rotation(noise.start((3, 3)))

    def step(self, x: Tensor, t: int, noise: Noise) -> Tensor:
        """Return proposals, (n, 3, 3)."""
        turn = rotation_score(x)
        turn = (turn - turn.mT) / 2
        motion = x @ (self.drift * turn + self.kappa * rotation_pull(x))
        return x + motion + self.noise(t) * noise.normal(t, (3, 3))


@dataclass(frozen=True)
class RotationFlow(Flow):
    """A body that turns about its own axis e₃ and about the fixed axis e₁: A' = A + speed A hat(e₃ + c Aᵀe₁) + …."""

    summary: ClassVar[str] = "a body that turns about its own axis and about a fixed one"

    swing: float = 1.0  # c, the rate of the turn about the fixed axis; the rate about the own axis is 1
    spread: float = 0.5  # standard deviation of the rotation vector at the start

    def start(self, noise: Noise) -> Tensor:
        """Draw rotations with normal rotation vectors, (n, 3, 3)."""
        return torch.matrix_exp(hat(self.spread * noise.start((3,))))

    def step(self, x: Tensor, t: int, noise: Noise) -> Tensor:
        """Return proposals, (n, 3, 3)."""
        return self.turned(x, t, x[:, 0]) + self.noise * noise.normal(t, (3, 3))

    def turned(self, a: Tensor, t: int, axis: Tensor) -> Tensor:
        """Return the matrices after step t without noise, (n, 3, 3).

        Args:
            a: The matrices, (n, 3, 3).
            t: The step.
            axis: The second axis of the turn in the frame of the body, (n, 3).
        """
        rate = self.swing * axis + torch.tensor([0.0, 0.0, 1.0]).to(a)
        return a + a @ (self.speed(t) * hat(rate) + self.kappa * rotation_pull(a))


class _Impulses(Bursts):
    """Adds bursts of noise to every entry of the proposals of another sampler."""

    def step(self, x: Tensor, t: int, noise: Noise) -> Tensor:
        """Return proposals, (n, 3, 3)."""
        return super().step(x, t, noise) + self.burst(t, noise, (3, 3))  # type: ignore[misc,no-any-return]


@dataclass(frozen=True)
class ImpulseChain(_Impulses, RotationChain):
    """The chain of `so3` with bursts of noise."""

    summary: ClassVar[str] = "so3 with short bursts of extra noise at random times"


@dataclass(frozen=True)
class ImpulseFlow(_Impulses, RotationFlow):
    """The flow of `so3` with bursts of noise."""

    summary: ClassVar[str] = "the turning body of so3 with short bursts of noise at random times"


def rotation_distance(a: Tensor, b: Tensor) -> Tensor:
    """Return the angle between the rotations nearest to a and to b, (n, 3, 3) each, as (n,)."""
    return rotation_angle(nearest_rotation(a), nearest_rotation(b))


def _first_axis(x: Tensor) -> Tensor:
    return x[:, :, 0]


SAMPLERS = {
    "so3": {"langevin": RotationChain, "flow": RotationFlow},
    "so3-impulse": {"langevin": ImpulseChain, "flow": ImpulseFlow},
}
"""The samplers of this module by domain and dynamics."""


def make(name: str, sampler: RotationChain | RotationFlow) -> Domain:
    """Return the domain `so3` or `so3-impulse` with this sampler."""
    label = "SO(3)-Impulse" if name == "so3-impulse" else "SO(3)"
    view = View(label, "where the rotation takes the first axis", ("x", "y", "z"), _first_axis)
    return synthetic(name, sampler, SO3(), rotation_distance, view)
