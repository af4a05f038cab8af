"""The line in a loop: `Corrector` says which run a call belongs to, and lets the run do its step.

Algorithm 1 itself, propose, measure, decide, correct, is `Run.step` in `trimtab.loop.run`.
"""

from __future__ import annotations

import asyncio
import os
import sys
import warnings
from collections.abc import Callable, Iterable
from copy import deepcopy
from threading import Lock, get_ident
from types import TracebackType
from typing import Any, Self, get_args

import torch
from torch import Tensor, is_autocast_enabled, is_grad_enabled

from trimtab.core.arrays import Form
from trimtab.core.bound_constraint import OnFailure, as_retry
from trimtab.core.budget import Budget, PerBatch, PerSample, Unit, units
from trimtab.core.checks import check_bool, check_callable, check_integer
from trimtab.core.constraint import Constraint, check_constraint
from trimtab.core.noise import as_seeds
from trimtab.core.quality import Quality
from trimtab.core.record import Closing, InfeasibleWarning, Rollout
from trimtab.core.schedule import Schedule, as_schedule, check_seeds_unused
from trimtab.core.view import StepView
from trimtab.loop.run import Run, Settings, limit_of
from trimtab.prices.learner import Learner, Report, as_learner

__all__ = ["Corrector"]

_STARTING = Lock()


