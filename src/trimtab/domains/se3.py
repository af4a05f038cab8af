"""Poses on a viewing sphere: rotation as in `so3`, and a position that follows the axis of the rotation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from trimtab.constraints.pose import SE3, pose_distance
from trimtab.constraints.rotation import multiply, nearest_rotation, transpose_multiply
from trimtab.constraints.sphere import Sphere
from trimtab.core.noise import Noise
from trimtab.domains.base import Domain, Problem
from trimtab.domains.langevin import Chain
from trimtab.domains.so3 import rotation_pull, rotation_score

__all__ = ["PoseChain", "make"]

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
        a, p = x[..., :3], x[..., 3:]
        drift, kappa = self.chain.drift, self.chain.kappa
        radius = transpose_multiply(p, p).sqrt().clamp(min=_TINY)
        towards = p / radius

        score = rotation_score(a)
        score = torch.cat([score[..., :2], score[..., 2:] + towards], dim=2)
        turn = transpose_multiply(a, score)
        turn = (turn - turn.transpose(1, 2)) / 2
        rotation = multiply(a, drift * turn + kappa * rotation_pull(a))

        axis = a[..., 2:]
        along = axis - towards * transpose_multiply(towards, axis)
        position = drift * along + kappa * (1 - radius) * towards

        return x + torch.cat([rotation, position], dim=2) + self.chain.noise(t) * noise.normal(t, (3, 4))


def make(**settings: Any) -> Domain:
    """The domain `se3`; settings are the fields of `Chain`."""
    chain = Chain(**settings)
    sampler, constraint = PoseChain(chain), SE3(Sphere(), ALPHA)
    distance = partial(pose_distance, alpha=ALPHA)

    def problem(seeds: Iterable[int] | Tensor) -> Problem:
        return Problem(sampler, constraint, seeds, distance)

    return Domain(
        name="se3",
        summary="poses on a viewing sphere, position and orientation attracting each other",
        problem=problem,
        distance=distance,
        settings=chain.settings(),
    )
