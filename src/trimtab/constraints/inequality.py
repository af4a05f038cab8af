"""Nonlinear inequalities and equations together: a batched augmented-Lagrangian projection."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from trimtab.constraints.functions import Conditions, check_solver
from trimtab.constraints.partial import FewIterations
from trimtab.constraints.states import check_states, no_improvement, no_projection, with_settings
from trimtab.core.checks import check_bool
from trimtab.core.constraint import Constraint, Improvement, Projection

__all__ = ["NonlinearInequality"]

_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4}
_FIRST_WEIGHT, _LARGEST_WEIGHT = 10.0, 1e5  # of a squared violation
_HALVINGS = 12


@dataclass(frozen=True, eq=False)
class NonlinearInequality(Constraint):
    r"""States with g(y) <= 0 and h(y) = 0: argmin over them of norm(y - x), locally, for a whole batch in torch.

    An augmented-Lagrangian method. Each iteration is one Gauss-Newton step on norm(y - x)² / 2 plus the weighted
    squares of the conditions shifted by their multipliers, followed by an update of the multipliers; the weight grows
    if violations do not shrink. Every sample has its own multipliers and weight, and stops on its own. A sample that
    has found nothing after half of the iterations starts again from where it is.

    Attributes:
        inequalities: g for one sample, (\*event) to (p,), in torch operations; `inequalities(x, *data)` if there is
            data.
        equations: h for one sample, (\*event) to (q,), likewise; None for no equations.
        data: Tensors with one row per sample.
        tolerance: Largest violation of a feasible state; None is 1e-6 in float64, 1e-4 in float32.
        max_iterations: Iterations per sample at most.
        nearness: A feasible sample is done when a step moves it by less than this share of its distance.
        batched: Whether both functions take a whole batch instead, (n, \*event) to (n, p) and (n, q); see
            `NonlinearEquality`.

    Example:
        >>> import torch
        >>> outside = NonlinearInequality(lambda y: 1 - (y * y).sum()[None])
        >>> outside.project(torch.tensor([[0.3, 0.4], [3.0, 4.0]], dtype=torch.float64)).x
        tensor([[0.6000, 0.8000],
                [3.0000, 4.0000]], dtype=torch.float64)
    """

    inequalities: Callable[..., Tensor]
    equations: Callable[..., Tensor] | None = None
    data: tuple[Tensor, ...] = ()
    tolerance: float | None = None
    max_iterations: int = 100
    nearness: float = 1e-3
    batched: bool = False

    improves = True

    def __post_init__(self) -> None:
        """Check the settings."""
        for name, function in (("inequalities", self.inequalities), ("equations", self.equations)):
            if not callable(function) and (name == "inequalities" or function is not None):
                raise ValueError(f"{name} must be a function of a state: got {function!r}")
        check_solver(self.data, self.tolerance, self.max_iterations, self.nearness)
        check_bool(self.batched, "batched")

    @torch.no_grad()
    def project(self, x: Tensor) -> Projection:
        r"""Return feasible states near x, (n, \*event), with outcomes."""
        residual = self.defect(x)
        if not len(x):
            return no_projection(x)
        y, allowed = x.detach().clone(), self._allowed(x)
        spent = torch.zeros(len(x), dtype=torch.int64, device=x.device)
        active = (~(residual <= allowed) & x.flatten(1).isfinite().all(dim=1)).nonzero().squeeze(1)
        state: tuple[Tensor, ...] | None = None
        for k in range(self.max_iterations):
            if len(active) == 0:
                break
            if k == self.max_iterations // 2:  # these are stuck: any feasible state near here will do
                state = None
            some = self if len(active) == len(x) else self.take(active)
            y[active], residual[active], done, state, _ = some.improve(y[active], state)
            spent[active] += 1
            left = (~done).nonzero().squeeze(1)
            active, state = active[left], tuple(part[left] for part in state or ())
        return Projection(y, residual <= allowed, spent, residual)

    @torch.no_grad()
    def defect(self, x: Tensor) -> Tensor:
        r"""Return the largest violation of a condition, (n, \*event) to (n,)."""
        conditions, stacked = self._conditions(x)
        if not len(x):
            return x.new_zeros(0)
        c = conditions.values(x.detach().flatten(1))
        return _violation(c, stacked.are_equations(c))

    def take(self, rows: Tensor) -> Self:
        """Return the same conditions for some samples."""
        return with_settings(self, data=tuple(d[rows] for d in self.data)) if self.data else self

    def cheaper(self) -> dict[str, Constraint]:
        """Return cheaper variants by name, in the order to try them."""
        looser = 1e-4 if self.tolerance is None else max(100 * self.tolerance, 1e-4)
        return {
            "1 iteration": FewIterations(self, 1),
            "3 iterations": FewIterations(self, 3),
            f"tolerance {looser:.0e}, rougher search": with_settings(self, tolerance=looser, nearness=0.1),
        }

    @torch.no_grad()
    def improve(self, x: Tensor, state: tuple[Tensor, ...] | None = None, **context: Any) -> Improvement:
        """Make one step and update the multipliers; carries the first states, the multipliers and their weights."""
        conditions, stacked = self._conditions(x)
        if not len(x):
            return no_improvement(x)
        y, rows = x.detach().flatten(1), torch.arange(len(x), device=x.device)
        c, jacobian = conditions.linearised(y, rows)
        equal = stacked.are_equations(c)
        first, multipliers, weight = state or (y, torch.zeros_like(c), torch.full_like(y[:, 0], _FIRST_WEIGHT))

        # the step of the augmented Lagrangian; conditions that it would violate join, those that it frees leave
        shifted = c + multipliers / weight[:, None]
        active = equal | (shifted > 0)
        for _ in range(3):
            step = _newton_step(jacobian * active[:, :, None], y - first, shifted * active, weight)
            joined = equal | (shifted - (jacobian @ step[:, :, None]).squeeze(2) > 0)
            if bool((joined == active).all()):
                break
            active = joined

        # a line search on the merit function
        def merit(z: Tensor, values: Tensor, of: Tensor) -> Tensor:
            moved = values + multipliers[of] / weight[of, None]
            beyond = torch.where(equal, moved, moved.clamp(min=0))
            away = z - first[of]
            return 0.5 * ((away * away).sum(dim=1) + weight[of] * (beyond * beyond).sum(dim=1))

        before, new, new_c = merit(y, c, rows), y.clone(), c.clone()
        left = rows
        for k in range(_HALVINGS):
            there = y[left] - 0.5**k * step[left]
            values = conditions.values(there, left)
            falls = merit(there, values, left) <= before[left]  # False for NaN
            new[left[falls]], new_c[left[falls]] = there[falls], values[falls]
            left = left[~falls]
            if len(left) == 0:
                break
        stuck = torch.zeros_like(before, dtype=torch.bool).index_fill(0, left, True)

        # multipliers learn from minima of the merit function, not from the way to one
        was, violation, allowed = _violation(c, equal), _violation(new_c, equal), self._allowed(x)
        moved, away = (new - y).norm(dim=1), (new - first).norm(dim=1)
        settled = stuck | (moved <= 0.02 * away) | (violation <= 0.25 * was)
        slow = (violation > 0.25 * was) & (violation > allowed) & settled
        pushed = multipliers + weight[:, None] * new_c
        multipliers = torch.where(settled[:, None], torch.where(equal, pushed, pushed.clamp(min=0)), multipliers)
        slack = _largest((multipliers * new_c).abs())  # a condition with a multiplier must hold with equality
        done = (
            (violation <= allowed)
            & (slack <= self.nearness * away * (away + allowed))
            & (moved <= self.nearness * away + allowed)
            & ~stuck
        )
        done |= (was <= allowed) & (away == 0)  # feasible from the start
        weight = torch.where(slow, 4 * weight, weight).clamp(max=_LARGEST_WEIGHT)
        return Improvement(new.reshape(x.shape), violation, done, (first, multipliers, weight))

    def _conditions(self, x: Tensor) -> tuple[Conditions, _Stacked]:
        """Check the states and return the conditions on them."""
        check_states(x, "NonlinearInequality", samples=len(self.data[0]) if self.data else None)
        stacked = _Stacked(self.inequalities, self.equations)
        for function in (self.inequalities, self.equations) if self.batched else ():
            if function is not None:
                Conditions.on(x, function, "NonlinearInequality", self.data, True).check_rows_are_independent(x)
        return Conditions.on(x, stacked, "NonlinearInequality", self.data, self.batched), stacked

    def _allowed(self, x: Tensor) -> float:
        return _TOLERANCE[x.dtype] if self.tolerance is None else self.tolerance


class _Stacked:
    """Inequalities and equations as one function; it counts the inequalities when it is called."""

    def __init__(self, inequalities: Callable[..., Tensor], equations: Callable[..., Tensor] | None) -> None:
        self.inequalities, self.equations, self.count = inequalities, equations, 0

    def __call__(self, y: Tensor, *own: Tensor) -> Tensor:
        g = self.inequalities(y, *own)
        if self.equations is None or not isinstance(g, Tensor):
            self.count = sys.maxsize
            return g
        self.count = g.shape[-1]
        return torch.cat([g, self.equations(y, *own)], dim=-1)

    def are_equations(self, c: Tensor) -> Tensor:
        """Return which of the conditions, (n, m), are equations, (m,) bool: the last ones."""
        return torch.arange(c.shape[1], device=c.device) >= self.count


def _violation(c: Tensor, equal: Tensor) -> Tensor:
    """Return the largest violation, (n,), of conditions (n, m)."""
    return _largest(torch.where(equal, c.abs(), c.clamp(min=0)))


def _largest(values: Tensor) -> Tensor:
    return values.amax(dim=1) if values.shape[1] else values.new_zeros(len(values))


def _newton_step(jacobian: Tensor, away: Tensor, shifted: Tensor, weight: Tensor) -> Tensor:
    """Solve (I + w JᵀJ) s = away + w Jᵀ shifted for s, (n, d), by a system of the size of J's rows."""
    right = away + weight[:, None] * (jacobian.mT @ shifted[:, :, None]).squeeze(2)
    inner = jacobian @ jacobian.mT
    inner.diagonal(dim1=1, dim2=2).add_(1 / weight[:, None])
    solved = torch.cholesky_solve(jacobian @ right[:, :, None], torch.linalg.cholesky_ex(inner).L)
    return right - (jacobian.mT @ solved).squeeze(2)
