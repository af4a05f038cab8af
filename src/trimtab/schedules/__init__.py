"""Schedules that need no calibration."""

from trimtab.schedules.basic import (
    By,
    Fixed,
    Geometric,
    Periodic,
    RandomRamp,
    RandomTimes,
    Stepwise,
    Terminal,
    Window,
    windows,
)
from trimtab.schedules.triggers import AboveNoise, AccumulatedDefect, FixedThreshold, Trigger, UntilBelow

__all__ = ["AboveNoise", "AccumulatedDefect", "By", "Fixed", "FixedThreshold", "Geometric", "Periodic", "RandomRamp"]
__all__ += ["RandomTimes", "Stepwise", "Terminal", "Trigger", "UntilBelow", "Window", "windows"]
