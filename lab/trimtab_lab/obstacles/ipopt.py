"""Nearest collision-free paths by CasADi's IPOPT, one sample at a time, in this process or several.

The program is built once for a map and a number of waypoints, with the proposal, the start and the goal as parameters.
IPOPT starts from a path that is already free if there is one: from a proposal it often stalls.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trimtab.constraints.processes import Workers
from trimtab.constraints.program import answer_of, casadi, ipopt_options
from trimtab_lab.obstacles.batched import violations
from trimtab_lab.obstacles.geometry import Obstacles

__all__ = ["IpoptPaths", "build_program", "solve_one"]

Array = NDArray[np.float64]
Rows = tuple[tuple[float, ...], ...]
Answer = tuple[Array, bool, int]

_PURPOSE = "backend='ipopt' (backend='batched' does not)"
_MAX_ITERATIONS = 150
# A small first barrier keeps IPOPT near the path it is given; the default one throws it across the map.
_START_NEAR: dict[str, Any] = {"ipopt.mu_init": 1e-6}


def build_program(
    circles: Rows, boxes: Rows, waypoints: int, tolerance: float, options: dict[str, Any] | None = None
) -> Any:
    """Build CasADi's solver for the projection of one path, with circles (x, y, r) and boxes (xmin, ymin, xmax, ymax).

    The path has `waypoints` waypoints, start and goal included. The default options start near the given path.
    """
    ca = casadi(_PURPOSE)
    inner, proposal = ca.SX.sym("p", 2, waypoints - 2), ca.SX.sym("q", 2, waypoints - 2)
    start, goal = ca.SX.sym("s", 2), ca.SX.sym("g", 2)
    path = ca.horzcat(start, inner, goal)
    gap = []
    for i in range(waypoints - 1):
        a, b = path[:, i], path[:, i + 1]
        gap += [_circle_gap(ca, circle, a, b) for circle in circles]
        gap += [_box_gap(ca, box, a, b) for box in boxes]
    problem = {
        "x": ca.vec(inner),
        "p": ca.vertcat(ca.vec(proposal), start, goal),
        "f": ca.sumsqr(inner - proposal),
        "g": ca.vertcat(*gap),
    }
    settings = ipopt_options(_MAX_ITERATIONS, tolerance) | (_START_NEAR if options is None else options)
    return ca.nlpsol("nearest_path", "ipopt", problem, settings)


def _circle_gap(ca: Any, circle: tuple[float, ...], a: Any, b: Any) -> Any:
    x, y, r = circle
    u, d = b - a, ca.vertcat(x, y) - a
    t = ca.fmax(0, ca.fmin(1, ca.dot(d, u) / (ca.dot(u, u) + 1e-12)))  # a segment may have no length
    return ca.sqrt(ca.sumsqr(d - t * u) + 1e-12) - r


def _box_gap(ca: Any, box: tuple[float, ...], a: Any, b: Any) -> Any:
    xmin, ymin, xmax, ymax = box
    u = b - a
    length = ca.sqrt(ca.dot(u, u) + 1e-12)
    nx, ny = -u[1] / length, u[0] / length
    across = nx * (a[0] - (xmin + xmax) / 2) + ny * (a[1] - (ymin + ymax) / 2)
    oblique = ca.fabs(across) - ca.fabs(nx) * (xmax - xmin) / 2 - ca.fabs(ny) * (ymax - ymin) / 2
    along_x = ca.fmax(ca.fmin(a[0], b[0]) - xmax, xmin - ca.fmax(a[0], b[0]))
    along_y = ca.fmax(ca.fmin(a[1], b[1]) - ymax, ymin - ca.fmax(a[1], b[1]))
    return ca.fmax(oblique, ca.fmax(along_x, along_y))


def solve_one(solver: Any, proposal: Array, start: Array) -> Answer:
    """Solve for one path: proposal and starting point (2, W) to the path, whether IPOPT succeeded, and iterations."""
    parameters = np.concatenate([proposal[:, 1:-1].T.ravel(), proposal[:, 0], proposal[:, -1]])
    try:
        answer = solver(x0=start[:, 1:-1].T.ravel(), p=parameters, lbx=-1, ubx=1, lbg=0, ubg=math.inf)
    except RuntimeError:  # CasADi raises if a function is not finite; one bad sample must not end the batch
        return start, False, 0
    stats = solver.stats()
    path = proposal.copy()
    path[:, 1:-1] = np.asarray(answer["x"]).reshape(-1, 2).T
    finite = bool(np.isfinite(path).all())
    return (path if finite else start), finite and bool(stats["success"]), int(stats["iter_count"])


_solver = lru_cache(maxsize=4)(build_program)  # once per process


def _solve(circles: Rows, boxes: Rows, tolerance: float, tries: int, proposal: Array, start: Array) -> Answer:
    """Solve for one sample: from the given path, then from the proposal, moved off any symmetry."""
    solver = _solver(circles, boxes, proposal.shape[1], tolerance)
    spent = 0
    for attempt in range(tries):
        shift = 1e-3 * np.sin(np.arange(start.size)).reshape(start.shape)
        at = start if attempt == 0 else np.clip(proposal + shift, -1, 1)
        found, ok, iterations = solve_one(solver, proposal, at)
        spent += iterations
        if ok:
            return found, True, spent
    return start, False, spent


class IpoptPaths:
    """Solves paths one by one, in worker processes if there are several workers."""

    def __init__(self, obstacles: Obstacles, tolerance: float, workers: int, tries: int = 2) -> None:
        """Check that CasADi is installed; nothing is built yet."""
        casadi(_PURPOSE)
        self.obstacles, self.tolerance, self.workers, self.tries = obstacles, tolerance, workers, tries
        self._pool = Workers()

    def solve(self, proposal: Tensor, start: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return paths, (2, n, W), whether each converged, (n,), and IPOPT's iterations, (n,).

        A sample that IPOPT fails on keeps the path that it started from.
        """
        if not proposal.shape[1]:
            nothing = torch.zeros(0, dtype=torch.int64, device=proposal.device)
            return proposal, nothing.bool(), nothing
        circles, boxes = (tuple(map(tuple, rows.tolist())) for rows in (self.obstacles.circles, self.obstacles.boxes))
        q, p = (x.detach().cpu().double().transpose(0, 1).numpy() for x in (proposal, start))
        tasks = [(circles, boxes, self.tolerance, self.tries, *task) for task in zip(q, p, strict=True)]
        found = self._pool.run(_solve, tasks, self.workers, None)
        answers = [answer_of(answer, (path, False, 0)) for path, answer in zip(p, found, strict=True)]
        paths, solved, iterations = zip(*answers, strict=True)
        path = torch.from_numpy(np.stack(paths)).transpose(0, 1).to(proposal)
        path[:, :, 0], path[:, :, -1] = proposal[:, :, 0], proposal[:, :, -1]
        path.clamp_(-1, 1)
        converged = torch.tensor(solved, device=proposal.device)
        if len(self.obstacles):
            converged &= violations(self.obstacles.to(path), path) <= self.tolerance
        return path, converged, torch.tensor(iterations, device=proposal.device)

    def close(self) -> None:
        """End the worker processes; the next solve starts new ones."""
        self._pool.close()
