"""A walk over hills: points (u, v, z) that cross a height field towards two places on its far side."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from trimtab.constraints.surface import Surface
from trimtab.core.noise import Noise
from trimtab.domains.base import Domain, Problem
from trimtab.domains.langevin import Chain

__all__ = ["Ridge", "Terrain", "WalkChain", "euclidean_distance", "make", "walk"]

_PLACES = ((1.5, 0.7), (1.5, -0.7))  # where the modes are, as u, v
_SOFTENING = 0.25  # within this distance of a mode the walk slows down
_CONCENTRATION = 2.0


@dataclass(frozen=True)
class Ridge:
    """A straight crest with a Gaussian profile.

    Attributes:
        normal: Unit vector across the crest, as u, v.
        offset: Distance of the crest from the origin along `normal`.
        height: Of the crest.
        width: Standard deviation of the profile.
    """

    normal: tuple[float, float]
    offset: float
    height: float = 0.25
    width: float = 0.05


@dataclass(frozen=True)
class Terrain:
    """Smooth hills, and ridges on them if there are any."""

    ridges: tuple[Ridge, ...] = ()

    def height(self, u: Tensor, v: Tensor) -> Tensor:
        """The surface above each point of the map, (n,)."""
        z = 0.3 * (1.5 * u).sin() * (1.2 * v).cos() + 0.15 * (0.8 * u + 1.7 * v).sin()
        for ridge in self.ridges:
            z = z + ridge.height * _profile(ridge, u, v)[1]
        return z

    def slope(self, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Derivatives of the height by u and by v, (n,) each."""
        diagonal = 0.15 * (0.8 * u + 1.7 * v).cos()
        by_u = 0.45 * (1.5 * u).cos() * (1.2 * v).cos() + 0.8 * diagonal
        by_v = -0.36 * (1.5 * u).sin() * (1.2 * v).sin() + 1.7 * diagonal
        for ridge in self.ridges:
            across, profile = _profile(ridge, u, v)
            fall = (-ridge.height / ridge.width) * across * profile
            by_u = by_u + ridge.normal[0] * fall
            by_v = by_v + ridge.normal[1] * fall
        return by_u, by_v


def _profile(ridge: Ridge, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Distance from the crest in widths, and the height there as a share of the crest's."""
    across = (ridge.normal[0] * u + ridge.normal[1] * v - ridge.offset) / ridge.width
    return across, (-0.5 * across * across).exp()


@dataclass(frozen=True)
class WalkChain:
    """A Langevin chain that climbs its log density in the coordinates u, v and is pulled back along the normal.

    The ambient gradient g of the log density becomes Jᵀ g on the map and J Jᵀ g in space, with J the derivative of
    (u, v, height(u, v)): a step along the surface whose pace is measured on the map.
    """

    chain: Chain = field(default_factory=Chain)
    terrain: Terrain = field(default_factory=Terrain)

    @property
    def n_steps(self) -> int:
        """T."""
        return self.chain.n_steps

    def start(self, noise: Noise) -> Tensor:
        """Points of the near side, u about -1.5 and v within ±1, on the surface, (n, 3)."""
        side, along = noise.uniform(-1, (2,)).unbind(1)
        u, v = -1.6 + 0.2 * side, 2 * along - 1
        return torch.stack([u, v, self.terrain.height(u, v)], dim=1)

    def step(self, x: Tensor, t: int, noise: Noise) -> Tensor:
        """Proposals, (n, 3)."""
        u, v, z = x.unbind(1)
        by_u, by_v = self.terrain.slope(u, v)
        score_u, score_v, score_z = self._score(x).unbind(1)
        pace_u = self.chain.drift * (score_u + by_u * score_z)
        pace_v = self.chain.drift * (score_v + by_v * score_z)
        # (-by_u, -by_v, 1) is normal to the surface below the point: one Gauss-Newton step is this far along it
        above = z - self.terrain.height(u, v)
        back = self.chain.kappa * above / (1 + by_u * by_u + by_v * by_v)
        motion = [pace_u + back * by_u, pace_v + back * by_v, by_u * pace_u + by_v * pace_v - back]
        return x + torch.stack(motion, dim=1) + self.chain.noise(t) * noise.normal(t, (3,))

    def _score(self, x: Tensor) -> Tensor:
        """Towards the modes, each weighted by its share at x, (n, 3); of length about 1 far from them."""
        places = x.new_tensor(_PLACES)
        heights = self.terrain.height(places[:, 0], places[:, 1])
        (first, near), (second, far) = (
            _towards(x, torch.cat([place, height[None]])) for place, height in zip(places, heights, strict=True)
        )
        weight = (_CONCENTRATION * (far - near)).sigmoid()[:, None]
        return second + weight * (first - second)


def _towards(x: Tensor, place: Tensor) -> tuple[Tensor, Tensor]:
    """Direction from each point to a place, (n, 3), and softened distance, (n,)."""
    gap = place - x
    du, dv, dz = gap.unbind(1)
    distance = (du * du + dv * dv + dz * dz + _SOFTENING**2).sqrt()
    return gap / distance[:, None], distance


def euclidean_distance(a: Tensor, b: Tensor) -> Tensor:
    """Distance between points, (n, 3) twice to (n,)."""
    du, dv, dz = (a - b).unbind(1)
    return (du * du + dv * dv + dz * dz).sqrt()


def walk(name: str, summary: str, chain: Chain, terrain: Terrain, **settings: Any) -> Domain:
    """A walk over `terrain` as a domain."""
    sampler, constraint = WalkChain(chain, terrain), Surface(terrain.height)

    def problem(seeds: Iterable[int] | Tensor) -> Problem:
        return Problem(sampler, constraint, seeds, euclidean_distance)

    return Domain(name, summary, problem, euclidean_distance, chain.settings() | settings)


def make(**settings: Any) -> Domain:
    """The domain `terrain`; settings are the fields of `Chain`."""
    return walk("terrain", "points on smooth hills, walking to two places", Chain(**settings), Terrain())
