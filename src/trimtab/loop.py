"""The one loop: propose, look at the defect, decide, project.

`rollout` drives a sampler; `Corrector` is the same thing for a loop that is not ours, one call a step. Both go
through `Corrector.__call__`, and every decision through `Ledger.decide`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from time import perf_counter
from types import TracebackType
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from trimtab.constraint import (
    Constraint,
    OnFailure,
    Projection,
    checked_projection,
    recover,
    tries_and_last_resort,
)
from trimtab.noise import Noise, as_seeds
from trimtab.record import Rollout
from trimtab.schedule import Moment, Schedule, as_schedule, corrections

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
        device: Where to run.

    Example:
        >>> import trimtab as tt
        >>> problem = tt.domain("so3").problem(range(4))
        >>> run = tt.rollout(problem.sampler, problem.constraint, tt.Periodic(0.25), range(4))
        >>> run.projected.sum(dim=0).tolist() == [run.n_steps // 4] * 4
        True
    """
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
        on_step: Callable[[int, dict[str, float]], None] | None = None,
    ) -> None:
        """Arguments as in `rollout`; `on_step(t, numbers)` is called after each step, for logging."""
        if isinstance(n_steps, bool) or not isinstance(n_steps, int) or n_steps < 1:
            raise ValueError(f"n_steps must be a whole number of at least 1: got {n_steps!r}")
        for name in ("project", "defect", "take"):
            if not callable(getattr(constraint, name, None)):
                raise ValueError(
                    f"a constraint needs project, defect and take; {type(constraint).__name__} has no {name} "
                    "(plain functions can be wrapped: trimtab.as_constraint(project, defect))"
                )
        self.n_steps = n_steps
        self.schedule = as_schedule(schedule)
        self.seeds = None if seeds is None else as_seeds(seeds)
        self.keep_states = keep_states
        self.dense = dense
        self.on_step = on_step
        self._constraint = constraint
        self._tries, self._then = tries_and_last_resort(on_failure)
        self._run: _Run | None = None
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
        self._run = _Run(self, x, initial=x)

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
        run.check(proposal)
        x = proposal.float() if proposal.dtype in (torch.float16, torch.bfloat16) else proposal
        with run.exact_arithmetic:
            defect = run.defect(x)
            chosen = run.ledger.decide(run.t, defect, proposal)
            x, residual = run.correct(x, defect, chosen)
            run.residual_at[run.t].copy_(residual)
            if run.t == self.n_steps - 1:  # a rollout ends feasible, whatever the schedule spent
                x = run.close(x, ~chosen)
        return run.finish_step(x.to(proposal.dtype))

    def _at(self, proposal: Tensor, t: int | None) -> _Run:
        run = self._run
        if run is None or (run.complete and not self._strict) or (t == 0 and run.t != 0):
            if run is not None and not run.complete:
                raise RuntimeError(
                    f"a new run begins at t = 0, but the last one was called only {run.t} of {self.n_steps} times; "
                    "call reset() first if that was meant"
                )
            run = self._run = _Run(self, proposal, initial=None)
        if run.complete:
            raise RuntimeError(
                f"the corrector was called more than n_steps = {self.n_steps} times in one run; is n_steps the number "
                "of updates of your loop?"
            )
        if t is not None and t != run.t:
            raise RuntimeError(f"the corrector expected step {run.t} of {self.n_steps} next, got t = {t}")
        return run


