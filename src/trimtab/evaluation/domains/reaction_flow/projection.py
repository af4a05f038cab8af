"""The set of fields with a given initial profile and a kept mass balance, and the nearest point of it.

The projection is a batched Gauss–Newton iteration on the conditions for a nearest point. The balance is quadratic in
the field, its Hessian is one number a moment, and the products with its Jacobian are sums over cells; so each iteration
needs one system of TIMES - 1 equations a sample, and the curvature of the balance can be used at no further cost. All
of it but the step itself is written in means over the cells of the field, of its square and of its product with the
field to be near to, so that there are few passes over the fields.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from trimtab.constraints.states import check_states, with_settings
from trimtab.core.checks import check_positive
from trimtab.core.constraint import Constraint, Improvement, Projection
from trimtab.core.errors import check_integer
from trimtab.evaluation.domains.reaction_flow.equation import (
    CELLS,
    GROWTH,
    TIMES,
    Conditions,
    cumulative_rule,
    mass_imbalance,
)

__all__ = ["MassBalance"]

_LEAST_CURVATURE = 0.05  # of the Lagrangian; less would let a step run away


@dataclass(frozen=True, eq=False)
class MassBalance(Constraint):
    """Fields u, (n, TIMES, CELLS), with the given initial profile and the balance of mass at all later moments.

    Attributes:
        conditions: The profile and the inflow of each sample.
        tolerance: A projection has converged when the defect and the last change of the field (root mean square) are
            at most this.
        max_iterations: After which it has failed.
    """

    improves = True

    conditions: Conditions
    tolerance: float = 1e-6
    max_iterations: int = 50

    def __post_init__(self) -> None:
        """Refuse settings that no search could use."""
        check_positive(self.tolerance, "the tolerance of MassBalance")
        check_integer(self.max_iterations, "the max_iterations of MassBalance")

    def defect(self, u: Tensor) -> Tensor:
        """Root mean square over space and time of the violations, (n,).

        An error of the initial profile counts at its cells; a mass that is off by c counts as c at all cells of its
        moment. Without growth, this is exactly the root-mean-square distance to the set.
        """
        self._check(u)
        conditions = self._conditions_like(u)
        profile = (u[:, 0] - conditions.initial).square().mean(dim=1)
        mass = mass_imbalance(u, conditions).square().sum(dim=1)
        return ((profile + mass) / TIMES).sqrt()

    def project(self, u: Tensor) -> Projection:
        """A nearest field of the set (a stationary one), with its outcome for each sample."""
        self._check(u)
        given = self._conditions_like(u.double())
        x = torch.cat([given.initial[:, None], u[:, 1:].double()], dim=1)
        rule = GROWTH * cumulative_rule().to(x)[1:, 1:]
        state = _begin(x, given, rule)
        field, converged, iterations = self._search(state, rule)
        return Projection(torch.cat([x[:, :1], field], dim=1).to(u.dtype), converged, iterations)

    def improve(self, x: Tensor, state: tuple[Tensor, ...] | None = None, **context: Any) -> Improvement:
        """One iteration; carries the field to be near to and the multipliers."""
        self._check(x)
        given = self._conditions_like(x.double())
        u = torch.cat([given.initial[:, None], x[:, 1:].double()], dim=1)
        rule = GROWTH * cumulative_rule().to(u)[1:, 1:]
        now = _begin(u, given, rule)
        if state is not None:
            target, multiplier = (part.double() for part in state)
            product = (now.field * target).mean(dim=2)
            now = now._replace(target=target, aim=target.mean(dim=2), product=product, multiplier=multiplier)
        new, done = self._iterate(now, rule)
        y = torch.cat([u[:, :1], new.field], dim=1).to(x.dtype)
        return Improvement(y, self.defect(y), done, (new.target, new.multiplier))

    def cheaper(self) -> dict[str, Self]:  # type: ignore[override]  # read, never written
        """A looser tolerance."""
        looser = 100 * self.tolerance
        return {f"a tolerance of {looser:.0e}": with_settings(self, tolerance=looser)}

    def take(self, rows: Tensor) -> Self:
        """The set of the samples `rows`."""
        return with_settings(self, conditions=self.conditions.take(rows))

    def _check(self, u: Tensor) -> None:
        check_states(u, "MassBalance", (TIMES, CELLS), samples=len(self.conditions.inflow))

    def _conditions_like(self, u: Tensor) -> Conditions:
        return Conditions(self.conditions.initial.to(u), self.conditions.inflow.to(u))

    def _search(self, state: _State, rule: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Iterate until all rows have converged or failed: their fields, whether they converged, and iterations."""
        field = state.field.clone()
        converged = torch.zeros(len(field), dtype=torch.bool, device=field.device)
        iterations = torch.zeros(len(field), dtype=torch.int64, device=field.device)
        rows = torch.arange(len(field), device=field.device)  # those still at work, and all that belongs to them
        for _ in range(self.max_iterations):
            state, done = self._iterate(state, rule)
            iterations[rows] += 1
            if bool(done.any()):
                converged[rows] = done
                field[rows] = state.field
                left = (~done).nonzero().squeeze(1)
                rows, state = rows[left], _State(*(part[left] for part in state))
                if len(rows) == 0:
                    break
        field[rows] = state.field
        return field, converged, iterations

    def _iterate(self, state: _State, rule: Tensor) -> tuple[_State, Tensor]:
        """One iteration for all rows given: the new state, and which rows have converged, (n,)."""
        u, target, given, aim, mean, square, product, multiplier = state
        weight = 1 / (1 + 2 * multiplier @ rule).clamp(min=_LEAST_CURVATURE)  # inverse Hessian, one number a moment
        # the reaction's slope is 1 - 2 u: its mean, that of its square, and that of its product with target - u
        slope, slope_square = 1 - 2 * mean, 1 - 4 * (mean - square)
        back = aim - mean
        slope_back = back - 2 * (product - square)

        cross = rule * (weight * slope)[:, None]
        gram = (rule * (weight * slope_square)[:, None]) @ rule.T - cross - cross.mT
        gram.diagonal(dim1=1, dim2=2).add_(weight)
        right = _violation(mean, square, given, rule) + weight * back - (weight * slope_back) @ rule.T
        factor, singular = torch.linalg.cholesky_ex(gram)
        multiplier = torch.cholesky_solve(right[..., None], factor)[..., 0]

        pull = multiplier @ rule
        new = torch.addcmul((weight * (pull - multiplier))[..., None], target, weight[..., None])
        new.addcmul_(u, (1 - weight * (1 + 2 * pull))[..., None])
        moved = (new - u).square_().mean(dim=(1, 2))
        usable = (singular == 0) & moved.isfinite()
        if not bool(usable.all()):  # such a row stays where it is, and fails in the end
            new = torch.where(usable[:, None, None], new, u)
            multiplier = torch.where(usable[:, None], multiplier, 0)
        mean, square = new.mean(dim=2), (new * new).mean(dim=2)
        left = _violation(mean, square, given, rule).square().sum(dim=1) / TIMES
        done = usable & (torch.maximum(left, moved) <= self.tolerance**2)
        return _State(new, target, given, aim, mean, square, (new * target).mean(dim=2), multiplier), done


class _State(NamedTuple):
    """Iterates and what belongs to them, at all moments but the first.

    The fields and the fields to be near to, (n, TIMES - 1, CELLS). For each moment, (n, TIMES - 1): the mass that is
    given beforehand (from the initial profile and the inflow), the means over cells of the field to be near to, of the
    field, of its square and of the product of both fields, and the multipliers of the balance.
    """

    field: Tensor
    target: Tensor
    given: Tensor
    aim: Tensor
    mean: Tensor
    square: Tensor
    product: Tensor
    multiplier: Tensor


def _begin(x: Tensor, conditions: Conditions, rule: Tensor) -> _State:
    u = x[:, 1:].clone()
    mean, square = u.mean(dim=2), u.square().mean(dim=2)
    given = mean - (mean - square) @ rule.T - mass_imbalance(x, conditions)
    return _State(u, u, given, mean, mean, square, square, torch.zeros_like(mean))


def _violation(mean: Tensor, square: Tensor, given: Tensor, rule: Tensor) -> Tensor:
    """`mass_imbalance` from the means of the field and of its square."""
    return mean - (mean - square) @ rule.T - given
