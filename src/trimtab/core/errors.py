"""Errors for what cannot be meant: unknown names, and values of another kind than expected."""

from __future__ import annotations

import math
from collections.abc import Iterable
from difflib import get_close_matches
from numbers import Integral, Real
from typing import TypeVar

__all__ = ["EngineError", "check_callable", "check_integer", "check_number", "check_type", "missing_extra", "unknown"]


_MOST = 2**31 - 1


class EngineError(RuntimeError):
    """Work could not be done where it was sent: a process died, a cluster does not answer, or it runs other code."""


def unknown(kind: str, name: object, known: Iterable[str]) -> ValueError:
    """The error for an unknown name, with the nearest known one.

    Example:
        >>> unknown("domain", "sO3", ["so3", "se3"])
        ValueError("unknown domain 'sO3'; did you mean 'so3'? Known: so3, se3")
    """
    known = list(known)
    near = get_close_matches(str(name).lower(), known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    return ValueError(f"unknown {kind} {name!r}{hint} Known: {', '.join(known)}")


Kind = TypeVar("Kind")


def check_type(value: object, kind: type[Kind], what: str, hint: str = "") -> Kind:
    """The value itself if it is of that type.

    Example:
        >>> check_type("x", int, "a seed", "give a whole number")
        Traceback (most recent call last):
        ...
        TypeError: a seed must be of type int: got 'x' of type str; give a whole number
    """
    if not isinstance(value, kind):
        got = f"{value!r:.60} of type {type(value).__name__}"
        raise TypeError(f"{what} must be of type {kind.__name__}: got {got}{'; ' if hint else ''}{hint}")
    return value


def check_callable(value: object, what: str, signature: str) -> None:
    """Refuse what cannot be called.

    Example:
        >>> check_callable(3, "run", "run(schedule)")
        Traceback (most recent call last):
        ...
        TypeError: run must be a function, called as run(schedule): got 3 of type int
    """
    if not callable(value) or isinstance(value, type):
        got = f"{value!r:.60} of type {type(value).__name__}"
        raise TypeError(f"{what} must be a function, called as {signature}: got {got}")


def check_number(value: object, what: str, least: float = -math.inf, most: float = math.inf) -> float:
    """The value as a float, if it is a real number in a range; NaN is none.

    Example:
        >>> check_number(1, "kappa", 0, 1)
        1.0
        >>> check_number("0.4", "kappa", 0, 1)
        Traceback (most recent call last):
        ...
        TypeError: kappa must be a number: got '0.4' of type str
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{what} must be a number: got {value!r:.60} of type {type(value).__name__}")
    if value != value:
        raise ValueError(f"{what} must be a number: got NaN")
    if not least <= float(value) <= most:
        raise ValueError(f"{what} must be a number {_range(least, most, math.inf)}: got {value!r}")
    return float(value)


def check_integer(value: object, what: str, least: int = 1, most: int = _MOST) -> int:
    """The value as an int, if it is a whole number in a range.

    Example:
        >>> check_integer(0, "n_steps")
        Traceback (most recent call last):
        ...
        ValueError: n_steps must be a whole number of at least 1: got 0
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{what} must be a whole number: got {value!r:.60} of type {type(value).__name__}")
    if not least <= int(value) <= most:
        wanted = f"of at most {most}" if int(value) > most == _MOST else _range(least, most, _MOST)
        raise ValueError(f"{what} must be a whole number {wanted}: got {value!r}")
    return int(value)


def _range(least: float, most: float, any_most: float) -> str:
    """In words, without an end that is there for the machine alone."""
    return f"of at least {least:g}" if most == any_most else f"from {least:g} to {most:g}"


def missing_extra(package: str, extra: str, purpose: str) -> ImportError:
    """The error for an optional dependency that is not installed.

    Example:
        >>> missing_extra("casadi", "ipopt", "the IPOPT projection")
        ImportError("the IPOPT projection needs casadi: pip install 'trimtab[ipopt]', or '.[ipopt]' in a checkout")
    """
    return ImportError(f"{purpose} needs {package}: pip install 'trimtab[{extra}]', or '.[{extra}]' in a checkout")
