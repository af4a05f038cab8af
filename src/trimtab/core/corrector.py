"""The one loop: propose, look at the defect, decide, project.

`rollout` drives a sampler; `Corrector` is the same thing for a loop that is not ours, one call a step. Both go
through `Corrector.__call__`, and every decision through `Ledger.decide`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from trimtab.core.constraint import Constraint, OnFailure, tries_and_last_resort
from trimtab.core.ledger import Ledger, replay
from trimtab.core.noise import Noise, as_seeds
from trimtab.core.record import Rollout
from trimtab.core.run import Run
from trimtab.core.schedule import Moment, Schedule, as_schedule, corrections

__all__ = ["Corrector", "Ledger", "Sampler", "replay", "rollout"]


class Sampler(Protocol):
    """Proposes the next state from the current one."""

    @property
    def n_steps(self) -> int:
        """T, the number of update locations at which a projection could be applied."""
        ...

    def start(self, noise: Noise) -> Tensor:
        """Initial states, (n, *event)."""
        ...

    def step(self, x: Tensor, t: int, noise: Noise) -> Tensor:
        """Proposals after update t, (n, *event)."""
        ...


def rollout(
    sampler: Sampler,
    constraint: Constraint,
    schedule: Schedule | Callable[[Moment], Tensor],
    seeds: Iterable[int] | Tensor,
    *,
    on_failure: OnFailure = "keep",
    keep_states: bool = False,
    dense: bool = False,
    measure_defects: bool = True,
    device: torch.device | str | None = None,
) -> Rollout:
    """Run a sampler with projections on schedule.

    Args:
        sampler: Proposes; noise is float64 unless the sampler has a `dtype` of its own.
        constraint: Projects and measures defects.
        schedule: Decides; a schedule value or any function of a `Moment`.
        seeds: One a sample; its noise depends on nothing else.
        on_failure: What a failed projection does: "keep" (the solver's state, unless it is worse than the proposal),
            "revert" (the proposal), "raise", "retry" or `Retry(n)`.
        keep_states: Keep the states along the path, (T + 1, n, *event). Off, memory is O(T n) numbers.
        dense: Project the whole batch and keep the chosen rows: more work but no host synchronisation, which pays
            on an accelerator when the projection is cheap.
        measure_defects: Off, no defect is evaluated, which only schedules that do not look at them allow; worth it
            where a look costs a projection. The record then holds NaN.
        device: Where to run.

    Example:
        >>> import trimtab as tt
        >>> problem = tt.domain("so3").problem(range(4))
        >>> run = tt.rollout(problem.sampler, problem.constraint, tt.Periodic(0.25), range(4))
        >>> run.projected.sum(dim=0).tolist() == [run.n_steps // 4] * 4
        True
    """
    for name in ("n_steps", "start", "step"):
        if not hasattr(sampler, name):
            raise ValueError(
                f"a sampler has n_steps, start(noise) and step(x, t, noise); {type(sampler).__name__} has no {name} "
                "(it comes first, then the constraint; a loop of your own can call a Corrector instead)"
            )
    seeds = as_seeds(seeds, device)
    refuse_overlap(schedule, seeds)
    noise = Noise(seeds, getattr(sampler, "dtype", torch.float64))
    corrector = Corrector(
        constraint,
        schedule,
        sampler.n_steps,
        seeds=seeds,
        on_failure=on_failure,
        keep_states=keep_states,
        dense=dense,
        measure_defects=measure_defects,
    )
    with torch.no_grad(), corrector:
        x = sampler.start(noise)
        corrector.begin(x)
        for t in range(sampler.n_steps):
            x = corrector(sampler.step(x, t, noise), t)
    return corrector.rollout


class Corrector:
    """Corrects proposals on schedule, one call a step, in any loop.

    After `n_steps` calls a run is complete: the last call has made the result feasible, `rollout` holds the record,
    and the next call begins a new run. Used as a context manager, leaving the block early or calling once too often
    is an error; passing `t` checks every call. Samples must not influence each other and keep their rows.

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
        seeds: Iterable[int] | Tensor | None = None,
        on_failure: OnFailure = "keep",
        keep_states: bool = False,
        dense: bool = False,
        measure_defects: bool = True,
        on_step: Callable[[int, dict[str, float]], None] | None = None,
    ) -> None:
        """Arguments as in `rollout`; `on_step(t, numbers)` is called after each step, for logging."""
        if isinstance(n_steps, bool) or not isinstance(n_steps, int | np.integer) or n_steps < 1:
            raise ValueError(f"n_steps must be a whole number of at least 1: got {n_steps!r}")
        for name in ("project", "defect", "take"):
            if not callable(getattr(constraint, name, None)):
                raise ValueError(
                    f"a constraint needs project, defect and take; {type(constraint).__name__} has no {name} "
                    "(plain functions can be wrapped: trimtab.as_constraint(project, defect))"
                )
        self.n_steps = int(n_steps)
        self.schedule = as_schedule(schedule)
        self.seeds = None if seeds is None else as_seeds(seeds)
        self.keep_states = keep_states
        self.dense = dense
        self.measure_defects = measure_defects
        if not measure_defects and getattr(self.schedule, "looks_at_defects", True):
            raise ValueError(
                f"{type(self.schedule).__name__} decides by defects, which measure_defects=False would not give it; "
                "leave it on, or use a schedule that fixes its times beforehand (Periodic, Planned, Fixed)"
            )
        self.on_step = on_step
        self.constraint = constraint
        self.tries, self.then = tries_and_last_resort(on_failure)
        self._run: Run | None = None
        self._strict = False
        corrections(getattr(self.schedule, "budget", 1.0), n_steps)  # an impossible budget is refused at once

    # -------------------------------------------------------------- the life of a run

    @property
    def t(self) -> int:
        """The step the next call corrects."""
        return 0 if self._run is None or self._run.complete else self._run.t

    @property
    def rollout(self) -> Rollout:
        """The record of the last run; an error while it is not complete."""
        if self._run is None or not self._run.complete:
            done = 0 if self._run is None else self._run.t
            raise RuntimeError(
                f"the corrector was called {done} of {self.n_steps} times; a rollout is complete, and feasible, after "
                f"all {self.n_steps} (is n_steps the number of updates of your loop?)"
            )
        return self._run.record()

    @property
    def projected(self) -> Tensor:
        """Which samples the last call projected, (n,) bool; a closing projection is not among them."""
        if self._run is None or self._run.t == 0:
            raise RuntimeError("the corrector has not been called yet in this run")
        return self._run.ledger.projected[self._run.t - 1]

    def reset(self) -> None:
        """Forget an unfinished run, so that the next call begins a new one."""
        self._run = None

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

    def begin(self, x: Tensor) -> None:
        """Begin a run with the initial states `x`, (n, *event). Optional: the first call does it too."""
        self._run = Run(self, x, initial=x)

    # -------------------------------------------------------------- Algorithm 1, one pass of its loop

    def __call__(self, proposal: Tensor, t: int | None = None) -> Tensor:
        """The state to go on with: projected where the schedule says so, the proposal elsewhere.

        Args:
            proposal: The state after the loop's own update, (n, *event). Not modified.
            t: The step, if the loop wants the count checked; 0 begins a new run.
        """
        if torch.is_grad_enabled():
            with torch.no_grad():
                return self(proposal, t)
        run = self._at(proposal, t)
        x = proposal.float() if proposal.dtype in (torch.float16, torch.bfloat16) else proposal
        with run.exact_arithmetic:
            defect = run.look(x)
            run.broken = True  # until the step is whole: nothing may be decided, and paid for, twice
            chosen = run.ledger.decide(run.t, defect, proposal)
            x = run.correct(x, defect, chosen)
            if run.t == self.n_steps - 1:  # a rollout ends feasible, whatever the schedule spent
                x = run.close(x, ~chosen)
        return run.finish_step(x if x.dtype == proposal.dtype else x.to(proposal.dtype))

    def _at(self, proposal: Tensor, t: int | None) -> Run:
        run = self._run
        if run is not None and run.broken:
            if t != 0:
                raise RuntimeError(
                    f"step {run.t} of {self.n_steps} failed half-way, and the run cannot go on; begin a new one with "
                    "t = 0 or after reset()"
                )
            run = None
        if run is None or (run.complete and not self._strict) or (t == 0 and run.t != 0):
            if run is not None and not run.complete:
                raise RuntimeError(
                    f"a new run begins at t = 0, but the last one was called only {run.t} of {self.n_steps} times; "
                    "call reset() first if that was meant"
                )
            run = self._run = Run(self, proposal, initial=None)
        if run.complete:
            raise RuntimeError(
                f"the corrector was called more than n_steps = {self.n_steps} times in one run; is n_steps the number "
                "of updates of your loop?"
            )
        if t is not None and t != run.t:
            raise RuntimeError(f"the corrector expected step {run.t} of {self.n_steps} next, got t = {t}")
        return run


def refuse_overlap(schedule: Any, seeds: Tensor) -> None:
    """Calibration and evaluation never share a seed."""
    used = getattr(schedule, "calibration_seeds", ())
    shared = sorted(set(used) & set(seeds.tolist())) if used else []
    if shared:
        raise ValueError(
            f"{len(shared)} seeds were used to calibrate this schedule and cannot be used to evaluate it (first: "
            f"{shared[:5]}); take others"
        )
