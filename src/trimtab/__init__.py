"""trimtab decides when a constrained generative sampler should spend an expensive projection.

Names are imported when they are first used, so that `trimtab --help` need not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from trimtab._version import __version__

if TYPE_CHECKING:
    from trimtab.advice import advise
    from trimtab.advice_result import Advice
    from trimtab.calibration import calibrate, calibrate_runs, thresholds_from_runs
    from trimtab.constraint import Constraint, Projection, ProjectionError, Retry, as_constraint
    from trimtab.domains import domain
    from trimtab.ledger import replay
    from trimtab.loop import Corrector, Sampler, rollout
    from trimtab.noise import Noise
    from trimtab.oracle import hindsight
    from trimtab.plan import Plan, Planned
    from trimtab.price_file import load_price
    from trimtab.prices.quantile import quantile_table
    from trimtab.record import Rollout
    from trimtab.schedule import (
        Adaptive,
        Fixed,
        FixedThreshold,
        Moment,
        Periodic,
        RandomTimes,
        Schedule,
        Stepwise,
        Terminal,
    )
    from trimtab.thresholds import Thresholds

_HOME = {
    "advice": ("advise",),
    "advice_result": ("Advice",),
    "calibration": ("calibrate", "calibrate_runs", "thresholds_from_runs"),
    "constraint": ("Constraint", "Projection", "ProjectionError", "Retry", "as_constraint"),
    "domains": ("domain",),
    "ledger": ("replay",),
    "loop": ("Corrector", "Sampler", "rollout"),
    "noise": ("Noise",),
    "oracle": ("hindsight",),
    "plan": ("Plan", "Planned"),
    "price_file": ("load_price",),
    "prices.quantile": ("quantile_table",),
    "record": ("Rollout",),
    "schedule": (
        "Adaptive",
        "Fixed",
        "FixedThreshold",
        "Moment",
        "Periodic",
        "RandomTimes",
        "Schedule",
        "Stepwise",
        "Terminal",
    ),
    "thresholds": ("Thresholds",),
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
