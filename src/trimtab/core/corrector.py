"""Algorithm 1: propose, measure the defect, decide, correct.

Read `Corrector.__call__`: it is one pass of the paper's loop, and everything that steps a sampler comes through it.
The comparison `s >= lambda[t, b]` is the schedule's (`trimtab.prices.schedule`); `b > 0` and the accounts are pure
functions in `trimtab.core.state`.
"""

from __future__ import annotations

import asyncio
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from threading import Lock, get_ident
from time import perf_counter
from types import TracebackType
from typing import Any, Self, get_args

import numpy as np
import torch
from torch import Tensor, is_autocast_enabled, is_grad_enabled

from trimtab.core.arrays import Form, Leaves, all_finite, finite_rows, put_rows, take_leaves
from trimtab.core.bound_constraint import (
    BoundConstraint,
    Context,
    OnFailure,
    Outcome,
    ProjectionError,
    as_retry,
    recover,
)
from trimtab.core.budget import Budget, PerBatch, PerSample, Unit, units
from trimtab.core.checks import check_callable, check_integer
from trimtab.core.constraint import Constraint, check_constraint
from trimtab.core.groups import Groups, as_groups
from trimtab.core.noise import as_seeds
from trimtab.core.record import Closing, InfeasibleWarning, Rollout
from trimtab.core.schedule import Schedule, as_schedule, check_seeds_unused
from trimtab.core.trace import Trace
from trimtab.core.view import StepView, is_measured_step

__all__ = ["Corrector"]

_MOST_ITERATIONS = 1000  # of one step


