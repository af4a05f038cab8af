"""Prices: what a correction is worth, how that is estimated, and the schedules it makes.

- `price`: `Price` and its rules (`Thresholds`, `Plan`), files, other numbers of steps. `schedule`: `PricedSchedule`,
  whose `decide` is Algorithm 1's comparison.
- `quantile`: the paper's rule. `program`: the dynamic program for a budget of one's own; `transitions` estimates what
  one step does, in units of each sample's scale (`sample_scale`), and `objective` what a residual adds to an error that
  is not path error. `plan`: the best fixed times.
- `ways`: the program over ways of correcting, for a budget that the batch shares; `fit` is what it needs to know.
- `learner`: `Learner`, which learns from the runs it serves; `learned` is the schedule of one of them.

`calibrate` lives in `trimtab.calibration`. Names are imported when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trimtab.prices.learned import Learned
    from trimtab.prices.learner import Learner
    from trimtab.prices.price import Plan, Price, Thresholds, load
    from trimtab.prices.quantile import paper_prices, quantile_table
    from trimtab.prices.schedule import Adaptive, Planned, PricedSchedule

_MODULES = {
    "prices.learned": ("Learned",),
    "prices.learner": ("Learner",),
    "prices.price": ("Plan", "Price", "Thresholds", "load"),
    "prices.quantile": ("paper_prices", "quantile_table"),
    "prices.schedule": ("Adaptive", "Planned", "PricedSchedule"),
    "calibration.calibrate": ("calibrate",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "Adaptive",
    "Learned",
    "Learner",
    "Plan",
    "Planned",
    "Price",
    "PricedSchedule",
    "Thresholds",
    "load",
    "paper_prices",
    "quantile_table",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'trimtab.prices' has no attribute {name!r}")
    value = getattr(import_module(f"trimtab.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "calibrate"])
