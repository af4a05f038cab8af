"""Nearest collision-free paths by CasADi's IPOPT, one sample at a time, in this process or over a pool of them.

The program is built once for a map and a number of waypoints, with the proposal, the start and the goal as parameters;
start and goal are part of it, not written over its answer. IPOPT begins at a path that is already free where there is
one: from a proposal it often stalls.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import weakref
from collections.abc import Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trimtab.constraints.obstacles.geometry import Obstacles

__all__ = ["IpoptPaths", "build_program", "solve_one"]

Array = NDArray[np.float64]
Rows = tuple[tuple[float, ...], ...]

MAX_ITERATIONS = 150
MAX_TRIES = 2
# A small first barrier keeps IPOPT near the path it is given; the default one throws it across the map.
STARTED_NEAR: dict[str, Any] = {"ipopt.mu_init": 1e-6}


class Program(NamedTuple):
    """A built nonlinear program and the number of waypoints it is for."""

    solver: Any
    waypoints: int


class _Answer(NamedTuple):
    path: Array
    converged: bool
    iterations: int


def _casadi() -> Any:
    try:
        import casadi
    except ImportError as error:
        raise ImportError(
            "the 'ipopt' backend needs CasADi: pip install 'trimtab[ipopt]' (or use backend='batched')"
        ) from error
    return casadi


def build_program(
    circles: Rows, boxes: Rows, waypoints: int, tolerance: float, options: dict[str, Any] | None = None
) -> Program:
    """The projection of one path as a nonlinear program, with the proposal, the start and the goal as parameters.

    Args:
        circles: x, y, r of each.
        boxes: xmin, ymin, xmax, ymax of each.
        waypoints: Waypoints of a path, start and goal included.
        tolerance: IPOPT's.
        options: IPOPT options in place of `STARTED_NEAR`.
    """
    ca = _casadi()
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
    settings = {
        "ipopt.max_iter": MAX_ITERATIONS,
        "ipopt.tol": tolerance,
        "ipopt.print_level": 0,
        "ipopt.sb": "yes",
        "print_time": False,
        "error_on_fail": False,
        "show_eval_warnings": False,
    }
    return Program(
        ca.nlpsol("nearest_path", "ipopt", problem, settings | (STARTED_NEAR if options is None else options)),
        waypoints,
    )


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


def solve_one(program: Program, proposal: Array, begin: Array) -> tuple[Array, bool, int]:
    """Solve for one path: proposal and starting point (2, W) to the path, whether IPOPT succeeded, and iterations."""
    parameters = np.concatenate([proposal[:, 1:-1].T.ravel(), proposal[:, 0], proposal[:, -1]])
    try:
        answer = program.solver(x0=begin[:, 1:-1].T.ravel(), p=parameters, lbx=-1, ubx=1, lbg=0, ubg=math.inf)
    except RuntimeError:  # CasADi raises where a function is not finite; one bad sample must not end the batch
        return begin, False, 0
    stats = program.solver.stats()
    path = proposal.copy()
    path[:, 1:-1] = np.asarray(answer["x"]).reshape(-1, 2).T
    finite = bool(np.isfinite(path).all())
    return (path if finite else begin), finite and bool(stats["success"]), int(stats["iter_count"])


@lru_cache(maxsize=4)
def _program(circles: Rows, boxes: Rows, waypoints: int, tolerance: float) -> Program:
    """The program, built once in each process."""
    return build_program(circles, boxes, waypoints, tolerance)


def _solve(circles: Rows, boxes: Rows, tolerance: float, tries: int, proposal: Array, begin: Array) -> _Answer:
    """One sample with bounded retries: from the path given, then from the proposal, moved off any symmetry."""
    program = _program(circles, boxes, proposal.shape[1], tolerance)
    spent = 0
    for attempt in range(tries):
        shift = 1e-3 * np.sin(np.arange(begin.size)).reshape(begin.shape)
        at = begin if attempt == 0 else np.clip(proposal + shift, -1, 1)
        found, ok, iterations = solve_one(program, proposal, at)
        spent += iterations
        if ok:
            return _Answer(found, True, spent)
    return _Answer(begin, False, spent)


class IpoptPaths:
    """Solves paths one by one, over a pool of processes if asked; the pool is made when first needed.

    Processes are spawned, so a script that uses more than one must guard its entry with
    `if __name__ == "__main__":`. They end with `close()`, with the object, or with the program.
    """

    def __init__(self, obstacles: Obstacles, tolerance: float, workers: int, tries: int = MAX_TRIES) -> None:
        """Check that CasADi is there; nothing is built yet."""
        _casadi()
        if workers < 0:
            raise ValueError(f"workers must be 0 (every core) or more, got {workers}")
        self.circles: Rows = tuple(map(tuple, obstacles.circles.tolist()))
        self.boxes: Rows = tuple(map(tuple, obstacles.boxes.tolist()))
        self.tolerance = tolerance
        self.tries = tries
        self.workers = workers or os.cpu_count() or 1
        self._obstacles = obstacles
        self._pool: ProcessPoolExecutor | None = None
        self._close: weakref.finalize[Any, Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """All but the processes: a copy elsewhere has its own."""
        return {**vars(self), "_pool": None, "_close": None}

    def solve(self, proposal: Tensor, begin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Paths, (2, n, W), whether each converged, (n,), and IPOPT's iterations, (n,).

        A sample that IPOPT fails on keeps the path it began at.
        """
        from trimtab.constraints.obstacles.batched import violations

        n = proposal.shape[1]
        if not n:
            nothing = torch.zeros(0, dtype=torch.int64, device=proposal.device)
            return proposal, nothing.bool(), nothing
        q, p = (x.detach().cpu().double().transpose(0, 1).numpy() for x in (proposal, begin))
        tasks = zip(q, p, strict=True)
        answers = list(self._in_pool(tasks) if self.workers > 1 and n > 1 else map(self._here, tasks))
        path = torch.from_numpy(np.stack([a.path for a in answers])).transpose(0, 1).to(proposal)
        path[:, :, 0], path[:, :, -1] = proposal[:, :, 0], proposal[:, :, -1]
        path.clamp_(-1, 1)
        converged = torch.tensor([a.converged for a in answers], device=proposal.device)
        if len(self._obstacles):
            converged &= violations(self._obstacles.to(path), path) <= self.tolerance
        return path, converged, torch.tensor([a.iterations for a in answers], device=proposal.device)

    def _here(self, task: tuple[Array, Array]) -> _Answer:
        return _solve(self.circles, self.boxes, self.tolerance, self.tries, *task)

    def _in_pool(self, tasks: Iterable[tuple[Array, Array]]) -> list[_Answer]:
        tasks = list(tasks)
        pool = self._running()
        try:
            futures = [
                pool.submit(_solve, self.circles, self.boxes, self.tolerance, self.tries, *task) for task in tasks
            ]
        except BrokenProcessPool:
            futures = []
        answers = [_outcome(future) for future in futures]
        if all(a is None for a in answers):
            self.close()
            raise RuntimeError(
                "no IPOPT worker process could be started or all died; a script that uses workers needs "
                'its entry under `if __name__ == "__main__":`, and workers=1 solves without processes'
            )
        if any(a is None for a in answers):  # a worker died: its samples failed, and the next call gets a new pool
            self.close()
        return [a or _Answer(task[1], False, 0) for a, task in zip(answers, tasks, strict=True)]

    def _running(self) -> ProcessPoolExecutor:
        if self._pool is None:
            self._pool = ProcessPoolExecutor(self.workers, multiprocessing.get_context("spawn"))
            self._close = weakref.finalize(self, self._pool.shutdown, wait=True, cancel_futures=True)
        return self._pool

    def close(self) -> None:
        """End the worker processes; the next solve starts new ones."""
        if self._close is not None:
            self._close()
        self._pool, self._close = None, None


def _outcome(future: Future[_Answer]) -> _Answer | None:
    """What a worker answered, or None if it died."""
    try:
        return future.result()
    except BrokenProcessPool:
        return None
