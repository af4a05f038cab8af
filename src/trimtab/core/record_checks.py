"""What the file of a record must hold to be one: kinds, shapes and ranges of everything in it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from trimtab.core.errors import check_integer

__all__ = ["check_record"]

_YES_OR_NO = ("projected", "closing", "failed", "closing_failed")
_DISTANCES = ("defects", "residuals")
_COUNTS = ("iterations", "closing_iterations")
_BY_KIND = ("seconds", "calls", "rows")


def check_record(tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Refuse tensors and facts that no run could have written down; the error says which, and what was expected.

    Args:
        tensors: By name, all that a record needs among them.
        facts: By name, likewise.
    """
    projected = tensors["projected"]
    if projected.ndim != 2 or projected.numel() == 0:
        raise ValueError(f"projected must be (T, n) with at least one of each: got {tuple(projected.shape)}")
    for name in _YES_OR_NO:
        if str(tensors[name].dtype) != "torch.bool":
            raise ValueError(f"{name} must be bool: got {tensors[name].dtype}")
    for name in _DISTANCES:
        values = tensors[name]
        if not values.is_floating_point() or bool(((values < 0) | (values == math.inf)).any()):
            raise ValueError(f"{name} must be floats of at least 0, or NaN where not measured: got {values.dtype}")
    for name in (*_COUNTS, "seeds", "groups"):
        if name in tensors and not _whole(tensors[name]):
            raise ValueError(f"{name} must be whole numbers: got {tensors[name].dtype}")
    for name in _COUNTS:
        if name in tensors and bool((tensors[name] < 0).any()):
            raise ValueError(f"{name} must be at least 0: got {int(tensors[name].min())}")
    T, n = projected.shape
    for name, values in tensors.items():
        if name.partition("/")[0] == "states" and (values.ndim < 2 or values.shape[0] - T not in (0, 1)):
            raise ValueError(f"{name} must be ({T} or {T + 1}, {n}, …): got {tuple(values.shape)}")
        if name.partition("/")[0] == "states" and values.shape[1] != n:
            raise ValueError(f"{name} must hold {n} samples: got {values.shape[1]}")
        if name.partition("/")[0] == "final" and values.shape[:1] != (n,):
            raise ValueError(f"{name} must hold {n} samples: got {tuple(values.shape)}")
    _check_facts(facts, T)


def _check_facts(facts: Mapping[str, Any], n_steps: int) -> None:
    for name in _BY_KIND:
        by_kind = facts[name]
        numbers = list(by_kind.values()) if isinstance(by_kind, Mapping) else [None]
        if not all(isinstance(v, int | float) and not isinstance(v, bool) and 0 <= v < math.inf for v in numbers):
            raise ValueError(f"{name} must be numbers of at least 0 by kind: got {by_kind!r:.80}")
    if facts.get("planned_steps") is not None:
        check_integer(facts["planned_steps"], "planned_steps", n_steps)


def _whole(values: Tensor) -> bool:
    return not (values.is_floating_point() or values.is_complex()) and str(values.dtype) != "torch.bool"
