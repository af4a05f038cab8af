"""What every step of a rollout does on the host beside the sampler's and the constraint's own work, compiled.

For few numbers a call of torch costs several times the work it does. Where there is a compiler (see `native`), the
books of a run are therefore kept by a few functions in C that do the same as `Ledger`, bit for bit.
"""

from __future__ import annotations

import ctypes
import math
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trimtab.core.native import compiled_function

__all__ = ["Books", "all_finite", "compiled"]

_POINTER, _COUNT = ctypes.c_void_p, ctypes.c_int64
_ARGUMENTS = {
    "all_finite": [_POINTER, _COUNT, _COUNT],
    "look": [_POINTER, _COUNT, _POINTER, _POINTER],
    "spend": [_POINTER, _COUNT],
    "decide": [_POINTER, _COUNT],
    "keep": [_POINTER, _COUNT, _POINTER, _POINTER, _COUNT],
}


class Books(ctypes.Structure):
    """Where the books of a run lie, as `every_step.c` declares it."""

    _fields_ = [
        *((name, _COUNT) for name in ("n", "doubles", "numbers")),
        *((name, _POINTER) for name in ("defects", "residuals", "projected", "left", "last", "prices")),
        ("columns", _COUNT),
        ("typical", _POINTER),
        ("kinds", _COUNT),
        ("prior", ctypes.c_double),
        ("totals", _POINTER),
    ]


@lru_cache
def compiled(name: str) -> Any:
    """A function of `every_step.c`, or None."""
    return compiled_function(Path(__file__).with_suffix(".c"), name, _ARGUMENTS[name])


def all_finite(x: Tensor) -> bool:
    """Whether every number is finite."""
    dtype = x.dtype
    double = dtype is torch.float64
    if (double or dtype is torch.float32) and x.is_cpu and x.is_contiguous() and (check := compiled("all_finite")):
        return bool(check(x.data_ptr(), x.numel(), double))
    # one reduction without a mask in the usual case; the exact test only if it trips
    return math.isfinite(x.sum()) or bool(x.isfinite().all())
