"""A constraint bound to a run: it takes the loop's own kind of arrays, is timed, and has its answers checked.

What happens when a projection fails is here, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from trimtab.core.arrays import Form, Leaves, all_finite, as_tensor, finite_rows, put_rows, rowwise, take_leaves
from trimtab.core.constraint import Constraint, Projection

__all__ = ["OnFailure", "ProjectionError", "Retry"]


class ProjectionError(RuntimeError):
    """A projection failed, or returned something that cannot be used."""


@dataclass
class Meter:
    """Seconds, calls and rows of one kind of work; `log` holds seconds, rows and iterations of each projection."""

    seconds: float = 0.0
    calls: int = 0
    rows: int = 0
    log: list[tuple[float, int, int]] = field(default_factory=list)

    def count(self, start: float, rows: int) -> float:
        """Count a call that started at `start` and ends now; return its seconds."""
        seconds = perf_counter() - start
        self.seconds += seconds
        self.calls += 1
        self.rows += rows
        return seconds


class Outcome(NamedTuple):
    """What a projection returned, with states as leaves; the rest as in `Projection`."""

    x: Leaves
    converged: Tensor | None = None
    iterations: Tensor | None = None
    residual: Tensor | None = None


class Context:
    """What the loop passes to a constraint by name: shared values, and arrays with one row per sample."""

    def __init__(self, values: Mapping[str, Any], n: int) -> None:
        """Sort the values into shared ones and ones per sample; raise if a value is neither."""
        self.shared: dict[str, Any] = {}
        self.per_sample: dict[str, tuple[Form, Leaves]] = {}
        for name, value in values.items():
            if value is None or isinstance(value, bool | int | float | str) or getattr(value, "ndim", None) == 0:
                self.shared[name] = value
                continue
            try:
                form = Form(value, floats=False)
            except (TypeError, ValueError) as error:
                raise TypeError(f"{name} must be a number or hold one row per sample: {error}") from error
            if form.n != n:
                raise ValueError(f"{name} must be a number or hold one row per sample: {form.n} rows for {n} samples")
            self.per_sample[name] = form, form.leaves(value)

    def take(self, rows: Tensor) -> Context:
        """Return the context of some rows."""
        some = Context(self.shared, 0)
        some.per_sample = {name: (form, take_leaves(leaves, rows)) for name, (form, leaves) in self.per_sample.items()}
        return some

    def values(self) -> dict[str, Any]:
        """Return the values by name, in the form in which the constraint receives them."""
        return self.shared | {name: form.state(leaves) for name, (form, leaves) in self.per_sample.items()}


class BoundConstraint:
    """The constraint of a run, for its batch or for some of its rows."""

    def __init__(
        self, constraint: Constraint, form: Form, projections: Meter, defects: Meter, context: Context | None = None
    ) -> None:
        """Bind a constraint to states of one form.

        Args:
            constraint: For exactly the rows it will be given.
            form: Of the states of the run.
            projections: Counts projections and iterations.
            defects: Counts defects; the same meter if measuring one costs a projection.
            context: What the constraint needs besides the states.
        """
        self.constraint, self.form, self.projections, self.defects = constraint, form, projections, defects
        self.context = context
        self.arguments = {} if context is None else context.values()

    def take(self, rows: Tensor) -> BoundConstraint:
        """Return the constraint for some of the rows, (k,)."""
        constraint = self.constraint.take(rows)
        if constraint is self.constraint and self.context is None:
            return self
        context = None if self.context is None else self.context.take(rows)
        return BoundConstraint(constraint, self.form, self.projections, self.defects, context)

    def defect(self, x: Leaves) -> Tensor:
        """Return how far each state is from feasible, (n,)."""
        start = perf_counter()
        defect = self.constraint.defect(self.form.state(x), **self.arguments)
        self.defects.count(start, len(x[0]))
        return self._one_each("defect must return", defect, len(x[0]))

    def project(self, x: Leaves, rows: Tensor | None = None, *, lenient: bool = False) -> Outcome:
        """Project states (n, …), or the given rows of them, and check the answer; if lenient, it may be NaN or inf."""
        start = perf_counter()
        copy = tuple(leaf.clone() for leaf in x) if rows is None else take_leaves(x, rows)  # it may work in place
        n = len(copy[0])
        answer = self.constraint.project(self.form.state(copy), **self.arguments)
        seconds = self.projections.count(start, n)
        if not isinstance(answer, Projection):
            outcome = Outcome(self._leaves(answer, copy))
        else:
            outcomes = (self._outcome(name, getattr(answer, name), n) for name in Projection._fields[1:])
            outcome = Outcome(self._leaves(answer.x, copy), *outcomes)
        taken = 0 if outcome.iterations is None else int(outcome.iterations.sum())
        self.projections.log.append((seconds, n, taken))
        if not lenient and not all_finite(outcome.x):
            self._check_finite(outcome)
        return outcome

    def _check_finite(self, answer: Outcome) -> None:
        """Raise if a projection returned NaN or inf and did not report it as failed."""
        bad = ~finite_rows(answer.x)
        if answer.converged is not None:
            bad &= answer.converged
        if bool(bad.any()):
            raise ProjectionError(
                f"project returned NaN or inf for {int(bad.sum())} of {len(bad)} finite states (first: row "
                f"{int(bad.nonzero()[0])} of the selected ones) and did not report them as failed; return a "
                "Projection with converged=False for states it cannot handle"
            )

    def _leaves(self, y: Any, given: Leaves) -> Leaves:
        """Return the leaves of an answer, which must be like what the function was given."""
        try:
            found = self.form.leaves(y, len(given[0]), wide=True)
        except (TypeError, ValueError) as error:
            raise ProjectionError(
                f"project must return states as it was given them, with the same shape and dtype: {error}"
            ) from error
        for leaf in found:
            if leaf.device != self.form.device:
                raise ProjectionError(
                    f"project must keep the device: got states on {leaf.device}, expected {self.form.device}"
                )
        return found

    def _one_each(self, what: str, values: Any, n: int) -> Tensor:
        """Return one float per sample, (n,); `what` starts the message if they are something else."""
        values = _as_tensor(values)
        if not isinstance(values, Tensor) or values.shape != (n,) or not values.is_floating_point():
            got = f"{tuple(values.shape)} of {values.dtype}" if isinstance(values, Tensor) else type(values).__name__
            raise ValueError(f"{what} one number per sample, ({n},) floats: got {got}")
        if values.device != self.form.device:
            raise ValueError(f"{what} numbers on {self.form.device}, as the states: got {values.device}")
        return values

    def _outcome(self, name: str, value: Any, n: int) -> Tensor | None:
        """Return what a projection reports for each sample, (n,), checked."""
        if value is None:
            return None
        outcome = _as_tensor(value)
        if not isinstance(outcome, Tensor) or outcome.shape != (n,):
            got = tuple(outcome.shape) if isinstance(outcome, Tensor) else type(value).__name__
            raise ProjectionError(f"project must report {name} with one entry per sample, shape ({n},): got {got}")
        if name == "converged" and outcome.dtype != torch.bool:
            raise ProjectionError(f"project must report converged as bool: got {outcome.dtype}")
        if name == "iterations" and (not _is_integer(outcome) or bool((outcome < 0).any())):
            raise ProjectionError(f"project must report iterations as whole numbers of at least 0: got {outcome!r:.80}")
        return outcome


def _as_tensor(values: Any) -> Any:
    """Return a numpy or JAX array as a tensor, anything else unchanged."""
    return as_tensor(values) if not isinstance(values, Tensor) and hasattr(values, "__dlpack__") else values


def _is_integer(values: Tensor) -> bool:
    return not (values.is_floating_point() or values.is_complex() or values.dtype == torch.bool)


def bind(constraint: Constraint, x: Any, **context: Any) -> tuple[BoundConstraint, Leaves]:
    """Bind a constraint to states outside a run; return it with the leaves of the states as it sees them."""
    form = Form(x)
    bound = BoundConstraint(constraint, form, Meter(), Meter(), Context(context, form.n) if context else None)
    return bound, form.widened(form.leaves(x))


def checked_projection(constraint: Constraint, x: Any, **context: Any) -> Projection:
    """Return `constraint.project(x)` outside a run, with its answer checked."""
    bound, leaves = bind(constraint, x, **context)
    answer = bound.project(leaves)
    return Projection(bound.form.state(bound.form.narrowed(answer.x)), *answer[1:])


# ------------------------------------------------------------------ failed projections

Then = Literal["keep", "revert", "raise"]


@dataclass(frozen=True)
class Retry:
    """Retry a failed projection up to `tries` times, and `then` apply the plain policy.

    Each try starts from the solver's last state if that is no worse than the proposal, so that a deterministic solver
    does not fail in the same way again.
    """

    tries: int = 2
    then: Then = "keep"

    def __post_init__(self) -> None:
        """Check `tries` and `then`."""
        if isinstance(self.tries, bool) or not isinstance(self.tries, int | np.integer) or self.tries < 1:
            raise ValueError(f"Retry: tries must be a whole number of at least 1: got {self.tries!r}")
        if self.then not in get_args(Then):
            raise ValueError(f"Retry: then must be one of {get_args(Then)}: got {self.then!r}")


OnFailure = Literal["keep", "revert", "raise", "retry"] | Retry
"""What to do with a sample whose projection failed: keep the solver's last state if it is no worse than the proposal,
go back to the proposal, raise, or try again first."""


def as_retry(policy: OnFailure) -> tuple[int, Then]:
    """Return how often to retry a failed projection, and what to do if it still fails.

    Example:
        >>> as_retry("revert"), as_retry(Retry(3))
        ((0, 'revert'), (3, 'keep'))
    """
    if policy == "retry":
        policy = Retry()
    if isinstance(policy, Retry):
        return policy.tries, policy.then
    if isinstance(policy, str) and policy in get_args(Then):
        return 0, policy
    raise ValueError(f"on_failure must be 'keep', 'revert', 'raise', 'retry' or Retry(n): got {policy!r}")


def recover(bound: BoundConstraint, x: Leaves, answer: Outcome, tries: int, then: Then) -> tuple[Outcome, Tensor]:
    """Retry the rows of `answer` that failed, then keep, revert or raise.

    "keep" keeps a failed row's state only if it is finite and no farther from feasible than the proposal; otherwise
    the proposal stays.

    Args:
        bound: The constraint for exactly the rows of `x`.
        x: The proposals.
        answer: What the first projection of `x` returned.
        tries: How many more times failed rows are projected.
        then: What to do with rows that still fail.

    Returns:
        The answer with failures handled, in which `converged` still says which rows failed, and how often each row was
        retried, (n,) int32.
    """
    assert answer.converged is not None
    converged, iterations = answer.converged, answer.iterations
    retries = torch.zeros(len(converged), dtype=torch.int32, device=converged.device)
    failed = (~converged).nonzero().squeeze(1)
    bound, proposal = bound.take(failed), take_leaves(x, failed)
    best, defect = _nearer(bound, take_leaves(answer.x, failed), proposal, bound.defect(proposal))
    fixed = torch.zeros_like(failed, dtype=torch.bool)
    for _ in range(tries):
        rows = (~fixed).nonzero().squeeze(1)  # of those that failed
        if len(rows) == 0:
            break
        some, start = bound.take(rows), take_leaves(best, rows)
        again = some.project(start)
        retries[failed[rows]] += 1
        good = torch.ones_like(rows, dtype=torch.bool) if again.converged is None else again.converged
        nearer, nearer_defect = _nearer(some, again.x, start, defect[rows])
        best = put_rows(best, rows, _where(good, again.x, nearer))
        defect, fixed = defect.index_copy(0, rows, nearer_defect), fixed.index_copy(0, rows, good)
        if iterations is not None and again.iterations is not None:
            iterations = iterations.index_add(0, failed[rows], again.iterations.to(iterations))
    left = (~fixed).nonzero().squeeze(1)
    if len(left) and then == "raise":
        times = "1 try" if tries == 0 else f"{tries + 1} tries"
        raise ProjectionError(
            f"the projection failed for {len(left)} of {len(converged)} selected states after {times} "
            f"(first: row {int(failed[left[0]])}); on_failure='keep', 'revert' or Retry(n) continues instead"
        )
    if then == "revert":
        best = _where(fixed, best, proposal)
    return Outcome(put_rows(answer.x, failed, best), converged.index_copy(0, failed, fixed), iterations), retries


def _nearer(bound: BoundConstraint, new: Leaves, old: Leaves, old_defect: Tensor) -> tuple[Leaves, Tensor]:
    """Return the new state of each row if it is finite and no farther from feasible, else the old one; and defects."""
    finite = finite_rows(new)
    usable = _where(finite, new, old)
    defect = bound.defect(usable)
    better = finite & (defect <= old_defect)
    return _where(better, usable, old), torch.where(better, defect, old_defect)


def _where(mask: Tensor, first: Leaves, second: Leaves) -> Leaves:
    return tuple(torch.where(rowwise(mask, a), a, b) for a, b in zip(first, second, strict=True))
