"""`se3` with a lever: what is wrong with the rotation displaces the position, amplified by the lever's length."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from torch import Tensor

from trimtab.constraints.rotation import SE3, pose_distance
from trimtab.constraints.sets import Sphere
from trimtab.core.exact_math import batch_first, batch_last, product
from trimtab.core.noise import Noise
from trimtab.evaluation.domains.base import Domain, Problem
from trimtab.evaluation.domains.flow import Flow
from trimtab.evaluation.domains.langevin import Chain
from trimtab.evaluation.domains.se3 import ALPHA, VIEW, PoseChain, PoseFlow, carried_pose
from trimtab.evaluation.domains.so3 import RotationFlow, rotation_pull
from trimtab.evaluation.domains.so3_impulse import Impulses

__all__ = ["LeverChain", "make", "make_flow"]


@dataclass(frozen=True)
class LeverChain:
    """The steps of `PoseChain`, and in each of them a displacement of `lever` times (A - Π(A)) e₃.

    The position is that of the tip of an arm of that length along the body's third axis: a matrix that is stretched
    by a strain S carries the tip A S e₃ times the length away from where a rotation would. A S is written as -A pull,
    so that no projection is needed.
    """

    base: PoseChain = field(default_factory=PoseChain)
    lever: float = 1.0

    def __post_init__(self) -> None:
        """Refuse a lever that is none."""
        if not self.lever >= 0:
            raise ValueError(f"lever is a length of at least 0: got {self.lever!r}")

    @property
    def n_steps(self) -> int:
        """T."""
        return self.base.n_steps

    def start(self, noise: Noise) -> Tensor:
        """As in `se3`, (n, 3, 4)."""
        return self.base.start(noise)

    def step(self, x: Tensor, t: int, noise: Noise) -> Tensor:
        """Proposals, (n, 3, 4)."""
        a = batch_last(x[..., :3])
        proposal = self.base.step(x, t, noise)
        proposal[..., 3] -= self.lever * batch_first(product(a, rotation_pull(a)[:, 2:])[:, 0])
        return proposal


def make(*, lever: float = 1.0, **settings: Any) -> Domain:
    """The domain `se3-lever`; settings are `lever` and the fields of `Chain`."""
    chain = Chain(**settings)
    sampler, constraint = LeverChain(PoseChain(chain), lever), SE3(Sphere(), ALPHA)
    distance = partial(pose_distance, alpha=ALPHA)
    problem = partial(Problem, sampler, constraint, distance=distance)
    return Domain(
        name="se3-lever",
        summary="se3 where errors of the rotation displace the position, amplified",
        problem=problem,
        distance=distance,
        settings=chain.settings() | {"lever": lever},
        view=replace(VIEW, label="SE(3)-Lever"),
    )


def make_flow(
    *,
    bursts: int = 4,
    width: int = 2,
    strength: float = 0.15,
    swing: float = 1.0,
    spread: float = 0.5,
    arm: float = 5.0,
    **settings: Any,
) -> Domain:
    """The domain `se3-lever` with `dynamics="flow"`: `se3` with a longer arm and bursts of noise on the rotation."""
    sampler = PoseFlow(RotationFlow(Flow(**settings), swing, spread), arm, Impulses(bursts, width, strength))
    own = {"bursts": bursts, "width": width, "strength": strength, "swing": swing, "spread": spread, "arm": arm}
    summary = "a body that carries its position along on a long arm, and is pushed at random times"
    return carried_pose("se3-lever", summary, sampler, replace(VIEW, label="SE(3)-Lever"), **own)
