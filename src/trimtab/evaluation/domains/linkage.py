"""A closed linkage: a chain of bars pinned at both ends, sampled by its joint angles, which need not close the loop.

The state is what a mechanism's encoders measure, the angle at each joint. A step moves every joint by itself, so that
the far end of the chain leaves its pin; the gap is the defect. The projection closes it by Gauss-Newton steps, each of
which the solver offers by itself (`improve`), so that a correction can be a part of one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from trimtab.constraints.equality import NonlinearEquality
from trimtab.core.errors import check_number
from trimtab.core.exact_math import Array, batch_first, batch_last, logistic, sin_cos, stack
from trimtab.core.noise import Noise
from trimtab.evaluation.domains.base import Domain, Problem, View
from trimtab.evaluation.domains.langevin import Chain
from trimtab.evaluation.domains.so3_impulse import Impulses

__all__ = ["Bars", "LinkageChain", "joint_distance", "joint_places", "make"]

_CONCENTRATION = 2.0
_SPREAD = 0.3  # of the joints about the first posture


@dataclass(frozen=True)
class Bars:
    """A chain of bars of length 1 from a pin at the origin to a pin at (frame, 0).

    A closed posture at which the equations lose rank is one with all bars in a line. There is none unless the frame is
    a sum of as many ones and minus ones as there are bars: six bars and a frame of 3 have none.

    Attributes:
        count: Bars, of which the frame is not one: there are count - 2 ways to move.
        frame: Distance of the pins.
    """

    count: int = 6
    frame: float = 3.0

    def __post_init__(self) -> None:
        """Refuse a chain that does not close or cannot move."""
        if isinstance(self.count, bool) or not isinstance(self.count, int) or self.count < 3:
            raise ValueError(
                f"bars must be a whole number of at least 3, with which a loop can move: got {self.count!r}"
            )
        check_number(self.frame, "frame")
        if not 0 < self.frame < self.count:
            raise ValueError(
                f"{self.count} bars of length 1 reach over a frame in (0, {self.count}): got {self.frame!r}"
            )

    def gap(self, joints: Tensor) -> Tensor:
        """From the second pin to the end of the chain, of one sample's joint angles, (count,) to (2,)."""
        bars = joints.cumsum(0)
        return torch.stack([bars.cos().sum() - self.frame, bars.sin().sum()])

    def posture(self, shape: Iterable[float]) -> Tensor:
        """The joint angles, (count,), of a closed posture whose bars' angles are in proportion to `shape`.

        The shape must be its own opposite read backwards: then the chain ends at the height of its pins.
        """
        turns = list(shape)
        low, high = 0.0, math.pi  # within which the chain gets shorter as the angles grow
        for _ in range(60):
            middle = (low + high) / 2
            longer = math.fsum(math.cos(middle * turn) for turn in turns) > self.frame
            low, high = (middle, high) if longer else (low, middle)
        bars = torch.tensor([low * turn for turn in turns], dtype=torch.float64)
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
class LinkageChain:
    """A Langevin chain of joint angles that drifts along closed postures to one of two arches, with bursts of noise.

    The log density is that of two postures, each a product of von Mises densities. Its gradient loses the part that
    would open the loop; what has opened is closed by the share kappa of a Gauss-Newton step.

    Attributes:
        chain: Step sizes.
        impulses: The bursts.
        bars: The mechanism.
        constraint: Closes the loop of the same bars: `NonlinearEquality(bars.gap, …)`.
    """

    chain: Chain = field(default_factory=Chain)
    impulses: Impulses = field(default_factory=lambda: Impulses(width=1, strength=0.3))
    bars: Bars = field(default_factory=Bars)
    constraint: NonlinearEquality = field(default_factory=lambda: NonlinearEquality(Bars().gap, refinements=0))

    def __post_init__(self) -> None:
        """Refuse a constraint that closes another loop."""
        off = float(self.constraint.defect(self.bars.wave[None]))
        if not off <= 1e-9:
            raise ValueError(
                f"the constraint closes another loop than that of {self.bars}, of which a closed posture is off by "
                f"{off:.2g}; give constraint=NonlinearEquality(bars.gap, refinements=0) with the same bars"
            )

    @property
    def n_steps(self) -> int:
        """T."""
        return self.chain.n_steps

    def start(self, noise: Noise) -> Tensor:
        """Closed postures about a wave, which begins above the pins or below them, (n, bars)."""
        spread = _SPREAD * (2 * noise.uniform(-1, (self.bars.count,)) - 1)
        side = torch.where(noise.uniform(-1, (1,), stream=1) < 0.5, -1, 1)
        closed: Tensor = self.constraint.project(side * (self.bars.wave + spread)).x
        return closed

    def step(self, x: Tensor, t: int, noise: Noise) -> Tensor:
        """Proposals, (n, bars)."""
        q = batch_last(x)
        moved = batch_first(q + self._motion(q))
        own = self.chain.noise(t) * noise.normal(t, (self.bars.count,))
        return moved + own + self.impulses.at(t, self.n_steps, noise, (self.bars.count,))

    @cached_property
    def _arch(self) -> list[tuple[float, float]]:
        """Sine and cosine of each joint angle of the arch; those of its mirror image are (-sine, cosine)."""
        return [(math.sin(angle), math.cos(angle)) for angle in self.bars.arch.tolist()]

    def _motion(self, q: Array) -> Array:
        """Drift along the closed postures and pull towards them, (bars, n)."""
        bars = [q[0]]
        for angle in q[1:]:
            bars.append(bars[-1] + angle)
        (sines, cosines), (sin_q, cos_q) = sin_cos(stack(bars)), sin_cos(q)
        # J: what lies beyond a joint turns about it, and with it the end
        beyond = [(-sines[-1], cosines[-1])]
        for sine, cosine in zip(sines[-2::-1], cosines[-2::-1], strict=True):
            beyond.append((beyond[-1][0] - sine, beyond[-1][1] + cosine))
        across, up = (stack(part) for part in zip(*beyond[::-1], strict=True))
        # towards the arch sin(a - q), and towards its mirror image sin(-a - q), by their shares
        over = stack([sine * c for (sine, _), c in zip(self._arch, cos_q, strict=True)])
        both = stack([cosine * s for (_, cosine), s in zip(self._arch, sin_q, strict=True)])
        nearer = _total([2 * sine * s for (sine, _), s in zip(self._arch, sin_q, strict=True)])
        share = logistic(_CONCENTRATION * nearer)
        wish = self.chain.drift * ((2 * share - 1) * over - both)
        # the shortest change of joints that moves the end back by kappa of the gap and by what the wish would move it
        gap = (_total(cosines) - self.bars.frame, _total(sines))
        back_x = _total(across * wish) + self.chain.kappa * gap[0]
        back_y = _total(up * wish) + self.chain.kappa * gap[1]
        xx, xy, yy = _total(across * across), _total(across * up), _total(up * up)
        area = xx * yy - xy * xy
        return wish - across * ((yy * back_x - xy * back_y) / area) - up * ((xx * back_y - xy * back_x) / area)


