"""The set of fields with a given initial profile and a kept mass balance, and the nearest point of it.

The projection is a batched Gauss–Newton iteration on the conditions for a nearest point. The balance is quadratic in
the field, its Hessian is one number a moment, and the products with its Jacobian are sums over cells; so each iteration
needs one system of TIMES - 1 equations a sample, and the curvature of the balance can be used at no further cost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from trimtab.constraint import Projection
from trimtab.physics.equation import CELLS, GROWTH, TIMES, Conditions, cumulative_rule, mass_imbalance

__all__ = ["MassBalance"]

_LEAST_CURVATURE = 0.05  # of the Lagrangian; less would let a step run away


@dataclass(frozen=True, eq=False)
class MassBalance:
    """Fields u, (n, TIMES, CELLS), with the given initial profile and the balance of mass at all later moments.

    Attributes:
        conditions: The profile and the inflow of each sample.
        tolerance: A projection has converged when the defect and the last change of the field (root mean square) are
            at most this.
        most_iterations: After which it has failed.
    """

    conditions: Conditions
    tolerance: float = 1e-6
    most_iterations: int = 50

    def defect(self, u: Tensor) -> Tensor:
        """Root mean square over space and time of the violations, (n,).

        An error of the initial profile counts at its cells; a mass that is off by c counts as c at all cells of its
        moment. Without growth, this is exactly the root-mean-square distance to the set.
        """
        conditions = self._conditions_like(u)
        profile = (u[:, 0] - conditions.initial).square().mean(dim=1)
        mass = mass_imbalance(u, conditions).square().sum(dim=1)
        return ((profile + mass) / TIMES).sqrt()

    def project(self, u: Tensor) -> Projection:
        """A nearest field of the set (a stationary one), with its outcome for each sample."""
        given = self._conditions_like(u.double())
        x = torch.cat([given.initial[:, None], u[:, 1:].double()], dim=1)
        converged = torch.zeros(len(u), dtype=torch.bool, device=u.device)
        iterations = torch.zeros(len(u), dtype=torch.int64, device=u.device)
        rows = torch.arange(len(u), device=u.device)  # those still at work, and all that belongs to them
        state = _State(x, x, mass_imbalance(x, given), x.new_zeros(len(u), TIMES - 1), given)
        for _ in range(self.most_iterations):
            state, done = self._iterate(state)
            iterations[rows] += 1
            if bool(done.any()):
                converged[rows] = done
                x = x.index_copy(0, rows, state.field)
                left = (~done).nonzero().squeeze(1)
                rows, state = rows[left], state.take(left)
                if len(rows) == 0:
                    break
        x = x.index_copy(0, rows, state.field)
        return Projection(x.to(u.dtype), converged, iterations)

    def take(self, rows: Tensor) -> MassBalance:
        """The set of the samples `rows`."""
        return MassBalance(self.conditions.take(rows), self.tolerance, self.most_iterations)

    def _conditions_like(self, u: Tensor) -> Conditions:
        if u.shape[1:] != (TIMES, CELLS) or len(u) != len(self.conditions.inflow):
            raise ValueError(
                f"expected fields ({len(self.conditions.inflow)}, {TIMES}, {CELLS}), one for each of the given "
                f"conditions: got {tuple(u.shape)}"
            )
        return Conditions(self.conditions.initial.to(u), self.conditions.inflow.to(u))

    def _iterate(self, state: _State) -> tuple[_State, Tensor]:
        """One iteration for all rows given: the new state, and which rows have converged, (n,)."""
        u, target, violation, multiplier, conditions = state
        rule = GROWTH * cumulative_rule().to(u)[1:, 1:]
        slope = 1 - 2 * u[:, 1:]  # of the reaction
        weight = 1 / (1 + 2 * multiplier @ rule).clamp(min=_LEAST_CURVATURE)  # inverse Hessian, one number a moment
        back = target[:, 1:] - u[:, 1:]

        mean, square = slope.mean(dim=2), slope.square().mean(dim=2)
        cross = rule * (weight * mean)[:, None]
        gram = torch.diag_embed(weight) - cross - cross.mT + (rule * (weight * square)[:, None]) @ rule.T
        right = violation + weight * back.mean(dim=2) - (weight * (slope * back).mean(dim=2)) @ rule.T
        factor, singular = torch.linalg.cholesky_ex(gram)
        multiplier = torch.cholesky_solve(right[..., None], factor)[..., 0]

        pull = multiplier[..., None] - slope * (multiplier @ rule)[..., None]
        change = weight[..., None] * (back - pull)
        moved = change.square().mean(dim=(1, 2))
        usable = (singular == 0) & moved.isfinite()
        if not bool(usable.all()):  # such a row stays where it is, and fails in the end
            change = torch.where(usable[:, None, None], change, 0)
            multiplier = torch.where(usable[:, None], multiplier, 0)
        new = torch.cat([u[:, :1], u[:, 1:] + change], dim=1)
        violation = mass_imbalance(new, conditions)
        left = violation.square().sum(dim=1) / TIMES
        done = usable & (torch.maximum(left, moved) <= self.tolerance**2)
        return _State(new, target, violation, multiplier, conditions), done


class _State(NamedTuple):
    """Iterates and what belongs to them.

    The fields and the fields to be near to, (n, TIMES, CELLS); the violations of the balance and its multipliers,
    (n, TIMES - 1).
    """

    field: Tensor
    target: Tensor
    violation: Tensor
    multiplier: Tensor
    conditions: Conditions

    def take(self, rows: Tensor) -> _State:
        return _State(
            self.field[rows],
            self.target[rows],
            self.violation[rows],
            self.multiplier[rows],
            self.conditions.take(rows),
        )
