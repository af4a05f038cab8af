"""Targets by the dozen: a call whose arguments are all right, of which one at a time is spoiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torture.values import Bad

Target = tuple[Callable[[Any], Any], Bad]
Targets = dict[str, Target]


def spoil(name: str, call: Callable[..., Any], good: Callable[[], dict[str, Any]] = dict, /, **bad: Bad) -> Targets:
    """A target for each argument named in `bad`: the call with that one spoiled and the others as they should be.

    Args:
        name: Of the public name; the targets are called by it and the argument.
        call: With keywords alone.
        good: The arguments that must be there, made when they are needed.
        bad: What makes bad values, by argument.
    """
    return {f"{name} {argument}": (_spoiled(call, good, argument), of) for argument, of in bad.items()}


def _spoiled(call: Callable[..., Any], good: Callable[[], dict[str, Any]], argument: str) -> Callable[[Any], Any]:
    return lambda value: call(**good() | {argument: value})
