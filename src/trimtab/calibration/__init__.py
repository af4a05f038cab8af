"""Calibration: from held-out rollouts to a price.

- `calibrate`: `calibrate` and its methods.
- `collect`: how calibration batches are run, explored and checked.
- `cost`: what a calibration takes, before it starts.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trimtab.calibration.cost import CalibrationCost, calibration_cost

__all__ = ["CalibrationCost", "calibration_cost"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'trimtab.calibration' has no attribute {name!r}")
    return getattr(import_module("trimtab.calibration.cost"), name)
