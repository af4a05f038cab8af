"""`so3` with impulses: short bursts of extra noise at random times of each sample's own."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from torch import Tensor

from trimtab.constraints.rotation import SO3
from trimtab.core.noise import Noise
from trimtab.evaluation.domains.base import Domain, Problem
from trimtab.evaluation.domains.flow import Flow
from trimtab.evaluation.domains.langevin import Chain
from trimtab.evaluation.domains.so3 import VIEW, RotationChain, RotationFlow, rotation_distance

__all__ = ["ImpulseChain", "Impulses", "make", "make_flow"]


@dataclass(frozen=True)
class Impulses:
    """Bursts of ambient noise.

    Attributes:
        bursts: How many a rollout has.
        width: Steps a burst lasts.
        strength: Standard deviation of the extra noise of each entry.
    """

    bursts: int = 4
    width: int = 2
    strength: float = 0.15

    def __post_init__(self) -> None:
        """Refuse bursts that are none."""
        if self.bursts < 0 or self.width < 1 or not self.strength >= 0:
            raise ValueError(
                "impulses need bursts >= 0, width >= 1 and strength >= 0: got "
                f"bursts = {self.bursts!r}, width = {self.width!r}, strength = {self.strength!r}"
            )

    def at(self, t: int, n_steps: int, noise: Noise, event: tuple[int, ...] = (3, 3)) -> Tensor:
        r"""The extra noise of step t, (n, \*event): 0 outside a sample's bursts."""
        first = (noise.uniform(-1, (self.bursts,), stream=2) * max(1, n_steps - self.width + 1)).floor()
        inside = ((first <= t) & (t < first + self.width)).any(dim=1)
        return self.strength * inside.reshape(-1, *(1 for _ in event)) * noise.normal(t, event, stream=2)


@dataclass(frozen=True)
class ImpulseChain:
    """The steps of another chain or flow of rotations, and impulses on top of them."""

    base: RotationChain | RotationFlow = field(default_factory=RotationChain)
    impulses: Impulses = field(default_factory=Impulses)

    @property
    def n_steps(self) -> int:
        """T."""
        return self.base.n_steps

    def start(self, noise: Noise) -> Tensor:
        """As in `so3`, (n, 3, 3)."""
        return self.base.start(noise)

    def step(self, x: Tensor, t: int, noise: Noise) -> Tensor:
        """Proposals, (n, 3, 3)."""
        return self.base.step(x, t, noise) + self.impulses.at(t, self.n_steps, noise)


def make(*, bursts: int = 4, width: int = 2, strength: float = 0.15, **settings: Any) -> Domain:
    """The domain `so3-impulse`; settings are the fields of `Impulses` and `Chain`."""
    chain = Chain(**settings)
    sampler, constraint = ImpulseChain(RotationChain(chain), Impulses(bursts, width, strength)), SO3()
    problem = partial(Problem, sampler, constraint, distance=rotation_distance)
    return Domain(
        name="so3-impulse",
        summary="so3 with short bursts of extra noise at random times",
        problem=problem,
        distance=rotation_distance,
        settings=chain.settings() | {"bursts": bursts, "width": width, "strength": strength},
        view=replace(VIEW, label="SO(3)-Impulse"),
    )


def make_flow(
    *,
    bursts: int = 4,
    width: int = 2,
    strength: float = 0.15,
    swing: float = 1.0,
    spread: float = 0.5,
    **settings: Any,
) -> Domain:
    """The domain `so3-impulse` with `dynamics="flow"`: the bursts of `make` on top of the flow of `so3`."""
    flow = Flow(**settings)
    sampler = ImpulseChain(RotationFlow(flow, swing, spread), Impulses(bursts, width, strength))
    constraint = SO3()
    problem = partial(Problem, sampler, constraint, distance=rotation_distance)
    own = {"bursts": bursts, "width": width, "strength": strength, "swing": swing, "spread": spread}
    return Domain(
        name="so3-impulse",
        summary="the turning body of so3 with short bursts of noise at random times",
        problem=problem,
        distance=rotation_distance,
        settings=flow.settings() | own,
        view=replace(VIEW, label="SO(3)-Impulse"),
    )
