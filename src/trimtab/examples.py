"""A sampler of a few lines, for examples and for trying things: points that drift along an ellipsoid, in gusts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from trimtab.constraints.equality import NonlinearEquality
from trimtab.core.noise import Noise, as_seeds
from trimtab.loop.rollout import Problem

__all__ = ["Drift", "ellipsoid", "problem"]


@dataclass(frozen=True)
class Drift:
    """Points that turn slowly and are blown off their surface by rare gusts.

    Attributes:
        n_steps: T.
        gust: Size of a gust, which comes in about one of ten steps, in units of the usual noise.
    """

    n_steps: int = 40
    gust: float = 8.0

    def start(self, noise: Noise) -> Tensor:
        """Return points on the unit sphere, (n, 3), which the first correction moves to the surface."""
        x: Tensor = noise.start((3,))
        return x.div(x.norm(dim=1, keepdim=True))

    def step(self, x: Tensor, t: int, noise: Noise) -> Tensor:
        """Return the points after a small turn and noise, (n, 3)."""
        drawn = noise.normal(t, (4,))
        size = torch.where(drawn[:, 3:] > 1.3, self.gust, 1.0)
        return x + 0.05 * x.roll(1, dims=1) + 0.02 * size * drawn[:, :3]


def _height(y: Tensor) -> Tensor:
    return (y[0] ** 2 + y[1] ** 2 + 4 * y[2] ** 2 - 1)[None]


def ellipsoid() -> NonlinearEquality:
    """Return the constraint x² + y² + 4 z² = 1 of points (n, 3), projected by Gauss-Newton iterations."""
    return NonlinearEquality(_height)


def problem(seeds: Iterable[int] | Tensor, n_steps: int = 40) -> Problem:
    """Return drifting points with their constraint, one for each seed.

    Example:
        >>> import trimtab as tt
        >>> run = problem(range(8), n_steps=20).rollout(tt.Periodic(0.25))
        >>> run.spent.tolist(), bool(run.feasible.all())
        ([5, 5, 5, 5, 5, 5, 5, 5], True)
    """
    return Problem(Drift(n_steps), ellipsoid(), as_seeds(seeds))
