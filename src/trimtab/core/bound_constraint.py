"""A constraint as a run applies it: in the loop's own kind of arrays, with the context it needs, timed and checked.

Here, too, is what happens when a projection fails.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from trimtab.core.constraint import Constraint, Improvement, Projection
from trimtab.core.groups import Groups
from trimtab.core.states import Form, Leaves, all_finite, finite_rows, rowwise, signed, take_leaves
from trimtab.core.trees import as_tensor

__all__ = ["OnFailure", "ProjectionError", "Retry"]


class ProjectionError(RuntimeError):
    """A projection failed, or its answer cannot be used."""


class Meter:
    """Seconds, calls and rows of one kind of work."""

    __slots__ = ("calls", "rows", "seconds")

    def __init__(self) -> None:
        """Nothing yet."""
        self.seconds, self.calls, self.rows = 0.0, 0, 0

    def count(self, begin: float, rows: int) -> None:
        """Count a call that began at `begin` and ends now."""
        self.seconds += perf_counter() - begin
        self.calls += 1
        self.rows += rows


class Outcome(NamedTuple):
    """What a projection answered, in leaves; the rest as in `Projection`."""

    x: Leaves
    converged: Tensor | None = None
    iterations: Tensor | None = None
    residual: Tensor | None = None


class Context:
    """What the loop tells a constraint beside the states: shared values, and arrays with one row per sample."""

    def __init__(self, values: Mapping[str, Any], n: int) -> None:
        """Tell the two apart; refuse what is neither."""
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
        """For some of the rows."""
        some = Context(self.shared, 0)
        some.per_sample = {name: (form, take_leaves(leaves, rows)) for name, (form, leaves) in self.per_sample.items()}
        return some

    def values(self) -> dict[str, Any]:
        """By name, as a constraint takes them."""
        return self.shared | {name: form.state(leaves) for name, (form, leaves) in self.per_sample.items()}


NOTHING = Context({}, 0)


class BoundConstraint:
    """The constraint for the samples of a run, or for some of them."""

    def __init__(
        self, constraint: Constraint, form: Form, projections: Meter, looks: Meter, context: Context = NOTHING
    ) -> None:
        """Made by the run for its batch, and by `take` for some of its rows."""
        self.constraint, self.form = constraint, form
        self.projections, self.looks, self.context = projections, looks, context
        self.told = {} if context is NOTHING else context.values()

    def project(self, x: Leaves, rows: Tensor | None = None) -> Outcome:
        """The projection of states (n, …), or of n rows of more, its answer checked: kind, shape, dtype, outcomes."""
        begin = perf_counter()
        # a copy in either case: a projection may work in place
        copy = tuple(leaf.clone() for leaf in x) if rows is None else take_leaves(x, rows)
        n = copy[0].shape[0]
        answer = self.constraint.project(self.form.state(copy), **self.told)
        self.projections.count(begin, n)
        if not isinstance(answer, Projection):
            return Outcome(self._leaves(answer, copy), None, None, None)
        told = (self._outcome(name, answer, n) for name in Projection._fields[1:])
        return Outcome(self._leaves(answer.x, copy), *told)

    def check_answers(self, answer: Outcome) -> None:
        """Refuse NaN and inf of a projection that did not report them as failed."""
        if all_finite(answer.x):
            return
        bad = ~finite_rows(answer.x)
        if answer.converged is not None:
            bad &= answer.converged
        if bool(bad.any()):
            raise ProjectionError(
                f"project returned NaN or inf for {int(bad.sum())} of {len(bad)} finite states (first: row "
                f"{int(bad.nonzero()[0])} of the selected ones) and did not report them as failed; return a "
                "Projection with converged=False for states it cannot handle"
            )

    def improve(self, x: Leaves, rows: Tensor, state: tuple[Tensor, ...] | None) -> Improvement:
        """One iteration of the solver on n rows of more states, which it may work on in place."""
        begin = perf_counter()
        given, n = take_leaves(x, rows), rows.shape[0]
        answer = self.constraint.improve(self.form.state(given), state, **self.told)
        self.projections.count(begin, n)
        self._check_improvement(answer, n)
        defect = self._one_each("improve must return, as the defect,", answer.defect, n)
        return answer._replace(x=self._leaves(answer.x, given, "improve"), defect=defect)

    def _check_improvement(self, answer: Any, n: int) -> None:
        """Refuse what cannot be the answer of an iteration; its states and defects are checked elsewhere."""
        if not isinstance(answer, Improvement):
            raise ProjectionError(f"improve must return a trimtab Improvement: got {type(answer).__name__}")
        done, state = answer.done, answer.state
        if not isinstance(done, Tensor) or done.dtype is not torch.bool or done.shape != (n,):
            got = f"{tuple(done.shape)} of {done.dtype}" if isinstance(done, Tensor) else type(done).__name__
            raise ProjectionError(f"improve must say done for each of {n} samples, (n,) bool: got {got}")
        whole = isinstance(state, tuple) and all(isinstance(p, Tensor) and p.shape[:1] == (n,) for p in state)
        if state is not None and not whole:
            raise ProjectionError(
                f"improve must carry None or a tuple of tensors with one row for each of {n} samples: got {state!r:.80}"
            )
        cost = answer.cost
        counted = isinstance(cost, Tensor) and cost.shape == (n,) and not cost.is_floating_point()
        if cost is not None and not (counted and cost.dtype is not torch.bool and bool((cost >= 1).all())):
            raise ProjectionError(
                f"improve must report its cost as {n} whole numbers of at least 1, or None for 1: got {cost!r:.80}"
            )

    def defect(self, x: Leaves) -> Tensor:
        """How far each state is from feasible, (n,) floats."""
        begin = perf_counter()
        defect = self.constraint.defect(self.form.state(x), **self.told)
        n = x[0].shape[0]
        self.looks.count(begin, n)
        form = self.form
        if type(defect) is Tensor and (
            defect.shape == (n,) and defect.dtype is form.dtype and defect.device == form.device
        ):
            return defect
        return self._one_each("defect must return", defect, n)

    def take(self, rows: Tensor) -> BoundConstraint:
        """For some of the rows."""
        constraint = self.constraint.take(rows)
        if self.context is NOTHING:
            if constraint is self.constraint:  # nothing about it belongs to samples
                return self
            return BoundConstraint(constraint, self.form, self.projections, self.looks)
        return BoundConstraint(constraint, self.form, self.projections, self.looks, self.context.take(rows))

    def _leaves(self, y: Any, given: Leaves, function: str = "project") -> Leaves:
        """The leaves of an answer of a function, which has to be like what it was given."""
        x = given[0]
        usual = self.form.single and isinstance(y, Tensor) and y.shape == x.shape and y.dtype is x.dtype
        if usual and y.device == x.device:
            return (y,)
        try:
            found = self.form.leaves(y, x.shape[0], wide=True)
        except (TypeError, ValueError) as error:
            raise ProjectionError(
                f"{function} must return states as it was given them, with the same shape and dtype: {error}"
            ) from error
        device = self.form.device
        for leaf in found:
            if leaf.device != device:
                raise ProjectionError(f"{function} must keep the device: {device} went in, {leaf.device} came back")
        return found

    def _one_each(self, told: str, values: Any, n: int) -> Tensor:
        """One float per sample, as a tensor; `told` is how an error begins."""
        if not isinstance(values, Tensor):
            values = _from_array(values)
        if not isinstance(values, Tensor) or values.shape != (n,) or not values.is_floating_point():
            got = f"{tuple(values.shape)} of {values.dtype}" if isinstance(values, Tensor) else type(values).__name__
            raise ValueError(f"{told} one number per sample, ({n},) floats: got {got}")
        if values.device != self.form.device:
            raise ValueError(f"{told} numbers on {self.form.device}, as the states: got {values.device}")
        return values

    def _outcome(self, name: str, answer: Projection, n: int) -> Tensor | None:
        value = getattr(answer, name)
        if value is None:
            return None
        outcome = value if isinstance(value, Tensor) else _from_array(value)
        if not isinstance(outcome, Tensor) or outcome.shape != (n,):
            got = tuple(outcome.shape) if isinstance(outcome, Tensor) else type(value).__name__
            raise ProjectionError(f"project must report {name} with one entry per sample, shape ({n},): got {got}")
        if name == "converged" and outcome.dtype != torch.bool:
            raise ProjectionError(f"project must report converged as bool: got {outcome.dtype}")
        if name == "iterations":
            counts = not (outcome.is_floating_point() or outcome.is_complex() or outcome.dtype == torch.bool)
            if not counts or (outcome.is_cpu and bool((outcome < 0).any())):  # elsewhere a look would be waited for
                raise ProjectionError(
                    f"project must report iterations as whole numbers of at least 0: got {outcome!r:.80}"
                )
        return outcome


def _from_array(values: Any) -> Any:
    """A numpy or JAX array as a tensor; anything else as it is."""
    return as_tensor(values) if hasattr(values, "__dlpack__") else values


def bind(constraint: Constraint, x: Any, **context: Any) -> tuple[BoundConstraint, Leaves]:
    """A constraint for some states that are not those of a run, and their arrays as it sees them."""
    form = Form(x)
    told = Context(context, form.n) if context else NOTHING
    return BoundConstraint(constraint, form, Meter(), Meter(), told), form.widened(form.leaves(x))


def checked_projection(constraint: Constraint, x: Any, **context: Any) -> Projection:
    """`constraint.project(x)` outside a run, with its answer checked."""
    applied, leaves = bind(constraint, x, **context)
    answer = applied.project(leaves)
    applied.check_answers(answer)
    return Projection(applied.form.state(applied.form.narrowed(answer.x)), *answer[1:])


# ------------------------------------------------------------------ failed projections

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
        if isinstance(self.tries, bool) or not isinstance(self.tries, int | np.integer) or self.tries < 1:
            raise ValueError(f"Retry: tries must be a whole number of at least 1: got {self.tries!r}")
        if self.then not in get_args(Then):
            raise ValueError(f"Retry: then must be one of {get_args(Then)}: got {self.then!r}")


OnFailure = Literal["keep", "revert", "raise", "retry"] | Retry
"""What to do with a sample whose projection failed: keep the solver's last state if it is no worse, go back to the
proposal, raise, or try again first."""


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
    if isinstance(policy, str) and policy in get_args(Then):
        return 0, policy
    raise ValueError(f"on_failure must be 'keep', 'revert', 'raise', 'retry' or Retry(n): got {policy!r}")


def recover(
    applied: BoundConstraint, x: Leaves, answer: Outcome, tries: int, then: Then, groups: Groups | None = None
) -> Outcome:
    """Deal with the rows of `answer` that failed: try again, then keep, revert or raise.

    "keep" keeps a failed row's state only where it is finite and no farther from feasible than the proposal;
    otherwise the proposal itself stays. `converged` tells in every case which rows failed. A group fails as a whole:
    all of its rows are tried again together, and all are kept or none.

    Args:
        applied: The constraint for exactly the rows of `x`.
        x: The proposals.
        answer: What the first projection of `x` returned.
        tries: How many more times failed rows are tried.
        then: What to do with rows that still fail.
        groups: Of exactly the rows of `x`, if they are corrected in groups.
    """
    assert answer.converged is not None
    y, converged = tuple(leaf.clone() for leaf in answer.x), _all_together(answer.converged, groups)
    iterations = None if answer.iterations is None else answer.iterations.clone()

    failed = (~converged).nonzero().squeeze(1)
    there, proposal, groups = applied.take(failed), take_leaves(x, failed), groups and groups.take(failed)
    best, best_defect = _better(take_leaves(y, failed), proposal, there, _defect(there, proposal, groups), groups)
    for _ in range(tries):
        again = there.project(best)
        there.check_answers(again)
        best, best_defect = _better(again.x, best, there, best_defect, groups)
        ok = torch.ones_like(failed, dtype=torch.bool)
        if again.converged is not None:
            ok = _all_together(again.converged, groups)
        best = _where(ok, again.x, best)
        _write(y, failed, best)
        converged[failed] = ok
        if iterations is not None and again.iterations is not None:
            iterations[failed] += again.iterations
        still = (~ok).nonzero().squeeze(1)
        if len(still) == 0:
            failed = still
            break
        failed, proposal, there = failed[still], take_leaves(proposal, still), there.take(still)
        best, best_defect, groups = take_leaves(best, still), best_defect[still], groups and groups.take(still)
    if len(failed) and then == "raise":
        raise ProjectionError(
            f"the projection failed for {len(failed)} of {len(converged)} selected states after {_tries(tries + 1)} "
            f"(first: row {int(failed[0])}); on_failure='keep', 'revert' or Retry(n) carries on instead"
        )
    if len(failed):
        _write(y, failed, proposal if then == "revert" else best)
    return Outcome(y, converged, iterations)


def _tries(number: int) -> str:
    return "1 try" if number == 1 else f"{number} tries"


def _better(
    new: Leaves, old: Leaves, applied: BoundConstraint, old_defect: Tensor, groups: Groups | None
) -> tuple[Leaves, Tensor]:
    """Of two states of each row, the one nearer to feasible; a state that is not finite is never the one."""
    finite = _all_together(finite_rows(new), groups)
    usable = _where(finite, new, old)
    defect = _defect(applied, usable, groups)
    better = finite & (defect <= old_defect)
    return _where(better, usable, old), torch.where(better, defect, old_defect)


def _defect(applied: BoundConstraint, x: Leaves, groups: Groups | None) -> Tensor:
    """How far each row is from feasible, (n,); a row of a group as far as the group."""
    defect = applied.defect(x)
    return defect if groups is None else groups.per_row(groups.together(defect))


def _all_together(good: Tensor, groups: Groups | None) -> Tensor:
    """Which rows are good, (n,) bool to (n,) bool; a row of a group where all of its rows are."""
    return good.clone() if groups is None else ~groups.touched(~good)


def _where(mask: Tensor, first: Leaves, second: Leaves) -> Leaves:
    return tuple(torch.where(rowwise(mask, a), a, b) for a, b in zip(first, second, strict=True))


def _write(leaves: Leaves, rows: Tensor, some: Leaves) -> None:
    for leaf, part in zip(leaves, some, strict=True):
        signed(leaf)[rows] = signed(part)
