"""Checks of the states a constraint gets, and small helpers that all constraints share."""

from __future__ import annotations

import copy
from math import prod
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trimtab.core.constraint import Constraint, Improvement, Projection

__all__ = [
    "Wrapper",
    "check_states",
    "check_sub_answer",
    "host_array",
    "no_improvement",
    "no_projection",
    "row_norm",
    "row_scale",
    "with_settings",
]

Kind = TypeVar("Kind", bound=Constraint)


class Wrapper(Constraint):
    """A constraint made of others: it needs what they need, and is a projection if they are."""

    def _parts(self) -> tuple[Constraint, ...]:
        """Return the constraints that it is made of."""
        raise NotImplementedError

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]
        """The context that any of the parts needs."""
        return tuple(dict.fromkeys(name for part in self._parts() for name in part.needs))

    @property
    def defect_is_projection(self) -> bool:  # type: ignore[override]
        """Whether measuring a defect projects any of the parts."""
        return any(part.defect_is_projection for part in self._parts())

    @property
    def is_projection(self) -> bool:  # type: ignore[override]
        """Whether every part ends on its set."""
        return all(part.is_projection for part in self._parts())


def check_states(
    x: Any,
    of: str,
    event: tuple[int | str, ...] | None = None,
    *,
    numbers: int | None = None,
    samples: int | None = None,
) -> None:
    r"""Check that x is a batch of states, (n, \*event) in float32 or float64, that fits the constraint.

    Args:
        x: The states.
        of: The constraint's name, for the message.
        event: The shape of one state; a letter stands for any length. None allows any shape.
        numbers: How many numbers one state has when it is flattened; None allows any.
        samples: How many samples the constraint has data for; None if it has no data.

    Example:
        >>> import torch
        >>> check_states(torch.zeros(5, 3), "Ball", (3,))
        >>> check_states(torch.zeros(5, 2), "Ball", (3,))
        Traceback (most recent call last):
        ValueError: Ball takes states of shape (n, 3), one row per sample: got (5, 2)
    """
    if not isinstance(x, Tensor):
        raise TypeError(f"{of} takes states as a torch tensor, one row per sample: got {type(x).__name__}")
    if x.dtype not in (torch.float32, torch.float64):
        half = ", as a corrector does by itself: half precision is too coarse to project in"
        raise ValueError(
            f"{of} takes floating-point states, float32 or float64: got {x.dtype}; use x.float()"
            f"{half if x.is_floating_point() else ''}"
        )
    if x.layout != torch.strided or x.is_meta or (type(x) is Tensor and x._is_zerotensor()):
        raise ValueError(f"{of} takes states with memory of their own: got {_kind(x)}")
    n, *lengths = x.shape or (0,)
    if event is None:
        fits = bool(lengths)
    else:
        fits = len(lengths) == len(event) and all(
            isinstance(wanted, str) or wanted == length for wanted, length in zip(event, lengths, strict=True)
        )
    fits = fits and 0 not in lengths and (numbers is None or prod(lengths) == numbers)
    if not fits:
        wanted = "*event" if event is None else ", ".join(map(str, event))
        more = "" if numbers is None else f" with {numbers} numbers each"
        raise ValueError(f"{of} takes states of shape (n, {wanted}){more}, one row per sample: got {tuple(x.shape)}")
    if samples is not None and n != samples:
        raise ValueError(
            f"{of} has data for {samples} samples but was given {n} states; data has one row per sample, and "
            "take(rows) selects some"
        )


def check_sub_answer(answer: Any, part: Tensor, whose: str) -> Projection:
    """Check the answer of a sub-constraint: it must have the shape of the part, (n, …), that it was given.

    Args:
        answer: States or a `Projection`.
        part: The states that the sub-constraint was given.
        whose: A description of the sub-constraint, for the message.
    """
    projection = answer if isinstance(answer, Projection) else Projection(answer)
    x = projection.x
    if not isinstance(x, Tensor) or x.shape != part.shape:
        got = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
        raise ValueError(f"{whose} must return states of the shape it was given, {tuple(part.shape)}: got {got}")
    return projection


def with_settings(constraint: Kind, /, **settings: Any) -> Kind:
    """Return a copy of a frozen dataclass with other values of some fields, without its checks.

    The class may be a derived one with an `__init__` of another signature, for which `dataclasses.replace` fails.
    """
    other = copy.copy(constraint)
    other.__dict__.update(settings)
    return other


def row_scale(x: Tensor) -> Tensor:
    """Return the largest absolute value of each row, (n, d) to (n,); 1 for rows of zeros and rows that are not finite.

    A row that is divided by it can be squared without overflow or underflow.
    """
    size = x.detach().abs().amax(dim=1)
    return torch.where((size > 0) & size.isfinite(), size, 1.0)


def row_norm(x: Tensor) -> Tensor:
    """Return the Euclidean norm of each row, (n, d) to (n,), also of rows whose squares overflow or underflow."""
    scale = row_scale(x)
    norm: Tensor = torch.linalg.vector_norm(x / scale[:, None], dim=1)
    return norm * scale


def no_projection(x: Tensor) -> Projection:
    r"""Return the projection of an empty batch, (0, \*event)."""
    each = torch.zeros(0, dtype=torch.int64, device=x.device)
    return Projection(x.detach().clone(), each.bool(), each, x.new_zeros(0))


def no_improvement(x: Tensor) -> Improvement:
    r"""Return the improvement of an empty batch, (0, \*event)."""
    return Improvement(x.detach().clone(), x.new_zeros(0), torch.zeros(0, dtype=torch.bool, device=x.device), ())


def host_array(x: Tensor) -> NDArray[np.float64]:
    """Return a tensor as a C-contiguous float64 array in host memory, which may be the tensor's own memory."""
    try:
        return np.ascontiguousarray(x.detach().resolve_neg().to("cpu", torch.float64).numpy())
    except (RuntimeError, TypeError, NotImplementedError) as error:
        raise ValueError(
            f"this constraint works outside of torch and needs numbers in memory: got {_kind(x)}; use an ordinary "
            "tensor, outside of torch.func and torch.compile"
        ) from error


def _kind(x: Tensor) -> str:
    """Describe in a few words what kind of tensor this is."""
    if type(x) not in (Tensor, torch.nn.Parameter):
        return f"a {type(x).__name__}"
    if x.is_meta:
        return "a tensor on the meta device"
    if x.layout != torch.strided:
        return f"a tensor of layout {x.layout}"
    return "a tensor without storage"
