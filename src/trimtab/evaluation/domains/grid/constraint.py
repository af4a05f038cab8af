"""Feasible operating points with a given total demand: a cheap batched defect, and a projection by IPOPT."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from trimtab.constraints.program import NonlinearProgram, casadi
from trimtab.constraints.states import check_states
from trimtab.core.constraint import Constraint, Projection
from trimtab.evaluation.domains.grid.case import Grid
from trimtab.evaluation.domains.grid.model import Model
from trimtab.evaluation.domains.grid.power import violation
from trimtab.evaluation.domains.grid.program import PURPOSE, conditions, cut

__all__ = ["OperatingLimits", "StandardConditions", "limits"]


@dataclass(frozen=True)
class StandardConditions:
    """The conditions of a standardised state and the total demand, for `NonlinearProgram`.

    It is compared and hashed by value: worker processes get copies, and must not build their solver anew for each.
    """

    grid: Grid
    mean: tuple[float, ...]
    scale: tuple[float, ...]

    def __call__(self, y: Any, p: Any) -> tuple[list[Any], list[Any]]:
        """Expressions that must be at most 0, and that must be 0."""
        ca = casadi(PURPOSE)
        x = ca.DM(self.mean) + ca.DM(self.scale) * y
        over, balance = conditions(self.grid, x)
        return over, [*balance, ca.sum1(cut(self.grid, x).load) - p[0]]


@dataclass(frozen=True, eq=False)
class OperatingLimits(Constraint):
    """States (n, 2, d), the clean operating point and the noise it was made from; only the first is constrained.

    `project` moves the operating point to the nearest feasible one with the demand asked for, where each number counts
    in units of its standard deviation among operating points. `defect` is the root of the summed squares of power
    mismatch, missing demand, overload and violated bounds, in per unit: no solver, one batched evaluation.

    Attributes:
        grid: The grid.
        program: Of standardised states; its parameter is the total demand, (n, 1).
        mean: (d,).
        scale: (d,).
        demand: The total that each sample is asked for, (n,).
    """

    grid: Grid
    program: NonlinearProgram
    mean: Tensor
    scale: Tensor
    demand: Tensor = field(metadata={"per_sample": True})

    def project(self, x: Tensor) -> Projection:
        """(n, 2, d) to the same, with IPOPT's outcome per sample."""
        self._check(x)
        answer = self.program.project((x[:, 0] - self.mean) / self.scale)
        clean = self.mean + self.scale * answer.x
        return Projection(torch.stack([clean, x[:, 1]], dim=1), answer.converged, answer.iterations)

    def defect(self, x: Tensor) -> Tensor:
        """(n, 2, d) to (n,)."""
        self._check(x)
        return violation(self.grid, x[:, 0], self.demand)

    def take(self, rows: Tensor) -> OperatingLimits:
        """Of the samples `rows`."""
        return replace(self, program=self.program.take(rows), demand=self.demand[rows])

    def _check(self, x: Tensor) -> None:
        check_states(x, "OperatingLimits", (2, len(self.mean)), samples=len(self.demand))


def limits(grid: Grid, model: Model, demand: Tensor, workers: int = 1) -> OperatingLimits:
    """The constraint of samples that are asked for a total demand, (n,)."""
    stated = StandardConditions(grid, tuple(model.mean.tolist()), tuple(model.scale.tolist()))
    bounds = [model.standardise(torch.tensor(bound, dtype=torch.float64)) for bound in (grid.lower, grid.upper)]
    program = NonlinearProgram(stated, demand[:, None], workers=workers, bounds=(bounds[0], bounds[1]))
    return OperatingLimits(grid, program, model.mean, model.scale, demand)
