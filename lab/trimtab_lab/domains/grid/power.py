"""The power-flow equations and limits, batched in torch and as a CasADi program, and the cheapest operating points."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, lru_cache, partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trimtab.constraints.program import casadi, ipopt_options
from trimtab.core.checks import unknown
from trimtab.core.constraint import Projection

from .case import CASES, Grid, Parts, from_pandapower

__all__ = ["cheapest", "conditions", "cost", "flows", "load_grid", "loadings", "mismatch", "parts", "violations"]

PURPOSE = "the grid domain"
_UNRATED = 50.0  # per unit; a line with a larger rating counts as unrated: case14 has 99 for all of its lines


# ------------------------------------------------------------------ in torch


@lru_cache(maxsize=8)
def _matrices(grid: Grid, device: torch.device) -> Any:
    """Return the numbers of a grid as tensors."""
    real = partial(torch.tensor, dtype=torch.float64, device=device)
    complexes = partial(torch.tensor, dtype=torch.complex128, device=device)
    at_bus = torch.eye(grid.buses, dtype=torch.float64, device=device)
    begin, end = torch.tensor([branch.ends for branch in grid.branches], device=device).T
    return SimpleNamespace(
        begin=begin,  # (branches,)
        end=end,
        own=complexes([branch.own for branch in grid.branches]).T,  # (2, branches)
        across=complexes([branch.across for branch in grid.branches]).T,
        rating=real([branch.rating for branch in grid.branches]),
        shunts=complexes(grid.shunts),  # (buses,)
        incidence=at_bus[torch.cat([begin, end])].to(torch.complex128),  # (2 branches, buses)
        loads=at_bus[list(grid.load_buses)],  # (loads, buses)
        generators=at_bus[list(grid.generator_buses)],
        lower=real(grid.lower),
        upper=real(grid.upper),
        costs=real(grid.costs).T,  # (3, generators)
    )


def parts(grid: Grid, x: Tensor) -> Parts:
    """Cut states (n, d) into their parts, (n, size) each."""
    return Parts(*(x[:, where] for where in grid.slices()))


def flows(grid: Grid, x: Tensor) -> Tensor:
    """Return the complex power that enters each branch at its two ends, (n, d) to (n, 2, branches)."""
    m, cut = _matrices(grid, x.device), parts(grid, x)
    slack = torch.zeros_like(cut.angle[:, :1])
    angle = torch.cat([cut.angle[:, : grid.slack], slack, cut.angle[:, grid.slack :]], dim=1)
    voltages = torch.complex(cut.voltage * angle.cos(), cut.voltage * angle.sin())
    at = torch.stack([voltages[:, m.begin], voltages[:, m.end]], dim=1)
    sent: Tensor = at * (m.own * at + m.across * at.flip(1)).conj()
    return sent


def loadings(grid: Grid, x: Tensor) -> Tensor:
    """Return the apparent power of each branch at its fuller end, as a share of its rating, (n, branches)."""
    share: Tensor = flows(grid, x).abs().amax(dim=1) / _matrices(grid, x.device).rating
    return share


def mismatch(grid: Grid, x: Tensor) -> Tensor:
    """Return the complex power at each bus that is generated and not used, (n, d) to (n, buses); 0 if it balances."""
    m, cut = _matrices(grid, x.device), parts(grid, x)
    generated = torch.complex(cut.generation @ m.generators, cut.generation_reactive @ m.generators)
    taken = torch.complex(cut.load @ m.loads, cut.load_reactive @ m.loads)
    sent = flows(grid, x).flatten(1) @ m.incidence
    missing: Tensor = generated - taken - sent - cut.voltage.square() * m.shunts.conj()
    return missing


def violations(grid: Grid, x: Tensor, demand: Tensor) -> Tensor:
    """Return the violation of each condition in per unit, (n, conditions): balance, demand (n,), ratings, bounds."""
    m = _matrices(grid, x.device)
    missing = torch.view_as_real(mismatch(grid, x)).flatten(1).abs()
    asked = (parts(grid, x).load.sum(dim=1) - demand).abs()[:, None]
    over = (flows(grid, x).abs().amax(dim=1) - m.rating).clamp(min=0)
    outside = (m.lower - x).clamp(min=0) + (x - m.upper).clamp(min=0)
    return torch.cat([missing, asked, over, outside], dim=1)


def cost(grid: Grid, x: Tensor) -> Tensor:
    """Return the cost of an hour of generation, (n, d) to (n,)."""
    squared, linear, constant = _matrices(grid, x.device).costs
    generation = parts(grid, x).generation
    total: Tensor = (squared * generation.square() + linear * generation + constant).sum(dim=1)
    return total


# ------------------------------------------------------------------ as a nonlinear program


def cut_column(grid: Grid, y: Any) -> Parts:
    """Cut a CasADi column of one state into its parts; the angles include the fixed one."""
    pieces = Parts(*(y[where] for where in grid.slices()))
    slack = grid.slack
    return pieces._replace(angle=casadi(PURPOSE).vertcat(pieces.angle[:slack], 0, pieces.angle[slack:]))


def conditions(grid: Grid, y: Any) -> tuple[list[Any], list[Any]]:
    """Return expressions of the state column `y` that must be at most 0 (ratings), and that must be 0 (balance)."""
    ca = casadi(PURPOSE)
    state = cut_column(grid, y)
    active = [-shunt.real * state.voltage[bus] ** 2 for bus, shunt in enumerate(grid.shunts)]
    reactive = [shunt.imag * state.voltage[bus] ** 2 for bus, shunt in enumerate(grid.shunts)]
    for places, real, imaginary, sign in (
        (grid.generator_buses, state.generation, state.generation_reactive, 1),
        (grid.load_buses, state.load, state.load_reactive, -1),
    ):
        for i, bus in enumerate(places):
            active[bus] += sign * real[i]
            reactive[bus] += sign * imaginary[i]
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
            over.append((p**2 + q**2) / branch.rating**2 - 1)  # squares are smooth where nothing flows
    return over, [*active, *reactive]


@lru_cache(maxsize=8)
def _cheapest_solver(grid: Grid) -> tuple[Any, Any]:
    """Return the solver of the optimal power flow, and the lower limits of its conditions."""
    ca = casadi(PURPOSE)
    y = ca.SX.sym("y", grid.dimension)
    over, balance = conditions(grid, y)
    generation = cut_column(grid, y).generation
    price = sum(a * generation[i] ** 2 + b * generation[i] + c for i, (a, b, c) in enumerate(grid.costs))
    problem = {"x": y, "f": price / 1000, "g": ca.vertcat(*over, *balance)}
    solver = ca.nlpsol("cheapest", "ipopt", problem, ipopt_options(200, 1e-8))
    return solver, np.concatenate([np.full(len(over), -np.inf), np.zeros(len(balance))])


def cheapest(grid: Grid, loads: Any, start: Any = None) -> Projection:
    """Return the cheapest operating points for given loads: an optimal power flow each, by IPOPT.

    Args:
        grid: The grid.
        loads: The complex demand, a (n, loads) array in per unit.
        start: The states at which the search starts, a (n, d) array; by default voltages of 1, angles of 0 and
            generation in the middle of its range.

    Returns:
        States (n, d) float64, whether IPOPT found each, and its iterations.
    """
    (solver, limits), where = _cheapest_solver(grid), grid.slices()
    lower, upper = np.array(grid.lower), np.array(grid.upper)
    bounded = np.isfinite(lower) & np.isfinite(upper)
    flat = np.zeros(grid.dimension)
    flat[bounded] = (lower[bounded] + upper[bounded]) / 2
    flat[where.voltage] = 1.0
    states, solved, iterations = [], [], []
    for i, row in enumerate(loads):
        for part, values in ((where.load, row.real), (where.load_reactive, row.imag)):
            lower[part] = upper[part] = values
        first = np.clip(flat if start is None else start[i], lower, upper)
        answer = solver(x0=first, lbx=lower, ubx=upper, lbg=limits, ubg=0)
        stats = solver.stats()
        states.append(np.asarray(answer["x"]).reshape(-1))
        solved.append(bool(stats["success"]))
        iterations.append(int(stats["iter_count"]))
    return Projection(torch.from_numpy(np.stack(states)), torch.tensor(solved), torch.tensor(iterations))


@cache
def load_grid(case: str = "case14") -> Grid:
    """Return a grid by name, with a rating for every line.

    A line without a rating (all of case14's) gets the smallest whole MVA that is at least 1.3 times its load at the
    cheapest operating point for the demand of the case, and at least 10 MVA.
    """
    if case not in CASES:
        raise unknown("case", case, CASES)
    grid = from_pandapower(case)
    if all(branch.rating < _UNRATED for branch in grid.branches):
        return grid
    load = loadings(grid, cheapest(grid, np.array(grid.loads)[None]).x)[0]
    rated = []
    for branch, share in zip(grid.branches, load.tolist(), strict=True):
        needed = max(10.0, float(np.ceil(1.3 * share * branch.rating * grid.base)))
        rated.append(branch._replace(rating=needed / grid.base) if branch.rating >= _UNRATED else branch)
    return replace(grid, branches=tuple(rated))
