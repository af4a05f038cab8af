"""What a constraint is, and what happens when one of its projections fails.

A constraint is a projection onto the feasible set, a cheap *defect* (how far from feasible) and a way to select
rows, so that data belonging to each sample (a start, a goal) follows the samples that are projected.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, get_args, runtime_checkable

import torch
from torch import Tensor

from trimtab.core.every_step import all_finite

__all__ = ["Constraint", "Projection", "ProjectionError", "Retry", "as_constraint", "take_rows"]


class Projection(NamedTuple):
    """The answer of a projection that can fail: states, and an outcome for each sample.

    A projection that cannot fail may return the bare tensor instead.

    Attributes:
        x: The projected states, (n, *event).
        converged: Whether the solver reached its tolerance, (n,) bool; None for a projection that cannot fail.
        iterations: Solver iterations spent, (n,) integers, if counted.
        residual: `defect(x)` of the returned states, (n,), if the solver knows it; saves measuring it again.
    """

    x: Tensor
    converged: Tensor | None = None
    iterations: Tensor | None = None
    residual: Tensor | None = None


@runtime_checkable
class Constraint(Protocol):
    """A feasible set M: how to reach it and how far from it a state is."""

    def project(self, x: Tensor) -> Tensor | Projection:
        """Feasible states near `x`: (n, *event) to (n, *event), same dtype and device."""
        ...

    def defect(self, x: Tensor) -> Tensor:
        """How far each state is from feasible: (n, *event) to (n,), at least 0, and 0 on M."""
        ...

    def take(self, rows: Tensor) -> Constraint:
        """The same constraint for the samples `rows`, a (k,) index tensor."""
        ...


@dataclass(frozen=True, eq=False)
class _Functions:
    """A constraint made of plain functions; `data` are tensors with one row a sample."""

    project_function: Callable[..., Tensor | Projection]
    defect_function: Callable[..., Tensor] | None
    data: tuple[Tensor, ...] = field(default=(), metadata={"per_sample": True})

    @property
    def defect_is_projection(self) -> bool:
        return self.defect_function is None

    def project(self, x: Tensor) -> Tensor | Projection:
        return self.project_function(x, *self._data_for(x))

    def defect(self, x: Tensor) -> Tensor:
        if self.defect_function is not None:
            return self.defect_function(x, *self._data_for(x))
        answer = self.project(x.clone())  # a projection may work in place
        projected = answer.x if isinstance(answer, Projection) else answer
        residual: Tensor = torch.linalg.vector_norm((x - projected).flatten(1), dim=1)
        return residual

    def _data_for(self, x: Tensor) -> tuple[Tensor, ...]:
        for d in self.data:
            if d.shape[0] != x.shape[0]:
                raise ValueError(
                    f"this constraint has data for {d.shape[0]} samples but was given {x.shape[0]} states; data has "
                    "one row a sample, and take(rows) selects some"
                )
        return self.data

    def take(self, rows: Tensor) -> _Functions:
        if not self.data:
            return self
        data = tuple(d[rows] for d in self.data)
        return _Functions(self.project_function, self.defect_function, data)


def as_constraint(
    project: Callable[..., Tensor | Projection],
    defect: Callable[..., Tensor] | None = None,
    data: tuple[Tensor, ...] = (),
) -> Constraint:
    """Make a constraint of plain functions.

    Args:
        project: `project(x, *data)` returns feasible states, (n, *event) to (n, *event).
        defect: `defect(x, *data)` returns (n,) distances to feasibility. Without one, the defect is the
            projection residual `norm(x - project(x))`: correct, but then every look at a state costs a
            projection, each is counted as one, and scheduling saves nothing.
        data: Tensors with one row a sample, handed to both functions; they follow row selection.

    Example:
        >>> import torch
        >>> ball = as_constraint(lambda x: x / x.norm(dim=1, keepdim=True).clamp(min=1),
        ...                      lambda x: (x.norm(dim=1) - 1).clamp(min=0))
        >>> ball.defect(torch.tensor([[3.0, 4.0], [0.1, 0.2]]))
        tensor([4., 0.])
    """
    for name, f in (("project", project), ("defect", defect)):
        if f is not None and not callable(f):
            raise ValueError(f"{name} must be a function of the states, got {type(f).__name__}")
    if not isinstance(data, tuple | list) or not all(isinstance(d, Tensor) and d.ndim for d in data):
        raise ValueError(f"data is a tuple of tensors with one row a sample: got {data!r}")
    return _Functions(project, defect, tuple(data))


def take_rows(thing: Any, rows: Tensor) -> Any:
    """`thing.take(rows)` where the thing has data for each sample, the thing itself where it has none."""
    take = getattr(thing, "take", None)
    return thing if take is None else take(rows)


# ------------------------------------------------------------------ failed projections


class ProjectionError(RuntimeError):
    """A projection failed, or its answer cannot be used."""


Then = Literal["keep", "revert", "raise"]


@dataclass(frozen=True)
class Retry:
    """Try a failed projection again, `tries` times at the most, and `then` do what the plain policy says.

    Each try starts from the solver's last state where that is no worse than the proposal, so that a
    deterministic solver does not just fail the same way again.
    """

    tries: int = 2
    then: Then = "keep"

    def __post_init__(self) -> None:
        """Refuse a policy that would retry for ever or do nothing known in the end."""
        if isinstance(self.tries, bool) or not isinstance(self.tries, int) or self.tries < 1:
            raise ValueError(f"Retry: tries must be a whole number of at least 1, got {self.tries!r}")
        if self.then not in get_args(Then):
            raise ValueError(f"Retry: then must be one of {get_args(Then)}, got {self.then!r}")


OnFailure = Literal["keep", "revert", "raise", "retry"] | Retry


def tries_and_last_resort(policy: OnFailure) -> tuple[int, Then]:
    """How often to try a failed projection again, and what to do if it still fails.

    Example:
        >>> tries_and_last_resort("revert"), tries_and_last_resort(Retry(3))
        ((0, 'revert'), (3, 'keep'))
    """
    if policy == "retry":
        policy = Retry()
    if isinstance(policy, Retry):
        return policy.tries, policy.then
    if policy in get_args(Then):
        return 0, policy
    raise ValueError(f"on_failure must be 'keep', 'revert', 'raise', 'retry' or Retry(n), got {policy!r}")


def checked_projection(constraint: Constraint, x: Tensor, finite: bool = True) -> Projection:
    """`constraint.project(x)` with its answer checked: shape, dtype, device, outcomes.

    Args:
        constraint: The constraint for exactly the rows of `x`.
        x: States, (n, *event).
        finite: Also refuse NaN and inf where it converged, which waits for the device.
    """
    answer = constraint.project(x)
    if isinstance(answer, Tensor):
        answer = Projection(answer)
    elif isinstance(answer, Projection):
        _check_outcomes(answer, x.shape[:1])
    else:
        raise ProjectionError(f"project must return a Tensor or a Projection, got {type(answer).__name__}")
    y = answer.x
    if not isinstance(y, Tensor) or y.shape != x.shape or y.dtype != x.dtype or y.device != x.device:
        came = _describe(y) if isinstance(y, Tensor) else repr(y)
        raise ProjectionError(
            f"project must keep shape, dtype and device: it was given {_describe(x)} and returned {came}"
        )
    if finite and not all_finite(y):
        bad = ~y.flatten(1).isfinite().all(dim=1)
        if answer.converged is not None:
            bad &= answer.converged
        if bool(bad.any()):
            raise ProjectionError(
                f"project returned NaN or inf for {int(bad.sum())} of {len(x)} finite states (first: row "
                f"{int(bad.nonzero()[0])} of the selected ones) and did not report them as failed; return a "
                "Projection with converged=False for states it cannot handle"
            )
    return answer


def _check_outcomes(answer: Projection, shape: torch.Size) -> None:
    """Refuse outcomes that are not one a sample, or not of their kind."""
    for name, outcome in zip(answer._fields[1:], answer[1:], strict=True):
        if outcome is None:
            continue
        if not isinstance(outcome, Tensor) or outcome.shape != shape:
            came = tuple(outcome.shape) if isinstance(outcome, Tensor) else repr(outcome)
            raise ProjectionError(
                f"project must report {name} as a tensor with one number a sample, shape ({shape[0]},), got {came}"
            )
        if name == "converged" and outcome.dtype != torch.bool:
            raise ProjectionError(f"project must report converged as bool, got {outcome.dtype}")


def recover(constraint: Constraint, x: Tensor, answer: Projection, tries: int, then: Then) -> Projection:
    """Deal with the rows of `answer` that failed: try again, then keep, revert or raise.

    "keep" keeps a failed row's state only where it is finite and no farther from feasible than the proposal;
    otherwise the proposal itself stays. `converged` tells in every case which rows failed.

    Args:
        constraint: The constraint for exactly the rows of `x`.
        x: The proposals, (n, *event).
        answer: What the first projection of `x` returned.
        tries: How many more times failed rows are tried.
        then: What to do with rows that still fail.
    """
    assert answer.converged is not None
    y, converged = answer.x.clone(), answer.converged.clone()
    iterations = None if answer.iterations is None else answer.iterations.clone()

    failed = (~converged).nonzero().squeeze(1)
    there = constraint.take(failed)
    proposal = x[failed]
    defect = there.defect(proposal)
    best, best_defect = _better(y[failed], proposal, there, defect)
    for _ in range(tries):
        again = checked_projection(there, best)
        best, best_defect = _better(again.x, best, there, best_defect)
        ok = torch.ones_like(failed, dtype=torch.bool) if again.converged is None else again.converged
        best = torch.where(_rowwise(ok, best), again.x, best)
        y[failed], converged[failed] = best, ok
        if iterations is not None and again.iterations is not None:
            iterations[failed] += again.iterations
        still = (~ok).nonzero().squeeze(1)
        failed, proposal, there = failed[still], proposal[still], there.take(still)
        best, best_defect = best[still], best_defect[still]
        if len(failed) == 0:
            break
    if len(failed) and then == "raise":
        raise ProjectionError(
            f"the projection failed for {len(failed)} of {len(x)} selected states after {tries + 1} tries (first: "
            f"row {int(failed[0])}); on_failure='keep', 'revert' or Retry(n) carries on instead"
        )
    if len(failed):
        y[failed] = proposal if then == "revert" else best
    return Projection(y, converged, iterations)


def _better(new: Tensor, old: Tensor, constraint: Constraint, old_defect: Tensor) -> tuple[Tensor, Tensor]:
    """Of two states a row, the one nearer to feasible; a state that is not finite is never the one."""
    finite = new.flatten(1).isfinite().all(dim=1)
    usable = torch.where(_rowwise(finite, new), new, old)
    defect = constraint.defect(usable)
    better = finite & (defect <= old_defect)
    return torch.where(_rowwise(better, new), usable, old), torch.where(better, defect, old_defect)


def _rowwise(mask: Tensor, like: Tensor) -> Tensor:
    """A (n,) mask shaped to broadcast over the events of `like`."""
    return mask.reshape(-1, *([1] * (like.ndim - 1)))


def _describe(x: Tensor) -> str:
    return f"{tuple(x.shape)} {str(x.dtype).removeprefix('torch.')} on {x.device}"
