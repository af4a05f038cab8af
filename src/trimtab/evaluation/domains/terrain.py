"""A walk over hills: points (u, v, z) that cross a height field towards two places on its far side."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from trimtab.constraints.sets import Surface
from trimtab.core.exact_math import Array, batch_first, batch_last, exp, logistic, sin_cos, sqrt, stack
from trimtab.core.noise import Noise
from trimtab.evaluation.domains.base import Domain, Problem, View
from trimtab.evaluation.domains.flow import Flow
from trimtab.evaluation.domains.langevin import Chain

__all__ = ["Ridge", "Terrain", "WalkChain", "WalkFlow", "euclidean_distance", "make", "make_flow", "walk"]

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
    """Smooth hills, and ridges on them if there are any.

    Attributes:
        ridges: The crests.
        hill: How many times as high as usual the hills are.
        wave: How many times as short.
    """

    ridges: tuple[Ridge, ...] = ()
    hill: float = 1.0
    wave: float = 1.0

    def height(self, u: Tensor, v: Tensor) -> Tensor:
        """The surface above each point of the map, (n,)."""
        return batch_first(self.height_and_slope(batch_last(u), batch_last(v), slope=False)[0])

    def height_and_slope(self, u: Array, v: Array, slope: bool = True) -> tuple[Array, Array, Array]:
        """The height and its derivatives by u and by v, (n,) each; without the derivatives they are None."""
        a, b, steep = self.wave * u, self.wave * v, self.hill * self.wave
        (sin_u, sin_v, sin_d), (cos_u, cos_v, cos_d) = sin_cos(stack([1.5 * a, 1.2 * b, 0.8 * a + 1.7 * b]))
        z = self.hill * (0.3 * sin_u * cos_v + 0.15 * sin_d)
        by_u = steep * (0.45 * cos_u * cos_v + 0.12 * cos_d) if slope else None
        by_v = steep * (0.255 * cos_d - 0.36 * sin_u * sin_v) if slope else None
        if self.ridges:  # the distance from each crest in widths, and the height there as a share of the crest's
            across = stack([(r.normal[0] * u + r.normal[1] * v - r.offset) / r.width for r in self.ridges])
            profile = exp(-0.5 * across * across)
            for i, ridge in enumerate(self.ridges):
                z = z + ridge.height * profile[i]
                if slope:
                    fall = (-ridge.height / ridge.width) * across[i] * profile[i]
                    by_u = by_u + ridge.normal[0] * fall
                    by_v = by_v + ridge.normal[1] * fall
        return z, by_u, by_v


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
        point = batch_last(x)
        u, v, z = point
        height, by_u, by_v = self.terrain.height_and_slope(u, v)
        score_u, score_v, score_z = self._score(point)
        pace_u = self.chain.drift * (score_u + by_u * score_z)
        pace_v = self.chain.drift * (score_v + by_v * score_z)
        # (-by_u, -by_v, 1) is normal to the surface below the point: one Gauss-Newton step is this far along it
        back = self.chain.kappa * (z - height) / (1 + by_u * by_u + by_v * by_v)
        motion = stack([pace_u + back * by_u, pace_v + back * by_v, by_u * pace_u + by_v * pace_v - back])
        return batch_first(point + motion + self.chain.noise(t) * batch_last(noise.normal(t, (3,))))

    @cached_property
    def _places(self) -> list[tuple[float, float, float]]:
        """The modes, on the surface."""
        u, v = torch.tensor(_PLACES, dtype=torch.float64).T
        return [(*place, z) for place, z in zip(_PLACES, self.terrain.height(u, v).tolist(), strict=True)]

    def _score(self, point: Array) -> Array:
        """Towards the modes, each weighted by its share at the point, (3, n); of length about 1 far from them."""
        (first, near), (second, far) = (_towards(point, place) for place in self._places)
        return second + logistic(_CONCENTRATION * (far - near)) * (first - second)


def _towards(point: Array, place: tuple[float, float, float]) -> tuple[Array, Array]:
    """Direction from each point to a place, (3, n), and softened distance, (n,)."""
    du, dv, dz = (to - at for to, at in zip(place, point, strict=True))
    distance = sqrt(du * du + dv * dv + dz * dz + _SOFTENING * _SOFTENING)
    return stack([du, dv, dz]) / distance, distance


@dataclass(frozen=True)
class WalkFlow:
    """A walk straight across, which the height deflects: velocity (1, c z + e v) on the map, tangential in space.

    Off the surface the height is another, and so is the way. The pull is vertical, as the projection is.

    Attributes:
        flow: Speed, pull and noise.
        terrain: What is walked over.
        deflection: c.
        fan: e, by which walks that are apart go farther apart; below 0, closer together.
    """

    flow: Flow = field(default_factory=Flow)
    terrain: Terrain = field(default_factory=Terrain)
    deflection: float = 1.0
    fan: float = 0.0

    @property
    def n_steps(self) -> int:
        """T."""
        return self.flow.n_steps

    def start(self, noise: Noise) -> Tensor:
        """Points of the surface, u within 0.1 of half the way before the middle and v within ±1, (n, 3)."""
        side, along = noise.uniform(-1, (2,)).unbind(1)
        u, v = 0.2 * (side - 0.5) - self.flow.arc / 2, 2 * along - 1
        return torch.stack([u, v, self.terrain.height(u, v)], dim=1)

    def step(self, x: Tensor, t: int, noise: Noise) -> Tensor:
        """Proposals, (n, 3)."""
        point = batch_last(x)
        u, v, z = point
        height, by_u, by_v = self.terrain.height_and_slope(u, v)
        du = self.flow.speed(t)
        dv = du * (self.deflection * z + self.fan * v)
        dz = by_u * du + by_v * dv + self.flow.kappa * (height - z)
        moved = stack([u + du, v + dv, z + dz])
        return batch_first(moved + self.flow.noise * batch_last(noise.normal(t, (3,))))


def euclidean_distance(a: Tensor, b: Tensor) -> Tensor:
    """Distance between points, (n, 3) twice to (n,)."""
    du, dv, dz = (a - b).unbind(1)
    return (du * du + dv * dv + dz * dz).sqrt()


def walk(name: str, summary: str, sampler: WalkChain | WalkFlow, **settings: Any) -> Domain:
    """A walk as a domain."""
    constraint = Surface(sampler.terrain.height)
    problem = partial(Problem, sampler, constraint, distance=euclidean_distance)
    dynamics = sampler.chain if isinstance(sampler, WalkChain) else sampler.flow
    reach = 2.0 if isinstance(sampler, WalkChain) else sampler.flow.arc / 2 + 0.5
    label = {"terrain": "Terrain", "terrain-ridge": "Terrain-Ridge"}.get(name, name)
    view = View(label, "the path over the terrain", ("u", "v", "z"), lambda x: x, ground=((-reach, reach), (-1.6, 1.6)))
    return Domain(name, summary, problem, euclidean_distance, dynamics.settings() | settings, view=view)


def make(**settings: Any) -> Domain:
    """The domain `terrain`; settings are the fields of `Chain`."""
    return walk("terrain", "points on smooth hills, walking to two places", WalkChain(Chain(**settings), Terrain()))


def make_flow(
    *,
    deflection: float = 1.0,
    fan: float = 0.0,
    hill: float = 1.0,
    wave: float = 1.0,
    arc: float = 3.0,
    **settings: Any,
) -> Domain:
    """The domain `terrain` with `dynamics="flow"`; settings are those of `WalkFlow`, hills and `Flow`."""
    sampler = WalkFlow(Flow(arc=arc, **settings), Terrain((), hill, wave), deflection, fan)
    own = {"deflection": deflection, "fan": fan, "hill": hill, "wave": wave}
    return walk("terrain", "points that cross smooth hills and are deflected by them", sampler, **own)