class Ledger:
    """The running state of the decisions of one run, and the one place where they are made."""

    def __init__(self, schedule: Schedule, n_steps: int, n: int, like: Tensor, seeds: Tensor | None) -> None:
        """Start with the schedule's whole budget; `like` gives device and dtype of the defects."""
        budget = corrections(getattr(schedule, "budget", 1.0), n_steps)
        if isinstance(budget, Tensor) and len(budget) != n:
            raise ValueError(f"the schedule has budgets for {len(budget)} samples, but the batch has {n}")
        self.schedule = schedule.to(like.device) if hasattr(schedule, "to") else schedule
        self.n_steps = n_steps
        self.seeds = seeds
        self.left = torch.empty(n, dtype=torch.int64, device=like.device)
        self.left[:] = budget if isinstance(budget, Tensor) else int(budget)
        self.defects = torch.empty(n_steps, n, dtype=like.dtype, device=like.device)
        self.projected = torch.zeros(n_steps, n, dtype=torch.bool, device=like.device)
        self.memory: dict[str, Tensor] = {}
        # views of the rows, made once: cheaper than indexing at every step
        self._defect_at, self._projected_at = self.defects.unbind(0), self.projected.unbind(0)

    def decide(self, t: int, defect: Tensor, proposal: Tensor | None) -> Tensor:
        """Ask the schedule which samples to project after step t, and book what that spends.

        Returns:
            (n,) bool; never a sample with no budget left.
        """
        self._defect_at[t].copy_(defect)
        record = (self.defects, self.projected)
        now = Moment(t, self.n_steps, defect, self.left, proposal, record, self.seeds, self.memory)
        chosen = self.schedule.decide(now)
        if not isinstance(chosen, Tensor) or chosen.dtype != torch.bool or chosen.shape != defect.shape:
            came = f"{tuple(chosen.shape)} of {chosen.dtype}" if isinstance(chosen, Tensor) else repr(chosen)
            raise ValueError(f"a schedule must decide with a ({len(defect)},) bool tensor: got {came} at t = {t}")
        chosen = chosen.logical_and(self.left)
        self._projected_at[t].copy_(chosen)
        self.left.sub_(chosen.view(torch.uint8))
        return chosen


def replay(schedule: Schedule | Callable[[Moment], Tensor], record: Rollout) -> Tensor:
    """What the schedule decides on the defects of a recorded run, (T, n) bool.

    Equal to `record.projected` exactly if that schedule is the one that ran (for schedules that look at states, which
    a record does not hold, this cannot be told).
    """
    T, n = record.defects.shape
    ledger = Ledger(as_schedule(schedule), T, n, record.defects, record.seeds)
    for t in range(T):
        ledger.decide(t, record.defects[t], None)
    return ledger.projected


def refuse_overlap(schedule: Any, seeds: Tensor) -> None:
    """Calibration and evaluation never share a seed."""
    used = getattr(schedule, "calibration_seeds", ())
    shared = sorted(set(used) & set(seeds.tolist())) if used else []
    if shared:
        raise ValueError(
            f"{len(shared)} seeds were used to calibrate this schedule and cannot be used to evaluate it (first: "
            f"{shared[:5]}); take others"
        )


# ------------------------------------------------------------------ bookkeeping of one run


_KINDS = ("update", "defect", "projection", "scheduling")


@dataclass
class _Meter:
    """Seconds, calls and rows by kind of work."""

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_KINDS, 0.0))
    calls: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_KINDS[:-1], 0))
    rows: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_KINDS[:-1], 0))

    def book(self, kind: str, seconds: float, rows: int) -> None:
        self.seconds[kind] += seconds
        self.calls[kind] += 1
        self.rows[kind] += rows


class _Metered:
    """A constraint whose calls are timed and counted."""

    def __init__(self, constraint: Constraint, meter: _Meter) -> None:
        self.constraint, self.meter = constraint, meter
        # where the defect is the projection residual, looking at a state is projecting it
        self.defect_kind = "projection" if getattr(constraint, "defect_is_projection", False) else "defect"

    def project(self, x: Tensor) -> Tensor | Projection:
        begin = perf_counter()
        answer = self.constraint.project(x)
        self.meter.book("projection", perf_counter() - begin, x.shape[0])
        return answer

    def defect(self, x: Tensor) -> Tensor:
        begin = perf_counter()
        defect = self.constraint.defect(x)
        self.meter.book(self.defect_kind, perf_counter() - begin, x.shape[0])
        return defect

    def take(self, rows: Tensor) -> _Metered:
        return _Metered(self.constraint.take(rows), self.meter)


