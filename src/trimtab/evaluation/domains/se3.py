"""Poses on a viewing sphere: rotation as in `so3`, and a position that follows the axis of the rotation."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from trimtab.constraints.rotation import SE3, nearest_rotation, pose_distance
from trimtab.constraints.sets import Sphere
from trimtab.core.exact_math import batch_first, batch_last, product, sqrt, stack
from trimtab.core.noise import Noise
from trimtab.evaluation.domains.base import Domain, Problem, View
from trimtab.evaluation.domains.flow import Flow
from trimtab.evaluation.domains.langevin import Chain
from trimtab.evaluation.domains.so3 import RotationFlow, rotation_pull, rotation_score
from trimtab.evaluation.domains.so3_impulse import Impulses

__all__ = ["ALPHA", "VIEW", "PoseChain", "PoseFlow", "carried_pose", "make", "make_flow"]

VIEW = View("SE(3)", "the translation of the pose", ("x", "y", "z"), lambda x: x[:, :, -1])
ALPHA = 1.0  # one unit of length counts as one radian: the sphere has radius 1
_TINY = 1e-12  # below this distance from the centre there is no direction away from it


@dataclass(frozen=True)
class PoseChain:
    """A Langevin chain of poses [A | p] whose log density is that of `so3` for A plus pᵀ A e₃ / norm(p).

    The last term couples the parts: the third axis of the body turns towards the position, and the position
    moves towards that axis, as for a camera on a sphere that faces outward.
    """

    chain: Chain = field(default_factory=Chain)

    @property
    def n_steps(self) -> int:
        """T."""
        return self.chain.n_steps

    def start(self, noise: Noise) -> Tensor:
        """A uniform rotation and a uniform position on the unit sphere, (n, 3, 4)."""
        rotation = nearest_rotation(noise.normal(-1, (3, 3)))
        position = Sphere().project(noise.normal(-1, (3,), stream=1))
        return torch.cat([rotation, position[..., None]], dim=2)

    def step(self, x: Tensor, t: int, noise: Noise) -> Tensor:
        """Proposals, (n, 3, 4)."""
        pose = batch_last(x)
        a, p = pose[:, :3], pose[:, 3]
        drift, kappa = self.chain.drift, self.chain.kappa
        radius = sqrt(p[0] * p[0] + p[1] * p[1] + p[2] * p[2]).clip(_TINY)
        towards = p / radius
        axis = a[:, 2]

        turn = rotation_score(a)
        facing = product(a.swapaxes(0, 1), towards[:, None])[:, 0]  # the same, in the frame of the body
        turn = stack([turn[:, 0], turn[:, 1], turn[:, 2] + facing]).swapaxes(0, 1)
        turn = (turn - turn.swapaxes(0, 1)) / 2
        rotation = product(a, drift * turn + kappa * rotation_pull(a))

        position = drift * (axis - towards * facing[2]) + kappa * (1 - radius) * towards

        motion = stack([rotation[:, 0], rotation[:, 1], rotation[:, 2], position]).swapaxes(0, 1)
        return batch_first(pose + motion + self.chain.noise(t) * batch_last(noise.normal(t, (3, 4))))


@dataclass(frozen=True)
class PoseFlow:
    """The turning body of `so3`, which carries its position along: p' = p + arm speed A e₁. Positions are free.

    Attributes:
        base: The rotation.
        arm: How far the position moves while the body turns by one radian about its own axis.
        impulses: Bursts of noise on the rotation, if there are any.
    """

    base: RotationFlow = field(default_factory=RotationFlow)
    arm: float = 1.0
    impulses: Impulses | None = None

    @property
    def n_steps(self) -> int:
        """T."""
        return self.base.n_steps

    def start(self, noise: Noise) -> Tensor:
        """A rotation as in `so3`, at the origin, (n, 3, 4)."""
        rotation = self.base.start(noise)
        return torch.cat([rotation, torch.zeros_like(rotation[..., :1])], dim=2)

    def step(self, x: Tensor, t: int, noise: Noise) -> Tensor:
        """Proposals, (n, 3, 4)."""
        pose = batch_last(x)
        a, p = pose[:, :3], pose[:, 3]
        turned = self.base.moved(a, t)
        if self.impulses is not None:
            turned = turned + batch_last(self.impulses.at(t, self.n_steps, noise))
        carried = p + (self.arm * self.base.flow.speed(t)) * a[:, 0]
        moved = stack([turned[:, 0], turned[:, 1], turned[:, 2], carried]).swapaxes(0, 1)
        return batch_first(moved + self.base.flow.noise * batch_last(noise.normal(t, (3, 4))))


def make(**settings: Any) -> Domain:
    """The domain `se3`; settings are the fields of `Chain`."""
    chain = Chain(**settings)
    sampler, constraint = PoseChain(chain), SE3(Sphere(), ALPHA)
    distance = partial(pose_distance, alpha=ALPHA)
    problem = partial(Problem, sampler, constraint, distance=distance)
    return Domain(
        name="se3",
        summary="poses on a viewing sphere, position and orientation attracting each other",
        problem=problem,
        distance=distance,
        settings=chain.settings(),
        view=VIEW,
    )


def carried_pose(name: str, summary: str, sampler: PoseFlow, view: View = VIEW, **settings: Any) -> Domain:
    """A pose that flows as a domain, its position free."""
    constraint, distance = SE3(alpha=ALPHA), partial(pose_distance, alpha=ALPHA)
    problem = partial(Problem, sampler, constraint, distance=distance)
    return Domain(name, summary, problem, distance, sampler.base.flow.settings() | settings, view=view)


def make_flow(*, swing: float = 1.0, spread: float = 0.5, arm: float = 1.0, **settings: Any) -> Domain:
    """The domain `se3` with `dynamics="flow"`; settings are those of `PoseFlow` and the fields of `Flow`."""
    sampler = PoseFlow(RotationFlow(Flow(**settings), swing, spread), arm)
    return carried_pose(
        "se3", "a turning body that carries its position along", sampler, swing=swing, spread=spread, arm=arm
    )
