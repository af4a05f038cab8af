"""Schedules that need no calibration."""

import warnings
from typing import Any

from trimtab.schedules.basic import (
    Fixed,
    Geometric,
    Inexact,
    Periodic,
    RandomRamp,
    RandomTimes,
    Stepwise,
    Terminal,
    Window,
    windows,
)
from trimtab.schedules.triggers import AboveNoise, AccumulatedDefect, FixedThreshold, MeasureEvery, Trigger, UntilBelow

__all__ = ["AboveNoise", "AccumulatedDefect", "Fixed", "FixedThreshold", "Geometric", "Inexact", "MeasureEvery"]
__all__ += ["Periodic", "RandomRamp", "RandomTimes", "Stepwise", "Terminal", "Trigger", "UntilBelow", "Window"]
__all__ += ["windows"]


def __getattr__(name: str) -> Any:
    if name == "LookEvery":
        warnings.warn("LookEvery is now called MeasureEvery", DeprecationWarning, stacklevel=2)
        return MeasureEvery
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
