"""Checks of arguments: tensors, numbers above 0, and switches. What got, what was expected, and no guessing."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from trimtab.core.errors import check_number

__all__ = ["check_bool", "check_floats", "check_integers", "check_positive"]


def check_positive(value: object, what: str) -> float:
    """The value as a float, if it is a finite number above 0.

    Example:
        >>> check_positive(0, "a tolerance")
        Traceback (most recent call last):
        ValueError: a tolerance must be a finite number above 0: got 0
    """
    number = check_number(value, what)
    if not 0 < number < math.inf:
        raise ValueError(f"{what} must be a finite number above 0: got {value!r}")
    return number


def check_bool(value: object, what: str) -> bool:
    """The value, if it is True or False.

    Example:
        >>> check_bool("no", "vectorised")
        Traceback (most recent call last):
        TypeError: vectorised must be True or False: got 'no' of type str
    """
    if not isinstance(value, bool):
        raise TypeError(f"{what} must be True or False: got {value!r:.60} of type {type(value).__name__}")
    return value


def check_floats(
    value: object, what: str, shape: tuple[int | str, ...] | None = None, *, finite: bool = True
) -> Tensor:
    """The value, if it is a floating-point tensor of a shape.

    Args:
        value: What got.
        what: It is, for the message.
        shape: A letter stands for any length; None for any shape.
        finite: Whether NaN and infinities are refused.

    Example:
        >>> import torch
        >>> check_floats(torch.zeros(3), "circles", ("m", 3))
        Traceback (most recent call last):
        ValueError: circles must have shape (m, 3): got (3,)
    """
    tensor = _of_shape(value, what, shape)
    if not tensor.is_floating_point():
        raise ValueError(f"{what} must be floating-point numbers: got {tensor.dtype}; convert them with .float()")
    if tensor.is_meta or (finite and not bool(tensor.isfinite().all())):
        got = "a tensor without numbers" if tensor.is_meta else "NaN or an infinity"
        raise ValueError(f"{what} must be finite numbers: got {got}")
    return tensor


def check_integers(value: object, what: str, shape: tuple[int | str, ...]) -> Tensor:
    """The value, if it is an integer tensor of a shape.

    Example:
        >>> import torch
        >>> check_integers(torch.rand(3), "rows", ("n",))
        Traceback (most recent call last):
        ValueError: rows must be whole numbers: got torch.float32
    """
    tensor = _of_shape(value, what, shape)
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        raise ValueError(f"{what} must be whole numbers: got {tensor.dtype}")
    return tensor


def _of_shape(value: object, what: str, shape: tuple[int | str, ...] | None) -> Tensor:
    if not isinstance(value, Tensor):
        raise TypeError(f"{what} must be a torch tensor: got {value!r:.60} of type {type(value).__name__}")
    if shape is not None and not _fits(value.shape, shape):
        wanted = f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"
        raise ValueError(f"{what} must have shape {wanted}: got {tuple(value.shape)}")
    return value


def _fits(got: tuple[int, ...], wanted: tuple[Any, ...]) -> bool:
    return len(got) == len(wanted) and all(isinstance(w, str) or w == c for w, c in zip(wanted, got, strict=True))
