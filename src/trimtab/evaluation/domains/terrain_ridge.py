"""`terrain` with ridges: narrow crests of high curvature across the way."""

from __future__ import annotations

from typing import Any

from trimtab.evaluation.domains.base import Domain
from trimtab.evaluation.domains.flow import Flow
from trimtab.evaluation.domains.langevin import Chain
from trimtab.evaluation.domains.terrain import Ridge, Terrain, WalkChain, WalkFlow, walk

__all__ = ["make", "make_flow"]


def make(*, ridge_height: float = 0.25, ridge_width: float = 0.05, **settings: Any) -> Domain:
    """The domain `terrain-ridge`; settings are the ridges' height and width and the fields of `Chain`."""
    if not ridge_width > 0:
        raise ValueError(f"ridge_width must be above 0: got {ridge_width!r}")
    ridges = (
        Ridge((0.96, 0.28), -0.6, ridge_height, ridge_width),
        Ridge((0.96, -0.28), 0.5, ridge_height, ridge_width),
    )
    return walk(
        "terrain-ridge",
        "terrain with two narrow ridges across the way",
        WalkChain(Chain(**settings), Terrain(ridges)),
        ridge_height=ridge_height,
        ridge_width=ridge_width,
    )


def make_flow(
    *,
    crests: int = 2,
    ridge_height: float = 0.25,
    ridge_width: float = 0.05,
    deflection: float = 1.0,
    fan: float = 0.0,
    hill: float = 1.0,
    wave: float = 1.0,
    arc: float = 3.0,
    **settings: Any,
) -> Domain:
    """The domain `terrain-ridge` with `dynamics="flow"`: straight crests across the way, evenly spaced along it."""
    if not ridge_width > 0:
        raise ValueError(f"ridge_width must be above 0: got {ridge_width!r}")
    if crests < 0:
        raise ValueError(f"crests is a number of ridges of at least 0: got {crests!r}")
    places = [arc * ((i + 0.5) / crests - 0.5) for i in range(crests)]
    ridges = tuple(Ridge((1.0, 0.0), place, ridge_height, ridge_width) for place in places)
    sampler = WalkFlow(Flow(arc=arc, **settings), Terrain(ridges, hill, wave), deflection, fan)
    own = {"ridge_height": ridge_height, "ridge_width": ridge_width, "deflection": deflection, "fan": fan}
    summary = "points that cross hills with narrow ridges and are deflected by them"
    return walk("terrain-ridge", summary, sampler, crests=crests, hill=hill, wave=wave, **own)
