"""Nonlinear equations: a batched Gauss-Newton projection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Self, get_args

import torch
from torch import Tensor

from trimtab.constraints.functions import Conditions, check_solver
from trimtab.constraints.gauss_newton import Factor, Iterate, Method, closer, iterate, solve, start
from trimtab.constraints.partial import FewIterations
from trimtab.constraints.states import check_states, no_improvement, no_projection, with_settings
from trimtab.core.checks import check_bool, check_floats, check_integer
from trimtab.core.constraint import Constraint, Improvement, Projection

__all__ = ["NonlinearEquality"]

_TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-5}
_SHRINK = {"fresh": 0.25, "frozen": 0.7}

Jacobian = Literal["fresh", "frozen"]


@dataclass(frozen=True, eq=False)
class NonlinearEquality(Constraint):
    r"""Solutions of equations g(y) = 0, such as conservation laws: argmin over them of norm(y - x), locally.

    Each step is the shortest one that solves the linearised equations, halved until norm(g) falls (Gauss-Newton with
    line search). This finds a solution near x. Then up to `refinements` steps along the set, each followed by a return
    to it, shorten the distance to x. Every sample stops on its own.

    Attributes:
        function: g for one sample, (\*event) to (m,), in torch operations; `function(x, *data)` if there is data.
        data: Tensors with one row per sample.
        tolerance: Norm of g at which a sample has converged; None is 1e-8 in float64 and 1e-5 in float32.
        max_iterations: Gauss-Newton steps per sample at most, before refinement and after each refinement.
        refinements: Steps along the set at most.
        nearness: Refinement ends when a step along the set would be shorter than this share of the distance.
        jacobian: "fresh" computes the Jacobian again if a step with the last one would not make norm(g) four times
            smaller. "frozen" keeps it unless norm(g) hardly falls: many cheap steps instead of few expensive ones.
            A tensor (m, d) is one Jacobian for all samples and calls, such as `torch.func.jacrev(function)(state)` at
            a typical state: by far the cheapest steps, to a solution that is a little farther away.
        batched: Whether the function takes a whole batch instead, (n, \*event) to (n, m), with all of its data. This
            saves the cost of `vmap`, which for small problems is most of the time. Each row of the answer must depend
            on its own sample only; the first call with several samples checks that. A function that calls
            `torch.autograd.grad` itself can run only like this.

    Example:
        >>> import torch
        >>> circle = NonlinearEquality(lambda y: (y * y).sum()[None] - 1)
        >>> circle.project(torch.tensor([[3.0, 4.0]], dtype=torch.float64)).x
        tensor([[0.6000, 0.8000]], dtype=torch.float64)
    """

    function: Callable[..., Tensor]
    data: tuple[Tensor, ...] = ()
    tolerance: float | None = None
    max_iterations: int = 30
    refinements: int = 3
    nearness: float = 3e-2
    jacobian: Jacobian | Tensor = "fresh"
    batched: bool = False
    _step_matrix: Tensor | None = field(default=None, init=False, repr=False)

    improves = True

    def __post_init__(self) -> None:
        """Check the settings."""
        if not callable(self.function):
            raise ValueError(f"the function of NonlinearEquality must be a callable of states: got {self.function!r}")
        check_solver(self.data, self.tolerance, self.max_iterations, self.nearness)
        check_integer(self.refinements, "refinements", 0)
        check_bool(self.batched, "batched")
        if isinstance(self.jacobian, Tensor):
            matrix = check_floats(self.jacobian, "a Jacobian for all samples", ("m", "d"))
            object.__setattr__(self, "_step_matrix", torch.linalg.pinv(matrix.double()).T)
        elif self.jacobian not in get_args(Jacobian):
            raise ValueError(f"jacobian must be one of {get_args(Jacobian)} or a matrix: got {self.jacobian!r}")

    @torch.no_grad()
    def project(self, x: Tensor) -> Projection:
        r"""Return solutions near x, (n, \*event), with outcomes."""
        method = self._method(x)
        if not len(x):
            return no_projection(x)
        flat, rows = x.detach().flatten(1), torch.arange(len(x), device=x.device)
        spent = torch.zeros_like(rows)
        y, size = solve(method, flat, rows, None, self.max_iterations, spent, flat)
        moved = ((size <= method.tolerance) & (y != flat).any(dim=1)).nonzero().squeeze(1)
        for _ in range(self.refinements):
            if len(moved) == 0:
                break
            y[moved], size[moved], more = closer(
                method, y[moved], size[moved], flat[moved], moved, self.nearness, self.max_iterations, spent
            )
            moved = moved[more]
        return Projection(y.reshape(x.shape), size <= method.tolerance, spent, size)

    @torch.no_grad()
    def defect(self, x: Tensor) -> Tensor:
        r"""Return norm(g(x)), (n, \*event) to (n,)."""
        conditions = self._method(x).conditions
        return conditions.values(x.detach().flatten(1)).norm(dim=1) if len(x) else x.new_zeros(0)

    @torch.no_grad()
    def improve(self, x: Tensor, state: tuple[Tensor, ...] | None = None, **context: Any) -> Improvement:
        """Make one Gauss-Newton step with its line search, the same as `project` makes before it refines.

        Carries the first states, the number of steps, the last two values of g with the states between them, and the
        factored Jacobian.
        """
        method = self._method(x)
        if not len(x):
            return no_improvement(x)
        flat, rows = x.detach().flatten(1), torch.arange(len(x), device=x.device)
        if state is None:
            now, first, count = start(method, flat, rows), flat, torch.zeros_like(rows)
        else:
            first, count, last_y, last_g, g, *factor = state
            renew = method.renew_once and bool((count == 1).all())  # all samples are at the same step
            kept = Factor(*factor) if factor and not renew else None
            now = Iterate(flat, g, torch.ones_like(rows, dtype=torch.bool), kept, (last_y, last_g))
        new = iterate(method, now, rows, first)
        solved = (now.size <= method.tolerance)[:, None]  # a solution stays what it is
        y, g = torch.where(solved, now.y, new.y), torch.where(solved, now.g, new.g)
        size = g.norm(dim=1)
        last_y, last_g = new.last or (y, g)
        done = (size <= method.tolerance) | ~new.fell
        return Improvement(y.reshape(x.shape), size, done, (first, count + 1, last_y, last_g, g, *(new.kept or ())))

    def take(self, rows: Tensor) -> Self:
        """Return the same equations for some samples."""
        return with_settings(self, data=tuple(d[rows] for d in self.data)) if self.data else self

    def cheaper(self) -> dict[str, Constraint]:
        """Return cheaper variants by name, in the order to try them.

        One iteration uses one Jacobian, so "fresh" and "frozen" give one variant.
        """
        looser = 1e-4 if self.tolerance is None else max(100 * self.tolerance, 1e-4)
        found: dict[str, Constraint] = {}
        if self.jacobian == "fresh":
            frozen = with_settings(self, jacobian="frozen", refinements=0)
            found["frozen Jacobian, 1 iteration"] = FewIterations(frozen, 1)
            found["frozen Jacobian"] = frozen
            found["2 iterations"] = FewIterations(self, 2)
        else:
            found["1 iteration"] = FewIterations(self, 1)
        found[f"tolerance {looser:.0e}, no refinement"] = with_settings(self, tolerance=looser, refinements=0)
        return found

    def _method(self, x: Tensor) -> Method:
        """Check the states and return how to solve the equations for them."""
        check_states(x, "NonlinearEquality", samples=len(self.data[0]) if self.data else None)
        conditions = Conditions.on(x, self.function, "NonlinearEquality", self.data, self.batched)
        conditions.check_rows_are_independent(x)
        tolerance = _TOLERANCE[x.dtype] if self.tolerance is None else self.tolerance
        if not isinstance(self.jacobian, Tensor):
            kind = self.jacobian
            return Method(conditions, tolerance, _SHRINK[kind], renew_once=kind == "fresh")
        assert self._step_matrix is not None
        d = x.shape[1:].numel()
        if self._step_matrix.shape[1] != d:
            raise ValueError(
                f"the Jacobian of NonlinearEquality has shape {tuple(self.jacobian.shape)}, (m, d), but states "
                f"{tuple(x.shape)} have {d} numbers each"
            )
        return Method(conditions, tolerance, _SHRINK["frozen"], shared=self._step_matrix.to(x))
