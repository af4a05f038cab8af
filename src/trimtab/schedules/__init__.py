"""Schedules that need no calibration; names are imported when they are first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

_MODULES = {
    "basic": (
        *("By", "Fixed", "Geometric", "Periodic", "RandomRamp", "RandomTimes"),
        *("Stepwise", "Terminal", "Window", "windows"),
    ),
    "triggers": ("AboveNoise", "AccumulatedDefect", "FixedThreshold", "Trigger", "UntilBelow"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "AboveNoise",
    "AccumulatedDefect",
    "By",
    "Fixed",
    "FixedThreshold",
    "Geometric",
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


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'trimtab.schedules' has no attribute {name!r}")
    value = getattr(import_module(f"trimtab.schedules.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
