"""Schedules that need no calibration, and how schedules are drawn."""

from trimtab.schedules.basic import Fixed, FixedThreshold, Inexact, Periodic, RandomTimes, Stepwise, Terminal
from trimtab.schedules.measure_every import MeasureEvery
from trimtab.schedules.triggers import AboveNoise, AccumulatedDefect, Trigger, UntilBelow
from trimtab.schedules.windows import Geometric, RandomRamp, Window, windows

__all__ = [
    "AboveNoise",
    "AccumulatedDefect",
    "Fixed",
    "FixedThreshold",
    "Geometric",
    "Inexact",
    "MeasureEvery",
    "Periodic",
    "RandomRamp",
    "RandomTimes",
    "Stepwise",
    "Terminal",
    "Trigger",
    "UntilBelow",
    "Window",
    "windows",
]