def _total(parts: Any) -> Array:
    """The sum of (n,) arrays, term by term."""
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def joint_places(x: Tensor) -> Tensor:
    """Where the ends of the bars are, the first pin among them, (n, bars) to (n, bars + 1, 2)."""
    bars = x.cumsum(1)
    ends = torch.stack([bars.cos(), bars.sin()], dim=2).cumsum(1)
    return torch.cat([torch.zeros_like(ends[:, :1]), ends], dim=1)


def joint_distance(a: Tensor, b: Tensor) -> Tensor:
    """Root-mean-square distance of the ends of the bars, (n, bars) twice to (n,)."""
    apart = joint_places(a)[:, 1:] - joint_places(b)[:, 1:]
    return apart.square().sum(dim=2).mean(dim=1).sqrt()


def make(
    *,
    bars: int = 6,
    frame: float = 3.0,
    bursts: int = 4,
    width: int = 1,
    strength: float = 0.3,
    tolerance: float = 1e-8,
    **settings: Any,
) -> Domain:
    """The domain `linkage`; settings are those of `Bars` and `Impulses`, the tolerance, and the fields of `Chain`."""
    loop, chain, impulses = Bars(bars, frame), Chain(**settings), Impulses(bursts, width, strength)
    # without refinements, so that a projection is exactly its Gauss-Newton steps to the end
    constraint = NonlinearEquality(loop.gap, tolerance=tolerance, refinements=0)
    sampler = LinkageChain(chain, impulses, loop, constraint)
    problem = partial(Problem, sampler, constraint, distance=joint_distance)
    own = {"bars": bars, "frame": frame, "bursts": bursts, "width": width, "strength": strength, "tolerance": tolerance}
    return Domain(
        name="linkage",
        summary="joint angles of a chain of bars pinned at both ends, closed by Gauss-Newton",
        problem=problem,
        distance=joint_distance,
        settings=chain.settings() | own,
        view=View("Linkage", "the final posture of the bars", ("x", "y"), joint_places, final=True),
    )
