"""What a constraint is: a projection onto a feasible set, and a cheap measure of how far a state is from it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from trimtab.core.arrays import Form, difference
from trimtab.core.checks import check_bool

__all__ = ["Constraint", "Improvement", "Projection", "as_constraint", "residual_norm"]


class Projection(NamedTuple):
    """What a projection that can fail returns: states, and an outcome for each sample.

    A projection that cannot fail may return the bare states instead.

    Attributes:
        x: The projected states, (n, *event).
        converged: Whether the solver reached its tolerance, (n,) bool; None for a projection that cannot fail.
        iterations: Solver iterations, (n,) integers, if counted.
        residual: `defect(x)` of the returned states, (n,), if the solver knows it, which saves measuring it.
    """

    x: Any
    converged: Tensor | None = None
    iterations: Tensor | None = None
    residual: Tensor | None = None


class Improvement(NamedTuple):
    """What one iteration of a solver returns.

    Attributes:
        x: The improved states, (n, *event).
        defect: `defect(x)`, (n,).
        done: Whether the solver has nothing left to do, (n,) bool.
        state: What the solver carries to its next iteration: None, or a tuple of tensors with one row per sample.
        cost: The cost in iterations as `project` counts them, (n,) integers of at least 1; None for 1. A solver with a
            set-up cost reports it with the first iteration.
    """

    x: Any
    defect: Tensor
    done: Tensor
    state: tuple[Tensor, ...] | None = None
    cost: Tensor | None = None


class Constraint:
    """A feasible set M: how to reach it, and how far a state is from it.

    Derive from it and define `project` and `defect`, or wrap plain functions with `as_constraint`.

    Attributes:
        needs: Names of further arguments of `project` and `defect`, passed by keyword: "t" (the step), "previous" (the
            state before the update), or anything the loop passes to its corrector, such as
            `corrector(x, t, sigma=0.3)`. A number is shared by all samples; an array has one row per sample.
        defect_is_projection: Whether measuring a defect costs a projection; each is then counted as one.
        is_projection: Whether projecting twice changes nothing; False for a correction that only lowers an energy.
        improves: Whether `improve` is defined.
    """

    needs: tuple[str, ...] = ()
    defect_is_projection: bool = False
    is_projection: bool = True
    improves: bool = False

    @property
    def counts_iterations(self) -> bool:
        """Whether the work of `project` is its iterations; by default if there are any."""
        return self.improves

    def project(self, x: Any, *args: Any, **context: Any) -> Any:
        """Return feasible states near `x`, like `x` in shape, kind, dtype and device, or a `Projection`."""
        raise NotImplementedError(f"{type(self).__name__} must define project(self, x)")

    def defect(self, x: Any, *args: Any, **context: Any) -> Any:
        """Return how far each state is from feasible: (n, *event) to (n,), at least 0, and 0 on M."""
        raise NotImplementedError(f"{type(self).__name__} must define defect(self, x)")

    def take(self, rows: Tensor) -> Self:
        """Return the constraint for the samples `rows`, (k,) indices; itself if it has no data per sample."""
        return self

    def improve(self, x: Any, state: tuple[Tensor, ...] | None, **context: Any) -> Improvement:
        """Run one iteration of the solver on states (n, *event); `state` is None at the first."""
        raise NotImplementedError(f"{type(self).__name__} does not define improve: its projection is one unit")

    def cheaper(self) -> dict[str, Constraint]:
        """Return cheaper ways to make the same projection, by name, for `advise` to try."""
        return {}


@dataclass(frozen=True, eq=False)
class _Functions(Constraint):
    """A constraint made of plain functions; `data` are tensors with one row per sample."""

    project_function: Callable[..., Any]
    defect_function: Callable[..., Any] | None
    data: tuple[Tensor, ...] = ()
    needs: tuple[str, ...] = ()
    is_projection: bool = True

    @property
    def defect_is_projection(self) -> bool:  # type: ignore[override]
        return self.defect_function is None

    def project(self, x: Any, *args: Any, **context: Any) -> Any:
        return self.project_function(x, *(self.data and self._data_for(x)), **context)

    def defect(self, x: Any, *args: Any, **context: Any) -> Any:
        if self.defect_function is not None:
            return self.defect_function(x, *(self.data and self._data_for(x)), **context)
        form = Form(x)
        leaves = form.leaves(x)
        answer = self.project(form.state(tuple(leaf.clone() for leaf in leaves)), **context)  # it may work in place
        projected = form.leaves(answer.x if isinstance(answer, Projection) else answer)
        return residual_norm(leaves, projected)

    def _data_for(self, x: Any) -> tuple[Tensor, ...]:
        """Return the data; raise if it is for another number of samples."""
        n = len(x) if isinstance(x, Tensor) else Form(x).n
        for d in self.data:
            if d.shape[0] != n:
                raise ValueError(
                    f"this constraint has data for {d.shape[0]} samples but was given {n} states; data has one row "
                    "per sample, and take(rows) selects some"
                )
        return self.data

    def take(self, rows: Tensor) -> _Functions:
        if not self.data:
            return self
        data = tuple(d[rows] for d in self.data)
        return _Functions(self.project_function, self.defect_function, data, self.needs, self.is_projection)


def check_constraint(value: object, what: str = "a constraint") -> Constraint:
    """Return the value; raise if it is not a constraint."""
    if not isinstance(value, Constraint):
        raise TypeError(
            f"{what} must derive from trimtab.Constraint: got {type(value).__name__} (plain functions can be wrapped: "
            "trimtab.as_constraint(project, defect))"
        )
    return value


def residual_norm(before: Iterable[Tensor], after: Iterable[Tensor]) -> Tensor:
    """Return how far each sample's leaves moved, (n,): the Euclidean norm over all of them."""
    before, after = (_leaves(leaves, name) for name, leaves in (("before", before), ("after", after)))
    if [a.shape for a in before] != [b.shape for b in after]:
        shapes = [[tuple(leaf.shape) for leaf in leaves] for leaves in (before, after)]
        raise ValueError(f"before and after must have leaves of the same shapes: got {shapes[0]} and {shapes[1]}")
    apart = [difference(a, b) for a, b in zip(before, after, strict=True)]
    squares = [d.flatten(1).square().sum(dim=1) if d.ndim > 1 else d**2 for d in apart]
    return torch.stack(squares).sum(dim=0).sqrt()


