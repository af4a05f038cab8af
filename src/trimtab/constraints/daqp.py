"""Nearest points of a polyhedron by DAQP, a dual active-set solver in C, one sample after the other."""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec
from math import isfinite

import numpy as np
from numpy.typing import NDArray

__all__ = ["daqp_is_there", "nearest_by_daqp"]

Array = NDArray[np.float64]

_TOLERANCE = 1e-12  # of the planes, whose normals have length 1


@lru_cache(maxsize=1)
def daqp_is_there() -> bool:
    """Whether DAQP is installed; without it, the method in torch does the same."""
    return find_spec("daqp") is not None


@lru_cache(maxsize=16)
def _constants(m: int, d: int) -> tuple[Array, Array, NDArray[np.intc]]:
    """An objective that is the distance, no lower bounds, and plain inequalities: only read."""
    return np.eye(d), np.full(m, -1e30), np.zeros(m, dtype=np.intc)


def nearest_by_daqp(
    normals: Array, b: Array, points: Array, max_iterations: int
) -> tuple[Array, NDArray[np.bool_], NDArray[np.int64]]:
    """The nearest points, (n, d), which of them were found, and the planes added or removed for each, (n,).

    Args:
        normals: Of length 1, (m, d).
        b: (m,) or (n, m); 1e30 where there is no plane.
        points: (n, d); one that is not finite is returned as it is and as not found.
        max_iterations: Planes added or removed per sample at the most.
    """
    import daqp

    identity, nothing, kinds = _constants(*normals.shape)
    y, own, solve = -points, b.ndim == 2, daqp.solve  # DAQP wants the linear term of its objective
    found, changes = np.zeros(len(points), dtype=np.bool_), np.zeros(len(points), dtype=np.int64)
    for i, point in enumerate(y):
        if not isfinite(point.dot(point)):
            continue
        offsets = b[i] if own else b
        nearest, _, flag, facts = solve(
            identity, point, normals, offsets, nothing, kinds, primal_tol=_TOLERANCE, iter_limit=max_iterations
        )
        changes[i] = facts["iterations"] - 1
        if flag > 0:
            found[i] = True
            point[:] = nearest
    if not found.all():
        y[~found] = points[~found]
    return y, found, changes
