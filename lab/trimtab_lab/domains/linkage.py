"""A closed linkage: a chain of bars pinned at both ends, sampled by its joint angles, which need not close the loop.

States are the angles at the joints, (n, bars). A step moves every joint on its own, so the far end of the chain leaves
its pin; the gap is the defect. The projection closes it by Gauss-Newton steps, which the solver offers one by one
(`improve`), so that a correction can be a part of a projection.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from trimtab.constraints.equality import NonlinearEquality
from trimtab.core.noise import Noise
from trimtab_lab.domains.base import Domain, View, synthetic
from trimtab_lab.domains.dynamics import Bursts, Chain

__all__ = ["SAMPLERS", "Bars", "LinkageChain", "joint_distance", "joint_places", "make"]

_CONCENTRATION = 2.0
_SPREAD = 0.3  # of the joints about the first posture


@dataclass(frozen=True)
class Bars:
    """A chain of bars of length 1 from a pin at the origin to a pin at (frame, 0).

    The equations lose rank only at closed postures with all bars in a line. There are none unless the frame is a sum
    of as many ones and minus ones as there are bars: six bars and a frame of 3 have none.
    """

    count: int = 6  # number of bars; the loop can move in count - 2 ways
    frame: float = 3.0  # distance of the pins

    def gap(self, joints: Tensor) -> Tensor:
        """Return the vector from the second pin to the end of the chain of one sample, (count,) to (2,)."""
        bars = joints.cumsum(0)
        return torch.stack([bars.cos().sum() - self.frame, bars.sin().sum()])

    def posture(self, shape: Iterable[float]) -> Tensor:
        """Return the joint angles, (count,), of a closed posture whose bars have angles in proportion to `shape`.

        The shape must change its sign when it is read backwards: then the chain ends at the height of its pins.
        """
        turns = torch.tensor(list(shape), dtype=torch.float64)
        low, high = 0.0, math.pi  # in this range the chain gets shorter as the angles grow
        for _ in range(60):
            middle = (low + high) / 2
            longer = bool((middle * turns).cos().sum() > self.frame)
            low, high = (middle, high) if longer else (low, middle)
        bars = low * turns
        return torch.cat([bars[:1], bars.diff()])

    @property
    def arch(self) -> Tensor:
        """The posture of an arch above the pins, (count,)."""
        return self.posture(1 - 2 * i / (self.count - 1) for i in range(self.count))

    @property
    def wave(self) -> Tensor:
        """A posture first above and then below the pins, (count,)."""
        return self.posture(math.sin(2 * math.pi * (i + 0.5) / self.count) for i in range(self.count))


@dataclass(frozen=True)
class LinkageChain(Bursts, Chain):
    """A Langevin chain of joint angles that drifts along closed postures to one of two arches, with bursts of noise.

    The log density is that of two postures, each a product of von Mises densities. The drift is its gradient without
    the part that would open the loop. The pull is the share kappa of a Gauss-Newton step.
    """

    summary: ClassVar[str] = "joint angles of a chain of bars pinned at both ends, closed by Gauss-Newton"

    width: int = 1
    strength: float = 0.3
    bars: int = 6  # number of bars
    frame: float = 3.0  # distance of the pins
    tolerance: float = 1e-8  # gap at which a projection has converged

    def __post_init__(self) -> None:
        """Check that the bars can close a loop that moves."""
        super().__post_init__()
        if self.bars < 3:
            raise ValueError(f"bars must be at least 3, or the loop cannot move: got {self.bars!r}")
        if not self.frame < self.bars:
            raise ValueError(f"frame must be in (0, {self.bars}), the reach of {self.bars} bars: got {self.frame!r}")

    @property
    def loop(self) -> Bars:
        """The mechanism."""
        return Bars(self.bars, self.frame)

    @cached_property
    def constraint(self) -> NonlinearEquality:
        """The equations of the closed loop; without refinements a projection is exactly its Gauss-Newton steps."""
        return NonlinearEquality(self.loop.gap, tolerance=self.tolerance, refinements=0)

    def start(self, noise: Noise) -> Tensor:
        """Draw closed postures about a wave, which starts above the pins or below them, (n, bars)."""
        spread = _SPREAD * (2 * noise.uniform(-1, (self.bars,)) - 1)
        side = torch.where(noise.uniform(-1, (1,), stream=1) < 0.5, -1, 1)
        closed: Tensor = self.constraint.project(side * (self.loop.wave + spread)).x
        return closed

    def step(self, x: Tensor, t: int, noise: Noise) -> Tensor:
        """Return proposals, (n, bars)."""
        event = (self.bars,)
        return x + self._motion(x) + self.noise(t) * noise.normal(t, event) + self.burst(t, noise, event)

    @cached_property
    def _arch(self) -> Tensor:
        return self.loop.arch

    def _motion(self, q: Tensor) -> Tensor:
        """Return the drift along the closed postures and the pull towards them, (n, bars)."""
        sines, cosines = q.cumsum(1).sin(), q.cumsum(1).cos()
        # a joint turns all that lies beyond it: column k of the Jacobian is a sum over the bars from k on
        beyond = torch.stack([-sines, cosines], dim=1).flip(2).cumsum(2).flip(2)  # (n, 2, bars)
        gap = torch.stack([cosines.sum(1) - self.frame, sines.sum(1)], dim=1)
        # sin(arch - q) leads to the arch and sin(-arch - q) to its mirror image, weighted by their shares
        arch = self._arch.to(q)
        share = torch.sigmoid(2 * _CONCENTRATION * (arch.sin() * q.sin()).sum(dim=1, keepdim=True))
        wish = self.drift * ((2 * share - 1) * arch.sin() * q.cos() - arch.cos() * q.sin())
        # the shortest change of the joints that takes back kappa of the gap and what the wish would add to it
        back = beyond @ wish[..., None] + self.kappa * gap[..., None]
        solved: Tensor = torch.linalg.solve(beyond @ beyond.mT, back)
        return wish - (beyond.mT @ solved)[..., 0]


def joint_places(x: Tensor) -> Tensor:
    """Return the places of the ends of the bars, the first pin included, (n, bars) to (n, bars + 1, 2)."""
    bars = x.cumsum(1)
    ends = torch.stack([bars.cos(), bars.sin()], dim=2).cumsum(1)
    return torch.cat([torch.zeros_like(ends[:, :1]), ends], dim=1)


def joint_distance(a: Tensor, b: Tensor) -> Tensor:
    """Return the root-mean-square distance of the ends of the bars of a and b, (n, bars) each, as (n,)."""
    apart = joint_places(a)[:, 1:] - joint_places(b)[:, 1:]
    return apart.square().sum(dim=2).mean(dim=1).sqrt()


SAMPLERS = {"linkage": {"langevin": LinkageChain}}
"""The sampler of this module by domain and dynamics."""


def make(name: str, sampler: LinkageChain) -> Domain:
    """Return the domain `linkage` with this sampler."""
    view = View("Linkage", "the final posture of the bars", ("x", "y"), joint_places, final=True)
    return synthetic(name, sampler, sampler.constraint, joint_distance, view)
