"""What a constraint is: a way to a feasible set, and a cheap number that tells how far from it a state is."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from trimtab.core.arrays import Form, difference

__all__ = ["Constraint", "Improvement", "Projection", "as_constraint", "residual_norm"]


class Projection(NamedTuple):
    """The answer of a projection that can fail: states, and an outcome for each sample.

    A projection that cannot fail may return the bare states instead.

    Attributes:
        x: The projected states, (n, *event).
        converged: Whether the solver reached its tolerance, (n,) bool; None for a projection that cannot fail.
        iterations: Solver iterations spent, (n,) integers, if counted.
        residual: `defect(x)` of the returned states, (n,), if the solver knows it; saves measuring it again.
    """

    x: Any
    converged: Tensor | None = None
    iterations: Tensor | None = None
    residual: Tensor | None = None


class Improvement(NamedTuple):
    """The answer of one iteration of a solver.

    Attributes:
        x: The improved states, (n, *event).
        defect: `defect(x)`, (n,).
        done: Whether the solver has nothing left to do, (n,) bool.
        state: What the solver carries to its next iteration: None, or tensors with one row per sample in a tuple.
        cost: What it cost in the units in which `project` counts its iterations, (n,) whole numbers of at least 1;
            None for 1. A solver that has to be set up reports that with the first iteration.
    """

    x: Any
    defect: Tensor
    done: Tensor
    state: tuple[Tensor, ...] | None = None
    cost: Tensor | None = None


class Constraint:
    """A feasible set M: how to reach it and how far from it a state is.

    Derive from it and give `project` and `defect`, or make one of plain functions with `as_constraint`.

    Attributes:
        needs: The names of what `project` and `defect` want to know beside the states, handed to them by keyword:
            "t" (the step), "previous" (the state before the update), or anything the loop passes to its corrector,
            such as `corrector(x, t, sigma=0.3)`. A number is shared by all samples; an array has one row per sample
            and follows row selection.
        defect_is_projection: Whether measuring a defect costs a projection; each look is then counted as one.
        is_projection: Whether `project` leads onto the feasible set, so that projecting twice changes nothing. A
            correction that only lowers an energy says False.
        improves: Whether `improve` is there.
    """

    needs: tuple[str, ...] = ()
    defect_is_projection: bool = False
    is_projection: bool = True
    improves: bool = False

    def project(self, x: Any, *args: Any, **context: Any) -> Any:
        """Feasible states near `x`: (n, *event) to (n, *event), same kind, dtype and device; or a `Projection`."""
        raise NotImplementedError(f"{type(self).__name__} must say how to reach the feasible set: def project(self, x)")

    def defect(self, x: Any, *args: Any, **context: Any) -> Any:
        """How far each state is from feasible: (n, *event) to (n,), at least 0, and 0 on M."""
        raise NotImplementedError(f"{type(self).__name__} must say how far a state is off: def defect(self, x)")

    def take(self, rows: Tensor) -> Self:
        """The same constraint for the samples `rows`, a (k,) index tensor; itself if it has no data per sample."""
        return self

    def improve(self, x: Any, state: tuple[Tensor, ...] | None, **context: Any) -> Improvement:
        """One iteration of the solver on states (n, *event); `state` is None at the first."""
        raise NotImplementedError(f"{type(self).__name__} has no iterations of its own: its projection is one unit")

    def cheaper(self) -> dict[str, Constraint]:
        """Ways to make the same projection cheaper, by name, for advice to try; none unless a constraint knows any."""
        return {}


@dataclass(frozen=True, eq=False)
class _Functions(Constraint):
    """A constraint made of plain functions; `data` are tensors with one row per sample."""

    project_function: Callable[..., Any]
    defect_function: Callable[..., Any] | None
    data: tuple[Tensor, ...] = field(default=(), metadata={"per_sample": True})
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
        """The data, if it is for as many samples as there are states."""
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
    """The value, if it is a constraint."""
    if not isinstance(value, Constraint):
        raise TypeError(
            f"{what} derives from trimtab.Constraint: got {type(value).__name__} (plain functions can be wrapped: "
            "trimtab.as_constraint(project, defect))"
        )
    return value


def residual_norm(before: Iterable[Tensor], after: Iterable[Tensor]) -> Tensor:
    """How far each sample's leaves moved, (n,): the Euclidean norm over all of them."""
    before, after = (_leaves(leaves, name) for name, leaves in (("before", before), ("after", after)))
    if [a.shape for a in before] != [b.shape for b in after]:
        shapes = [[tuple(leaf.shape) for leaf in leaves] for leaves in (before, after)]
        raise ValueError(f"before and after have leaves of the same shapes: got {shapes[0]} and {shapes[1]}")
    apart = [difference(a, b) for a, b in zip(before, after, strict=True)]
    squares = [d.flatten(1).square().sum(dim=1) if d.ndim > 1 else d**2 for d in apart]
    return torch.stack(squares).sum(dim=0).sqrt()


def _leaves(leaves: Iterable[Tensor], name: str) -> list[Tensor]:
    found = list(leaves) if isinstance(leaves, Iterable) else []
    if not found or not all(isinstance(leaf, Tensor) and leaf.ndim for leaf in found):
        raise TypeError(f"{name} is a sequence of tensors, one row per sample in each: got {leaves!r:.60}")
    return found


def as_constraint(
    project: Callable[..., Any],
    defect: Callable[..., Any] | None = None,
    data: tuple[Tensor, ...] = (),
    *,
    needs: tuple[str, ...] = (),
    is_projection: bool = True,
) -> Constraint:
    """Make a constraint of plain functions.

    Args:
        project: `project(x, *data)` returns feasible states, (n, *event) to (n, *event).
        defect: `defect(x, *data)` returns (n,) distances to feasibility. Without one, the defect is the
            projection residual `norm(x - project(x))`: correct, but then every look at a state costs a
            projection, each is counted as one, and scheduling saves nothing.
        data: Tensors with one row per sample, handed to both functions; they follow row selection.
        needs: What both functions want to know beside the states, by keyword; see `Constraint`.
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
        raise TypeError(f"data is a tuple of tensors with one row per sample: got {kinds}")
    if not isinstance(needs, tuple | list) or not all(isinstance(name, str) and name.isidentifier() for name in needs):
        raise TypeError(f"needs is a tuple of names, as in needs=('sigma',): got {needs!r}")
    for f in (project, defect):
        _check_undeclared(f, 1 + len(data), needs)
    return _Functions(project, defect, tuple(data), tuple(needs), is_projection)


def _check_undeclared(f: Callable[..., Any] | None, given: int, needs: Sequence[str]) -> None:
    """Refuse a function that wants more than states, data and what was declared."""
    try:
        wanted = [] if f is None else list(inspect.signature(f).parameters.values())
    except (TypeError, ValueError):  # some compiled functions do not say
        return
    free = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    by_place = [p for p in wanted if p.kind not in (*free, inspect.Parameter.KEYWORD_ONLY)][:given]
    missing = [p.name for p in wanted if p.kind not in free and p not in by_place and p.default is p.empty]
    undeclared = tuple(name for name in missing if name not in needs)
    if undeclared:
        raise TypeError(
            f"{getattr(f, '__name__', f)} wants {', '.join(undeclared)} beside the states: declare it, "
            f"as in as_constraint(…, needs={undeclared!r}), and pass it with every step, as in "
            f"corrector(x, t, {undeclared[0]}=…); or give it a default"
        )
