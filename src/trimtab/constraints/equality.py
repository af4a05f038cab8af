"""Nonlinear equations: a batched Gauss-Newton projection."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Self, get_args

import torch
from torch import Tensor

from trimtab.constraints.conditions import SampleFunction
from trimtab.constraints.derived import changed
from trimtab.constraints.gauss_newton import Equations, Iterate, advance, begin, closer, far_by_multipliers, solve
from trimtab.constraints.linearised import Factor, Linear, factored, find_linear, step_matrix
from trimtab.constraints.rows import row_norm
from trimtab.constraints.states import check_states, no_improvement, no_projection
from trimtab.core.checks import check_bool, check_floats, check_positive
from trimtab.core.constraint import Constraint, Improvement, Projection
from trimtab.core.errors import check_integer, check_number

__all__ = ["NonlinearEquality"]

_TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-5}

_SHRINK = {"fresh": 0.25, "frozen": 0.7, "none": 0.0}

_SIZES = (1.0, 3.0, 30.0, 1000.0)  # of the states at which equations show whether they are linear
_AT_ONCE = 64  # samples whose Jacobians are looked at together
_FOUND_ONCE = ("_function", "_linear", "_at_reference", "_taken_from")

Jacobian = Literal["fresh", "frozen", "none"]


def check_solver(data: object, tolerance: float | None, max_iterations: int, nearness: float) -> None:
    """Refuse settings that no solver of conditions could use."""
    if not isinstance(data, tuple | list) or not all(isinstance(d, Tensor) and d.ndim for d in data):
        raise TypeError(f"data is a tuple of tensors with one row per sample: got {data!r:.60}")
    if len({len(d) for d in data}) > 1:
        raise ValueError(f"data has one row per sample: got tensors of {[len(d) for d in data]} rows")
    if tolerance is not None:
        check_positive(tolerance, "tolerance (or None for what the dtype allows)")
    check_integer(max_iterations, "max_iterations")
    check_number(nearness, "nearness", 0, 1e6)


@dataclass(frozen=True, eq=False)
class NonlinearEquality(Constraint):
    r"""Solutions of equations g(y) = 0, such as conservation laws: argmin over them of norm(y - x), locally.

    Each step is the shortest one that solves the linearised equations, halved until the equations are solved better
    than before (Gauss-Newton with line search). That gives a solution near x; `refinements` steps along the set, each
    brought back to it, then shorten the distance to x. Every sample stops for itself. Equations that are linear are
    found and factored once.

    Attributes:
        function: g for one sample, (\*event) to (m,), in torch operations; `function(x, *data)` where there is data.
        data: Tensors with one row per sample, that belong to the samples.
        tolerance: Norm of g at which a sample has converged; None is 1e-8 in float64 and 1e-5 in float32.
        max_iterations: Gauss-Newton steps per sample at the most, before refinement and after each refinement.
        refinements: Steps along the set at the most.
        nearness: A sample is near enough when the next step along the set is shorter than this share of its distance.
        jacobian: "fresh" takes it anew where a step with the last one would not make norm(g) four times smaller.
            "frozen" keeps it unless norm(g) hardly falls: many cheap steps in place of few expensive ones. "none" never
            makes the matrix: conjugate gradients with products of J, for states of very many numbers.
        reference: A state, (\*event), where "frozen" takes one Jacobian for all samples and calls; None takes each
            sample's where its projection begins.
        vectorised: Whether the function may run under `torch.func.vmap`. A function that calls `torch.autograd.grad`
            may not: then it runs sample by sample, with ordinary derivatives.
        batched: Whether the function takes a whole batch instead, (n, \*event) to (n, m), with all of its data. That
            saves what `vmap` costs, for small problems most of the time. Each row of its answer must depend on its own
            sample alone, which the first call with several of them checks.
        reference_data: What stands for a sample's data at the reference, where there is data: a tensor for each of
            `data`, of the shape of one row, such as its mean. The Jacobian must not depend on who is projected first.

    Example:
        >>> import torch
        >>> circle = NonlinearEquality(lambda y: (y * y).sum()[None] - 1)
        >>> circle.project(torch.tensor([[3.0, 4.0]], dtype=torch.float64)).x
        tensor([[0.6000, 0.8000]], dtype=torch.float64)
    """

    function: Callable[..., Tensor]
    data: tuple[Tensor, ...] = field(default=(), metadata={"per_sample": True})
    tolerance: float | None = None
    max_iterations: int = 30
    refinements: int = 3
    nearness: float = 3e-2
    jacobian: Jacobian = "fresh"
    reference: Tensor | None = None
    vectorised: bool = True
    batched: bool = False
    reference_data: tuple[Tensor, ...] = ()

    improves = True

    def __post_init__(self) -> None:
        """Refuse settings that no solver could use."""
        if not callable(self.function):
            raise ValueError(f"the function of NonlinearEquality is called with states: got {self.function!r}")
        check_solver(self.data, self.tolerance, self.max_iterations, self.nearness)
        check_integer(self.refinements, "refinements", 0)
        check_bool(self.vectorised, "vectorised")
        check_bool(self.batched, "batched")
        if self.jacobian not in get_args(Jacobian):
            raise ValueError(f"jacobian must be one of {get_args(Jacobian)}: got {self.jacobian!r}")
        if self.reference is not None and self.jacobian != "frozen":
            raise ValueError("a reference is where the frozen Jacobian is taken: give jacobian='frozen' with it")
        self._check_reference()
        if not self.vectorised and self.jacobian == "none":
            raise ValueError("jacobian='none' needs a function that may run under torch.func: give vectorised=True")
        if self.batched and not self.vectorised:
            raise ValueError(
                "vectorised=False calls the function sample by sample, batched=True never: give one of them"
            )

    def _check_reference(self) -> None:
        """Refuse a reference at which no Jacobian can be taken."""
        given = self.reference_data
        if not isinstance(given, tuple | list) or not all(isinstance(d, Tensor) for d in given):
            raise TypeError(f"reference_data is a tuple of tensors, one for each of data: got {given!r:.60}")
        if self.reference is None:
            if given:
                raise ValueError("reference_data belongs to a reference: give that too, and jacobian='frozen'")
            return
        check_floats(self.reference, "the reference of NonlinearEquality")
        wanted = [tuple(d.shape[1:]) for d in self.data]
        if [tuple(d.shape) for d in given] != wanted:
            raise ValueError(
                "where there is data, a reference needs some of its own: reference_data of shapes "
                f"{wanted}, one row of each of data, such as tuple(d.mean(dim=0) for d in data); got "
                f"{[tuple(d.shape) for d in given]}"
            )

    def __getstate__(self) -> dict[str, Any]:
        """The settings; what was found once is found again, and part of it could not be sent elsewhere."""
        return {name: value for name, value in self.__dict__.items() if name not in _FOUND_ONCE}

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy, which knows all samples if these are some of them: what is found once is found among all."""
        whole = {} if self._whole is self else {"_taken_from": self._whole}
        return object.__new__, (type(self),), self.__getstate__() | whole

    # ------------------------------------------------------------------ what a constraint offers

    @torch.no_grad()
    def project(self, x: Tensor) -> Projection:
        r"""Solutions near x, (n, \*event), with outcomes."""
        self._check(x)
        if not len(x):
            return no_projection(x)
        flat, rows = x.detach().flatten(1), torch.arange(len(x), device=x.device)
        equations = self._equations(x)
        spent = torch.zeros(len(x), dtype=torch.int64, device=x.device)
        y, size, factor = solve(equations, flat, rows, None, self.max_iterations, spent, flat)
        failed = (size > equations.tolerance).nonzero().squeeze(1)
        if len(failed) and equations.linear is not None:  # an equation may be straight in some places only
            plain = self._equations(x, trust_linear=False)
            start = flat[failed]
            y[failed], size[failed], _ = solve(plain, start, failed, None, self.max_iterations, spent, start)
        if self.refinements:
            self._refine(equations, y, size, flat, factor, spent)
        return Projection(y.reshape(x.shape), size <= equations.tolerance, spent, size)

    @torch.no_grad()
    def defect(self, x: Tensor) -> Tensor:
        r"""norm(g(x)), (n, \*event) to (n,)."""
        self._check(x)
        return row_norm(self._function.on(x, self.data).values(x.detach().flatten(1))) if len(x) else x.new_zeros(0)

    def take(self, rows: Tensor) -> Self:
        """The same equations for some samples; what is found once is found for all of them."""
        if not self.data:
            return self
        _ = self._function, self._linear, self._at_reference  # which are the same for all of them
        taken = type(self).__new__(type(self))  # checked already
        some = tuple(d[rows] for d in self.data)
        taken.__dict__.update(self.__dict__ | {"data": some, "_taken_from": self._whole})
        return taken

    def cheaper(self) -> dict[str, Constraint]:
        """A looser tolerance with no search for the nearest solution, and a Jacobian that is kept."""
        looser = 1e-4 if self.tolerance is None else max(100 * self.tolerance, 1e-4)
        found: dict[str, Constraint] = {
            f"a tolerance of {looser:.0e} and no refinement": changed(self, tolerance=looser, refinements=0)
        }
        if self.jacobian == "fresh":
            found["a frozen Jacobian"] = changed(self, jacobian="frozen", refinements=0)
        return found

    @torch.no_grad()
    def improve(self, x: Tensor, state: tuple[Tensor, ...] | None = None, **context: Any) -> Improvement:
        """One Gauss-Newton step with its line search, the same as `project` makes before it refines.

        Carries where it began, how many steps were made, the last two values of g and the state between them, and the
        factored Jacobian that is kept.
        """
        self._check(x)
        if not len(x):
            return no_improvement(x)
        flat, rows = x.detach().flatten(1), torch.arange(len(x), device=x.device)
        equations = self._equations(x)
        if state is None:
            now, begun, count = begin(equations, flat, rows), flat, torch.zeros_like(rows)
        else:
            begun, count, last_y, last_g, g, *factor = state
            renew = equations.renew_once and bool((count == 1).all())  # samples are at the same step of theirs
            kept = Factor(*factor) if factor and not renew else None
            now = Iterate(flat, g, row_norm(g), torch.ones_like(rows, dtype=torch.bool), kept, (last_y, last_g))
        new = advance(equations, now, rows, begun)
        there = now.size <= equations.tolerance  # a solution stays what it is
        y, g = torch.where(there[:, None], now.y, new.y), torch.where(there[:, None], now.g, new.g)
        size = torch.where(there, now.size, new.size)
        done = (size <= equations.tolerance) | ~new.fell
        last_y, last_g = new.last or (y, g)
        return Improvement(y.reshape(x.shape), size, done, (begun, count + 1, last_y, last_g, g, *(new.kept or ())))

    def _refine(
        self, equations: Equations, y: Tensor, size: Tensor, flat: Tensor, factor: Factor | None, spent: Tensor
    ) -> None:
        """Move solutions y, (n, d), along the set, in place, where they may be far from the nearest to `flat`."""
        solved = size <= equations.tolerance
        if factor is not None:
            solved &= far_by_multipliers(equations, y, flat, factor, self.nearness)
        moved = (solved & (y != flat).any(dim=1)).nonzero().squeeze(1)
        for _ in range(self.refinements):
            if len(moved) == 0:
                break
            y[moved], size[moved], more = closer(
                equations, y[moved], size[moved], flat[moved], moved, self.nearness, self.max_iterations, spent
            )
            moved = moved[more]

    # ------------------------------------------------------------------ g and its derivatives

    def _equations(self, x: Tensor, trust_linear: bool = True) -> Equations:
        conditions = self._function.on(x, self.data)
        tolerance = _TOLERANCE[x.dtype] if self.tolerance is None else self.tolerance
        linear = self._linear_equations(x) if self.jacobian != "none" and trust_linear else None
        bent = None if linear is None else linear.bent
        equations = Equations(
            conditions.values,
            lambda flat, rows: conditions.linearised(flat, rows, bent),
            linear,
            tolerance,
            _SHRINK[self.jacobian],
            renew_once=self.jacobian == "fresh",
            matrix_free=self.jacobian == "none",
        )
        return equations if self.reference is None else equations._replace(shared=self._shared(equations, x))

    # ------------------------------------------------------------------ what is found once

    @cached_property
    def _function(self) -> SampleFunction:
        """The function with how it is called."""
        return SampleFunction(self.function, "NonlinearEquality", self.vectorised, self.batched)

    @cached_property
    def _linear(self) -> dict[Any, Linear | None]:
        """The linear equations, by shape, dtype and device of the states."""
        return {}

    @cached_property
    def _at_reference(self) -> dict[Any, Tensor]:
        """Sᵀ at the reference, by dtype and device."""
        return {}

    @property
    def _whole(self) -> NonlinearEquality:
        """The equations of all samples, of which these may be some."""
        whole: NonlinearEquality = self.__dict__.get("_taken_from", self)
        return whole

    def _linear_equations(self, x: Tensor) -> Linear | None:
        """The equations whose gradients are the same at a few states and for all samples."""
        key = (x.shape[1:], x.dtype, x.device)
        if key not in self._linear:
            self._function.on(x, self.data).values(x.detach().flatten(1))  # an error is told of the states at hand
            self._linear[key] = find_linear(self._whole._jacobians_elsewhere(x))
        return self._linear[key]

    def _jacobians_elsewhere(self, x: Tensor) -> Iterator[Tensor]:
        """Jacobians of all samples at states that were drawn once and for all, (k, m, d), some samples at a time.

        Not at the states at hand: what is found there would depend on who is projected first.
        """
        n, conditions = len(self.data[0]) if self.data else 1, self._function.on(x, self.data)
        drawn = torch.randn(len(_SIZES), x[0].numel(), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        for size, place in zip(_SIZES, drawn.to(x), strict=True):
            for end in range(min(n, _AT_ONCE), n + _AT_ONCE, _AT_ONCE):
                rows = torch.arange(max(0, min(end, n) - _AT_ONCE), min(end, n), device=x.device)
                far_out = size > 10  # where a function may overflow, or fail
                try:
                    found = conditions.linearised((size * place).expand(len(rows), -1), rows)[1]()
                except (RuntimeError, ValueError):
                    if not far_out:
                        raise
                    continue
                if not far_out or bool(found.isfinite().all()):
                    yield found

    def _shared(self, equations: Equations, x: Tensor) -> Tensor:
        """Sᵀ at the reference, (m, d); made once."""
        key, linear = (x.dtype, x.device), equations.linear
        if key not in self._at_reference:
            assert self.reference is not None
            place, first = self.reference.to(x).reshape(1, -1), torch.zeros(1, dtype=torch.int64, device=x.device)
            alone = self._function.on(x, tuple(d[None] for d in self.reference_data))
            g, derivatives = alone.linearised(place, first, None if linear is None else linear.bent)
            self._at_reference[key] = step_matrix(factored(derivatives(), linear), linear, g.shape[1])
        return self._at_reference[key]

    def _check(self, x: Tensor) -> None:
        check_states(x, "NonlinearEquality", samples=len(self.data[0]) if self.data else None)
        if self.reference is not None and self.reference.shape != x.shape[1:]:
            raise ValueError(
                f"the reference of NonlinearEquality has shape {tuple(self.reference.shape)}, but states have "
                f"{tuple(x.shape[1:])}"
            )
        self._function.check_samples_stand_alone(x, self.data)
