"""Walks over a height field: `terrain`, `terrain-ridge` with narrow crests, and `terrain-dome`, a round hill.

States are points (u, v, z), (n, 3); the constraint is that z is the height of the terrain above (u, v).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from trimtab.constraints.sets import Surface
from trimtab.core.noise import Noise
from trimtab_lab.domains.base import Domain, View, synthetic
from trimtab_lab.domains.dynamics import Chain, Flow

__all__ = ["SAMPLERS", "Ridge", "Terrain", "WalkChain", "WalkFlow", "make"]

_PLACES = ((1.5, 0.7), (1.5, -0.7))  # the u, v of the modes
_SOFTENING = 0.25  # within this distance of a mode the walk slows down
_CONCENTRATION = 2.0


class Ridge(NamedTuple):
    """A straight crest with a Gaussian profile."""

    normal: tuple[float, float]  # unit vector across the crest, as u, v
    offset: float  # distance of the crest from the origin along `normal`
    height: float = 0.25  # height of the crest
    width: float = 0.05  # standard deviation of the profile


@dataclass(frozen=True)
class Terrain:
    """Smooth hills, with ridges or a dome if there are any."""

    ridges: tuple[Ridge, ...] = ()  # the crests
    hill: float = 1.0  # a factor on the height of the hills
    wave: float = 1.0  # a factor on the number of hills in a unit of length
    dome: float = 0.0  # curvature of a dome -(u² + v²) / 2 on which everything stands

    def height(self, u: Tensor, v: Tensor) -> Tensor:
        """Return the height above each point of the map, (n,)."""
        return self.height_and_slope(u, v)[0]

    def height_and_slope(self, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the height and its derivatives by u and by v, (n,) each."""
        a, b, steep = 1.5 * self.wave * u, 1.2 * self.wave * v, self.hill * self.wave
        across = self.wave * (0.8 * u + 1.7 * v)
        z = self.hill * (0.3 * a.sin() * b.cos() + 0.15 * across.sin()) - self.dome * (u * u + v * v) / 2
        by_u = steep * (0.45 * a.cos() * b.cos() + 0.12 * across.cos()) - self.dome * u
        by_v = steep * (0.255 * across.cos() - 0.36 * a.sin() * b.sin()) - self.dome * v
        for ridge in self.ridges:
            away = (ridge.normal[0] * u + ridge.normal[1] * v - ridge.offset) / ridge.width
            crest = ridge.height * torch.exp(-0.5 * away * away)
            fall = -crest * away / ridge.width
            z, by_u, by_v = z + crest, by_u + ridge.normal[0] * fall, by_v + ridge.normal[1] * fall
        return z, by_u, by_v


@dataclass(frozen=True)
class WalkChain(Chain):
    """A Langevin chain that crosses the terrain towards two places on its far side.

    The ambient gradient g of the log density becomes Jᵀ g on the map and J Jᵀ g in space, where J is the derivative of
    (u, v, height(u, v)): a step along the surface. The pull is one Gauss-Newton step along the normal.
    """

    summary: ClassVar[str] = "points on smooth hills, walking to two places"

    @cached_property
    def terrain(self) -> Terrain:
        """The surface."""
        return Terrain()

    def start(self, noise: Noise) -> Tensor:
        """Draw points on the near side, u about -1.5 and v within ±1, on the surface, (n, 3)."""
        side, along = noise.uniform(-1, (2,)).unbind(1)
        u, v = -1.6 + 0.2 * side, 2 * along - 1
        return torch.stack([u, v, self.terrain.height(u, v)], dim=1)

    def step(self, x: Tensor, t: int, noise: Noise) -> Tensor:
        """Return proposals, (n, 3)."""
        u, v, z = x.unbind(1)
        height, by_u, by_v = self.terrain.height_and_slope(u, v)
        score_u, score_v, score_z = self._score(x).unbind(1)
        pace_u = self.drift * (score_u + by_u * score_z)
        pace_v = self.drift * (score_v + by_v * score_z)
        # (-by_u, -by_v, 1) is normal to the surface below the point
        back = self.kappa * (z - height) / (1 + by_u * by_u + by_v * by_v)
        motion = [pace_u + back * by_u, pace_v + back * by_v, by_u * pace_u + by_v * pace_v - back]
        return x + torch.stack(motion, dim=1) + self.noise(t) * noise.normal(t, (3,))

    def _score(self, x: Tensor) -> Tensor:
        """Return the direction to the modes, weighted by their shares, (n, 3); its length is about 1 far from them."""
        u, v = torch.tensor(_PLACES, dtype=x.dtype, device=x.device).T
        ways = torch.stack([u, v, self.terrain.height(u, v)], dim=1) - x[:, None]  # (n, 2, 3)
        distance = (ways.square().sum(dim=2) + _SOFTENING**2).sqrt()
        first, second = (ways / distance[..., None]).unbind(1)
        share = torch.sigmoid(_CONCENTRATION * (distance[:, 1] - distance[:, 0]))
        return torch.lerp(second, first, share[:, None])


