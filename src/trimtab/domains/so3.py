"""Rotations: a Langevin chain of 3×3 matrices that drifts along SO(3) towards two modes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from trimtab.constraints.rotation import (
    SO3,
    multiply,
    nearest_rotation,
    rotation_angle,
    transpose_multiply,
)
from trimtab.core.noise import Noise
from trimtab.domains.base import Domain, Problem
from trimtab.domains.langevin import Chain

__all__ = ["RotationChain", "make", "rotation_distance", "rotation_pull", "rotation_score"]

# The modes are the identity and the third of a turn about (1, 1, 1), which permutes the axes: rotations that are far
# apart (120°) and written in zeros and ones.
_FIRST = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))
_SECOND = ((0.0, 0.0, 1.0), (1.0, 0.0, 0.0), (0.0, 1.0, 0.0))
_CONCENTRATION = 2.0


def rotation_score(a: Tensor) -> Tensor:
    """The ambient gradient of the log density of two matrix Fisher modes, up to scale, (n, 3, 3) to (n, 3, 3).

    The density is exp(c tr(FᵀA)) + exp(c tr(GᵀA)); its gradient is a weighted mean of F and G, the weights being the
    share of each mode at A.
    """
    first, second = a.new_tensor(_FIRST), a.new_tensor(_SECOND)
    traces = [a[:, i, i] - a[:, (i + 1) % 3, i] for i in range(3)]  # tr(FᵀA) - tr(GᵀA), entry by entry
    weight = (_CONCENTRATION * (traces[0] + traces[1] + traces[2])).sigmoid()[:, None, None]
    return second + weight * (first - second)


def rotation_pull(a: Tensor) -> Tensor:
    """Towards SO(3): -(AᵀA - I) / 2, to be multiplied by A from the left, (n, 3, 3) to (n, 3, 3).

    For A = R (I + S) with a small symmetric S, A times this is -R S to first order: the way to the nearest rotation,
    with no projection.
    """
    return (torch.eye(3, dtype=a.dtype, device=a.device) - transpose_multiply(a, a)) / 2


@dataclass(frozen=True)
class RotationChain:
    """A' = A + A (drift · skew(Aᵀ score(A)) + kappa · pull(A)) + noise."""

    chain: Chain = field(default_factory=Chain)

    @property
    def n_steps(self) -> int:
        """T."""
        return self.chain.n_steps

    def start(self, noise: Noise) -> Tensor:
        """Rotations drawn from the uniform distribution, (n, 3, 3)."""
        return nearest_rotation(noise.normal(-1, (3, 3)))

    def step(self, x: Tensor, t: int, noise: Noise) -> Tensor:
        """Proposals, (n, 3, 3)."""
        turn = transpose_multiply(x, rotation_score(x))
        turn = (turn - turn.transpose(1, 2)) / 2
        motion = multiply(x, self.chain.drift * turn + self.chain.kappa * rotation_pull(x))
        return x + motion + self.chain.noise(t) * noise.normal(t, (3, 3))


def rotation_distance(a: Tensor, b: Tensor) -> Tensor:
    """The angle between the rotations nearest to a and to b, (n, 3, 3) twice to (n,)."""
    return rotation_angle(nearest_rotation(a), nearest_rotation(b))


def make(**settings: Any) -> Domain:
    """The domain `so3`; settings are the fields of `Chain`."""
    chain = Chain(**settings)
    sampler, constraint = RotationChain(chain), SO3()

    def problem(seeds: Iterable[int] | Tensor) -> Problem:
        return Problem(sampler, constraint, seeds, rotation_distance)

    return Domain(
        name="so3",
        summary="rotation matrices, drifting towards two modes",
        problem=problem,
        distance=rotation_distance,
        settings=chain.settings(),
    )
