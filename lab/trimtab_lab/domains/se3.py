"""Poses: `se3`, and `se3-lever`, where errors of the rotation displace the position.

States are matrices [A | p], (n, 3, 4). The constraint is that A is a rotation. In the flows the position is free, as
in the paper, whose projection leaves the translation unchanged "unless the domain-specific constraint requires" more.
In the chains, and in the flows `se3-sphere` and `se3-lever-sphere`, p must lie on the unit sphere too. There rotation
and position drive each other, so that an error of one becomes an error of the other: a strained A carries p along the
wrong way, and a p off the sphere turns A at the wrong rate.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from trimtab.constraints.rotation import SE3, nearest_rotation, pose_distance
from trimtab.constraints.sets import Sphere
from trimtab.core.noise import Noise
from trimtab_lab.domains.base import Domain, View, synthetic
from trimtab_lab.domains.dynamics import Bursts, Chain
from trimtab_lab.domains.so3 import RotationFlow, rotation_pull, rotation_score

__all__ = ["SAMPLERS", "LeverChain", "LeverFlow", "PoseChain", "PoseFlow", "make"]

ALPHA = 1.0  # one unit of length counts as one radian: the sphere has radius 1
_TINY = 1e-12  # closer to the centre than this, no direction leads away from it


def _outward(p: Tensor) -> tuple[Tensor, Tensor]:
    """Return the distance from the centre, (n, 1), and the direction away from it, (n, 3), of positions (n, 3)."""
    radius = p.norm(dim=1, keepdim=True).clamp(min=_TINY)
    return radius, p / radius


def _tip_displacement(a: Tensor) -> Tensor:
    """Return (A - Π(A)) e₃ to first order, (n, 3, 3) to (n, 3), without a projection.

    A matrix that is stretched by a strain carries the tip of a lever along e₃ this far from where a rotation would,
    for each unit of the length of the lever.
    """
    return -(a @ rotation_pull(a))[:, :, 2]


@dataclass(frozen=True)
class PoseChain(Chain):
    """A Langevin chain of poses whose log density is that of `so3` for A plus pᵀ A e₃ / norm(p).

    The last term couples the two: the third axis of the body turns towards the position, and the position moves
    towards that axis, as for a camera on a sphere that faces outward.
    """

    summary: ClassVar[str] = "poses on a viewing sphere, position and orientation attracting each other"

    def start(self, noise: Noise) -> Tensor:
        """Draw a uniform rotation and a uniform position on the unit sphere, (n, 3, 4)."""
        rotation = nearest_rotation(noise.start((3, 3)))
        position = Sphere().project(noise.start((3,), stream=1))
        return torch.cat([rotation, position[..., None]], dim=2)

    def step(self, x: Tensor, t: int, noise: Noise) -> Tensor:
        """Return proposals, (n, 3, 4)."""
        a, p = x[..., :3], x[..., 3]
        radius, outward = _outward(p)
        facing = (outward[:, None] @ a)[:, 0]  # the outward direction in the frame of the body
        turn = rotation_score(a)
        turn[:, :, 2] += facing
        turn = (turn - turn.mT) / 2
        rotation = a @ (self.drift * turn + self.kappa * rotation_pull(a))
        position = self.drift * (a[:, :, 2] - outward * facing[:, 2:]) + self.kappa * (1 - radius) * outward
        motion = torch.cat([rotation, position[..., None]], dim=2)
        return x + motion + self.noise(t) * noise.normal(t, (3, 4))


@dataclass(frozen=True)
class LeverChain(PoseChain):
    """The chain of `se3`, whose position is the tip of a lever along the third axis of the body."""

    summary: ClassVar[str] = "se3 where errors of the rotation displace the position, amplified"

    lever: float = 1.0  # length of the lever: each step displaces the position by `lever` (A - Π(A)) e₃

    def step(self, x: Tensor, t: int, noise: Noise) -> Tensor:
        """Return proposals, (n, 3, 4)."""
        proposal = super().step(x, t, noise)
        proposal[..., 3] += self.lever * _tip_displacement(x[..., :3])
        return proposal


@dataclass(frozen=True)
class PoseFlow(RotationFlow):
    """A body that turns about its own axis e₃ and carries its position along A e₁.

        A' = A + speed A hat(e₃ + c Aᵀe₁) + …,    p' = p + arm speed A e₁

    The position is free: it starts at the origin, no projection changes it, and it does not act on the rotation. It
    keeps what errors of the rotation have done to it.

    On a sphere the two drive each other:

        A' = A + speed A hat(e₃ + c Aᵀp) + …,    p' = p + arm speed (A e₁) × p + kappa (way back to the sphere) + …

    Both Euler steps leave the set, and both fields are evaluated off it: a strained A turns p too far or about a wrong
    axis, and a p off the sphere turns A too far.

    Attributes:
        arm: How far the position moves while the body turns by one radian about its own axis.
        radius: The radius of the sphere that the position must lie on; 0 leaves it free.
    """

    summary: ClassVar[str] = "a body that turns about two axes and carries its position along"

    arm: float = 2.0
    radius: float = 0.0

    def start(self, noise: Noise) -> Tensor:
        """Draw a rotation as in `so3`, with the position at `radius` along its third axis, (n, 3, 4)."""
        rotation = super().start(noise)
        return torch.cat([rotation, self.radius * rotation[..., 2:]], dim=2)

    def step(self, x: Tensor, t: int, noise: Noise) -> Tensor:
        """Return proposals, (n, 3, 4)."""
        a, p = x[..., :3], x[..., 3]
        axis, velocity, back = a[:, 0], a[:, :, 0], torch.zeros_like(p)
        if self.radius:
            distance, outward = _outward(p)
            axis, velocity = (p[:, None] @ a)[:, 0] / self.radius, torch.linalg.cross(velocity, p)
            back = (self.radius - distance) * outward
        carried = p + self.arm * self.speed(t) * velocity + self.kappa * back
        moved = torch.cat([self.turned(a, t, axis), carried[..., None]], dim=2)
        return moved + self.noise * noise.normal(t, (3, 4))


@dataclass(frozen=True)
class LeverFlow(Bursts, PoseFlow):
    """The flow of `se3` with bursts of noise on the rotation, whose position is the tip of a lever.

    A burst strains A, and from the next step on the strain displaces the position until it is corrected. The endpoint
    therefore depends on rotation errors that are small themselves.
    """

    summary: ClassVar[str] = "the body of se3 at the end of a lever, pushed at random times"

    lever: float = 1.0  # length of the lever: each step displaces the position by `lever` (A - Π(A)) e₃

    def step(self, x: Tensor, t: int, noise: Noise) -> Tensor:
        """Return proposals, (n, 3, 4)."""
        proposal = super().step(x, t, noise)
        proposal[..., :3] += self.burst(t, noise, (3, 3))
        proposal[..., 3] += self.lever * _tip_displacement(x[..., :3])
        return proposal


def _position(x: Tensor) -> Tensor:
    return x[:, :, -1]


SAMPLERS = {
    "se3": {"langevin": PoseChain, "flow": PoseFlow},
    "se3-lever": {"langevin": LeverChain, "flow": LeverFlow},
}
"""The samplers of this module by domain and dynamics."""


def make(name: str, sampler: PoseChain | PoseFlow) -> Domain:
    """Return the domain `se3` or `se3-lever` with this sampler."""
    radius = sampler.radius if isinstance(sampler, PoseFlow) else 1.0
    constraint = SE3(Sphere(radius) if radius else None, ALPHA)
    label = "SE(3)-Lever" if name == "se3-lever" else "SE(3)"
    view = View(label, "the translation of the pose", ("x", "y", "z"), _position)
    return synthetic(name, sampler, constraint, partial(pose_distance, alpha=ALPHA), view)
