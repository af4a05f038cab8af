"""Nearest points of a polyhedron by DAQP, a dual active-set solver in C, one sample after the other."""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["NearestByDaqp", "daqp_is_there"]

Array = NDArray[np.float64]

_TOLERANCE = 1e-12  # of the planes, whose normals have length 1


@lru_cache(maxsize=1)
def daqp_is_there() -> bool:
    """Whether DAQP is installed; without it, the method in torch does the same."""
    return find_spec("daqp") is not None


class NearestByDaqp:
    """Nearest points for one set of normals, which are handed to DAQP once.

    Calls may come from several threads: each takes a solver that is idle, or sets one up.
    """

    def __init__(self, normals: Array, max_iterations: int) -> None:
        """Keep what solvers are set up from.

        Args:
            normals: Of length 1, (m, d).
            max_iterations: Planes added or removed per sample at the most.
        """
        self._normals, self._max_iterations = normals, max_iterations
        self._anything = np.zeros(len(normals), dtype=np.intc)  # plain inequalities, none of them active at first
        self._idle: list[tuple[Any, Array | None]] = []  # with the offsets that each of them has

    def __reduce__(self) -> tuple[Any, ...]:
        """Solvers are memory of a C library: a copy sets up its own."""
        return NearestByDaqp, (self._normals, self._max_iterations)

    def __call__(self, points: Array, b: Array) -> tuple[Array, NDArray[np.bool_], NDArray[np.int64], list[int]]:
        """The nearest points, (n, d), whether each was found and the planes added or removed for it, (n,) both.

        Last come the rows that were not found: mostly none, and a list tells that faster than an array.

        Args:
            points: (n, d); one that is not finite is returned as it is and as not found.
            b: (m,) or (n, m); 1e30 where there is no plane. An array that has been handed over must not change.
        """
        y, own, anything = -points, b.ndim == 2, self._anything  # DAQP wants the linear term of its objective
        n, missed = len(y), []
        found, changes = np.zeros(n, dtype=np.bool_), np.zeros(n, dtype=np.int64)
        try:
            solver, known = self._idle.pop()
        except IndexError:
            solver, known = self._set_up(), None
        update, solve = solver.update, solver.solve
        if not own and known is not b:
            update(bupper=b)
        for i in range(n):
            point = y[i]
            # with no plane active at first: what a sample gets must not depend on the one before
            if own:
                update(f=point, bupper=b[i], sense=anything)
            else:
                update(f=point, sense=anything)
            nearest, value, flag, facts = solve()
            changes[i] = facts["iterations"] - 1
            if flag > 0 and isfinite(value):  # of a point that is not, DAQP has no more to say than NaN
                point[:] = nearest
                found[i] = True
            else:
                missed.append(i)
        self._idle.append((solver, None if own else b))
        if missed:
            y[missed] = points[missed]
        return y, found, changes, missed

    def _set_up(self) -> Any:
        import daqp

        (m, d), solver = self._normals.shape, daqp.Model()
        solver.settings = {**solver.settings, "primal_tol": _TOLERANCE, "iter_limit": self._max_iterations}
        solver.setup(np.eye(d), np.zeros(d), self._normals, np.full(m, 1e30), np.full(m, -1e30), self._anything)
        return solver
