"""Feasible sets with their projections; names are imported when they are first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trimtab.constraints.equality import NonlinearEquality
    from trimtab.constraints.halfspaces import HalfSpaces
    from trimtab.constraints.inequality import NonlinearInequality
    from trimtab.constraints.partial import EnergyDescent, FewIterations
    from trimtab.constraints.product import Part, Product
    from trimtab.constraints.program import NonlinearProgram
    from trimtab.constraints.rotation import SE3, SO3, Stiefel, nearest_rotation
    from trimtab.constraints.sets import AffineEquality, Ball, Box, Simplex, Sphere, Surface
    from trimtab.constraints.time_limit import TimeLimit
    from trimtab.constraints.together import Together

_MODULES = {
    "equality": ("NonlinearEquality",),
    "halfspaces": ("HalfSpaces",),
    "inequality": ("NonlinearInequality",),
    "partial": ("EnergyDescent", "FewIterations"),
    "product": ("Part", "Product"),
    "program": ("NonlinearProgram",),
    "rotation": ("SE3", "SO3", "Stiefel", "nearest_rotation"),
    "sets": ("AffineEquality", "Ball", "Box", "Simplex", "Sphere", "Surface"),
    "time_limit": ("TimeLimit",),
    "together": ("Together",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "SE3",
    "SO3",
    "AffineEquality",
    "Ball",
    "Box",
    "EnergyDescent",
    "FewIterations",
    "HalfSpaces",
    "NonlinearEquality",
    "NonlinearInequality",
    "NonlinearProgram",
    "Part",
    "Product",
    "Simplex",
    "Sphere",
    "Stiefel",
    "Surface",
    "TimeLimit",
    "Together",
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
