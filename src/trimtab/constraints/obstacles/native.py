"""The local search of `obstacles_batched` and the defect, compiled from C where there is a compiler.

They are several times as fast, and their cost is in proportion to the samples, where torch pays for every call. Where
they cannot be compiled (see `trimtab.core.native`), torch takes the same steps, with other rounding.
"""

from __future__ import annotations

import ctypes
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from trimtab.constraints.obstacles.geometry import Obstacles
from trimtab.core.native import compiled_function

if TYPE_CHECKING:
    from trimtab.constraints.obstacles.batched import Effort

__all__ = ["can_be_read", "compiled_depths", "compiled_search", "search_paths", "summed_depths"]

_SOURCE = Path(__file__).with_name("search.c")
_DEPTH_SOURCE = Path(__file__).with_name("depth.c")
_DEPTH_NAMES = {torch.float32: "summed_depths_float", torch.float64: "summed_depths_double"}
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


class _DepthMap(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("n_circles", "n_boxes")),
        *((name, ctypes.c_void_p) for name in ("circles", "boxes")),
    ]


@cache  # there are only so many dtypes
def compiled_depths(dtype: torch.dtype) -> Any:
    """The compiled function for states of a dtype, or None where it cannot be had or is not wanted."""
    if dtype not in _DEPTH_NAMES:
        return None
    whole, address = ctypes.c_int64, ctypes.c_void_p
    arguments = [whole, whole, address, whole, whole, whole, address, address]
    return compiled_function(_DEPTH_SOURCE, _DEPTH_NAMES[dtype], arguments)


@lru_cache(maxsize=16)
def _depth_map(obstacles: Obstacles, dtype: torch.dtype) -> tuple[_DepthMap, Tensor, Tensor]:
    """Where the compiled function finds the obstacles, and the tensors that must live as long."""
    circles, boxes = (x.detach().to("cpu", dtype).contiguous() for x in (obstacles.circles, obstacles.boxes))
    return _DepthMap(len(circles), len(boxes), circles.data_ptr(), boxes.data_ptr()), circles, boxes


def can_be_read(x: Tensor) -> bool:
    """Whether the compiled function can look at these states, and nobody asks for derivatives."""
    if not x.is_cpu or x.requires_grad or compiled_depths(x.dtype) is None:
        return False
    try:
        x.data_ptr()
    except RuntimeError:  # inside torch.func.vmap, jvp and the like, which hand over tensors without memory
        return False
    return True


def summed_depths(obstacles: Obstacles, x: Tensor) -> Tensor:
    """How deep trajectories are in all obstacles together, by the compiled function: (n, C, W), any strides, to (n,).

    Each segment's depths are added in the dtype of the states and the segments' sums in float64, one by one, so that
    nothing depends on the batch.
    """
    n, _, waypoints = x.shape
    depth = x.new_empty(n)
    known = _depth_map(obstacles, x.dtype)[0]
    compiled_depths(x.dtype)(n, waypoints, x.data_ptr(), *x.stride(), ctypes.addressof(known), depth.data_ptr())
    return depth