@dataclass(frozen=True)
class RidgeChain(WalkChain):
    """The chain of `terrain` over two narrow ridges."""

    summary: ClassVar[str] = "terrain with two narrow ridges across the way"

    ridge_height: float = 0.25  # height of the crests
    ridge_width: float = 0.05  # standard deviation of their profiles

    @cached_property
    def terrain(self) -> Terrain:
        """The surface."""
        shape = (self.ridge_height, self.ridge_width)
        return Terrain((Ridge((0.96, 0.28), -0.6, *shape), Ridge((0.96, -0.28), 0.5, *shape)))


@dataclass(frozen=True)
class WalkFlow(Flow):
    """A walk across the terrain at velocity (1, c z + e v) on the map, along the tangent plane in space.

    Off the surface z is wrong and so is the way. The pull is vertical, as the projection is.
    """

    summary: ClassVar[str] = "points that cross smooth hills and are deflected by them"

    arc: float = 3.0
    deflection: float = 1.0  # c, the rate at which the height turns the walk aside
    fan: float = 0.0  # e, the rate at which walks move apart; below 0 they move together
    hill: float = 1.0  # a factor on the height of the hills
    wave: float = 1.0  # a factor on the number of hills in a unit of length

    @cached_property
    def terrain(self) -> Terrain:
        """The surface."""
        return Terrain((), self.hill, self.wave)

    def start(self, noise: Noise) -> Tensor:
        """Draw points of the surface, u about half of the arc before the middle and v within ±1, (n, 3)."""
        side, along = noise.uniform(-1, (2,)).unbind(1)
        u, v = 0.2 * (side - 0.5) - self.arc / 2, 2 * along - 1
        return torch.stack([u, v, self.terrain.height(u, v)], dim=1)

    def step(self, x: Tensor, t: int, noise: Noise) -> Tensor:
        """Return proposals, (n, 3)."""
        u, v, z = x.unbind(1)
        height, by_u, by_v = self.terrain.height_and_slope(u, v)
        du = self.speed(t)
        dv = du * (self.deflection * z + self.fan * v)
        dz = by_u * du + by_v * dv + self.kappa * (height - z)
        return torch.stack([u + du, v + dv, z + dz], dim=1) + self.noise * noise.normal(t, (3,))


@dataclass(frozen=True)
class RidgeFlow(WalkFlow):
    """The walk of `terrain` over straight crests across the way, evenly spaced along it."""

    summary: ClassVar[str] = "points that cross hills with narrow ridges and are deflected by them"

    crests: int = 2  # number of crests
    ridge_height: float = 0.25  # their height
    ridge_width: float = 0.05  # standard deviation of their profiles

    @cached_property
    def terrain(self) -> Terrain:
        """The surface."""
        places = [self.arc * ((i + 0.5) / self.crests - 0.5) for i in range(self.crests)]
        ridges = (Ridge((1.0, 0.0), place, self.ridge_height, self.ridge_width) for place in places)
        return Terrain(tuple(ridges), self.hill, self.wave)


@dataclass(frozen=True)
class DomeFlow(WalkFlow):
    """A walk at constant speed over a round hill: the homogeneous case, in which every step makes the same defect.

    The curvature is the same everywhere, so a step along the tangent misses the surface by dome (du² + dv²) / 2. The
    noise is small next to that.
    """

    summary: ClassVar[str] = "points that cross a round hill, where every step makes the same defect"

    noise: float = 2e-5
    deflection: float = 0.3
    hill: float = 0.0
    dome: float = 1.0  # the curvature

    @cached_property
    def terrain(self) -> Terrain:
        """The surface."""
        return Terrain((), self.hill, self.wave, self.dome)


def euclidean_distance(a: Tensor, b: Tensor) -> Tensor:
    """Return the distance between points a and b, (n, 3) each, as (n,)."""
    return (a - b).square().sum(dim=1).sqrt()


def _point(x: Tensor) -> Tensor:
    return x


SAMPLERS = {
    "terrain": {"langevin": WalkChain, "flow": WalkFlow},
    "terrain-ridge": {"langevin": RidgeChain, "flow": RidgeFlow},
    "terrain-dome": {"flow": DomeFlow},
}
"""The samplers of this module by domain and dynamics."""
_LABELS = {"terrain": "Terrain", "terrain-ridge": "Terrain-Ridge", "terrain-dome": "Terrain-Dome"}


def make(name: str, sampler: WalkChain | WalkFlow) -> Domain:
    """Return the domain `terrain`, `terrain-ridge` or `terrain-dome` with this sampler."""
    reach = sampler.arc / 2 + 0.5 if isinstance(sampler, WalkFlow) else 2.0
    ground = ((-reach, reach), (-1.6, 1.6))
    view = View(_LABELS[name], "the path over the terrain", ("u", "v", "z"), _point, ground=ground)
    return synthetic(name, sampler, Surface(sampler.terrain.height), euclidean_distance, view)