class Corrector:
    """Corrects proposals on schedule, one call per step, in any loop.

    After `n_steps` calls a run is complete: the last call has made the result feasible, `rollout` holds the record,
    and the next call starts a new run. As a context manager it raises if the block ends early or calls once too often;
    passing `t` checks every call. Samples must not influence each other and must keep their rows.

    A number as the schedule is a budget: prices are learned from the corrector's own runs, and `learned` reports what
    they save. A run belongs to the thread (and asyncio task) that started it. States in float16 and bfloat16 are
    measured and projected in float32. No gradient flows through a correction.

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
        schedule: Schedule | Callable[[StepView], Tensor] | Budget | PerBatch | PerSample | Any,
        n_steps: int,
        *,
        closing: Closing = "paid",
        seeds: Iterable[int] | Tensor | None = None,
        groups: Groups | Tensor | Sequence[int] | None = None,
        on_failure: OnFailure = "keep",
        keep_states: bool = False,
        unit: Unit | None = None,
        measure_defects: bool | None = None,
        on_step: Callable[[int, dict[str, float]], None] | None = None,
    ) -> None:
        """Make a corrector for a loop of `n_steps` updates.

        Args:
            constraint: Projects and measures defects; a `Constraint`, or functions wrapped by `as_constraint`.
            schedule: Decides. A schedule, any function of a `StepView`, or a budget: a number, `PerBatch(0.25)` or
                `PerSample(0.25)`, for which prices are learned from run to run (`trimtab.prices.Learner`).
            n_steps: T, how many times the loop calls.
            closing: How a run ends. "paid": the last step corrects every sample, and each budget reserves a correction
                for it. "free": a sample that the last step left alone is projected outside its budget, as the paper
                counts. "none": it ends as it is, for corrections that are not projections.
            seeds: One per sample, if the loop knows them; seeds that calibrated the schedule raise.
            groups: One label per row; rows with the same label are decided on and corrected together.
            on_failure: What to do with a failed projection: "keep" the solver's state unless it is worse than the
                proposal, "revert" to the proposal, "raise", "retry" or `Retry(n)`.
            keep_states: Keep the states along the path. If off, memory is O(T n) numbers.
            unit: What a budget counts: "projection", or "iteration" for a constraint that offers `improve`; the
                schedule is then asked again after each iteration. The schedule's own unit by default.
            measure_defects: Whether to measure the defects of all steps; by default if the schedule uses them. The
                record holds NaN for defects that were not measured.
            on_step: `on_step(t, numbers)` is called after each step, for logging, without gradients and autocast.
        """
        self.n_steps = check_integer(n_steps, "n_steps", 1, 2**31 - 1)
        self.constraint = check_constraint(constraint)
        if closing not in get_args(Closing):
            raise ValueError(f"closing must be 'paid', 'free' or 'none': got {closing!r}")
        for name, value in (("keep_states", keep_states), ("measure_defects", measure_defects)):
            if not isinstance(value, bool) and (value is not None or name != "measure_defects"):
                raise TypeError(f"{name} must be True or False: got {value!r:.60} of type {type(value).__name__}")
        if on_step is not None:
            check_callable(on_step, "on_step", "on_step(t, numbers)")
        self.closing: Closing = closing
        self.seeds = None if seeds is None else as_seeds(seeds)
        self.groups, self.keep_states, self.on_step = as_groups(groups), keep_states, on_step
        self.tries, self.then = as_retry(on_failure)
        self._asked_unit, self._asked_measure = unit, measure_defects
        self.learner = _as_learner(schedule, constraint, self.n_steps, closing, unit)
        self._use(as_schedule(schedule) if self.learner is None else self.learner.schedule(1))
        self._trace: Trace | None = None
        self._strict = False
        self._starting = Lock()
        self._previous: Leaves | None = None
        _break_compiled_graphs()

    # -------------------------------------------------------------- one step

    def __call__(self, proposal: Any, t: int | None = None, **context: Any) -> Any:
        """Return the next state: corrected where the schedule says so, else the proposal.

        Args:
            proposal: The state after the loop's own update, (n, *event), or a tree of such arrays. Not modified.
            t: The step, if the loop wants the count checked; 0 starts a new run.
            **context: What the constraint needs besides the state, such as `sigma=0.3`; see `Constraint.needs`.
        """
        run = self._trace_for(proposal, t)
        if is_grad_enabled() or is_autocast_enabled(run.device.type):  # autocast would round projections
            with torch.no_grad(), torch.autocast(run.device.type, enabled=False):
                return self._step(run, proposal, context)
        return self._step(run, proposal, context)

    def _step(self, run: Trace, proposal: Any, context: dict[str, Any]) -> Any:
        """Measure, decide and correct."""
        constraint = self._bound(run, context)
        x = self._measure(run, constraint, proposal)
        run.broken = True  # until the step is whole: no decision may be paid for twice
        chosen = run.decide(proposal, context)  # b > 0 and s >= lambda[t, b]
        rows = chosen.nonzero().squeeze(1)
        if len(rows) and self.unit == "iteration" and not (run.closes_now or run.schedule.whole):
            x = self._iterate(run, constraint, x, rows, proposal, context)
        elif len(rows):
            x = self._project(run, constraint, x, rows)
        if self.closing == "free" and run.t == self.n_steps - 1:
            x = self._close(run, constraint, x, ~run.finished())
        return self._finish(run, x)

    def _measure(self, run: Trace, constraint: BoundConstraint, proposal: Any) -> Leaves:
        """Measure the defects of the proposals; raise if states or defects are not finite."""
        run.updates.count(run.returned_at, run.n)
        try:
            x = run.form.widened(run.form.leaves(proposal))
            finite = all_finite(x)
            if finite and (self.measure_defects or self._measures_at(run.t)):
                before = None if run.defect_meter.calls else tuple(leaf.clone() for leaf in x)
                defect = constraint.defect(x)
                if before is not None and not all(torch.equal(a, b) for a, b in zip(before, x, strict=True)):
                    raise ValueError("defect changed the states it was given; it must copy them first")
                run.observe(defect)
                if run.t == 0 and hasattr(run.schedule, "check_fits"):  # prices of another problem
                    event = tuple(run.form.shapes[0][1:]) if run.form.single else None
                    run.schedule.check_fits(event, defect=float(run.seen[0].median()))
            if not finite:
                run.check(finite_rows(x), "the sampler proposed NaN or inf")
            return x
        except BaseException:
            run.returned_at = perf_counter()  # the loop may repeat the step, and its update is timed from here
            raise

    def _project(self, run: Trace, constraint: BoundConstraint, x: Leaves, rows: Tensor) -> Leaves:
        """Project the chosen rows, record what is left of their defects, and return the states."""
        some = constraint.take(rows)
        answer = self._solve(run, some, x, rows)
        run.record_projection(rows, answer, self._residual(some, answer))
        return put_rows(x, rows, answer.x)

    def _iterate(
        self,
        run: Trace,
        constraint: BoundConstraint,
        x: Leaves,
        rows: Tensor,
        proposal: Any,
        context: dict[str, Any],
    ) -> Leaves:
        """Buy iterations of the solver for the chosen rows, one at a time, until the schedule wants no more.

        A row that is left alone once is left alone for the rest of the step. What the solver carries from one
        iteration to the next follows its rows, and is dropped at the end of the step.
        """
        carried: tuple[Tensor, ...] | None = None
        for _ in range(_MOST_ITERATIONS):
            answer = constraint.take(rows).improve(x, rows, carried)
            run.record_iteration(rows, answer)
            if not bool(finite_rows(answer.x).all()):
                raise ProjectionError(
                    f"improve returned NaN or inf at step {run.t}; it must return finite states and report done where "
                    "it cannot continue"
                )
            x = put_rows(x, rows, answer.x)
            if not run.schedule.repeats:
                return x
            going = torch.zeros_like(run.done).index_fill_(0, rows, True) & ~run.done
            again = run.decide(proposal, context, among=going)[rows]
            rows = rows[again]
            carried = None if answer.state is None else tuple(part[again] for part in answer.state)
            if len(rows) == 0:
                return x
        raise ProjectionError(
            f"{len(rows)} samples were not done after {_MOST_ITERATIONS} iterations at step {run.t}; improve must "
            "return done=True where it cannot continue, or give the schedule a budget"
        )

    def _close(self, run: Trace, constraint: BoundConstraint, x: Leaves, open_rows: Tensor) -> Leaves:
        """Run the closing projection of the rows that the last step left alone, in whole groups."""
        if run.groups is not None:
            open_rows = run.groups.touched(open_rows)
        rows = open_rows.nonzero().squeeze(1)
        if len(rows) == 0:
            return x
        answer = self._solve(run, constraint.take(rows), x, rows)
        run.record_closing(rows, answer)
        return put_rows(x, rows, answer.x)

    def _solve(self, run: Trace, constraint: BoundConstraint, x: Leaves, rows: Tensor) -> Outcome:
        """Project some rows with the constraint for exactly these, and handle failures by the policy."""
        answer = constraint.project(x, rows)
        if answer.converged is None or bool(answer.converged.all()):
            return answer
        groups = None if run.groups is None else run.groups.take(rows)
        recovered, retries = recover(constraint, take_leaves(x, rows), answer, self.tries, self.then, groups)
        run.extra[rows] += retries
        return recovered

    def _residual(self, constraint: BoundConstraint, answer: Outcome) -> Tensor | None:
        """Return the defect of projected states, (k,): the solver's own report, else measured; None if not asked to.

        If measuring is projecting, it is 0, since projecting twice changes nothing; failed rows are measured.
        """
        if answer.residual is not None:
            return answer.residual
        x = answer.x
        if not self.measure_defects:
            return None
        if self.measures_residuals:
            return constraint.defect(x)
        residual = torch.zeros(len(x[0]), dtype=constraint.form.dtype, device=x[0].device)
        if answer.converged is not None and not bool(answer.converged.all()):
            rows = (~answer.converged).nonzero().squeeze(1)
            residual[rows] = constraint.take(rows).defect(take_leaves(x, rows)).to(residual)
        return residual

    def _finish(self, run: Trace, x: Leaves) -> Any:
        """End the step; return the states as the loop keeps them."""
        x = run.form.narrowed(x)
        if self.keep_states:
            run.states.append(_detached(x))
        t = run.t
        if t == self.n_steps - 1:
            self._check_end(run, x)
        if "previous" in self.constraint.needs:
            self._previous = _detached(x)
        run.next_step()
        if self.on_step is not None:
            self.on_step(t, run.means(t))
        run.returned_at = perf_counter()
        if run.complete:
            self._complete_run(run, x)
        return run.form.state(x)

    def _check_end(self, run: Trace, x: Leaves) -> None:
        """Raise if final states have NaN or inf, which no later defect would show."""
        if not all_finite(x):
            half = "" if run.form.exact else ", or what half precision cannot hold"
            run.check(finite_rows(x), f"the sampler proposed, or the projection returned, NaN or inf{half}")

    def _complete_run(self, run: Trace, x: Leaves) -> None:
        """Record the run, warn about infeasible samples, and let the learner learn from it."""
        run.rollout = run.record(_detached(x))
        if self.closing != "none" and not bool(run.rollout.feasible.all()):
            bad = ~run.rollout.feasible
            warnings.warn(
                f"{int(bad.sum())} of {run.n} final samples are not feasible: their last projection failed (first: "
                f"sample {int(bad.nonzero()[0])}); see rollout.feasible, or set on_failure",
                InfeasibleWarning,
                stacklevel=4,
            )
        if self.learner is not None:
            self.learner.observe(run.rollout, run.schedule)

    # -------------------------------------------------------------- runs

    def begin(self, x: Any) -> None:
        """Start a run with the initial states `x`, (n, *event). Optional: the first call does it, too.

        Like a call, it raises if an unfinished run would be lost; `reset` drops one.
        """
        with self._starting:
            run = self._owned_trace()
            if run is not None and not run.broken:
                self._check_finished(run)
            run = self._start(x)
        leaves = run.form.leaves(x)
        if not all_finite(leaves):
            self.reset()
            raise ValueError("the initial states have NaN or inf; start with finite ones")
        self._previous = _detached(leaves)
        if self.keep_states:
            run.states.append(self._previous)

    def stop(self, x: Any, **context: Any) -> Any:
        """End the run before its `n_steps` calls, as a loop does that has converged or given up.

        The run is closed as at its last step: what the last call left alone is projected, paid for by the reserved
        correction, or outside the budget, or not at all. `rollout` is then the record of the steps made.

        Args:
            x: The state the loop ends with, usually what the last call returned.
            **context: What the constraint needs, as in a call.

        Returns:
            The final states.
        """
        run = self._owned_trace()
        if run is None or run.t == 0 or run.complete or run.broken:
            raise RuntimeError("there is no run to stop: stop ends a run that has started and is not complete")
        with torch.no_grad(), torch.autocast(run.device.type, enabled=False):
            leaves = run.form.leaves(x)
            run.check(finite_rows(leaves), "the loop stopped with NaN or inf")
            if self.closing != "none":
                wide = run.form.widened(leaves)
                leaves = run.form.narrowed(self._close(run, self._bound(run, context), wide, ~run.finished(run.t - 1)))
            self._check_end(run, leaves)
        run.stop()
        run.returned_at = perf_counter()  # the closing projection belongs to the time of the run
        if run.states:
            run.states[-1] = _detached(leaves)
        self._complete_run(run, leaves)
        return run.form.state(leaves)

    def reset(self) -> None:
        """Drop an unfinished run, so that the next call starts a new one."""
        self._trace = self._previous = None

    @property
    def t(self) -> int:
        """The step that the next call corrects."""
        return 0 if self._trace is None or self._trace.complete else self._trace.t

    @property
    def rollout(self) -> Rollout:
        """The record of the last run; raises while the run is not complete."""
        run = self._trace
        if run is None or run.rollout is None:
            done = 0 if run is None else run.t
            raise RuntimeError(
                f"the corrector was called {done} of {self.n_steps} times; a rollout is complete, and feasible, after "
                f"all {self.n_steps} (is n_steps the number of updates of your loop?)"
            )
        return run.rollout

    @property
    def learned(self) -> Any:
        """What has been learned so far, and what it saves against the control samples; needs a budget as schedule."""
        if self.learner is None:
            raise AttributeError("a corrector learns if its schedule is a budget: Corrector(constraint, 0.25, n_steps)")
        return self.learner.report()

    @property
    def projected(self) -> Tensor:
        """Which samples the last call projected, (n,) bool; a closing projection that is free is not among them."""
        if self._trace is None or self._trace.t == 0:
            raise RuntimeError("the corrector has not been called yet in this run")
        return self._trace.projected[self._trace.t - 1].clone()

    def __enter__(self) -> Self:
        """Start a run that must be complete at the end of the block."""
        self.reset()
        self._strict = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Raise if calls are missing, unless something else went wrong already."""
        self._strict = False
        if error is None:
            self.rollout  # noqa: B018  # raises if the run is not complete

    def __repr__(self) -> str:
        """Return a one-line summary."""
        return f"Corrector({self.schedule!r}, n_steps={self.n_steps}, closing={self.closing!r}, next step {self.t})"

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes without the lock; a copy makes its own."""
        return {name: value for name, value in vars(self).items() if name != "_starting"}

    def __setstate__(self, attributes: dict[str, Any]) -> None:
        """Restore a copy; a run in progress belongs to whoever calls it first."""
        vars(self).update(attributes)
        self._starting = Lock()

    def _use(self, schedule: Schedule) -> None:
        """Check a schedule against the constraint and the options, and use it from the next run on."""
        unit: Any = schedule.unit or "projection" if self._asked_unit is None else self._asked_unit
        if unit not in get_args(Unit):
            raise ValueError(f"unit must be 'projection' or 'iteration': got {unit!r}")
        for name, value in (("closing", self.closing), ("unit", unit)):
            made_for = getattr(schedule, name)
            if made_for not in ("", value):
                raise ValueError(
                    f"the schedule's prices were made for {name}={made_for!r}: got {name}={value!r}; calibrate with "
                    "the one that is used"
                )
        if unit == "iteration" and not self.constraint.improves:
            raise ValueError(
                "unit='iteration' needs a constraint that offers improve(x, state), one iteration at a time; "
                f"{type(self.constraint).__name__} has only project: leave unit out"
            )
        if self.seeds is not None:
            check_seeds_unused(schedule, self.seeds)
        every = check_integer(schedule.measure_every, "measure_every", 1)
        if self._asked_measure is False and schedule.uses_defects:
            raise ValueError(
                f"{type(schedule).__name__} decides by defects, which measure_defects=False would not give it; leave "
                "it on, or use a schedule with fixed times (Periodic, Planned, Fixed)"
            )
        self.schedule, self.unit = schedule, unit
        default = (schedule.uses_defects and every == 1) or self.learner is not None
        self.measure_defects = default if self._asked_measure is None else self._asked_measure
        known = self.constraint.defect_is_projection and self.constraint.is_projection
        self.measures_residuals = self.measure_defects and not known  # else 0: projecting twice changes nothing
        units(schedule.budget, self.n_steps, self.unit)  # an impossible budget raises at once

    def _measures_at(self, t: int) -> bool:
        """Return whether the schedule needs the defects of step t."""
        return self.schedule.uses_defects and is_measured_step(t, self.schedule.measure_every)

    def _start(self, x: Any) -> Trace:
        """Start a run for states like x."""
        if torch.is_inference_mode_enabled():  # tensors made there could not be written to outside
            with torch.inference_mode(False), torch.no_grad():
                return self._start(x)
        form = Form(x)
        if self.learner is not None:
            self._use(self.learner.schedule(form.n if self.groups is None else self.groups.n))
        run = Trace(form, self.schedule, self.n_steps, self.closing, self.unit, self.seeds, self.groups)
        run.owner = _owner()
        if self.constraint.defect_is_projection:
            run.defect_meter = run.projection_meter
        run.constraint = BoundConstraint(self.constraint, form, run.projection_meter, run.defect_meter)
        self._trace, self._previous = run, None
        return run

    def _trace_for(self, proposal: Any, t: int | None) -> Trace:
        """Return the run that this call belongs to; raise if it belongs to none."""
        run = self._trace
        continues = run is not None and 0 < run.t < run.n_steps and not run.broken and t in (None, run.t)
        if run is not None and continues and run.owner == _owner():
            return run
        with self._starting:  # of two threads that start at once, one is the owner
            return self._next_trace(proposal, t)

    def _next_trace(self, proposal: Any, t: int | None) -> Trace:
        run = self._owned_trace()
        if run is not None and run.broken:
            if t != 0:
                raise RuntimeError(
                    f"step {run.t} of {self.n_steps} failed half-way, and the run cannot continue; start a new one "
                    "with t = 0 or after reset()"
                )
            run = None
        if run is None or (run.complete and not self._strict) or (t == 0 and run.t != 0):
            if run is not None:
                self._check_finished(run)
            if t not in (None, 0):  # before the record of the last run is lost
                done = "" if run is None else "; the last run is complete (does your loop make more updates?)"
                raise RuntimeError(f"the corrector expected step 0 of {self.n_steps} next: got t = {t}{done}")
            run = self._start(proposal)
        if run.complete:
            stopped = run.t < self.n_steps
            raise RuntimeError(
                f"this run was stopped at step {run.t} of {self.n_steps}; a `with` block covers one run, so start the "
                "next one in a new block"
                if stopped
                else f"the corrector was called more than n_steps = {self.n_steps} times in one run; is n_steps the "
                "number of updates of your loop?"
            )
        if t is not None and t != run.t:
            raise RuntimeError(f"the corrector expected step {run.t} of {self.n_steps} next: got t = {t}")
        return run

    def _owned_trace(self) -> Trace | None:
        """Return the current run, if there is one; raise if another thread or task started it."""
        run = self._trace
        if run is not None and not run.complete and not run.belongs_to(_owner()):
            raise RuntimeError(
                f"this corrector's run was started by another thread or asyncio task (it is at step {run.t} of "
                f"{self.n_steps}); give each one its own corrector"
            )
        return run

    def _check_finished(self, run: Trace) -> None:
        """Raise if starting a new run would lose an unfinished one."""
        if 0 < run.t < run.n_steps:
            raise RuntimeError(
                f"a new run starts at t = 0, but the last one was called only {run.t} of {self.n_steps} times; call "
                "reset() first if that was meant"
            )

    def _bound(self, run: Trace, context: dict[str, Any]) -> BoundConstraint:
        """Return the constraint for this step, with what it needs to know."""
        needs = self.constraint.needs
        if not needs:
            return run.constraint
        known = {"t": run.t, **context}
        if self._previous is not None:
            known["previous"] = run.form.state(run.form.widened(self._previous))
        missing = [name for name in needs if name not in known]
        if missing:
            hint = (
                "call corrector.begin(x) with the initial state"
                if missing == ["previous"]
                else f"call corrector(x, t, {missing[0]}=…)"
            )
            raise ValueError(f"the constraint needs {', '.join(missing)} at step {run.t}: {hint}")
        passed = Context({name: known[name] for name in needs}, run.n)
        return BoundConstraint(self.constraint, run.form, run.projection_meter, run.defect_meter, passed)


def _break_compiled_graphs() -> None:
    """Exclude correctors from torch.compile if it is loaded; loading it here would take as long as torch itself."""
    if "torch._dynamo" in sys.modules and not hasattr(Corrector.__call__, "_torchdynamo_disable"):
        disabled: Any = torch.compiler.disable(Corrector.__call__)  # type: ignore[no-untyped-call]
        Corrector.__call__ = disabled  # type: ignore[method-assign]


def _detached(leaves: Leaves) -> Leaves:
    return tuple(leaf.detach().clone() for leaf in leaves)


def _owner() -> tuple[int, int]:
    """Return who is calling: the thread, and the asyncio task in it, if any."""
    loop = asyncio._get_running_loop()
    return get_ident(), 0 if loop is None else id(asyncio.current_task(loop))


def _as_learner(schedule: Any, constraint: Constraint, n_steps: int, closing: Closing, unit: Unit | None) -> Any:
    """Return the learner of a schedule that is a budget or a learner; None for any other schedule."""
    if isinstance(schedule, int | float | np.integer | np.floating | PerBatch | PerSample):
        from trimtab.prices.online import as_learner

        schedule = as_learner(schedule)
    if not (hasattr(schedule, "observe") and hasattr(schedule, "prepare")):
        return None
    schedule.prepare(constraint, n_steps, closing, unit)
    return schedule
