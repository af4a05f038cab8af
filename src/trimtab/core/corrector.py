"""Algorithm 1: propose, look at the defect, decide, correct.

Read `Corrector.__call__`: it is one pass of the paper's loop. The decision `s >= lambda[t, b]` is the schedule's
(`trimtab.prices.thresholds.Adaptive.decide`), `b > 0` is the ledger's (`Ledger.spend`), and everything that steps a
sampler comes through here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from threading import Lock, get_ident
from time import perf_counter
from types import TracebackType
from typing import Any, Self, get_args

import numpy as np
import torch
from torch import Tensor

from trimtab.core.applied import NOTHING, Applied, Context, OnFailure, Outcome, recover, tries_and_last_resort
from trimtab.core.constraint import Constraint
from trimtab.core.groups import Groups, as_groups
from trimtab.core.ledger import Ledger
from trimtab.core.noise import as_seeds
from trimtab.core.record import Closing, Rollout
from trimtab.core.schedule import Moment, Schedule, as_schedule, corrections
from trimtab.core.states import Form, Leaves, all_finite, finite_rows, put_rows, rowwise, take_leaves, true_rows

__all__ = ["Corrector"]


class Corrector:
    """Corrects proposals on schedule, one call per step, in any loop.

    After `n_steps` calls a run is complete: the last call has made the result feasible, `rollout` holds the record,
    and the next call begins a new run. Used as a context manager, leaving the block early or calling once too often
    is an error; passing `t` checks every call. Samples must not influence each other and keep their rows.

    A run belongs to the thread that began it: a call from another one is refused. Give each thread a corrector.
    float16 and bfloat16 states are measured and projected in float32. No gradient flows through a correction.

    Example:
        >>> import torch, trimtab as tt
        >>> ball = tt.as_constraint(lambda x: x / x.norm(dim=1, keepdim=True).clamp(min=1),
        ...                         lambda x: (x.norm(dim=1) - 1).clamp(min=0))
        >>> corrector = tt.Corrector(ball, tt.Periodic(2), n_steps=10)
        >>> x = torch.zeros(3, 2)
        >>> for t in range(10):
        ...     x = corrector(x + 0.3, t)
        >>> corrector.rollout.projected.sum(dim=0).tolist()
        [2, 2, 2]
    """

    def __init__(
        self,
        constraint: Constraint,
        schedule: Schedule | Callable[[Moment], Tensor],
        n_steps: int,
        *,
        closing: Closing = "paid",
        seeds: Iterable[int] | Tensor | None = None,
        groups: Groups | Tensor | Sequence[int] | None = None,
        on_failure: OnFailure = "keep",
        keep_states: bool = False,
        dense: bool = False,
        measure_defects: bool | None = None,
        on_step: Callable[[int, dict[str, float]], None] | None = None,
    ) -> None:
        """Make a corrector for a loop of `n_steps` updates.

        Args:
            constraint: Projects and measures defects; a `Constraint` or what `as_constraint` makes of functions.
            schedule: Decides; a schedule value or any function of a `Moment`.
            n_steps: T, how many times the loop calls.
            closing: How a run ends. "paid": the last step corrects every sample, and each budget keeps one correction
                back for it. "free": a sample that the last step left alone is projected apart from its budget, as the
                paper counts. "none": it ends as it is, for corrections that are no projections.
            seeds: One per sample, where the loop knows them.
            groups: One label per row; rows with the same label are decided on and corrected together.
            on_failure: What a failed projection does: "keep" (the solver's state, unless it is worse than the
                proposal), "revert" (the proposal), "raise", "retry" or `Retry(n)`.
            keep_states: Keep the states along the path. Off, memory is O(T n) numbers.
            dense: Project the whole batch and keep the chosen rows: more work but no host synchronisation, which pays
                on an accelerator when the projection is cheap.
            measure_defects: Whether to evaluate defects; by default where the schedule looks at them. Off, the record
                holds NaN.
            on_step: `on_step(t, numbers)` is called after each step, for logging.
        """
        if isinstance(n_steps, bool) or not isinstance(n_steps, int | np.integer) or not 1 <= n_steps < 2**31:
            raise ValueError(f"n_steps must be a whole number from 1 to 2^31 - 1: got {n_steps!r}")
        if not isinstance(constraint, Constraint):
            raise TypeError(
                f"a constraint derives from trimtab.Constraint: got {type(constraint).__name__} (plain functions can "
                "be wrapped: trimtab.as_constraint(project, defect))"
            )
        if closing not in get_args(Closing):
            raise ValueError(f"closing must be 'paid', 'free' or 'none': got {closing!r}")
        self.constraint, self.schedule, self.n_steps = constraint, as_schedule(schedule), int(n_steps)
        if self.schedule.closing not in ("", closing):
            raise ValueError(
                f"the schedule's prices were made for closing={self.schedule.closing!r}, this run has "
                f"closing={closing!r}; calibrate with the one that is used"
            )
        self.closing: Closing = closing
        self.seeds = None if seeds is None else as_seeds(seeds)
        self.groups = as_groups(groups)
        self.keep_states, self.dense, self.on_step = keep_states, dense, on_step
        self.measure_defects = self.schedule.looks_at_defects if measure_defects is None else measure_defects
        if not self.measure_defects and self.schedule.looks_at_defects:
            raise ValueError(
                f"{type(self.schedule).__name__} decides by defects, which measure_defects=False would not give it; "
                "leave it on, or use a schedule that fixes its times beforehand (Periodic, Planned, Fixed)"
            )
        self.tries, self.then = tries_and_last_resort(on_failure)
        self._ledger: Ledger | None = None
        self._strict = False
        self._beginning = Lock()
        self._previous: Leaves | None = None
        corrections(self.schedule.budget, self.n_steps)  # an impossible budget is refused at once

    # -------------------------------------------------------------- Algorithm 1, one pass of its loop

    def __call__(self, proposal: Any, t: int | None = None, **context: Any) -> Any:
        """The state to go on with: corrected where the schedule says so, the proposal elsewhere.

        Args:
            proposal: The state after the loop's own update, (n, *event), or a tree of such arrays. Not modified.
            t: The step, if the loop wants the count checked; 0 begins a new run.
            **context: What the constraint needs to know beside the state, such as `sigma=0.3`; see `Constraint.needs`.
        """
        if torch.is_grad_enabled():
            with torch.no_grad():
                return self(proposal, t, **context)
        ledger = self._at(proposal, t)
        with ledger.exact_arithmetic:
            x, constraint = self._look(ledger, proposal, context)
            ledger.broken = True  # until the step is whole: nothing may be decided, and paid for, twice
            if ledger.ends_paid:
                wanted: Any = torch.ones_like(ledger.budget, dtype=torch.bool)
            else:
                wanted = ledger.schedule.decide(ledger.moment(proposal, context))
            chosen = ledger.spend(wanted)
            x = self._correct(ledger, constraint, x, chosen)
            if self.closing == "free" and ledger.t == self.n_steps - 1:
                x = self._close(ledger, constraint, x, ~chosen)
        return self._finish(ledger, x, proposal)

    def _look(self, ledger: Ledger, proposal: Any, context: dict[str, Any]) -> tuple[Leaves, Applied]:
        """Measure the defects of the proposals; refuse what cannot be states of this run, or distances."""
        ledger.updates.count(ledger.returned_at, ledger.n)
        try:
            x = ledger.form.widened(ledger.form.leaves(proposal))
            constraint = self._applied(ledger, context)
            check = not self.dense
            if not self.measure_defects:
                if check and not all_finite(x):
                    ledger.refuse_rows(~finite_rows(x), "the sampler proposed NaN or inf")
                return x, constraint
            before = tuple(leaf.clone() for leaf in x) if check and ledger.t == 0 else None
            try:
                defect = constraint.defect(x)
            except Exception:
                ledger.refuse_rows(~finite_rows(x), "the sampler proposed NaN or inf")  # if so, it is the reason
                raise
            sound = ledger.look(defect, check)
            if check and not (sound and all_finite(x)):
                ledger.refuse_rows(~finite_rows(x), "the sampler proposed NaN or inf")
                seen = ledger.defects[ledger.t]
                ledger.refuse_rows(~((seen >= 0) & seen.isfinite()), "the defect is negative, NaN or inf")
            if before is not None and not all(torch.equal(a, b) for a, b in zip(before, x, strict=True)):
                raise ValueError(
                    "defect changed the states it was given; it must leave them as they are (copy them first)"
                )
            return x, constraint
        except BaseException:
            ledger.returned_at = perf_counter()  # the step may be made again, and its update is counted from here
            raise

    def _correct(self, ledger: Ledger, constraint: Applied, x: Leaves, chosen: Tensor) -> Leaves:
        """Project the chosen rows and write down what is left of their defects: the states to go on with."""
        if self.dense:
            answer = self._project(constraint, x)
            ledger.keep_outcome(answer, None, chosen)
            left = self._residual(constraint, answer)
            ledger.keep(torch.where(chosen, left, ledger.defects[ledger.t]), None, check=False)
            return tuple(torch.where(rowwise(chosen, a), a, b) for a, b in zip(answer.x, x, strict=True))
        rows = true_rows(chosen)
        count = rows.shape[0]
        if count == 0:
            return x
        everyone = count == ledger.n
        begin = perf_counter()
        some, some_x = (constraint, x) if everyone else (constraint.take(rows), take_leaves(x, rows))
        gathering = perf_counter() - begin
        answer = self._project(some, some_x)
        ledger.keep_outcome(answer, None if everyone else rows, chosen)
        if not ledger.keep(self._residual(some, answer), None if everyone else rows, check=self.measure_defects):
            some.refuse_bad_answers(answer)
            kept = torch.where(chosen, ledger.residuals[ledger.t], 0.0)
            ledger.refuse_rows(~((kept >= 0) & kept.isfinite()), "the defect after projecting is negative, NaN or inf")
        if everyone:
            return answer.x
        begin = perf_counter()
        x = put_rows(x, rows, answer.x)
        ledger.projections.seconds += gathering + perf_counter() - begin  # what projecting some rows costs
        return x

    def _close(self, ledger: Ledger, constraint: Applied, x: Leaves, open_rows: Tensor) -> Leaves:
        """The closing projection of the rows that the last step left alone, apart from the budget."""
        rows = open_rows.nonzero().squeeze(1)
        ledger.closed |= open_rows
        if len(rows) == 0:
            return x
        answer = self._project(constraint.take(rows), take_leaves(x, rows))
        if answer.converged is not None:
            ledger.closing_failed[rows] = ~answer.converged
        return put_rows(x, rows, answer.x)

    def _project(self, constraint: Applied, x: Leaves) -> Outcome:
        """The projection of rows, failed ones dealt with as the policy says."""
        answer = constraint.project(x)
        if not self.dense and (answer.residual is not None or not self.measure_defects):
            constraint.refuse_bad_answers(answer)  # else the defect that is measured next tells
        if answer.converged is not None and not bool(answer.converged.all()):
            answer = recover(constraint, x, answer, self.tries, self.then)
        return answer

    def _residual(self, constraint: Applied, answer: Outcome) -> Tensor:
        """The defect of projected states: what the solver reports, else measured.

        Where measuring is projecting, it is 0, as a projection of a projected state changes nothing.
        """
        if answer.residual is not None:
            return answer.residual
        if not self.measure_defects:
            return torch.full((constraint.n,), torch.nan, device=answer.x[0].device)
        if self.constraint.defect_is_projection and self.constraint.is_projection:
            return torch.zeros(constraint.n, device=answer.x[0].device)
        return constraint.defect(answer.x)

    def _finish(self, ledger: Ledger, x: Leaves, proposal: Any) -> Any:
        """Close the books of the step; the states as the loop keeps them."""
        if not ledger.form.exact:
            x = ledger.form.narrowed(x)
        if self.keep_states:
            ledger.states.append(tuple(leaf.detach().clone() for leaf in x))
        if self.dense and ledger.t == self.n_steps - 1:
            # without synchronising at every step, bad numbers are found at the end
            bad = ~finite_rows(x)
            if self.measure_defects:
                bad |= ~(ledger.defects + ledger.residuals).isfinite().all(dim=0)
            ledger.refuse_rows(bad, "the sampler proposed, or the projection returned, NaN or inf")
        t, ledger.t, ledger.broken = ledger.t, ledger.t + 1, False
        if ledger.complete:
            ledger.final = tuple(leaf.detach().clone() for leaf in x)
        if "previous" in self.constraint.needs:
            self._previous = tuple(leaf.detach().clone() for leaf in x)
        if self.on_step is not None:
            defect, chosen = ledger.defects[t], ledger.projected[t]
            residual = torch.where(chosen, ledger.residuals[t], defect)
            numbers = {"defect": defect, "residual": residual, "projected": chosen}
            self.on_step(t, {name: float(values.double().mean()) for name, values in numbers.items()})
        ledger.returned_at = perf_counter()
        return ledger.form.state(x)

    # -------------------------------------------------------------- the life of a run

    @property
    def t(self) -> int:
        """The step the next call corrects."""
        return 0 if self._ledger is None or self._ledger.complete else self._ledger.t

    @property
    def rollout(self) -> Rollout:
        """The record of the last run; an error while it is not complete."""
        if self._ledger is None or not self._ledger.complete:
            done = 0 if self._ledger is None else self._ledger.t
            raise RuntimeError(
                f"the corrector was called {done} of {self.n_steps} times; a rollout is complete, and feasible, after "
                f"all {self.n_steps} (is n_steps the number of updates of your loop?)"
            )
        return self._ledger.record()

    @property
    def projected(self) -> Tensor:
        """Which samples the last call projected, (n,) bool; a closing projection that is free is not among them."""
        if self._ledger is None or self._ledger.t == 0:
            raise RuntimeError("the corrector has not been called yet in this run")
        return self._ledger.projected[self._ledger.t - 1].clone()

    def reset(self) -> None:
        """Forget an unfinished run, so that the next call begins a new one."""
        self._ledger = self._previous = None

    def __enter__(self) -> Self:
        """Begin a run that must be complete at the end of the block."""
        self.reset()
        self._strict = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Complain about missing calls, unless something else went wrong already."""
        self._strict = False
        if error is None:
            self.rollout  # noqa: B018  (raises when there were too few calls)

    def stop(self, x: Any, **context: Any) -> Any:
        """End the run here, before its `n_steps` calls, as a loop does that has converged or given up.

        The run is closed as it would have been at its last step: what the last call left alone is projected, paid for
        by the correction that was kept back, or apart from the budget, or not at all. `rollout` is then the record of
        the steps made, and says that more were planned.

        Args:
            x: The state the loop ends with, usually what the last call returned.
            **context: What the constraint needs to know, as in a call.

        Returns:
            The final states.
        """
        ledger = self._ledger
        if ledger is None or ledger.t == 0 or ledger.complete or ledger.broken:
            raise RuntimeError("there is no run to stop: stop ends one that has begun and is not complete")
        leaves = ledger.form.leaves(x)
        if self.closing != "none":
            with torch.no_grad(), ledger.exact_arithmetic:
                constraint = self._applied(ledger, context)
                wide = self._close(ledger, constraint, ledger.form.widened(leaves), ~ledger.projected[ledger.t - 1])
            leaves = ledger.form.narrowed(wide)
        ledger.stop(leaves)
        return ledger.form.state(leaves)

    def begin(self, x: Any) -> None:
        """Begin a run with the initial states `x`, (n, *event). Optional: the first call does it too."""
        self._begin(x)
        assert self._ledger is not None
        leaves = self._ledger.form.leaves(x)
        if not all_finite(leaves):
            self.reset()
            raise ValueError("the initial states have NaN or inf; begin with finite ones")
        self._previous = tuple(leaf.detach().clone() for leaf in leaves)
        if self.keep_states:
            self._ledger.states.append(self._previous)

    def _begin(self, x: Any) -> Ledger:
        ledger = Ledger(Form(x), self.schedule, self.n_steps, self.closing, self.seeds, self.groups)
        if not self.measure_defects:
            ledger.defects.fill_(torch.nan)
            ledger.residuals.fill_(torch.nan)
        self._ledger, self._previous = ledger, None
        return ledger

    def _at(self, proposal: Any, t: int | None) -> Ledger:
        """The books of the run that this call belongs to; refuse a call that belongs to none."""
        with self._beginning:  # of two threads that begin at once, one is the owner
            return self._owned(proposal, t)

    def _owned(self, proposal: Any, t: int | None) -> Ledger:
        ledger = self._ledger
        if ledger is not None and ledger.thread == 0:  # a copy belongs to whichever thread calls it first
            ledger.thread = get_ident()
        if ledger is not None and not ledger.complete and ledger.thread != get_ident():
            raise RuntimeError(
                f"this corrector's run was begun by another thread (it is at step {ledger.t} of {self.n_steps}); a run "
                "belongs to one thread: give each thread a corrector of its own"
            )
        if ledger is not None and ledger.broken:
            if t != 0:
                raise RuntimeError(
                    f"step {ledger.t} of {self.n_steps} failed half-way, and the run cannot go on; begin a new one "
                    "with t = 0 or after reset()"
                )
            ledger = None
        if ledger is None or (ledger.complete and not self._strict) or (t == 0 and ledger.t != 0):
            if ledger is not None and not ledger.complete:
                raise RuntimeError(
                    f"a new run begins at t = 0, but the last one was called only {ledger.t} of {self.n_steps} times; "
                    "call reset() first if that was meant"
                )
            if t not in (None, 0):  # before the record of the last run is given up
                raise RuntimeError(f"the corrector expected step 0 of {self.n_steps} next: got t = {t}")
            ledger = self._begin(proposal)
        if ledger.complete:
            raise RuntimeError(
                f"the corrector was called more than n_steps = {self.n_steps} times in one run; is n_steps the number "
                "of updates of your loop?"
            )
        if t is not None and t != ledger.t:
            raise RuntimeError(f"the corrector expected step {ledger.t} of {self.n_steps} next: got t = {t}")
        return ledger

    def _applied(self, ledger: Ledger, context: dict[str, Any]) -> Applied:
        """The constraint for this step, told what it needs to know."""
        # where the defect is the projection residual, looking at a state is projecting it
        looks = ledger.projections if self.constraint.defect_is_projection else ledger.looks
        needs = self.constraint.needs
        told = NOTHING
        if needs:
            known = {"t": ledger.t, **context}
            if self._previous is not None:
                known["previous"] = ledger.form.state(ledger.form.widened(self._previous))
            missing = [name for name in needs if name not in known]
            if missing:
                hint = (
                    "call corrector.begin(x) with the initial state"
                    if missing == ["previous"]
                    else (f"call corrector(x, t, {missing[0]}=…)")
                )
                raise ValueError(f"the constraint needs {', '.join(missing)} at step {ledger.t}: {hint}")
            told = Context({name: known[name] for name in needs}, ledger.n)
        return Applied(self.constraint, ledger.form, ledger.n, ledger.projections, looks, told)

    def __getstate__(self) -> dict[str, Any]:
        """All but the lock, which a copy has of its own."""
        return {name: value for name, value in vars(self).items() if name != "_beginning"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Go on where the other one was."""
        vars(self).update(state)
        self._beginning = Lock()
