"""Nonlinear inequalities and equations together: a batched augmented-Lagrangian projection in torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor

from trimtab.constraints.conditions import SampleFunction
from trimtab.constraints.derived import changed
from trimtab.constraints.equality import check_solver
from trimtab.constraints.rows import row_norm, row_product
from trimtab.constraints.states import check_states, no_improvement, no_projection
from trimtab.core.checks import check_bool
from trimtab.core.constraint import Constraint, Improvement, Projection

__all__ = ["NonlinearInequality"]

_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4}
_FIRST_WEIGHT, _LARGEST_WEIGHT = 10.0, 1e5  # of a squared violation
_HALVINGS = 12


@dataclass(frozen=True, eq=False)
class NonlinearInequality(Constraint):
    r"""States with g(y) <= 0 and h(y) = 0: argmin over them of norm(y - x), locally, for a whole batch in torch.

    An augmented-Lagrangian method: each iteration is one Gauss-Newton step on norm(y - x)² / 2 plus the weighted
    squares of the conditions shifted by their multipliers, followed by an update of the multipliers; the weight grows
    where violations do not shrink. Every sample has multipliers and a weight of its own, and stops for itself. One that
    has found nothing after half the iterations begins again where it is.

    Attributes:
        inequalities: g for one sample, (\*event) to (p,), in torch operations; `inequalities(x, *data)` where there is
            data.
        equations: h for one sample, (\*event) to (q,), likewise; None for none.
        data: Tensors with one row per sample, that belong to the samples.
        tolerance: Largest violation of a state that counts as feasible; None is 1e-6 in float64, 1e-4 in float32.
        max_iterations: Per sample at the most.
        nearness: A feasible sample is near enough when a step moves it by less than this share of its distance.
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
    data: tuple[Tensor, ...] = field(default=(), metadata={"per_sample": True})
    tolerance: float | None = None
    max_iterations: int = 100
    nearness: float = 1e-3
    batched: bool = False

    improves = True

    def __post_init__(self) -> None:
        """Refuse settings no solver could use."""
        for name, function in (("inequalities", self.inequalities), ("equations", self.equations)):
            if not callable(function) and (name == "inequalities" or function is not None):
                raise ValueError(f"{name} must be a function of a state: got {function!r}")
        check_solver(self.data, self.tolerance, self.max_iterations, self.nearness)
        check_bool(self.batched, "batched")

    @torch.no_grad()
    def project(self, x: Tensor) -> Projection:
        r"""Feasible states near x, (n, \*event), with outcomes."""
        self._check(x)
        if not len(x):
            return no_projection(x)
        y, allowed = x.detach().clone(), self._allowed(x)
        residual, spent = self.defect(x), torch.zeros(len(x), dtype=torch.int64, device=x.device)
        going = (~(residual <= allowed) & x.flatten(1).isfinite().all(dim=1)).nonzero().squeeze(1)
        state: tuple[Tensor, ...] | None = None
        for k in range(self.max_iterations):
            if len(going) == 0:
                break
            if k == self.max_iterations // 2:  # stuck on the way to the nearest: any feasible state near here will do
                state = None
            there = self if len(going) == len(x) else self.take(going)
            y[going], residual[going], done, state, _ = there.improve(y[going], state)
            spent[going] += 1
            left = (~done).nonzero().squeeze(1)
            going, state = going[left], tuple(part[left] for part in state or ())
        return Projection(y, residual <= allowed, spent, residual)

    @torch.no_grad()
    def defect(self, x: Tensor) -> Tensor:
        r"""The largest violation of a condition, (n, \*event) to (n,)."""
        self._check(x)
        if not len(x):
            return x.new_zeros(0)
        return self._violation(self._stacked.on(x, self.data).values(x.detach().flatten(1)), x)

    def take(self, rows: Tensor) -> Self:
        """The same conditions for some samples."""
        if not self.data:
            return self
        _ = self._stacked, self._counted  # which are the same for all of them
        taken = type(self).__new__(type(self))  # checked already
        taken.__dict__.update(self.__dict__ | {"data": tuple(d[rows] for d in self.data)})
        return taken

    def __getstate__(self) -> dict[str, Any]:
        """The settings; what was made of them is made again, and part of it could not be sent elsewhere."""
        return {name: value for name, value in self.__dict__.items() if name not in ("_stacked", "_counted")}

    def cheaper(self) -> dict[str, Constraint]:
        """A looser tolerance, and a point that is near rather than the nearest."""
        looser = 1e-4 if self.tolerance is None else max(100 * self.tolerance, 1e-4)
        return {f"a tolerance of {looser:.0e} and a rougher search": changed(self, tolerance=looser, nearness=0.1)}

    @torch.no_grad()
    def improve(self, x: Tensor, state: tuple[Tensor, ...] | None = None, **context: Any) -> Improvement:
        """One step and one update of the multipliers; carries where it began, the multipliers and their weights."""
        self._check(x)
        if not len(x):
            return no_improvement(x)
        y = x.detach().flatten(1)
        rows = torch.arange(len(y), device=y.device)
        conditions = self._stacked.on(x, self.data)
        c, derivatives = conditions.linearised(y, rows)
        equal = self._is_equation(x, c.shape[1])
        if state is None:
            state = (y, torch.zeros_like(c), torch.full_like(y[:, 0], _FIRST_WEIGHT))
        begun, multipliers, weight = state
        before = self._violation(c, x)

        def shifted(values: Tensor, chosen: Tensor) -> Tensor:
            moved = values + multipliers[chosen] / weight[chosen, None]
            return torch.where(equal, moved, moved.clamp(min=0))

        def merit(z: Tensor, values: Tensor, chosen: Tensor) -> Tensor:
            away, beyond = row_norm(z - begun[chosen]), row_norm(shifted(values, chosen))
            return 0.5 * (away**2 + weight[chosen] * beyond**2)

        jacobian = derivatives()
        pressing = c + multipliers / weight[:, None]
        active = equal | (pressing > 0)
        for _ in range(3):  # conditions that the step would press upon join, those that it frees leave
            step = _newton_step(jacobian * active[:, :, None], y - begun, pressing * active, weight)
            predicted = pressing - row_product(jacobian, step[:, :, None]).squeeze(2)
            joined = equal | (predicted > 0)
            if bool((joined == active).all()):
                break
            active = joined

        now, new, new_c = merit(y, c, rows), y - step, torch.empty_like(c)
        left, share = rows, 1.0
        for _ in range(_HALVINGS):
            new_c[left] = conditions.values(new[left], left)
            falls = merit(new[left], new_c[left], left) <= now[left]  # NaN does not fall
            left = left[~falls]
            if len(left) == 0:
                break
            share /= 2
            new[left] = y[left] - share * step[left]
        new[left], new_c[left] = y[left], c[left]
        stuck = torch.zeros_like(now, dtype=torch.bool).index_fill(0, left, True)

        violation, allowed = self._violation(new_c, x), self._allowed(x)
        moved, away = row_norm(new - y), row_norm(new - begun)
        # multipliers learn from minima of the merit, not from the way to one
        settled = stuck | (moved <= 0.02 * away) | (violation <= 0.25 * before)
        slow = (violation > 0.25 * before) & (violation > allowed) & settled
        pushed = multipliers + weight[:, None] * new_c
        multipliers = torch.where(settled[:, None], torch.where(equal, pushed, pushed.clamp(min=0)), multipliers)
        idle = (multipliers * new_c).abs().amax(dim=1)  # a condition that presses must be met exactly
        done = (
            (violation <= allowed)
            & (idle <= self.nearness * away * (away + allowed))
            & (moved <= self.nearness * away + allowed)
            & ~stuck
        )
        done |= (before <= allowed) & (away == 0)  # feasible from the first
        new_state = (begun, multipliers, torch.where(slow, 4 * weight, weight).clamp(max=_LARGEST_WEIGHT))
        return Improvement(new.reshape(x.shape), violation, done, new_state)

    # ------------------------------------------------------------------ the conditions

    @cached_property
    def _stacked(self) -> SampleFunction:
        """All conditions as one function."""
        g, h = self.inequalities, self.equations
        return self._called(g if h is None else lambda y, *own: torch.cat([g(y, *own), h(y, *own)], dim=-1))

    def _called(self, function: Callable[..., Tensor]) -> SampleFunction:
        hint = "can run with batched=True alone, as a function of the whole batch"
        return SampleFunction(function, "NonlinearInequality", batched=self.batched, own_derivatives=hint)

    @cached_property
    def _counted(self) -> dict[Any, Tensor]:
        """Which of the conditions are equations, by shape and device of the states; taken samples share it."""
        return {}

    def _is_equation(self, x: Tensor, m: int) -> Tensor:
        """Which of the conditions are equations, (m,) bool: the last ones."""
        key = (x.shape[1:], x.device)
        if key not in self._counted:
            inequalities = self._called(self.inequalities).on(x, self.data)
            p = inequalities.values(x[:1].detach().flatten(1), slice(0, 1)).shape[1]
            self._counted[key] = torch.arange(m, device=x.device) >= p
        return self._counted[key]

    def _violation(self, c: Tensor, x: Tensor) -> Tensor:
        """The largest violation, (n,)."""
        if c.shape[1] == 0:
            return c.new_zeros(len(c))
        return torch.where(self._is_equation(x, c.shape[1]), c.abs(), c.clamp(min=0)).amax(dim=1)

    def _allowed(self, x: Tensor) -> float:
        return _TOLERANCE[x.dtype] if self.tolerance is None else self.tolerance

    def _check(self, x: Tensor) -> None:
        check_states(x, "NonlinearInequality", samples=len(self.data[0]) if self.data else None)
        self._stacked.check_samples_stand_alone(x, self.data)


def _newton_step(jacobian: Tensor, away: Tensor, pressing: Tensor, weight: Tensor) -> Tensor:
    """The step s that solves (I + w JᵀJ) s = away + w Jᵀ pressing, (n, d), by a system as large as J has rows."""
    transposed = jacobian.transpose(1, 2)
    right = away + weight[:, None] * row_product(transposed, pressing[:, :, None]).squeeze(2)
    inner = row_product(jacobian, transposed)
    inner.diagonal(dim1=1, dim2=2).add_(1 / weight[:, None])
    pushed = row_product(jacobian, right[:, :, None])
    solved = torch.cholesky_solve(pushed, torch.linalg.cholesky_ex(inner).L)
    return right - row_product(transposed, solved).squeeze(2)
