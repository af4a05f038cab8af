"""Samples that are decided on and corrected together: the points of a trajectory, the robots of a scene."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Self

import torch
from torch import Tensor

from trimtab.constraints.states import Wrapper, with_settings
from trimtab.core.arrays import Form, as_tensor, map_leaves, rowwise
from trimtab.core.checks import check_integer
from trimtab.core.constraint import Constraint, Improvement, Projection, check_constraint

__all__ = ["Together"]


@dataclass(frozen=True, eq=False)
class Together(Wrapper):
    r"""A constraint of single states, for samples that consist of k of them: (G, k, \*event).

    All k rows of a sample share one decision, one budget and one projection call. A sample is projected if all of its
    rows are, and takes as many iterations as the row that takes most. Groups of unequal size can be padded with rows
    that are feasible.

    A constraint that couples the rows of a sample, such as a distance between two robots, needs no wrapper: it takes
    states (G, k, \*event) itself.

    Attributes:
        constraint: A constraint of states (n, \*event).
        k: Rows per sample.
        reduce: What the defect of a sample is: the "sum" of its rows' defects, or the "largest" of them.

    Context that the constraint needs is shared by all rows if it is a number, by the rows of a sample if it has one
    number per sample, (G,), and otherwise has one entry per row, (G, k, …).

    Example:
        >>> import torch
        >>> from trimtab.constraints import Ball
        >>> pairs = Together(Ball(1.0), 2, "largest")
        >>> pairs.defect(torch.tensor([[[3.0, 4.0], [0.0, 2.0]]]))
        tensor([4.])
    """

    constraint: Constraint
    k: int
    reduce: Literal["sum", "largest"] = "sum"

    def __post_init__(self) -> None:
        check_constraint(self.constraint, "the constraint of Together")
        check_integer(self.k, "the k of Together")
        if self.reduce not in ("sum", "largest"):
            raise ValueError(f"the defect of Together must be the 'sum' or the 'largest': got {self.reduce!r}")

    @property
    def improves(self) -> bool:  # type: ignore[override]
        """Whether the constraint has iterations."""
        return self.constraint.improves

    def _parts(self) -> tuple[Constraint, ...]:
        return (self.constraint,)

    def project(self, x: Any, **context: Any) -> Projection:
        r"""Return projected samples, (G, k, \*event)."""
        answer = self.constraint.project(self._rows(x), **self._context(context))
        if not isinstance(answer, Projection):
            return Projection(self._samples(answer))
        converged, iterations, residual = (None if part is None else self._split(part) for part in answer[1:])
        return Projection(
            self._samples(answer.x),
            None if converged is None else converged.all(dim=1),
            None if iterations is None else iterations.amax(dim=1),
            None if residual is None else self._reduced(residual),
        )

    def defect(self, x: Any, **context: Any) -> Tensor:
        r"""Return the reduced defects of the rows, (G, k, \*event) to (G,)."""
        return self._reduced(self._split(self.constraint.defect(self._rows(x), **self._context(context))))

    def improve(self, x: Any, state: tuple[Tensor, ...] | None = None, **context: Any) -> Improvement:
        """Run one iteration on all rows that are not done; `state` holds which are, and what their solver carries."""
        rows = self._rows(x)
        carried = None if state is None else tuple(part.flatten(0, 1) for part in state[1:]) or None
        new = self.constraint.improve(rows, carried, **self._context(context))
        defect, done, cost = new.defect, new.done, torch.ones_like(new.done, dtype=torch.int64)
        cost = cost if new.cost is None else new.cost
        y = new.x
        if state is not None:
            before = state[0].flatten()
            y = _where(before, rows, y)
            defect = torch.where(before, self.constraint.defect(rows, **self._context(context)), defect)
            done, cost = done | before, torch.where(before, 0, cost)
        carry = tuple(self._split(part) for part in (done, *(new.state or ())))
        whole = carry[0].all(dim=1)
        return Improvement(
            self._samples(y), self._reduced(self._split(defect)), whole, carry, self._split(cost).amax(dim=1)
        )

    def take(self, rows: Tensor) -> Self:
        """Return the same constraint for some samples, with the data of all of their rows."""
        each = torch.arange(self.k, device=rows.device)
        return with_settings(self, constraint=self.constraint.take((rows[:, None] * self.k + each).flatten()))

    def cheaper(self) -> dict[str, Constraint]:
        """Return the constraint's cheaper variants, each for whole samples."""
        return {name: with_settings(self, constraint=other) for name, other in self.constraint.cheaper().items()}

    # ------------------------------------------------------------------ rows and samples

    def _rows(self, x: Any) -> Any:
        """Return all rows of all samples, (G, k, …) to (G k, …)."""
        return self._merged(x) if isinstance(x, Tensor) else map_leaves(self._merged, x)

    def _merged(self, leaf: Tensor) -> Tensor:
        if leaf.layout != torch.strided:
            raise ValueError(f"Together takes states with memory of their own: got a tensor of layout {leaf.layout}")
        if leaf.ndim < 2 or leaf.shape[1] != self.k:
            raise ValueError(
                f"Together takes samples of {self.k} rows, shape (n, {self.k}, *event): got {tuple(leaf.shape)}"
            )
        return leaf.flatten(0, 1)

    def _samples(self, x: Any) -> Any:
        return self._split(x) if isinstance(x, Tensor) else map_leaves(self._split, x)

    def _split(self, values: Any) -> Tensor:
        """Return values per row, (G k, …), by sample, (G, k, …)."""
        rows: Tensor = as_tensor(values)
        return torch.unflatten(rows, 0, (len(rows) // self.k, self.k))

    def _reduced(self, values: Tensor) -> Tensor:
        return values.sum(dim=1) if self.reduce == "sum" else values.amax(dim=1)

    def _context(self, context: dict[str, Any]) -> dict[str, Any]:
        return {name: self._context_of_rows(value) for name, value in context.items()}

    def _context_of_rows(self, value: Any) -> Any:
        if value is None or isinstance(value, bool | int | float | str) or getattr(value, "ndim", None) == 0:
            return value
        if getattr(value, "ndim", None) == 1:
            return map_leaves(lambda leaf: leaf.repeat_interleave(self.k), value)
        return self._rows(value)


def _where(mask: Tensor, x: Any, y: Any) -> Any:
    """Return the rows of x where the mask is true, else those of y; both are states (n, …) of one kind."""
    if isinstance(x, Tensor):
        return torch.where(rowwise(mask, x), x, y)
    form = Form(x)
    pairs = zip(form.leaves(x), form.leaves(y), strict=True)
    return form.state(tuple(torch.where(rowwise(mask, a), a, b) for a, b in pairs))
