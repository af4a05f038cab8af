"""A constraint bound to a run: it takes the loop's own kind of arrays, is timed, and has its answers checked.

What happens when a projection fails is here, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from trimtab.core.arrays import Form, Leaves, all_finite, as_tensor, finite_rows, put_rows, rowwise, take_leaves
from trimtab.core.constraint import Constraint, Improvement, Projection
from trimtab.core.groups import Groups

__all__ = ["OnFailure", "ProjectionError", "Retry"]


class ProjectionError(RuntimeError):
    """A projection failed, or returned something that cannot be used."""


@dataclass
class Meter:
    """Seconds, calls and rows of one kind of work."""

    seconds: float = 0.0
    calls: int = 0
    rows: int = 0

    def count(self, start: float, rows: int) -> None:
        """Count a call that started at `start` and ends now."""
        self.seconds += perf_counter() - start
        self.calls += 1
        self.rows += rows


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

    def project(self, x: Leaves, rows: Tensor | None = None) -> Outcome:
        """Project states (n, …), or the given rows of them, and check the answer."""
        start = perf_counter()
        copy = tuple(leaf.clone() for leaf in x) if rows is None else take_leaves(x, rows)  # it may work in place
        n = len(copy[0])
        answer = self.constraint.project(self.form.state(copy), **self.arguments)
        self.projections.count(start, n)
        if not isinstance(answer, Projection):
            answer = Projection(answer)
        outcomes = (self._outcome(name, getattr(answer, name), n) for name in Projection._fields[1:])
        outcome = Outcome(self._leaves(answer.x, copy), *outcomes)
        if not all_finite(outcome.x):
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

    def improve(self, x: Leaves, rows: Tensor, carried: tuple[Tensor, ...] | None) -> Improvement:
        """Run one iteration of the solver on some rows, (k,), and check its answer."""
        start = perf_counter()
        given, n = take_leaves(x, rows), len(rows)
        answer = self.constraint.improve(self.form.state(given), carried, **self.arguments)
        self.projections.count(start, n)
        _check_improvement(answer, n)
        defect = self._one_each("improve must return, as the defect,", answer.defect, n)
        return answer._replace(x=self._leaves(answer.x, given, "improve"), defect=defect)

    def _leaves(self, y: Any, given: Leaves, function: str = "project") -> Leaves:
        """Return the leaves of an answer, which must be like what the function was given."""
        try:
            found = self.form.leaves(y, len(given[0]), wide=True)
        except (TypeError, ValueError) as error:
            raise ProjectionError(
                f"{function} must return states as it was given them, with the same shape and dtype: {error}"
            ) from error
        for leaf in found:
            if leaf.device != self.form.device:
                raise ProjectionError(
                    f"{function} must keep the device: got states on {leaf.device}, expected {self.form.device}"
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


def _check_improvement(answer: Any, n: int) -> None:
    """Raise if `answer` cannot be the answer of one iteration on n samples."""
    if not isinstance(answer, Improvement):
        raise ProjectionError(f"improve must return a trimtab Improvement: got {type(answer).__name__}")
    done, carried, cost = answer.done, answer.state, answer.cost
    if not isinstance(done, Tensor) or done.dtype is not torch.bool or done.shape != (n,):
        got = f"{tuple(done.shape)} of {done.dtype}" if isinstance(done, Tensor) else type(done).__name__
        raise ProjectionError(f"improve must report done for each of {n} samples, (n,) bool: got {got}")
    whole = isinstance(carried, tuple) and all(isinstance(p, Tensor) and p.shape[:1] == (n,) for p in carried)
    if carried is not None and not whole:
        raise ProjectionError(
            f"improve must carry None or a tuple of tensors with one row for each of {n} samples: got {carried!r:.80}"
        )
    counted = isinstance(cost, Tensor) and cost.shape == (n,) and _is_integer(cost) and bool((cost >= 1).all())
    if cost is not None and not counted:
        raise ProjectionError(
            f"improve must report its cost as {n} whole numbers of at least 1, or None for 1: got {cost!r:.80}"
        )


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


def recover(
    bound: BoundConstraint, x: Leaves, answer: Outcome, tries: int, then: Then, groups: Groups | None = None
) -> tuple[Outcome, Tensor]:
    """Retry the rows of `answer` that failed, then keep, revert or raise.

    "keep" keeps a failed row's state only if it is finite and no farther from feasible than the proposal; otherwise
    the proposal stays. A group fails as a whole: all of its rows are retried together, and all are kept or none.

    Args:
        bound: The constraint for exactly the rows of `x`.
        x: The proposals.
        answer: What the first projection of `x` returned.
        tries: How many more times failed rows are projected.
        then: What to do with rows that still fail.
        groups: Of exactly the rows of `x`, if they are corrected in groups.

    Returns:
        The answer with failures handled, in which `converged` still says which rows failed, and how often each row was
        retried, (n,) int32.
    """
    assert answer.converged is not None
    converged, iterations = _whole_groups(answer.converged, groups), answer.iterations
    retries = torch.zeros(len(converged), dtype=torch.int32, device=converged.device)
    failed = (~converged).nonzero().squeeze(1)
    bound, proposal, groups = bound.take(failed), take_leaves(x, failed), groups and groups.take(failed)
    best, defect = _nearer(bound, take_leaves(answer.x, failed), proposal, _defect(bound, proposal, groups), groups)
    fixed = torch.zeros_like(failed, dtype=torch.bool)
    for _ in range(tries):
        rows = (~fixed).nonzero().squeeze(1)  # of those that failed
        if len(rows) == 0:
            break
        some, start, some_groups = bound.take(rows), take_leaves(best, rows), groups and groups.take(rows)
        again = some.project(start)
        retries[failed[rows]] += 1
        good = torch.ones_like(rows, dtype=torch.bool) if again.converged is None else again.converged
        good = _whole_groups(good, some_groups)
        nearer, nearer_defect = _nearer(some, again.x, start, defect[rows], some_groups)
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


def _nearer(
    bound: BoundConstraint, new: Leaves, old: Leaves, old_defect: Tensor, groups: Groups | None
) -> tuple[Leaves, Tensor]:
    """Return the new state of each row if it is finite and no farther from feasible, else the old one; and defects."""
    finite = _whole_groups(finite_rows(new), groups)
    usable = _where(finite, new, old)
    defect = _defect(bound, usable, groups)
    better = finite & (defect <= old_defect)
    return _where(better, usable, old), torch.where(better, defect, old_defect)


def _defect(bound: BoundConstraint, x: Leaves, groups: Groups | None) -> Tensor:
    """Return the defect of each row, (n,), which is that of its group if there are groups."""
    defect = bound.defect(x)
    return defect if groups is None else groups.per_row(groups.together(defect))


def _whole_groups(good: Tensor, groups: Groups | None) -> Tensor:
    """Return which rows are good, (n,) bool; a row of a group only if all rows of the group are."""
    return good.clone() if groups is None else ~groups.touched(~good)


def _where(mask: Tensor, first: Leaves, second: Leaves) -> Leaves:
    return tuple(torch.where(rowwise(mask, a), a, b) for a, b in zip(first, second, strict=True))