class _Run:
    """One run of a corrector: its ledger, its records, its costs."""

    def __init__(self, owner: Corrector, x: Tensor, initial: Tensor | None) -> None:
        self.owner = owner
        self.shape = x.shape
        if x.ndim < 1 or len(x) == 0 or not x.is_floating_point():
            raise ValueError(f"states must be floats with one row a sample: got {tuple(x.shape)} of {x.dtype}")
        if owner.seeds is not None and len(owner.seeds) != len(x):
            raise ValueError(f"{len(owner.seeds)} seeds were given for a batch of {len(x)}")
        self.t = 0
        self.n = len(x)
        self.meter = _Meter()
        self.constraint = _Metered(owner._constraint, self.meter)
        like = torch.empty(0, device=x.device, dtype=torch.promote_types(x.dtype, torch.float32))
        self.ledger = Ledger(owner.schedule, owner.n_steps, self.n, like, owner.seeds)
        self.residuals = torch.empty_like(self.ledger.defects)
        self.residual_at = self.residuals.unbind(0)
        self.failed = torch.zeros_like(self.ledger.projected)
        self.iterations = torch.zeros(owner.n_steps, self.n, dtype=torch.int32, device=x.device)
        self.closing_failed = torch.zeros(self.n, dtype=torch.bool, device=x.device)
        self.states = [] if not owner.keep_states else [(x if initial is None else initial).detach().clone()]
        if initial is None:  # a foreign loop that did not show its initial state: the path begins with step 0
            self.states = self.states[:0]
        self.final: Tensor | None = None
        autocast = torch.is_autocast_enabled(x.device.type)
        # the caller's autocast must not round a projection to half precision
        self.exact_arithmetic: Any = torch.autocast(x.device.type, enabled=False) if autocast else nullcontext()
        self.returned_at = perf_counter()

    @property
    def complete(self) -> bool:
        return self.t == self.owner.n_steps

    def check(self, proposal: Tensor) -> None:
        """Refuse a proposal that cannot be a state of this run."""
        self.called_at = perf_counter()
        self.inside_before = self.meter.seconds["defect"] + self.meter.seconds["projection"]
        self.meter.book("update", self.called_at - self.returned_at, self.n)
        if proposal.shape != self.shape:
            raise ValueError(
                f"the batch changed within a run: it began with states {tuple(self.shape)}, step {self.t} came with "
                f"{tuple(proposal.shape)}"
            )
        if not self.owner.dense and not math.isfinite(proposal.sum()):
            self.refuse_rows(~proposal.flatten(1).isfinite().all(dim=1), "the sampler proposed NaN or inf")

    def defect(self, x: Tensor) -> Tensor:
        """The defects of the proposals, checked."""
        defect = self.constraint.defect(x)
        if not isinstance(defect, Tensor) or defect.shape != self.shape[:1] or not defect.is_floating_point():
            came = f"{tuple(defect.shape)} of {defect.dtype}" if isinstance(defect, Tensor) else repr(defect)
            raise ValueError(f"defect must return one number a sample, ({self.n},) floats: got {came}")
        if not self.owner.dense:
            low, high = torch.aminmax(defect)
            if not (float(low) >= 0 and float(high) < torch.inf):  # NaN fails both
                self.refuse_rows(~((defect >= 0) & defect.isfinite()), "the defect is negative, NaN or inf")
        return defect

    def refuse_rows(self, bad: Tensor, what: str) -> None:
        if bool(bad.any()):
            rows = bad.nonzero().squeeze(1)
            seeds = "" if self.owner.seeds is None else f", seed {int(self.owner.seeds[rows[0]])}"
            raise ValueError(
                f"{what} for {len(rows)} of {self.n} samples at step {self.t} of {self.owner.n_steps} (first: sample "
                f"{int(rows[0])}{seeds}); expected finite states and finite defects of at least 0"
            )

    def correct(self, x: Tensor, defect: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Project the chosen rows: the states to go on with, and their residuals."""
        if self.owner.dense:
            answer = self.project(self.constraint, x, check=False)
            row = chosen.reshape(-1, *([1] * (x.ndim - 1)))
            self.book_outcome(answer, chosen, slice(None))
            return torch.where(row, answer.x, x), torch.where(chosen, self.residual(self.constraint, answer), defect)
        rows = chosen.nonzero().view(-1)
        count = rows.shape[0]
        if count == 0:
            return x, defect
        if count == self.n:
            answer = self.project(self.constraint, x)
            self.book_outcome(answer, chosen, slice(None))
            return answer.x, self.residual(self.constraint, answer)
        begin = perf_counter()
        some, chosen_x = self.constraint.take(rows), x.index_select(0, rows)
        gathering = perf_counter() - begin
        answer = self.project(some, chosen_x)
        self.book_outcome(answer, chosen, rows)
        residual = self.residual(some, answer)
        begin = perf_counter()
        x, residual = x.index_copy(0, rows, answer.x), defect.index_copy(0, rows, residual.to(defect.dtype))
        self.meter.seconds["projection"] += gathering + perf_counter() - begin  # what projecting some rows costs
        return x, residual

    def project(self, constraint: _Metered, x: Tensor, check: bool = True) -> Projection:
        if not check:
            answer = constraint.project(x)
            answer = answer if isinstance(answer, Projection) else Projection(answer)
        else:
            answer = checked_projection(constraint, x)
        if answer.converged is not None and not bool(answer.converged.all()):
            answer = recover(constraint, x, answer, self.owner._tries, self.owner._then)
        return answer

    def residual(self, constraint: _Metered, answer: Projection) -> Tensor:
        """The defect of projected states: what the solver reports, else measured.

        Where measuring is projecting, it is 0, as a projection of a projected state changes nothing.
        """
        if answer.residual is not None:
            return answer.residual
        if constraint.defect_kind == "projection":
            return torch.zeros(len(answer.x), dtype=self.residuals.dtype, device=answer.x.device)
        return constraint.defect(answer.x)

    def book_outcome(self, answer: Projection, chosen: Tensor, rows: Any) -> None:
        if answer.converged is not None:
            self.failed[self.t, rows] = ~answer.converged
            self.failed[self.t] &= chosen
        if answer.iterations is not None:
            self.iterations[self.t, rows] = answer.iterations.to(torch.int32)

    def close(self, x: Tensor, open_rows: Tensor) -> Tensor:
        """The closing projection of the rows that the last step left unprojected; not part of the budget."""
        rows = open_rows.nonzero().squeeze(1)
        self.closing = open_rows
        if len(rows) == 0:
            return x
        answer = self.project(self.constraint.take(rows), x.index_select(0, rows))
        if answer.converged is not None:
            self.closing_failed[rows] = ~answer.converged
        return x.index_copy(0, rows, answer.x)

    def finish_step(self, x: Tensor) -> Tensor:
        if self.owner.keep_states:
            self.states.append(x.detach().clone())
        if self.owner.dense and self.t == self.owner.n_steps - 1:
            # without synchronising at every step, bad numbers are found at the end
            bad = ~(x.flatten(1).isfinite().all(dim=1) & self.ledger.defects.isfinite().all(dim=0))
            self.refuse_rows(bad, "the sampler proposed, or the projection returned, NaN or inf")
        self.t += 1
        if self.complete:
            self.final = x.detach().clone()
        if self.owner.on_step is not None:
            t = self.t - 1
            self.owner.on_step(
                t,
                {
                    "defect": float(self.ledger.defects[t].mean()),
                    "residual": float(self.residuals[t].mean()),
                    "projected": float(self.ledger.projected[t].float().mean()),
                },
            )
        self.returned_at = perf_counter()
        inside = self.meter.seconds["defect"] + self.meter.seconds["projection"] - self.inside_before
        self.meter.seconds["scheduling"] += self.returned_at - self.called_at - inside
        return x

    def record(self) -> Rollout:
        assert self.final is not None
        return Rollout(
            final=self.final,
            defects=self.ledger.defects,
            residuals=self.residuals,
            projected=self.ledger.projected,
            closing=self.closing,
            failed=self.failed,
            closing_failed=self.closing_failed,
            iterations=self.iterations,
            seeds=self.owner.seeds,
            states=torch.stack(self.states) if self.owner.keep_states else None,
            seconds=dict(self.meter.seconds),
            calls=dict(self.meter.calls),
            rows=dict(self.meter.rows),
        )
