"""Nonlinear equations: a batched Gauss-Newton projection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from trimtab.constraints.rows import row_norm, row_product
from trimtab.constraints.states import check_states
from trimtab.core.constraint import Constraint, Projection

__all__ = ["NonlinearEquality"]

_HALVINGS = 12


@dataclass(frozen=True, eq=False)
class NonlinearEquality(Constraint):
    r"""Solutions of equations g(y) = 0, such as conservation laws: argmin over them of norm(y - x), locally.

    Each step is the shortest one that solves the linearised equations, halved until the equations are solved better
    than before (Gauss-Newton with line search). That gives a solution near x; `refinements` steps along the set, each
    brought back to it, then shorten the distance to x. Every sample stops for itself.

    Attributes:
        function: g for one sample, (\*event) to (m,), in torch operations; `function(x, *data)` where there is data.
        data: Tensors with one row a sample, that belong to the samples.
        tolerance: Norm of g at which a sample has converged. In float32 about 1e-5 is what can be had.
        max_iterations: Gauss-Newton steps a sample at the most, before refinement and after each refinement.
        refinements: Steps along the set.

    Example:
        >>> import torch
        >>> circle = NonlinearEquality(lambda y: (y * y).sum()[None] - 1)
        >>> circle.project(torch.tensor([[3.0, 4.0]], dtype=torch.float64)).x
        tensor([[0.6000, 0.8000]], dtype=torch.float64)
    """

    function: Callable[..., Tensor]
    data: tuple[Tensor, ...] = field(default=(), metadata={"per_sample": True})
    tolerance: float = 1e-8
    max_iterations: int = 30
    refinements: int = 3

    def project(self, x: Tensor) -> Projection:
        r"""Solutions near x, (n, \*event), with outcomes."""
        self._check(x)
        flat = x.flatten(1)
        iterations = torch.zeros(len(x), dtype=torch.int64, device=x.device)
        every = torch.arange(len(x), device=x.device)
        y, size = self._solve(flat, every, x.shape[1:], iterations)
        moved = ((size <= self.tolerance) & (row_norm(y - flat) > 0)).nonzero().squeeze(1)
        for _ in range(self.refinements if len(moved) else 0):
            y[moved], size[moved] = self._nearer(y[moved], flat[moved], size[moved], moved, x.shape[1:], iterations)
        return Projection(y.reshape(x.shape), size <= self.tolerance, iterations, size)

    def defect(self, x: Tensor) -> Tensor:
        r"""norm(g(x)), (n, \*event) to (n,)."""
        self._check(x)
        return row_norm(self._called(torch.func.vmap(self.function), x, *self._data(slice(None), x)))

    def _called(self, function: Callable[..., Tensor], x: Tensor, *data: Tensor) -> Tensor:
        """The function's values, (n, m); an error in it is told with the shapes that it was called with."""
        try:
            values = function(x, *data)
        except (IndexError, RuntimeError, TypeError) as error:
            raise ValueError(
                f"the function of NonlinearEquality failed on states {tuple(x.shape)}, one of shape "
                f"{tuple(x.shape[1:])} at a time: {error}"
            ) from error
        if not isinstance(values, Tensor) or values.ndim != 2:
            came = tuple(values.shape[1:]) if isinstance(values, Tensor) else type(values).__name__
            raise ValueError(
                "the function of NonlinearEquality must return (m,) values for one sample: for states "
                f"{tuple(x.shape)} it returned {came}"
            )
        return values

    def _check(self, x: Tensor) -> None:
        check_states(x, "NonlinearEquality", samples=len(self.data[0]) if self.data else None)

    def take(self, rows: Tensor) -> NonlinearEquality:
        """The same equations for some samples."""
        return replace(self, data=tuple(d[rows] for d in self.data)) if self.data else self

    def _solve(self, start: Tensor, rows: Tensor, event: torch.Size, iterations: Tensor) -> tuple[Tensor, Tensor]:
        """Gauss-Newton from `start`, (k, d), for the samples `rows`: solutions and norms of g; counts iterations."""
        y = start.clone()
        g = self._values(y, rows, event)
        size = row_norm(g)
        going = (size > self.tolerance).nonzero().squeeze(1)
        for _ in range(self.max_iterations):
            if len(going) == 0:
                break
            at, before = y[going], size[going]
            step = -_shortest(self._jacobian(at, rows[going], event), g[going])
            new, new_g, new_size, better = self._line_search(at, step, before, rows[going], event)
            y[going], g[going], size[going] = new, new_g, new_size
            iterations[rows[going]] += 1
            going = going[better & (new_size > self.tolerance)]
        return y, size

    def _line_search(
        self, at: Tensor, step: Tensor, before: Tensor, rows: Tensor, event: torch.Size
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Halve the step of each sample until norm(g) falls: the states, g, its norm, and whether it fell."""
        new = at.clone()
        new_g = self._values(at, rows, event)
        new_size = before.clone()
        better = torch.zeros_like(before, dtype=torch.bool)
        left = torch.arange(len(at), device=at.device)
        share = 1.0
        for _ in range(_HALVINGS):
            trial = at[left] + share * step[left]
            g = self._values(trial, rows[left], event)
            size = row_norm(g)
            falls = size < (1 - 1e-4 * share) * before[left]  # NaN does not fall
            chosen = left[falls]
            new[chosen], new_g[chosen], new_size[chosen] = trial[falls], g[falls], size[falls]
            better[chosen] = True
            left = left[~falls]
            if len(left) == 0:
                break
            share /= 2
        return new, new_g, new_size, better

    def _nearer(
        self, y: Tensor, x: Tensor, size: Tensor, rows: Tensor, event: torch.Size, iterations: Tensor
    ) -> tuple[Tensor, Tensor]:
        """One step along the set towards x, brought back to the set; kept where it ends nearer and feasible."""
        jacobian = self._jacobian(y, rows, event)
        back = x - y
        along = back - _shortest(jacobian, row_product(jacobian, back[:, :, None]).squeeze(2))
        new, new_size = self._solve(y + along, rows, event, iterations)
        nearer = (new_size <= self.tolerance) & (row_norm(new - x) < row_norm(back))
        return torch.where(nearer[:, None], new, y), torch.where(nearer, new_size, size)

    def _values(self, flat: Tensor, rows: Tensor, event: torch.Size) -> Tensor:
        return self._called(torch.func.vmap(self.function), flat.reshape(-1, *event), *self._data(rows, flat))

    def _jacobian(self, flat: Tensor, rows: Tensor, event: torch.Size) -> Tensor:
        """(k, m, d)."""
        jacobian = torch.func.vmap(torch.func.jacrev(self.function))
        found: Tensor = jacobian(flat.reshape(-1, *event), *self._data(rows, flat))
        return found.flatten(2)

    def _data(self, rows: Tensor | slice, like: Tensor) -> list[Tensor]:
        """The data of some samples, its floats in the dtype of the states."""
        return [d[rows].to(like) if d.is_floating_point() else d[rows].to(like.device) for d in self.data]


def _shortest(jacobian: Tensor, target: Tensor) -> Tensor:
    """The shortest step s with J s = target, (k, m, d) and (k, m) to (k, d)."""
    gram = row_product(jacobian, jacobian.transpose(1, 2))
    # equations that repeat each other make the Gram matrix singular; the ridge is far below what a step must resolve
    trace = gram.diagonal(dim1=1, dim2=2).sum(dim=1)
    ridge = (torch.finfo(gram.dtype).eps * 8 * trace).clamp(min=torch.finfo(gram.dtype).tiny)
    eye = torch.eye(gram.shape[1], dtype=gram.dtype, device=gram.device)
    factor, _ = torch.linalg.cholesky_ex(gram + ridge[:, None, None] * eye)
    multipliers = torch.cholesky_solve(target[:, :, None], factor)
    return row_product(jacobian.transpose(1, 2), multipliers).squeeze(2)
