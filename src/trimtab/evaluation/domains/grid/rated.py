"""A grid by name, its lines rated."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np

from trimtab.core.errors import unknown
from trimtab.evaluation.domains.grid.case import CASES, UNRATED, Grid, from_pandapower
from trimtab.evaluation.domains.grid.power import loadings
from trimtab.evaluation.domains.grid.program import cheapest

__all__ = ["load_grid"]


@cache
def load_grid(case: str = "case14") -> Grid:
    """A grid by name.

    Lines that the case leaves unrated (all of case14's) get a rating, since a limit that is never met is none: the
    smallest whole MVA that is at least 1.3 times the line's load at the cheapest operating point for the case's own
    demand, and at least 10 MVA.
    """
    if case not in CASES:
        raise unknown("case", case, CASES)
    grid = from_pandapower(case)
    if all(branch.rating < UNRATED for branch in grid.branches):
        return grid
    answer = cheapest(grid, np.array(grid.loads)[None])
    load = loadings(grid, answer.x)[0]  # of the rating it has now
    rated = []
    for branch, share in zip(grid.branches, load.tolist(), strict=True):
        needed = max(10.0, float(np.ceil(1.3 * share * branch.rating * grid.base)))
        rated.append(branch._replace(rating=needed / grid.base) if branch.rating >= UNRATED else branch)
    return replace(grid, branches=tuple(rated))
