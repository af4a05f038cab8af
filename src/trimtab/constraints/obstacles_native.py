"""The local search of `obstacles_batched` compiled from C, where there is a compiler.

It is several times as fast, and its cost is in proportion to the samples, where torch pays for every call. Where it
cannot be compiled (see `trimtab.native`), the search runs in torch: the same steps, with other rounding.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from trimtab.constraints.obstacles_geometry import Obstacles
from trimtab.native import compiled_function

if TYPE_CHECKING:
    from trimtab.constraints.obstacles_batched import Effort

__all__ = ["compiled_search", "search_paths"]

_SOURCE = Path(__file__).with_name("obstacles_search.c")
_WHOLE = ("rounds", "sweeps", "stale", "patience")
_REAL = ("aim", "first_damping", "step", "reach", "damping", "stiffening", "settled", "hopeless", "leap")


class _Effort(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in _WHOLE] + [(name, ctypes.c_double) for name in _REAL]


class _Map(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("waypoints", "n_circles", "n_boxes")),
        *((name, ctypes.c_void_p) for name in ("circles", "boxes")),
    ]


@lru_cache(maxsize=1)
def compiled_search() -> Any:
    """The compiled function, or None where it cannot be had or is not wanted."""
    return compiled_function(_SOURCE, "nearest_paths", [ctypes.c_int64, *[ctypes.c_void_p] * 6])


def search_paths(
    obstacles: Obstacles, proposal: Tensor, start: Tensor, aim: float, damping: float, effort: Effort
) -> tuple[Tensor, Tensor, Tensor]:
    """`obstacles_batched.nearest_paths` by the compiled function: paths, (2, n, W), violations and rounds, (n,)."""
    _, n, waypoints = proposal.shape
    circles, boxes, near = (x.detach().double().contiguous() for x in (obstacles.circles, obstacles.boxes, proposal))
    path = start.detach().to(torch.float64, copy=True).contiguous()
    violation, rounds = path.new_empty(n), torch.empty(n, dtype=torch.int64)
    known = _Map(waypoints, len(circles), len(boxes), circles.data_ptr(), boxes.data_ptr())
    limits = {"aim": aim, "first_damping": damping}
    wanted = _Effort(**{name: limits.get(name, getattr(effort, name, None)) for name in (*_WHOLE, *_REAL)})
    failed = compiled_search()(
        n,
        ctypes.byref(known),
        ctypes.byref(wanted),
        near.data_ptr(),
        path.data_ptr(),
        violation.data_ptr(),
        rounds.data_ptr(),
    )
    if failed:
        raise MemoryError(f"no memory for a search with {len(obstacles)} obstacles and {waypoints} waypoints")
    return path.to(start), violation.to(start), rounds
