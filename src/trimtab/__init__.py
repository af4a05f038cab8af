"""trimtab decides when a constrained generative sampler should spend an expensive projection.

Names are imported when they are first used, so that `trimtab --help` need not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from trimtab._version import __version__

if TYPE_CHECKING:
    from trimtab.advice.recommend import advise
    from trimtab.advice.result import Advice
    from trimtab.core.applied import ProjectionError, Retry
    from trimtab.core.constraint import Constraint, Projection, as_constraint
    from trimtab.core.corrector import Corrector
    from trimtab.core.noise import Noise
    from trimtab.core.problem import Problem
    from trimtab.core.record import Rollout
    from trimtab.core.replay import replay
    from trimtab.core.rollout import Sampler, rollout
    from trimtab.core.schedule import Moment, Schedule
    from trimtab.domains import domain
    from trimtab.limits.hindsight import hindsight
    from trimtab.prices.calibration import calibrate, calibrate_runs, thresholds_from_runs
    from trimtab.prices.plan import Plan, Planned
    from trimtab.prices.price_file import load_price
    from trimtab.prices.quantile import quantile_table
    from trimtab.prices.thresholds import Adaptive, Thresholds
    from trimtab.schedules import Fixed, FixedThreshold, Periodic, RandomTimes, Stepwise, Terminal

_HOME = {
    "advice.recommend": ("advise",),
    "advice.result": ("Advice",),
    "prices.calibration": ("calibrate", "calibrate_runs", "thresholds_from_runs"),
    "core.applied": ("ProjectionError", "Retry"),
    "core.constraint": ("Constraint", "Projection", "as_constraint"),
    "domains": ("domain",),
    "core.corrector": ("Corrector",),
    "core.problem": ("Problem",),
    "core.replay": ("replay",),
    "core.rollout": ("Sampler", "rollout"),
    "core.noise": ("Noise",),
    "limits.hindsight": ("hindsight",),
    "prices.plan": ("Plan", "Planned"),
    "prices.price_file": ("load_price",),
    "prices.quantile": ("quantile_table",),
    "core.record": ("Rollout",),
    "core.schedule": ("Moment", "Schedule"),
    "prices.thresholds": ("Adaptive", "Thresholds"),
    "schedules.basic": ("Fixed", "FixedThreshold", "Periodic", "RandomTimes", "Stepwise", "Terminal"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "Adaptive",
    "Advice",
    "Constraint",
    "Corrector",
    "Fixed",
    "FixedThreshold",
    "Moment",
    "Noise",
    "Periodic",
    "Plan",
    "Planned",
    "Problem",
    "Projection",
    "ProjectionError",
    "RandomTimes",
    "Retry",
    "Rollout",
    "Sampler",
    "Schedule",
    "Stepwise",
    "Terminal",
    "Thresholds",
    "__version__",
    "advise",
    "as_constraint",
    "calibrate",
    "calibrate_runs",
    "domain",
    "hindsight",
    "load_price",
    "quantile_table",
    "replay",
    "rollout",
    "thresholds_from_runs",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'trimtab' has no attribute {name!r}")
    value = getattr(import_module(f"trimtab.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
