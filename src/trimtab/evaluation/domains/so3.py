"""Rotations: a Langevin chain of 3×3 matrices that drifts along SO(3) towards two modes."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor

from trimtab.constraints.rotation import SO3, nearest_rotation, rotation_angle
from trimtab.core.exact_math import Array, batch_first, batch_last, logistic, product
from trimtab.core.noise import Noise
from trimtab.evaluation.domains.base import Domain, Problem, View
from trimtab.evaluation.domains.flow import Flow, hat, rotation_of
from trimtab.evaluation.domains.langevin import Chain

__all__ = [
    "VIEW",
    "RotationChain",
    "RotationFlow",
    "make",
    "make_flow",
    "rotation_distance",
    "rotation_pull",
    "rotation_score",
]

VIEW = View("SO(3)", "where the rotation takes the first axis", ("x", "y", "z"), lambda x: x[:, :, 0])

# The modes are the identity F and the third of a turn about (1, 1, 1), G, which permutes the axes: rotations that are
# far apart (120°) and written in zeros and ones.
_TURNED = [1, 2, 0]  # the row of the one in each column of G
_CONCENTRATION = 2.0


def rotation_score(a: Array) -> Array:
    """Aᵀ times the ambient gradient of the log density of two matrix Fisher modes, up to scale, (3, 3, n) to (3, 3, n).

    The density is exp(c tr(FᵀA)) + exp(c tr(GᵀA)); its gradient is a weighted mean of F and G, the weights being the
    share of each mode at A.
    """
    turned = a[_TURNED]
    traces = [a[i, i] - turned[i, i] for i in range(3)]  # tr(FᵀA) - tr(GᵀA), entry by entry
    weight = logistic(_CONCENTRATION * (traces[0] + traces[1] + traces[2]))
    return (turned + weight * (a - turned)).swapaxes(0, 1)


def rotation_pull(a: Array) -> Array:
    """Towards SO(3): -(AᵀA - I) / 2, to be multiplied by A from the left, (3, 3, n) to (3, 3, n).

    For A = R (I + S) with a small symmetric S, A times this is -R S to first order: the way to the nearest rotation,
    with no projection.
    """
    pull = product(a.swapaxes(0, 1), a) * -0.5
    for i in range(3):
        pull[i, i] += 0.5
    return pull


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
        a = batch_last(x)
        turn = rotation_score(a)
        turn = (turn - turn.swapaxes(0, 1)) / 2
        motion = product(a, self.chain.drift * turn + self.chain.kappa * rotation_pull(a))
        return batch_first(a + motion + self.chain.noise(t) * batch_last(noise.normal(t, (3, 3))))


@dataclass(frozen=True)
class RotationFlow:
    """A body that turns about an axis of its own and about one fixed in space: A' = A + speed A hat(e₃ + c Aᵀe₁) + ….

    Attributes:
        flow: Speed, pull and noise.
        swing: c, the rate of the turn about the fixed axis e₁; that about the body's own e₃ is 1.
        spread: Standard deviation of the rotation vector the body starts with.
    """

    flow: Flow = field(default_factory=Flow)
    swing: float = 1.0
    spread: float = 0.5

    @property
    def n_steps(self) -> int:
        """T."""
        return self.flow.n_steps

    def start(self, noise: Noise) -> Tensor:
        """Rotations by normal rotation vectors, (n, 3, 3)."""
        return rotation_of(self.spread * batch_last(noise.normal(-1, (3,))))

    def step(self, x: Tensor, t: int, noise: Noise) -> Tensor:
        """Proposals, (n, 3, 3)."""
        a = batch_last(x)
        return batch_first(self.moved(a, t) + self.flow.noise * batch_last(noise.normal(t, (3, 3))))

    def moved(self, a: Array, t: int) -> Array:
        """The rotations after step t without noise, (3, 3, n)."""
        rate = self.swing * a[0]  # in the frame of the body
        rate[2] += 1
        return a + product(a, self.flow.speed(t) * hat(rate, a) + self.flow.kappa * rotation_pull(a))


def rotation_distance(a: Tensor, b: Tensor) -> Tensor:
    """The angle between the rotations nearest to a and to b, (n, 3, 3) twice to (n,)."""
    return rotation_angle(nearest_rotation(a), nearest_rotation(b))


def make(**settings: Any) -> Domain:
    """The domain `so3`; settings are the fields of `Chain`."""
    chain = Chain(**settings)
    sampler, constraint = RotationChain(chain), SO3()
    problem = partial(Problem, sampler, constraint, distance=rotation_distance)
    return Domain(
        name="so3",
        summary="rotation matrices, drifting towards two modes",
        problem=problem,
        distance=rotation_distance,
        settings=chain.settings(),
        view=VIEW,
    )


def make_flow(*, swing: float = 1.0, spread: float = 0.5, **settings: Any) -> Domain:
    """The domain `so3` with `dynamics="flow"`; settings are those of `RotationFlow` and the fields of `Flow`."""
    flow = Flow(**settings)
    sampler, constraint = RotationFlow(flow, swing, spread), SO3()
    problem = partial(Problem, sampler, constraint, distance=rotation_distance)
    return Domain(
        name="so3",
        summary="a body that turns about an axis of its own and about a fixed one",
        problem=problem,
        distance=rotation_distance,
        settings=flow.settings() | {"swing": swing, "spread": spread},
        view=VIEW,
    )
