"""trimtab decides when a constrained generative sampler should spend an expensive projection.

Names are imported when they are first used, so that `trimtab --help` need not wait for torch. What few people need
lives in its subpackage: `trimtab.schedules`, `trimtab.prices`, `trimtab.constraints`, `trimtab_lab`, ….
"""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

from trimtab._version import __version__

if TYPE_CHECKING:
    from trimtab.advice.compare import compare
    from trimtab.advice.recommend import advise
    from trimtab.calibration.calibrate import calibrate
    from trimtab.core.constraint import Constraint, Projection, as_constraint
    from trimtab.core.record import Rollout
    from trimtab.core.schedule import Schedule
    from trimtab.core.view import StepView
    from trimtab.loop.corrector import Corrector
    from trimtab.loop.rollout import Problem, rollout
    from trimtab.prices.price import load
    from trimtab.schedules.basic import Periodic, Stepwise, Terminal
    from trimtab_lab.domains import domain

_HOME = {
    "advice.compare": ("compare",),
    "advice.recommend": ("advise",),
    "calibration.calibrate": ("calibrate",),
    "core.constraint": ("Constraint", "Projection", "as_constraint"),
    "loop.corrector": ("Corrector",),
    "core.view": ("StepView",),
    "loop.rollout": ("Problem", "rollout"),
    "core.record": ("Rollout",),
    "core.schedule": ("Schedule",),
    "prices.price": ("load",),
    "schedules.basic": ("Periodic", "Stepwise", "Terminal"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

_SUBPACKAGES = (
    "advice",
    "calibration",
    "cli",
    "constraints",
    "core",
    "examples",
    "loop",
    "integrations",
    "prices",
    "schedules",
)

_MOVED = {"evaluation": "trimtab_lab", "training": "trimtab_lab.training"}
"""Packages of version 0.3 that are part of the lab now, found with a warning until 0.5."""

__all__ = [
    "Constraint",
    "Corrector",
    "Periodic",
    "Problem",
    "Projection",
    "Rollout",
    "Schedule",
    "StepView",
    "Stepwise",
    "Terminal",
    "__version__",
    "advise",
    "as_constraint",
    "calibrate",
    "compare",
    "domain",
    "load",
    "rollout",
]


def __getattr__(name: str) -> Any:
    if name == "domain" or name in _MOVED:
        return _from_lab(name)
    if name in _SUBPACKAGES:
        return import_module(f"trimtab.{name}")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'trimtab' has no attribute {name!r}")
    value = getattr(import_module(f"trimtab.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def _from_lab(name: str) -> Any:
    """Return what lives in the lab, the package with the paper's evaluation; say how to install it if it is absent."""
    try:
        if name == "domain":
            return import_module("trimtab_lab.domains").domain
        warnings.warn(f"trimtab.{name} is called {_MOVED[name]} since 0.4", DeprecationWarning, stacklevel=3)
        return import_module(_MOVED[name])
    except ModuleNotFoundError as error:
        if error.name != "trimtab_lab":
            raise
        raise ImportError(f"trimtab.{name} is part of the lab: pip install trimtab-lab") from None


def __dir__() -> list[str]:
    return sorted([*__all__, *_SUBPACKAGES])
