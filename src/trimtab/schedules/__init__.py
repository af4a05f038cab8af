"""Schedules that need no calibration, and how schedules are drawn."""

from trimtab.schedules.basic import Fixed, FixedThreshold, Periodic, RandomTimes, Stepwise, Terminal

__all__ = ["Fixed", "FixedThreshold", "Periodic", "RandomTimes", "Stepwise", "Terminal"]
