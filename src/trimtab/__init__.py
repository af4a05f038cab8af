"""trimtab decides when a constrained generative sampler should spend an expensive projection.

Names are imported when they are first used, so that `trimtab --help` need not wait for torch. What few people need
lives in its subpackage: `trimtab.schedules`, `trimtab.prices`, `trimtab.constraints`, `trimtab.evaluation`, ….
"""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

from trimtab._version import __version__

if TYPE_CHECKING:
    from trimtab.advice.compare import compare
    from trimtab.advice.recommend import advise
    from trimtab.core.constraint import Constraint, Projection, as_constraint
    from trimtab.core.corrector import Corrector
    from trimtab.core.problem import Problem
    from trimtab.core.record import Rollout
    from trimtab.core.rollout import rollout
    from trimtab.core.schedule import Schedule
    from trimtab.core.view import StepView
    from trimtab.evaluation.domains import domain
    from trimtab.prices.calibration import calibrate
    from trimtab.prices.price import load
    from trimtab.schedules.basic import Periodic, Stepwise, Terminal

_HOME = {
    "advice.compare": ("compare",),
    "advice.recommend": ("advise",),
    "core.constraint": ("Constraint", "Projection", "as_constraint"),
    "core.corrector": ("Corrector",),
    "core.view": ("StepView",),
    "core.problem": ("Problem",),
    "core.record": ("Rollout",),
    "core.rollout": ("rollout",),
    "core.schedule": ("Schedule",),
    "evaluation.domains": ("domain",),
    "prices.calibration": ("calibrate",),
    "prices.price": ("load",),
    "schedules.basic": ("Periodic", "Stepwise", "Terminal"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

_SUBPACKAGES = (
    "advice",
    "cli",
    "constraints",
    "core",
    "evaluation",
    "integrations",
    "prices",
    "schedules",
    "training",
)

_RENAMED = {"Moment": "StepView"}
"""Names of version 0.2, kept with a warning until 0.4."""

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
    if name in _SUBPACKAGES:
        return import_module(f"trimtab.{name}")
    if name in _RENAMED:
        warnings.warn(
            f"trimtab.{name} is called trimtab.{_RENAMED[name]}; the old name goes in version 0.4",
            DeprecationWarning,
            stacklevel=2,
        )
        return getattr(import_module("trimtab"), _RENAMED[name])
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'trimtab' has no attribute {name!r}")
    value = getattr(import_module(f"trimtab.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, *_SUBPACKAGES])
