"""`terrain` with ridges: narrow crests of high curvature across the way."""

from __future__ import annotations

from typing import Any

from trimtab.domains.base import Domain
from trimtab.domains.langevin import Chain
from trimtab.domains.terrain import Ridge, Terrain, walk

__all__ = ["make"]


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
        Chain(**settings),
        Terrain(ridges),
        ridge_height=ridge_height,
        ridge_width=ridge_width,
    )
