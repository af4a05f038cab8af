"""Feasible sets with their projections, one module each; names are imported when they are first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trimtab.constraints.equality import NonlinearEquality
    from trimtab.constraints.halfspaces import HalfSpaces
    from trimtab.constraints.inequality import NonlinearInequality
    from trimtab.constraints.linear import AffineEquality, Box, Simplex
    from trimtab.constraints.obstacles import AvoidObstacles, Obstacles
    from trimtab.constraints.pose import SE3
    from trimtab.constraints.product import Part, Product
    from trimtab.constraints.program import NonlinearProgram
    from trimtab.constraints.rotation import SO3, nearest_rotation
    from trimtab.constraints.sphere import Ball, Sphere
    from trimtab.constraints.stiefel import Stiefel
    from trimtab.constraints.surface import Surface
    from trimtab.constraints.time_limit import TimeLimit

_HOME = {
    "equality": ("NonlinearEquality",),
    "halfspaces": ("HalfSpaces",),
    "inequality": ("NonlinearInequality",),
    "linear": ("AffineEquality", "Box", "Simplex"),
    "obstacles.avoid": ("AvoidObstacles", "Obstacles"),
    "pose": ("SE3",),
    "product": ("Part", "Product"),
    "program": ("NonlinearProgram",),
    "rotation": ("SO3", "nearest_rotation"),
    "sphere": ("Ball", "Sphere"),
    "stiefel": ("Stiefel",),
    "surface": ("Surface",),
    "time_limit": ("TimeLimit",),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "SE3",
    "SO3",
    "AffineEquality",
    "AvoidObstacles",
    "Ball",
    "Box",
    "HalfSpaces",
    "NonlinearEquality",
    "NonlinearInequality",
    "NonlinearProgram",
    "Obstacles",
    "Part",
    "Product",
    "Simplex",
    "Sphere",
    "Stiefel",
    "Surface",
    "TimeLimit",
    "nearest_rotation",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'trimtab.constraints' has no attribute {name!r}")
    value = getattr(import_module(f"trimtab.constraints.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
