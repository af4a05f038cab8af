"""Ways of correcting: whole projections, a few iterations of the solver, and what a constraint offers as cheaper."""

from __future__ import annotations

import re

from trimtab.core.constraint import Constraint
from trimtab.core.schedule import WHOLE

__all__ = ["way_of", "ways_of"]

_ITERATIONS = re.compile(r"(\d+) iterations?")


def way_of(constraint: Constraint, name: str) -> Constraint:
    """Return the constraint whose `project` is the named way.

    Args:
        constraint: What is corrected.
        name: "whole", "1 iteration", "2 iterations", … if the constraint's solver iterates, or a name of
            `constraint.cheaper()`.

    Example:
        >>> import torch
        >>> from trimtab.constraints import NonlinearEquality
        >>> circle = NonlinearEquality(lambda y: (y * y).sum()[None] - 1)
        >>> way_of(circle, "1 iteration").project(torch.tensor([[0.0, 2.0]])).x
        tensor([[0.0000, 1.2500]])
    """
    if name == WHOLE:
        return constraint
    counted = _ITERATIONS.fullmatch(name)
    if counted and int(counted[1]) > 0 and constraint.improves:
        from trimtab.constraints.partial import FewIterations  # most loops need no more than whole projections

        return FewIterations(constraint, int(counted[1]))
    cheaper = constraint.cheaper()
    if name not in cheaper:
        raise ValueError(
            f"{type(constraint).__name__} has no way called {name!r}: got that, expected one of "
            f"{[*ways_of(constraint), *cheaper]}"
        )
    return cheaper[name]


def ways_of(constraint: Constraint, most: int = 3) -> tuple[str, ...]:
    """Return the names of the ways that work can be saved by, the cheapest first: up to `most` iterations, whole."""
    if not constraint.counts_iterations:
        return (WHOLE,)
    return (*(f"{k} iteration{'s' * (k > 1)}" for k in range(1, most + 1)), WHOLE)
