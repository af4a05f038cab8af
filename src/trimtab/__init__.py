"""trimtab decides when a constrained generative sampler should spend an expensive projection.

Names are imported when they are first used, so that `trimtab --help` need not wait for torch. What few people need
lives in its room: `trimtab.schedules`, `trimtab.prices`, `trimtab.constraints`, `trimtab.domains`, ….
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from trimtab._version import __version__

if TYPE_CHECKING:
    from trimtab.advice.compare import compare
    from trimtab.advice.recommend import advise
    from trimtab.core.constraint import Constraint, Projection, as_constraint
    from trimtab.core.corrector import Corrector
    from trimtab.core.moment import Moment
    from trimtab.core.problem import Problem
    from trimtab.core.record import Rollout
    from trimtab.core.rollout import rollout
    from trimtab.core.schedule import Schedule
    from trimtab.domains import domain
    from trimtab.prices.calibration import calibrate
    from trimtab.prices.price_file import load
    from trimtab.schedules.basic import Periodic, Stepwise, Terminal

_HOME = {
    "advice.compare": ("compare",),
    "advice.recommend": ("advise",),
    "core.constraint": ("Constraint", "Projection", "as_constraint"),
    "core.corrector": ("Corrector",),
    "core.moment": ("Moment",),
    "core.problem": ("Problem",),
    "core.record": ("Rollout",),
    "core.rollout": ("rollout",),
    "core.schedule": ("Schedule",),
    "domains": ("domain",),
    "prices.calibration": ("calibrate",),
    "prices.price_file": ("load",),
    "schedules.basic": ("Periodic", "Stepwise", "Terminal"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

_ROOMS = (
    "advice",
    "cli",
    "constraints",
    "core",
    "domains",
    "experimental",
    "integrations",
    "limits",
    "prices",
    "report",
    "schedules",
    "studies",
)

_GONE = {
    "Adaptive": "trimtab.prices.Adaptive",
    "Advice": "trimtab.advice.result.Advice",
    "Fixed": "trimtab.schedules.Fixed",
    "FixedThreshold": "trimtab.schedules.FixedThreshold",
    "Noise": "trimtab.core.noise.Noise",
    "Plan": "trimtab.prices.Plan",
    "Planned": "trimtab.prices.Planned",
    "ProjectionError": "trimtab.core.applied.ProjectionError",
    "RandomTimes": "trimtab.schedules.RandomTimes",
    "Retry": "trimtab.core.applied.Retry",
    "Sampler": "trimtab.core.rollout.Sampler",
    "Thresholds": "trimtab.prices.Thresholds",
    "calibrate_runs": "trimtab.calibrate(run), where run(schedule) returns corrector.rollout",
    "hindsight": "trimtab.limits.hindsight.hindsight",
    "load_price": "trimtab.load",
    "quantile_table": "trimtab.prices.quantile_table",
    "replay": "trimtab.core.replay.replay",
    "thresholds_from_runs": "trimtab.prices.paper_prices",
}
"""Names of version 0.1 that have moved; to be forgotten in 0.3."""

__all__ = [
    "Constraint",
    "Corrector",
    "Moment",
    "Periodic",
    "Problem",
    "Projection",
    "Rollout",
    "Schedule",
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
    if name in _ROOMS:
        return import_module(f"trimtab.{name}")
    if name in _GONE:
        raise AttributeError(f"trimtab.{name} has moved since version 0.1; write {_GONE[name]}")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'trimtab' has no attribute {name!r}")
    value = getattr(import_module(f"trimtab.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, *_ROOMS])
