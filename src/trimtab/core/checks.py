"""Checks of arguments at the public boundary, and the errors that they raise.

A message says what was got, what was expected and what to do.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from difflib import get_close_matches
from importlib import import_module
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:  # `trimtab --help` imports this module, and needs no torch
    from torch import Tensor

__all__ = [
    "EngineError",
    "check_bool",
    "check_callable",
    "check_floats",
    "check_integer",
    "check_number",
    "check_positive",
    "check_type",
    "missing_extra",
    "moved_to_lab",
    "unknown",
]

Kind = TypeVar("Kind")
_MOST = 2**31 - 1


class EngineError(RuntimeError):
    """Work could not be done where it was sent: a process died, a cluster does not answer, or it runs other code."""


def unknown(kind: str, name: object, known: Iterable[str]) -> ValueError:
    """Return the error for an unknown name, with the nearest known one.

    Example:
        >>> unknown("domain", "sO3", ["so3", "se3"])
        ValueError("unknown domain 'sO3'; did you mean 'so3'? Known: so3, se3")
    """
    known = list(known)
    near = get_close_matches(str(name).lower(), known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    return ValueError(f"unknown {kind} {name!r}{hint} Known: {', '.join(known)}")


def missing_extra(package: str, extra: str, purpose: str, of: str = "trimtab") -> ImportError:
    """Return the error for an optional dependency that is not installed.

    Args:
        package: What is missing.
        extra: The extra that installs it.
        purpose: What needs it.
        of: Whose extra it is, "trimtab" or "trimtab-lab".

    Example:
        >>> missing_extra("casadi", "ipopt", "the IPOPT projection")
        ImportError("the IPOPT projection needs casadi: pip install 'trimtab[ipopt]', or '.[ipopt]' in a checkout")
    """
    where = "./lab" if of == "trimtab-lab" else "."
    return ImportError(f"{purpose} needs {package}: pip install '{of}[{extra}]', or '{where}[{extra}]' in a checkout")


def moved_to_lab(module: str, name: str, new: str, called: str = "") -> Any:
    """Return a name that moved to the lab, with a warning; say how to install the lab if it is absent.

    Args:
        module: Where the name was.
        name: What it was called.
        new: The module of the lab that has it, as in "metrics".
        called: What it is called there; the same by default.
    """
    called = called or name
    warnings.warn(f"{module}.{name} is trimtab_lab.{new}.{called} since 0.4", DeprecationWarning, stacklevel=3)
    try:
        return getattr(import_module(f"trimtab_lab.{new}"), called)
    except ModuleNotFoundError as error:
        if error.name != "trimtab_lab":
            raise
        raise ImportError(f"{module}.{name} is part of the lab: pip install trimtab-lab") from None


def check_type(value: object, kind: type[Kind], what: str, hint: str = "") -> Kind:
    """Return the value; raise if it is not of that type.

    Example:
        >>> check_type("x", int, "a seed", "give a whole number")
        Traceback (most recent call last):
        ...
        TypeError: a seed must be of type int: got 'x' of type str; give a whole number
    """
    if not isinstance(value, kind):
        raise TypeError(f"{what} must be of type {kind.__name__}: got {_got(value)}{'; ' if hint else ''}{hint}")
    return value


def check_callable(value: object, what: str, signature: str) -> None:
    """Raise if the value cannot be called.

    Example:
        >>> check_callable(3, "run", "run(schedule)")
        Traceback (most recent call last):
        ...
        TypeError: run must be a function, called as run(schedule): got 3 of type int
    """
    if not callable(value) or isinstance(value, type):
        raise TypeError(f"{what} must be a function, called as {signature}: got {_got(value)}")


def check_bool(value: object, what: str) -> bool:
    """Return the value; raise if it is not True or False.

    Example:
        >>> check_bool("no", "vectorised")
        Traceback (most recent call last):
        TypeError: vectorised must be True or False: got 'no' of type str
    """
    if not isinstance(value, bool):
        raise TypeError(f"{what} must be True or False: got {_got(value)}")
    return value


def check_number(value: object, what: str, least: float = -math.inf, most: float = math.inf) -> float:
    """Return the value as a float; raise if it is not a real number in a range, or is NaN.

    Example:
        >>> check_number(1, "kappa", 0, 1)
        1.0
        >>> check_number("0.4", "kappa", 0, 1)
        Traceback (most recent call last):
        ...
        TypeError: kappa must be a number: got '0.4' of type str
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{what} must be a number: got {_got(value)}")
    if value != value:
        raise ValueError(f"{what} must be a number: got NaN")
    if not least <= float(value) <= most:
        raise ValueError(f"{what} must be a number {_range(least, most, math.inf)}: got {value!r}")
    return float(value)


def check_positive(value: object, what: str) -> float:
    """Return the value as a float; raise if it is not a finite number above 0.

    Example:
        >>> check_positive(0, "a tolerance")
        Traceback (most recent call last):
        ValueError: a tolerance must be a finite number above 0: got 0
    """
    number = check_number(value, what)
    if not 0 < number < math.inf:
        raise ValueError(f"{what} must be a finite number above 0: got {value!r}")
    return number


def check_integer(value: object, what: str, least: int = 1, most: int = _MOST) -> int:
    """Return the value as an int; raise if it is not a whole number in a range.

    Example:
        >>> check_integer(0, "n_steps")
        Traceback (most recent call last):
        ...
        ValueError: n_steps must be a whole number of at least 1: got 0
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{what} must be a whole number: got {_got(value)}")
    if not least <= int(value) <= most:
        wanted = f"of at most {most}" if int(value) > most == _MOST else _range(least, most, _MOST)
        raise ValueError(f"{what} must be a whole number {wanted}: got {value!r}")
    return int(value)


def check_floats(
    value: object, what: str, shape: tuple[int | str, ...] | None = None, *, finite: bool = True
) -> Tensor:
    """Return the value; raise if it is not a floating-point tensor of a shape.

    Args:
        value: To be checked.
        what: The value's name in messages.
        shape: A letter stands for any length; None for any shape.
        finite: Raise for NaN and infinities too.

    Example:
        >>> import torch
        >>> check_floats(torch.zeros(3), "circles", ("m", 3))
        Traceback (most recent call last):
        ValueError: circles must have shape (m, 3): got (3,)
    """
    from torch import Tensor

    if not isinstance(value, Tensor):
        raise TypeError(f"{what} must be a torch tensor: got {_got(value)}")
    if shape is not None and not (len(shape) == value.ndim and all(map(_fits, shape, value.shape))):
        wanted = f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"
        raise ValueError(f"{what} must have shape {wanted}: got {tuple(value.shape)}")
    if not value.is_floating_point():
        raise ValueError(f"{what} must be floating-point numbers: got {value.dtype}; convert them with .float()")
    if value.is_meta or (finite and not bool(value.isfinite().all())):
        got = "a tensor without numbers" if value.is_meta else "NaN or an infinity"
        raise ValueError(f"{what} must be finite numbers: got {got}")
    return value


def _fits(wanted: int | str, got: int) -> bool:
    return isinstance(wanted, str) or wanted == got


def _got(value: object) -> str:
    return f"{value!r:.60} of type {type(value).__name__}"


def _range(least: float, most: float, any_most: float) -> str:
    """Return a range in words, without an end that only the machine needs."""
    return f"of at least {least:g}" if most == any_most else f"from {least:g} to {most:g}"
