"""The power-flow equations and the limits, batched: what flows, what is missing, how far a state is from feasible."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trimtab.evaluation.domains.grid.case import Grid, Parts

__all__ = ["cost", "flows", "loadings", "mismatch", "parts", "violation", "violations"]


class _Matrices(NamedTuple):
    """What the equations need of a grid, as tensors."""

    begin: Tensor  # (branches,)
    end: Tensor
    own: Tensor  # (2, branches) complex
    across: Tensor
    rating: Tensor  # (branches,)
    shunts: Tensor  # (buses,) complex
    incidence: Tensor  # (2 branches, buses): the bus of every branch end
    loads: Tensor  # (loads, buses)
    generators: Tensor  # (generators, buses)
    lower: Tensor
    upper: Tensor
    costs: Tensor  # (3, generators)


@lru_cache(maxsize=8)
def _matrices(grid: Grid, device: torch.device) -> _Matrices:
    def real(values: Any) -> Tensor:
        return torch.tensor(values, dtype=torch.float64, device=device)

    def complexes(values: Any) -> Tensor:
        return torch.tensor(values, dtype=torch.complex128, device=device)

    eye = torch.eye(grid.buses, dtype=torch.float64, device=device)
    begin, end = torch.tensor([branch.ends for branch in grid.branches], device=device).T
    return _Matrices(
        begin,
        end,
        complexes([branch.own for branch in grid.branches]).T,
        complexes([branch.across for branch in grid.branches]).T,
        real([branch.rating for branch in grid.branches]),
        complexes(grid.shunts),
        eye[torch.cat([begin, end])],
        eye[list(grid.load_buses)],
        eye[list(grid.generator_buses)],
        real(grid.lower),
        real(grid.upper),
        real(grid.costs).T,
    )


def parts(grid: Grid, x: Tensor) -> Parts:
    """A batch of states (n, d) cut into its parts, (n, how many) each."""
    return Parts(*(x[:, where] for where in grid.slices()))


def flows(grid: Grid, x: Tensor) -> Tensor:
    """Complex power that enters each branch at its two ends, (n, d) to (n, 2, branches)."""
    m = _matrices(grid, x.device)
    v = _phasors(grid, x)
    begin, end = v[:, m.begin], v[:, m.end]
    at, other = torch.stack([begin, end], dim=1), torch.stack([end, begin], dim=1)
    return at * (m.own * at + m.across * other).conj()


def _phasors(grid: Grid, x: Tensor) -> Tensor:
    """Complex voltages, (n, buses)."""
    cut = parts(grid, x)
    slack, none = grid.slack, torch.zeros_like(cut.angle[:, :1])
    angle = torch.cat([cut.angle[:, :slack], none, cut.angle[:, slack:]], dim=1)
    return torch.polar(cut.voltage.abs(), angle) * torch.where(cut.voltage < 0, -1, 1)


def loadings(grid: Grid, x: Tensor) -> Tensor:
    """Apparent power of each branch at its fuller end, as a share of its rating, (n, d) to (n, branches)."""
    return flows(grid, x).abs().amax(dim=1) / _matrices(grid, x.device).rating


def mismatch(grid: Grid, x: Tensor) -> Tensor:
    """Complex power that is generated at each bus and goes nowhere, (n, d) to (n, buses); 0 where power balances."""
    m, cut = _matrices(grid, x.device), parts(grid, x)
    generated = torch.complex(cut.generation @ m.generators, cut.generation_reactive @ m.generators)
    taken = torch.complex(cut.load @ m.loads, cut.load_reactive @ m.loads)
    sent = flows(grid, x).flatten(1) @ m.incidence.to(torch.complex128)
    earthed = cut.voltage.square() * m.shunts.conj()
    missing: Tensor = generated - taken - sent - earthed
    return missing


def violations(grid: Grid, x: Tensor, demand: Tensor) -> Tensor:
    """By how much each condition is missed, in per unit, (n, conditions): balance, demand, line ratings, bounds."""
    m = _matrices(grid, x.device)
    missing = torch.view_as_real(mismatch(grid, x)).flatten(1).abs()
    asked = (parts(grid, x).load.sum(dim=1) - demand).abs()[:, None]
    over = (flows(grid, x).abs().amax(dim=1) - m.rating).clamp(min=0)
    outside = (m.lower - x).clamp(min=0) + (x - m.upper).clamp(min=0)
    return torch.cat([missing, asked, over, outside], dim=1)


def violation(grid: Grid, x: Tensor, demand: Tensor) -> Tensor:
    """The root of the sum of squared violations, in per unit, (n, d) and (n,) to (n,)."""
    whole: Tensor = violations(grid, x, demand).norm(dim=1)
    return whole


def cost(grid: Grid, x: Tensor) -> Tensor:
    """What generation costs in an hour, (n, d) to (n,)."""
    squared, linear, constant = _matrices(grid, x.device).costs
    generation = parts(grid, x).generation
    total: Tensor = (squared * generation.square() + linear * generation + constant).sum(dim=1)
    return total
