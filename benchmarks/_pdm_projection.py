"""The projection of Projected Diffusion Models, as in its public code: a new program for every sample.

That code (Christopher, Baek and Fioretto, 2024) makes, at each call, a CasADi program in matrix symbols: the positions
of all waypoints as one column, moved to [0, 2]; the squared distance to the proposal; and for each segment and circle
the radius minus the distance to the nearest point of the segment, at most 0. IPOPT begins at the proposal, with 150
iterations, tolerances of 1e-3 and an adaptive barrier. Start and goal are written over the path before and after; they
are not part of the program. Where IPOPT fails, the proposal is kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["project_as_pdm"]

OPTIONS: dict[str, Any] = {
    "ipopt.max_iter": 150,
    "ipopt.tol": 1e-3,
    "ipopt.constr_viol_tol": 1e-3,
    "ipopt.mu_strategy": "adaptive",
    "ipopt.print_level": 0,
    "ipopt.sb": "yes",
    "print_time": False,
}


def project_as_pdm(
    circles: Iterable[tuple[float, float, float]], proposal: NDArray[np.float64]
) -> tuple[NDArray[np.float64], bool]:
    """Return the projected path, (2, W), and whether IPOPT succeeded."""
    import casadi as ca

    waypoints = proposal.shape[1]
    wanted = proposal.T.ravel() + 1
    x = ca.MX.sym("x", 2 * waypoints)
    points = [ca.vertcat(x[2 * i], x[2 * i + 1]) for i in range(waypoints)]
    too_near = []
    for a, b in pairwise(points):
        for cx, cy, r in circles:
            centre, along = ca.DM([cx + 1, cy + 1]), b - a
            share = ca.dot(centre - a, along) / ca.dot(along, along)
            nearest = a + ca.fmax(ca.fmin(share, 1), 0) * along
            too_near.append(r - ca.norm_2(centre - nearest))
    program = {"x": x, "f": ca.sumsqr(wanted - x), "g": ca.vertcat(*too_near)}
    solver = ca.nlpsol("as_pdm", "ipopt", program, OPTIONS)
    answer = solver(x0=wanted, lbx=0, ubx=2, lbg=-ca.inf, ubg=0)
    if not solver.stats()["success"]:
        return proposal, False
    path = np.asarray(answer["x"]).reshape(waypoints, 2).T - 1
    path[:, 0], path[:, -1] = proposal[:, 0], proposal[:, -1]
    return path, True