class Corrector:
    """Corrects proposals on schedule, one call per step, in any loop.

    After `n_steps` calls a run is complete: the last call has made the result feasible, `rollout` holds the record,
    and the next call starts a new run. As a context manager it raises if the block ends early or calls once too often;
    passing `t` checks every call. Samples must not influence each other and must keep their rows.

    A number as the schedule is a budget, a share of the work of full projection: when, how much and how to correct is
    learned from the corrector's own runs, and `learned` reports what that saves. The batch shares the budget, so a
    sample then depends on its batch-mates; `PerSample(0.25)` gives each its own. A run belongs to the thread (and
    asyncio task) that started it. States in float16 and bfloat16 are measured and projected in float32. No gradient
    flows through a correction.

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
        schedule: Schedule | Callable[[StepView], Tensor] | Budget | PerBatch | PerSample | Learner,
        n_steps: int,
        *,
        closing: Closing = "paid",
        seeds: Iterable[int] | Tensor | None = None,
        on_failure: OnFailure = "keep",
        keep_states: bool = False,
        unit: Unit | None = None,
        quality: Quality | Callable[[Any], Any] | None = None,
        measure_defects: bool | None = None,
        on_step: Callable[[int, dict[str, float]], None] | None = None,
    ) -> None:
        """Make a corrector for a loop of `n_steps` updates.

        Args:
            constraint: Projects and measures defects; a `Constraint`, or functions wrapped by `as_constraint`.
            schedule: Decides. A schedule, any function of a `StepView`, or a budget: a number, `PerBatch(0.25)`,
                `PerSample(0.25)`, or a `trimtab.prices.Learner` with options, such as a quality of final samples.
            n_steps: T, how many times the loop calls.
            closing: How a run ends. "paid": the last step projects every sample, and each budget reserves a projection
                for it. "free": a sample that the last step left alone is projected outside its budget, as the paper
                counts. "none": it ends as it is, for corrections that are not projections.
            seeds: One per sample, if the loop knows them; seeds that calibrated the schedule raise.
            on_failure: What to do with a failed projection: "keep" the solver's state unless it is worse than the
                proposal, "revert" to the proposal, "raise", "retry" or `Retry(n)`.
            keep_states: Keep the states along the path. If off, memory is O(T n) numbers.
            unit: What a schedule's budget counts: "projection", or "iteration" of the constraint's solver. The
                schedule's own unit by default; a budget that is learned with has `Learner(…, unit=)`.
            quality: A number for each final sample, lower being better, if `schedule` is a budget: it decides what is
                learned; see `trimtab.prices.Learner`.
            measure_defects: Whether to measure the defects of all steps; by default if the schedule uses them. The
                record holds NaN for defects that were not measured.
            on_step: `on_step(t, numbers)` is called after each step, for logging, without gradients and autocast.
        """
        self.n_steps = check_integer(n_steps, "n_steps", 1, 2**31 - 1)
        self.constraint = check_constraint(constraint)
        if closing not in get_args(Closing):
            raise ValueError(f"closing must be 'paid', 'free' or 'none': got {closing!r}")
        if on_step is not None:
            check_callable(on_step, "on_step", "on_step(t, numbers)")
        self.closing: Closing = closing
        self.seeds = None if seeds is None else as_seeds(seeds)
        self.keep_states, self.on_step = check_bool(keep_states, "keep_states"), on_step
        self.tries, self.then = as_retry(on_failure)
        self._asked_unit = unit
        self._asked_measure = None if measure_defects is None else check_bool(measure_defects, "measure_defects")
        learner = as_learner(schedule, quality)
        self.learner: Learner | None = learner if isinstance(learner, Learner) else None
        if self.learner is not None:
            self.learner.prepare(constraint, self.n_steps, closing, unit)
        self._use(as_schedule(schedule) if self.learner is None else self.learner.schedule(1, peek=True))
        self._run: Run | None = None
        self._strict = False
        _break_compiled_graphs()

    def __call__(self, proposal: Any, t: int | None = None, **context: Any) -> Any:
        """Return the next state: corrected where the schedule says so, else the proposal.

        Args:
            proposal: The state after the loop's own update, (n, *event), or a tree of such arrays. Not modified.
            t: The step, if the loop wants the count checked; 0 starts a new run.
            **context: What the constraint needs besides the state, such as `sigma=0.3`; see `Constraint.needs`.
        """
        run = self._run
        if run is None or run.broken or not 0 < run.t < run.n_steps or t not in (None, run.t) or run.owner != _owner():
            with _STARTING:  # of two threads that start at once, one is the owner
                run = self._next_run(proposal, t)
        if is_autocast_enabled(run.device.type):  # it would round projections
            with torch.no_grad(), torch.autocast(run.device.type, enabled=False):
                return self._step(run, proposal, context)
        if is_grad_enabled():
            with torch.no_grad():
                return self._step(run, proposal, context)
        return self._step(run, proposal, context)

    def _step(self, run: Run, proposal: Any, context: dict[str, Any]) -> Any:
        x = run.step(proposal, context)
        if self.on_step is not None or run.rollout is not None:
            self._after(run)
        return x

    def _after(self, run: Run) -> None:
        """Log the step; at the end of a run, warn about infeasible samples and let the learner learn from it."""
        if self.on_step is not None:
            self.on_step(run.t - 1, run.means(run.t - 1))
        if run.rollout is None:
            return
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
        run = self._owned_run()
        if run is not None and not run.broken:
            self._check_finished(run)
        try:
            self._start(x).begin(x)
        except ValueError:
            self.reset()
            raise

    def sample(
        self, update: Callable[[Any, int], Any], x: Any, *, generator: torch.Generator | None = None, **context: Any
    ) -> Any:
        """Run the whole loop: `x = corrector(update(x, t), t)` for every step; return the final states.

        A budget that is learned with can then try candidates on the same noise; see `trimtab.prices.Learner`. All
        randomness of `update` must come from `generator`, or from torch's own if none is given; afterwards it is where
        it would be without the twins.

        Args:
            update: Your update, a function of the states and the step.
            x: The initial states, (n, *event).
            generator: What `update` draws from.
            **context: What the constraint needs besides the state, the same at every step.
        """
        start = _noise_state(generator)
        final = self._loop(update, x, context)
        learner = self.learner
        if learner is None or not learner.wants_twins:
            return final
        after, first = _noise_state(generator), self.rollout.defects[0]

        def again(schedule: Schedule) -> Rollout:
            _set_noise(generator, start)
            twin = Corrector(self.constraint, schedule, self.n_steps, closing=self.closing)
            twin._loop(update, x, context)
            if not torch.allclose(twin.rollout.defects[0], first, rtol=1e-6, equal_nan=True):
                raise RuntimeError(
                    "the loop did not repeat its noise; draw all of it from the generator, or from torch's own"
                )
            return twin.rollout

        try:
            learner.try_out(again, len(first))
        finally:
            _set_noise(generator, after)
        return final

    def _loop(self, update: Callable[[Any, int], Any], x: Any, context: dict[str, Any]) -> Any:
        with torch.no_grad():
            self.begin(x)
            for t in range(self.n_steps):
                x = self(update(x, t), t, **context)
        return x

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
        run = self._owned_run()
        if run is None or run.t == 0 or run.complete or run.broken:
            raise RuntimeError("there is no run to stop: stop ends a run that has started and is not complete")
        with torch.no_grad(), torch.autocast(run.device.type, enabled=False):
            x = run.stop(x, context)
        self._after(run)
        return x

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write what was learned; `trimtab.prices.Learner.load(path)` reads it, to be used as a schedule."""
        if self.learner is None:
            raise AttributeError("there is nothing to save: a corrector learns only if its schedule is a budget")
        self.learner.save(path)

    def reset(self) -> None:
        """Drop an unfinished run, so that the next call starts a new one."""
        self._run = None

    @property
    def t(self) -> int:
        """The step that the next call corrects."""
        return 0 if self._run is None or self._run.complete else self._run.t

    @property
    def rollout(self) -> Rollout:
        """The record of the last run; raises while the run is not complete."""
        run = self._run
        if run is None or run.rollout is None:
            done = 0 if run is None else run.t
            raise RuntimeError(
                f"the corrector was called {done} of {self.n_steps} times; a rollout is complete, and feasible, after "
                f"all {self.n_steps} (is n_steps the number of updates of your loop?)"
            )
        return run.rollout

    @property
    def learned(self) -> Report:
        """What has been learned so far, and what it saves against the control samples; needs a budget as schedule."""
        if self.learner is None:
            raise AttributeError("a corrector learns if its schedule is a budget: Corrector(constraint, 0.25, n_steps)")
        return self.learner.report()

    @property
    def projected(self) -> Tensor:
        """Which samples the last call corrected, (n,) bool; a closing projection that is free is not among them."""
        if self._run is None or self._run.t == 0:
            raise RuntimeError("the corrector has not been called yet in this run")
        return self._run.projected[self._run.t - 1].clone()

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

    def __copy__(self) -> Corrector:
        """Return a corrector with the same settings and learner that goes on with a run of its own."""
        other, run = object.__new__(type(self)), self._run
        vars(other).update(vars(self))
        if run is not None:
            shared = (run.constraint, run.schedule, *(bound.constraint for bound in run.bound))
            other._run = deepcopy(run, {id(one): one for one in shared})
        return other

    def __repr__(self) -> str:
        """Return a one-line summary."""
        return f"Corrector({self.schedule!r}, n_steps={self.n_steps}, closing={self.closing!r}, next step {self.t})"

    # -------------------------------------------------------------- which run

    def _use(self, schedule: Schedule) -> None:
        """Check a schedule against the constraint and the options, and use it from the next run on."""
        unit: Any = schedule.unit or "projection" if self._asked_unit is None else self._asked_unit
        if unit not in get_args(Unit):
            raise ValueError(f"unit must be one of {get_args(Unit)}: got {unit!r}")
        for name, value in (("closing", self.closing), ("unit", unit)):
            made_for = getattr(schedule, name)
            if made_for not in ("", value):
                raise ValueError(
                    f"the schedule's prices were made for {name}={made_for!r}: got {name}={value!r}; calibrate with "
                    "the one that is used"
                )
        if self.seeds is not None:
            check_seeds_unused(schedule, self.seeds)
        if self._asked_measure is False and schedule.uses_defects:
            raise ValueError(
                f"{type(schedule).__name__} decides by defects, which measure_defects=False would not give it; leave "
                "it on, or use a schedule with fixed times (Periodic, Planned, Fixed)"
            )
        measure = schedule.uses_defects if self._asked_measure is None else self._asked_measure
        units(limit_of(schedule, unit), self.n_steps, unit)  # an impossible budget raises at once
        self.schedule, self.unit = schedule, unit
        self.settings = Settings(self.n_steps, self.closing, unit, self.tries, self.then, self.keep_states, measure)

    def _start(self, x: Any) -> Run:
        """Start a run for states like x."""
        if torch.is_inference_mode_enabled():  # tensors made there could not be written to outside
            with torch.inference_mode(False), torch.no_grad():
                return self._start(x)
        form = Form(x)
        if self.learner is not None:
            self._use(self.learner.schedule(form.n))
        self._run = run = Run(form, self.constraint, self.schedule, self.settings, self.seeds)
        run.owner = _owner()
        return run

    def _next_run(self, proposal: Any, t: int | None) -> Run:
        """Return the run that this call belongs to, a new one if the last is complete; raise if it belongs to none."""
        run = self._owned_run()
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
                raise RuntimeError(self._out_of_step(t, 0, run is not None))
            run = self._start(proposal)
        if run.complete:
            stopped = run.planned_steps is not None
            raise RuntimeError(
                f"this run was stopped at step {run.t} of {self.n_steps}; a `with` block covers one run, so start the "
                "next one in a new block"
                if stopped
                else f"the corrector was called more than n_steps = {self.n_steps} times in one run; is n_steps the "
                "number of updates of your loop?"
            )
        if t is not None and t != run.t:
            raise RuntimeError(self._out_of_step(t, run.t, False))
        return run

    def _out_of_step(self, t: int, expected: int, finished: bool) -> str:
        """Return what to say to a call for another step than the next one."""
        if t == self.n_steps - 1 - expected:
            hint = f"; does your loop count down? Pass the number of the update: corrector(x, {self.n_steps - 1} - t)"
        else:
            hint = "; the last run is complete (does your loop make more updates?)" if finished else ""
        return f"the corrector expected step {expected} of {self.n_steps} next: got t = {t}{hint}"

    def _owned_run(self) -> Run | None:
        """Return the current run, if there is one; raise if another thread or task started it."""
        run = self._run
        if run is None or run.complete:
            return run
        if run.owner is None:  # a copy belongs to whoever calls it first
            run.owner = _owner()
        if run.owner != _owner():
            raise RuntimeError(
                f"this corrector's run was started by another thread or asyncio task (it is at step {run.t} of "
                f"{self.n_steps}); give each one its own corrector"
            )
        return run

    def _check_finished(self, run: Run) -> None:
        """Raise if starting a new run would lose an unfinished one."""
        if 0 < run.t < run.n_steps:
            raise RuntimeError(
                f"a new run starts at t = 0, but the last one was called only {run.t} of {self.n_steps} times; call "
                "reset() first if that was meant"
            )


def _noise_state(generator: torch.Generator | None) -> Tensor:
    return torch.get_rng_state() if generator is None else generator.get_state()


def _set_noise(generator: torch.Generator | None, state: Tensor) -> None:
    if generator is None:
        torch.set_rng_state(state)
    else:
        generator.set_state(state)


def _break_compiled_graphs() -> None:
    """Exclude correctors from torch.compile if it is loaded; loading it here would take as long as torch itself."""
    if "torch._dynamo" in sys.modules and not hasattr(Corrector.__call__, "_torchdynamo_disable"):
        disabled: Any = torch.compiler.disable(Corrector.__call__)  # type: ignore[no-untyped-call]
        Corrector.__call__ = disabled  # type: ignore[method-assign]


def _owner() -> tuple[int, int]:
    """Return who is calling: the thread, and the asyncio task in it, if any."""
    loop = asyncio._get_running_loop()
    return get_ident(), 0 if loop is None else id(asyncio.current_task(loop))
