"""The grid's conditions as a nonlinear program: the cheapest operating point, and the nearest feasible one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from trimtab.constraints.program import casadi, ipopt_options
from trimtab.core.constraint import Projection
from trimtab.evaluation.domains.grid.case import Grid, Parts

__all__ = ["cheapest", "conditions", "cut"]

Array = NDArray[np.float64]

PURPOSE = "the grid domain"


def cut(grid: Grid, y: Any) -> Parts:
    """A CasADi column of a state's numbers cut into its parts; all angles, the fixed one too."""
    ca = casadi(PURPOSE)
    pieces = Parts(*(y[where] for where in grid.slices()))
    slack = grid.slack
    return pieces._replace(angle=ca.vertcat(pieces.angle[:slack], 0, pieces.angle[slack:]))


def conditions(grid: Grid, y: Any) -> tuple[list[Any], list[Any]]:
    """Expressions of the state column `y` that must be at most 0 (line ratings) and that must be 0 (power balance)."""
    ca = casadi(PURPOSE)
    state = cut(grid, y)
    active = [0.0] * grid.buses
    reactive = [0.0] * grid.buses
    for places, real, imaginary, sign in (
        (grid.generator_buses, state.generation, state.generation_reactive, 1),
        (grid.load_buses, state.load, state.load_reactive, -1),
    ):
        for i, bus in enumerate(places):
            active[bus] += sign * real[i]
            reactive[bus] += sign * imaginary[i]
    for bus, shunt in enumerate(grid.shunts):
        active[bus] -= shunt.real * state.voltage[bus] ** 2
        reactive[bus] += shunt.imag * state.voltage[bus] ** 2
    over = []
    for branch in grid.branches:
        for at, other, own, across in zip(branch.ends, branch.ends[::-1], branch.own, branch.across, strict=True):
            turn = state.angle[at] - state.angle[other]
            product = state.voltage[at] * state.voltage[other]
            c, s = product * ca.cos(turn), product * ca.sin(turn)
            p = own.real * state.voltage[at] ** 2 + across.real * c + across.imag * s
            q = -own.imag * state.voltage[at] ** 2 - across.imag * c + across.real * s
            active[at] -= p
            reactive[at] -= q
            over.append((p**2 + q**2) / branch.rating**2 - 1)  # squares: smooth where nothing flows
    return over, [*active, *reactive]


@dataclass(frozen=True)
class _Optimum:
    solver: Any
    lower: Array
    upper: Array
    at_most: int
    equal: int


@lru_cache(maxsize=8)
def _optimum(grid: Grid) -> _Optimum:
    ca = casadi(PURPOSE)
    y = ca.SX.sym("y", grid.dimension)
    over, balance = conditions(grid, y)
    price = 0
    generation = cut(grid, y).generation
    for i, (squared, linear, constant) in enumerate(grid.costs):
        price += squared * generation[i] ** 2 + linear * generation[i] + constant
    problem = {"x": y, "f": price / 1000, "g": ca.vertcat(*over, *balance)}
    solver = ca.nlpsol("cheapest", "ipopt", problem, ipopt_options(200, 1e-8))
    return _Optimum(solver, np.array(grid.lower), np.array(grid.upper), len(over), len(balance))


def cheapest(grid: Grid, loads: NDArray[np.complex128], begin: Array | None = None) -> Projection:
    """The cheapest operating points for given loads: an optimal power flow each, by IPOPT.

    Args:
        grid: The grid.
        loads: Complex demand, (n, loads), in per unit.
        begin: States at which the search begins, (n, d); a flat one by default.

    Returns:
        States (n, d) float64, whether IPOPT found each, and its iterations.
    """
    program, where = _optimum(grid), grid.slices()
    limits = np.concatenate([np.full(program.at_most, -np.inf), np.zeros(program.equal)])
    states, solved, iterations = [], [], []
    for i, row in enumerate(loads):
        lower, upper = program.lower.copy(), program.upper.copy()
        for part, values in ((where.load, row.real), (where.load_reactive, row.imag)):
            lower[part] = upper[part] = values
        first = np.clip(_flat(grid) if begin is None else begin[i], lower, upper)
        answer = program.solver(x0=first, lbx=lower, ubx=upper, lbg=limits, ubg=0)
        stats = program.solver.stats()
        states.append(np.asarray(answer["x"]).reshape(-1))
        solved.append(bool(stats["success"]))
        iterations.append(int(stats["iter_count"]))
    return Projection(torch.from_numpy(np.stack(states)), torch.tensor(solved), torch.tensor(iterations))


def _flat(grid: Grid) -> Array:
    """Where the search begins: voltages of 1, angles of 0, generation in the middle of its range."""
    lower, upper = np.array(grid.lower), np.array(grid.upper)
    bounded = np.isfinite(lower) & np.isfinite(upper)
    begin = np.where(bounded, (np.where(bounded, lower, 0) + np.where(bounded, upper, 0)) / 2, 0.0)
    begin[grid.slices().voltage] = 1.0
    return begin
