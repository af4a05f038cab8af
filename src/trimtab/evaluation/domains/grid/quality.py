"""How good operating points are: what they cost, what they violate, and what is compared of them as a distribution."""

from __future__ import annotations

import torch
from torch import Tensor

from trimtab.evaluation.domains.grid.case import Grid
from trimtab.evaluation.domains.grid.constraint import OperatingLimits
from trimtab.evaluation.domains.grid.power import cost, loadings, parts, violations
from trimtab.evaluation.domains.grid.program import cheapest

__all__ = ["cost_gap", "features", "judge"]


def cost_gap(grid: Grid, x: Tensor) -> Tensor:
    """How much dearer a state's generation is than the cheapest for the same loads, as a share, (n, d) to (n,).

    The search for the optimum begins at the state itself, so where it fails the state stands for it: a gap of 0.
    """
    cut = parts(grid, x)
    best = cheapest(grid, torch.complex(cut.load, cut.load_reactive).numpy(), begin=x.numpy())
    assert best.converged is not None
    price, least = cost(grid, x), cost(grid, best.x)
    return torch.where(best.converged, price / least - 1, 0.0)


def features(grid: Grid, x: Tensor) -> Tensor:
    """Line loadings and voltages, (n, d) to (n, branches + buses).

    Voltages move within a few hundredths, loadings within tenths; voltages count ten times, so that both are seen.
    """
    return torch.cat([loadings(grid, x), 10 * parts(grid, x).voltage], dim=1)


def judge(x: Tensor, constraint: OperatingLimits) -> dict[str, Tensor]:
    """Final states (n, 2, d): cost gap to the optimum, largest violation in per unit, fullest line, (n,) each."""
    point = x[:, 0]
    return {
        "cost_gap": cost_gap(constraint.grid, point),
        "violation": violations(constraint.grid, point, constraint.demand).amax(dim=1),
        "fullest_line": loadings(constraint.grid, point).amax(dim=1),
    }
