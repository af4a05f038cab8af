"""The life of a run: when it begins, whose it is, when it is over, and what it leaves behind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from threading import Lock, get_ident
from types import TracebackType
from typing import Any, Self, get_args

import numpy as np
import torch
from torch import Tensor

from trimtab.core.bound_constraint import NOTHING, BoundConstraint, Context, OnFailure, tries_and_last_resort
from trimtab.core.budget import Unit, units
from trimtab.core.constraint import Constraint, check_constraint
from trimtab.core.errors import check_callable, check_integer
from trimtab.core.groups import Groups, as_groups
from trimtab.core.noise import as_seeds
from trimtab.core.record import Closing, Rollout
from trimtab.core.schedule import Schedule, as_schedule, check_seeds_unused
from trimtab.core.state import RunState
from trimtab.core.states import Form, Leaves, all_finite
from trimtab.core.view import StepView

__all__ = ["RunLife"]


class RunLife:
    """Everything about runs but their steps: settings, beginning, end, record, and the thread they belong to."""

    def __init__(
        self,
        constraint: Constraint,
        schedule: Schedule | Callable[[StepView], Tensor],
        n_steps: int,
        *,
        closing: Closing = "paid",
        seeds: Iterable[int] | Tensor | None = None,
        groups: Groups | Tensor | Sequence[int] | None = None,
        on_failure: OnFailure = "keep",
        keep_states: bool = False,
        dense: bool = False,
        unit: Unit | None = None,
        measure_defects: bool | None = None,
        on_step: Callable[[int, dict[str, float]], None] | None = None,
    ) -> None:
        """Make a corrector for a loop of `n_steps` updates.

        Args:
            constraint: Projects and measures defects; a `Constraint` or what `as_constraint` makes of functions.
            schedule: Decides; a schedule value or any function of a `StepView`.
            n_steps: T, how many times the loop calls.
            closing: How a run ends. "paid": the last step corrects every sample, and each budget keeps one correction
                back for it. "free": a sample that the last step left alone is projected apart from its budget, as the
                paper counts. "none": it ends as it is, for corrections that are no projections.
            seeds: One per sample, where the loop knows them; those that calibrated the schedule are refused.
            groups: One label per row; rows with the same label are decided on and corrected together.
            on_failure: What a failed projection does: "keep" (the solver's state, unless it is worse than the
                proposal), "revert" (the proposal), "raise", "retry" or `Retry(n)`.
            keep_states: Keep the states along the path. Off, memory is O(T n) numbers.
            dense: Project the whole batch and keep the chosen rows: more work but no host synchronisation, which pays
                on an accelerator when the projection is cheap.
            unit: What a budget counts: "projection"s, or each "iteration" of a solver that offers them (see
                `Constraint.improve`): then the schedule is asked again after each. That of the schedule, if it has
                one, or projections.
            measure_defects: Whether to evaluate the defects of all steps; by default where the schedule looks at them.
                Where they are not evaluated, the record holds NaN.
            on_step: `on_step(t, numbers)` is called after each step, for logging: as a projection is, with no gradient
                and with autocast off, whatever the loop has.
        """
        if isinstance(n_steps, bool) or not isinstance(n_steps, int | np.integer) or not 1 <= n_steps < 2**31:
            raise ValueError(f"n_steps must be a whole number from 1 to 2^31 - 1: got {n_steps!r}")
        check_constraint(constraint)
        if closing not in get_args(Closing):
            raise ValueError(f"closing must be 'paid', 'free' or 'none': got {closing!r}")
        self.constraint, self.schedule, self.n_steps = constraint, as_schedule(schedule), int(n_steps)
        if self.schedule.closing not in ("", closing):
            raise ValueError(
                f"the schedule's prices were made for closing={self.schedule.closing!r}, this run has "
                f"closing={closing!r}; calibrate with the one that is used"
            )
        self.closing: Closing = closing
        self.unit = self._unit(unit)
        if self.unit == "iteration" and dense:
            raise ValueError("dense=True projects whole batches; with unit='iteration' leave it off")
        for name, value in (("keep_states", keep_states), ("dense", dense), ("measure_defects", measure_defects)):
            if not isinstance(value, bool) and (value is not None or name != "measure_defects"):
                raise TypeError(f"{name} must be True or False: got {value!r:.60} of type {type(value).__name__}")
        if on_step is not None:
            check_callable(on_step, "on_step", "on_step(t, numbers)")
        self.seeds = None if seeds is None else as_seeds(seeds)
        if self.seeds is not None:
            check_seeds_unused(self.schedule, self.seeds)
        self.groups = as_groups(groups)
        self.keep_states, self.dense, self.on_step = keep_states, dense, on_step
        looks, every = self.schedule.uses_defects, check_integer(self.schedule.measure_every, "measure_every", 1)
        self.measure_defects = looks and every == 1 if measure_defects is None else measure_defects
        known = constraint.defect_is_projection and constraint.is_projection  # 0: projecting twice changes nothing
        self.measures_residuals = self.measure_defects and not known
        self.measure_every = every if looks and not self.measure_defects else 0  # 0: not before a decision
        if measure_defects is False and looks:
            raise ValueError(
                f"{type(self.schedule).__name__} decides by defects, which measure_defects=False would not give it; "
                "leave it on, or use a schedule that fixes its times beforehand (Periodic, Planned, Fixed)"
            )
        self.tries, self.then = tries_and_last_resort(on_failure)
        self._ledger: RunState | None = None
        self._strict = False
        self._beginning = Lock()
        self._previous: Leaves | None = None
        units(self.schedule.budget, self.n_steps, self.unit)  # an impossible budget is refused at once

    def __repr__(self) -> str:
        """One line."""
        return f"Corrector({self.schedule!r}, n_steps={self.n_steps}, closing={self.closing!r}, next step {self.t})"

    @property
    def t(self) -> int:
        """The step the next call corrects."""
        return 0 if self._ledger is None or self._ledger.complete else self._ledger.t

    @property
    def rollout(self) -> Rollout:
        """The record of the last run; an error while it is not complete."""
        return self._complete().record()

    def _complete(self) -> RunState:
        """The books of a run that is complete; refuse another one."""
        ledger = self._ledger
        if ledger is None or not ledger.complete:
            done = 0 if ledger is None else ledger.t
            raise RuntimeError(
                f"the corrector was called {done} of {self.n_steps} times; a rollout is complete, and feasible, after "
                f"all {self.n_steps} (is n_steps the number of updates of your loop?)"
            )
        return ledger

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
            self._complete()

    def _unit(self, asked: Unit | None) -> Unit:
        """What is counted, checked against the schedule and the constraint."""
        unit: Any = asked or self.schedule.unit or "projection"
        if unit not in get_args(Unit):
            raise ValueError(f"unit must be 'projection' or 'iteration': got {unit!r}")
        if self.schedule.unit not in ("", unit):
            raise ValueError(
                f"the schedule's prices were made for unit={self.schedule.unit!r}, this run has unit={unit!r}; "
                "calibrate with the one that is used"
            )
        if unit == "iteration" and not self.constraint.improves:
            raise ValueError(
                f"unit='iteration' needs a constraint that offers improve(x, state), one iteration at a time; "
                f"{type(self.constraint).__name__} has only project: leave unit out"
            )
        known: Unit = unit
        return known

    def begin(self, x: Any) -> None:
        """Begin a run with the initial states `x`, (n, *event). Optional: the first call does it too.

        As a call does, it refuses to give up a run that is not complete; `reset` forgets one.
        """
        with self._beginning:
            ledger = self._own()
            if ledger is not None and not ledger.broken:
                self._check_unfinished(ledger)
            ledger = self._begin(x)
        leaves = ledger.form.leaves(x)
        if not all_finite(leaves):
            self.reset()
            raise ValueError("the initial states have NaN or inf; begin with finite ones")
        self._previous = tuple(leaf.detach().clone() for leaf in leaves)
        if self.keep_states:
            ledger.states.append(self._previous)

    def _begin(self, x: Any) -> RunState:
        if torch.is_inference_mode_enabled():  # books made there could not be written to outside, as by `stop`
            with torch.inference_mode(False), torch.no_grad():
                return self._begin(x)
        ledger = RunState(Form(x), self.schedule, self.n_steps, self.closing, self.seeds, self.groups, self.unit)
        if not self.measure_defects:
            for books in (ledger.defects, ledger.residuals, ledger.seen):
                books.fill_(torch.nan)
        self._ledger, self._previous = ledger, None
        return ledger

    def _at(self, proposal: Any, t: int | None) -> RunState:
        """The books of the run that this call belongs to; refuse a call that belongs to none."""
        ledger = self._ledger
        if ledger is not None:
            now = ledger.t  # mostly this is plainly the next step of a run that has begun, called by its own thread
            if (
                0 < now < ledger.n_steps
                and (t is None or t == now)
                and not ledger.broken
                and ledger.thread == get_ident()
            ):
                return ledger
        with self._beginning:  # of two threads that begin at once, one is the owner
            return self._owned(proposal, t)

    def _owned(self, proposal: Any, t: int | None) -> RunState:
        ledger = self._own()
        if ledger is not None and ledger.broken:
            if t != 0:
                raise RuntimeError(
                    f"step {ledger.t} of {self.n_steps} failed half-way, and the run cannot go on; begin a new one "
                    "with t = 0 or after reset()"
                )
            ledger = None
        if ledger is None or (ledger.complete and not self._strict) or (t == 0 and ledger.t != 0):
            if ledger is not None:
                self._check_unfinished(ledger)
            if t not in (None, 0):  # before the record of the last run is given up
                done = "" if ledger is None else "; the last run is complete (does your loop make more updates?)"
                raise RuntimeError(f"the corrector expected step 0 of {self.n_steps} next: got t = {t}{done}")
            ledger = self._begin(proposal)
        if ledger.complete and ledger.planned_steps is not None:
            raise RuntimeError(
                f"the run was stopped after {ledger.t} of {self.n_steps} steps, and its block is one run; begin the "
                "next run in another block"
            )
        if ledger.complete:
            raise RuntimeError(
                f"the corrector was called more than n_steps = {self.n_steps} times in one run; is n_steps the number "
                "of updates of your loop?"
            )
        if t is not None and t != ledger.t:
            raise RuntimeError(f"the corrector expected step {ledger.t} of {self.n_steps} next: got t = {t}")
        return ledger

    def _own(self) -> RunState | None:
        """The books of the run, if there is one; refuse a thread that it does not belong to."""
        ledger = self._ledger
        if ledger is not None and ledger.thread == 0:  # a copy belongs to whichever thread calls it first
            ledger.thread = get_ident()
        if ledger is not None and not ledger.complete and ledger.thread != get_ident():
            raise RuntimeError(
                f"this corrector's run was begun by another thread (it is at step {ledger.t} of {self.n_steps}); a run "
                "belongs to one thread: give each thread a corrector of its own"
            )
        return ledger

    def _check_unfinished(self, ledger: RunState) -> None:
        """Refuse to begin anew while a run has made some of its steps."""
        if 0 < ledger.t < ledger.n_steps:
            raise RuntimeError(
                f"a new run begins at t = 0, but the last one was called only {ledger.t} of {self.n_steps} times; "
                "call reset() first if that was meant"
            )

    def _applied(self, ledger: RunState, context: dict[str, Any]) -> BoundConstraint:
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
        applied = BoundConstraint(self.constraint, ledger.form, ledger.projections, looks, told)
        if not needs:
            ledger.applied = applied
        return applied

    def __getstate__(self) -> dict[str, Any]:
        """All but the lock, which a copy has of its own."""
        return {name: value for name, value in vars(self).items() if name != "_beginning"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Go on where the other one was."""
        vars(self).update(state)
        self._beginning = Lock()
