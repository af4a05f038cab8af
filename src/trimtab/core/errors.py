"""Errors for names nobody knows."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = ["missing_extra", "unknown"]


def unknown(kind: str, name: str, known: Iterable[str]) -> ValueError:
    """The error for an unknown name, with the nearest known one.

    Example:
        >>> unknown("domain", "sO3", ["so3", "se3"])
        ValueError("unknown domain 'sO3'; did you mean 'so3'? Known: so3, se3")
    """
    known = list(known)
    near = get_close_matches(name.lower(), known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    return ValueError(f"unknown {kind} {name!r}{hint} Known: {', '.join(known)}")


def missing_extra(package: str, extra: str, purpose: str) -> ImportError:
    """The error for an optional dependency that is not installed.

    Example:
        >>> missing_extra("casadi", "ipopt", "the IPOPT projection")
        ImportError("the IPOPT projection needs casadi: pip install 'trimtab[ipopt]'")
    """
    return ImportError(f"{purpose} needs {package}: pip install 'trimtab[{extra}]'")