def _leaves(leaves: Iterable[Tensor], name: str) -> list[Tensor]:
    found = list(leaves) if isinstance(leaves, Iterable) else []
    if not found or not all(isinstance(leaf, Tensor) and leaf.ndim for leaf in found):
        raise TypeError(f"{name} must be a sequence of tensors, one row per sample in each: got {leaves!r:.60}")
    return found


def as_constraint(
    project: Callable[..., Any],
    defect: Callable[..., Any] | None = None,
    data: tuple[Tensor, ...] = (),
    *,
    needs: tuple[str, ...] = (),
    is_projection: bool = True,
) -> Constraint:
    """Return a constraint made of plain functions.

    Args:
        project: `project(x, *data)` returns feasible states, (n, *event) to (n, *event).
        defect: `defect(x, *data)` returns (n,) distances to feasibility. Without one, the defect is the
            projection residual `norm(x - project(x))`: correct, but then measuring a defect costs a projection, each
            is counted as one, and scheduling saves nothing.
        data: Tensors with one row per sample, passed to both functions; they follow row selection.
        needs: Names of further keyword arguments of both functions; see `Constraint`.
        is_projection: False for a correction that does not end on a feasible set, such as a few steps down an energy.

    Example:
        >>> import torch
        >>> ball = as_constraint(lambda x: x / x.norm(dim=1, keepdim=True).clamp(min=1),
        ...                      lambda x: (x.norm(dim=1) - 1).clamp(min=0))
        >>> ball.defect(torch.tensor([[3.0, 4.0], [0.1, 0.2]]))
        tensor([4., 0.])
    """
    for name, f in (("project", project), ("defect", defect)):
        if not callable(f) and (f is not None or name == "project"):
            raise TypeError(f"{name} must be a function of the states: got {type(f).__name__}")
    if not isinstance(data, tuple | list) or not all(isinstance(d, Tensor) and d.ndim for d in data):
        kinds = [type(d).__name__ for d in data] if isinstance(data, tuple | list) else type(data).__name__
        raise TypeError(f"data must be a tuple of tensors with one row per sample: got {kinds}")
    if not isinstance(needs, tuple | list) or not all(isinstance(name, str) and name.isidentifier() for name in needs):
        raise TypeError(f"needs must be a tuple of names, as in needs=('sigma',): got {needs!r}")
    check_bool(is_projection, "is_projection")
    for f in (project, defect):
        _check_undeclared(f, 1 + len(data), needs)
    return _Functions(project, defect, tuple(data), tuple(needs), is_projection)


def _check_undeclared(f: Callable[..., Any] | None, given: int, needs: Sequence[str]) -> None:
    """Raise if a function needs arguments besides states, data and what was declared."""
    try:
        wanted = [] if f is None else list(inspect.signature(f).parameters.values())
    except (TypeError, ValueError):  # some compiled functions have no signature
        return
    free = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    by_place = [p for p in wanted if p.kind not in (*free, inspect.Parameter.KEYWORD_ONLY)][:given]
    missing = [p.name for p in wanted if p.kind not in free and p not in by_place and p.default is p.empty]
    undeclared = tuple(name for name in missing if name not in needs)
    if undeclared:
        raise TypeError(
            f"{getattr(f, '__name__', f)} needs {', '.join(undeclared)} besides the states: declare it, "
            f"as in as_constraint(…, needs={undeclared!r}), and pass it with every step, as in "
            f"corrector(x, t, {undeclared[0]}=…); or give it a default"
        )
