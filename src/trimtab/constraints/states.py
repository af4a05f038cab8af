"""What states a constraint takes, and how their numbers reach code that is not torch.

Every `project` and `defect` checks its states here before anything else, and whatever leaves torch (numpy, DAQP,
CasADi, the compiled search) gets its numbers from `host_array`, which hands over memory that is known to be there.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trimtab.core.constraint import Improvement, Projection

__all__ = ["check_states", "checked_answer", "host_array", "no_improvement", "no_projection", "plain_array"]

_FLOAT64 = np.dtype(np.float64)
_TAKEN = (torch.float32, torch.float64)


def check_states(
    x: Any,
    of: str,
    event: tuple[int | str, ...] | None = None,
    *,
    numbers: int | None = None,
    samples: int | None = None,
) -> None:
    r"""Refuse what is no batch of states, (n, \*event) in float32 or float64, or does not fit the constraint.

    Args:
        x: What got.
        of: The constraint's name, for the message.
        event: The shape of one state; a letter stands for any length. None for any shape.
        numbers: How many numbers one state has, flattened; None for any.
        samples: How many samples the constraint has data for; None if it has none.

    Example:
        >>> import torch
        >>> check_states(torch.zeros(5, 3), "Ball", (3,))
        >>> check_states(torch.zeros(5, 2), "Ball", (3,))
        Traceback (most recent call last):
        ValueError: Ball takes states of shape (n, 3), one row per sample: got (5, 2)
    """
    if not isinstance(x, Tensor):
        raise TypeError(f"{of} takes states as a torch tensor, one row per sample: got {type(x).__name__}")
    if x.dtype not in _TAKEN:
        half = ", as a corrector does by itself: half precision is too little to project in"
        raise ValueError(
            f"{of} takes floating-point states, float32 or float64: got {x.dtype}; use x.float()"
            f"{half if x.is_floating_point() else ''}"
        )
    if x.layout != torch.strided or x.is_meta or (type(x) is Tensor and x._is_zerotensor()):
        raise ValueError(f"{of} takes states with memory of their own: got {_kind(x)}")
    got, *lengths = x.shape or (0,)
    if event is None:
        fits = bool(lengths)
    else:
        fits = len(lengths) == len(event)
        fits = fits and all(isinstance(e, str) or e == k for e, k in zip(event, lengths, strict=True))
    fits = fits and 0 not in lengths
    if fits and numbers is not None:
        fits = prod(lengths) == numbers
    if not fits:
        wanted = "*event" if event is None else ", ".join(map(str, event))
        more = "" if numbers is None else f" with {numbers} numbers each"
        raise ValueError(f"{of} takes states of shape (n, {wanted}){more}, one row per sample: got {tuple(x.shape)}")
    if samples is not None and got != samples:
        raise ValueError(
            f"{of} has data for {samples} samples but was given {got} states; data has one row per sample, and "
            "take(rows) selects some"
        )


def checked_answer(answer: Any, part: Tensor, whose: str) -> Projection:
    """What a constraint on a part of states, (n, …), returned for it; refused where that is not the part projected.

    Args:
        answer: What got.
        part: What it was given.
        whose: The constraint's place, for the message.
    """
    projection = answer if isinstance(answer, Projection) else Projection(answer)
    x = projection.x
    if not isinstance(x, Tensor) or x.shape != part.shape:
        got = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
        raise ValueError(f"{whose} must return states of the shape it was given, {tuple(part.shape)}: got {got}")
    return projection


def no_projection(x: Tensor) -> Projection:
    r"""The projection of no states, (0, \*event), for solvers that would have nothing to learn their sizes from."""
    each = torch.zeros(0, dtype=torch.int64, device=x.device)
    return Projection(x.detach().clone(), each.bool(), each, x.new_zeros(0))


def no_improvement(x: Tensor) -> Improvement:
    r"""Likewise one iteration on no states, (0, \*event)."""
    return Improvement(x.detach().clone(), x.new_zeros(0), torch.zeros(0, dtype=torch.bool, device=x.device), ())


def host_array(x: Tensor) -> NDArray[np.float64]:
    """The numbers of a tensor as a C-contiguous float64 array in host memory, which may be the tensor's own."""
    try:
        if x.dtype is torch.float64 and x.is_cpu and x.is_contiguous() and not (x.requires_grad or x.is_neg()):
            return x.numpy()  # the usual case in one call
        return np.ascontiguousarray(x.detach().resolve_neg().to("cpu", torch.float64).numpy())
    except (RuntimeError, TypeError, NotImplementedError) as error:
        raise ValueError(
            f"this constraint works outside of torch and needs numbers in memory: got {_kind(x)}, which has none to "
            "read; give it an ordinary tensor, outside of torch.func and torch.compile"
        ) from error


def plain_array(x: Any, shape: tuple[int | None, int]) -> NDArray[np.float64] | None:
    """The memory of x where x is nothing but (n, d) float64 numbers of the host; None for whatever else got.

    What most calls bring is known by a few looks at it: where a whole projection takes ten microseconds, `check_states`
    and `host_array`, which know all the rest, take three of them.

    Args:
        x: What got.
        shape: How many samples, or None for any, and how many numbers each has.
    """
    if type(x) is not Tensor:
        return None
    try:
        array = x.numpy()
    except (RuntimeError, TypeError):  # on a device, sparse, with a gradient, inside a transform …
        return None
    samples, numbers = shape
    plain = array.dtype is _FLOAT64 and array.shape[1:] == (numbers,) and array.flags.c_contiguous
    return array if plain and (samples is None or len(array) == samples) else None


def _kind(x: Tensor) -> str:
    """In a few words, what tensor this is."""
    if type(x) not in (Tensor, torch.nn.Parameter):
        return f"a {type(x).__name__}"
    if x.is_meta:
        return "a tensor on the meta device"
    if x.layout != torch.strided:
        return f"a tensor of layout {x.layout}"
    return "a tensor without storage"
