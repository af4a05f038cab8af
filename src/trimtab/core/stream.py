"""Correct the states of a loop that has no known end: a rate instead of a budget."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from trimtab.core.bound_constraint import OnFailure
from trimtab.core.checks import check_callable, check_number, check_type
from trimtab.core.constraint import Constraint
from trimtab.core.corrector import Corrector
from trimtab.core.groups import Groups, as_groups
from trimtab.core.schedule import Schedule, as_schedule
from trimtab.core.view import StepView

__all__ = ["Stream"]

_ROUNDING = 1e-9  # ten tenths of a token are one


class Stream:
    """Corrects the states of a loop with no known end: at most `rate` corrections per step in the long run.

    Each sample has a bucket of at most `burst` tokens, which starts full. Every step adds `rate` tokens, and a
    correction takes one: k steps make at most `burst + rate * k` corrections of a sample. Every step is a run of one
    step of a `Corrector`, so constraints, context, trees, groups and failures work as there; there is no closing
    projection.

    The schedule decides on a `StepView` of one step. `view.context` also has "tokens" and "since", the steps since each
    sample was last corrected (or started), (n,) each; `trimtab.prices.stationary` calibrates a price that reads them.

    Example:
        >>> import torch, trimtab as tt
        >>> from trimtab.core.stream import Stream
        >>> ball = tt.as_constraint(lambda x: x / x.norm(dim=1, keepdim=True).clamp(min=1),
        ...                         lambda x: (x.norm(dim=1) - 1).clamp(min=0))
        >>> stream = Stream(ball, lambda view: view.defect > 0.05, rate=0.1, burst=2)
        >>> x = torch.zeros(3, 2)
        >>> for _ in range(1000):
        ...     x = stream(x + 0.3)
        >>> stream.steps, bool((stream.spent <= 2 + 0.1 * 1000).all())
        (1000, True)
    """

    def __init__(
        self,
        constraint: Constraint,
        schedule: Schedule | Callable[[StepView], Tensor],
        rate: float,
        burst: float = 1.0,
        *,
        groups: Groups | Tensor | Sequence[int] | None = None,
        on_failure: OnFailure = "keep",
        on_step: Callable[[int, dict[str, float]], None] | None = None,
    ) -> None:
        """Make a corrector for a loop without an end.

        Args:
            constraint: As in `Corrector`.
            schedule: Decides when a correction is worth a token; a schedule or a function of a `StepView`.
            rate: Corrections per step in the long run, above 0 and at most 1.
            burst: How many corrections may be saved up, at least 1.
            groups: As in `Corrector`.
            on_failure: As in `Corrector`.
            on_step: As in `Corrector`, with the number of the step.
        """
        if not 0 < check_number(rate, "rate, corrections per step,") <= 1:
            raise ValueError(f"rate, corrections per step, must be above 0 and at most 1: got {rate!r}")
        if not 1 <= check_number(burst, "burst, corrections to save up,") < math.inf:
            raise ValueError(f"burst, corrections to save up, must be at least 1 and finite: got {burst!r}")
        check_type(constraint, Constraint, "the constraint of a Stream", "as_constraint(…) makes one of functions")
        if "t" in constraint.needs:
            raise ValueError(
                "the constraint needs 't', the step of a run, and a stream has no runs; use another name and pass it, "
                "as in stream(x, time=…)"
            )
        asked = as_schedule(schedule)
        if not asked.uses_defects and not (isinstance(asked.budget, float) and asked.budget == 1.0):
            raise ValueError(
                f"{asked!r} needs a run of known length, and a stream has none; give a function of a StepView, "
                "FixedThreshold(value), the result of calibrate_rate, or Stepwise(), as often as the rate allows"
            )
        if asked.measure_every != 1:
            raise ValueError(
                f"{asked!r} measures defects every few steps of a run, and each step of a stream is a run; give the "
                "schedule inside it"
            )
        if on_step is not None:
            check_callable(on_step, "on_step", "on_step(t, numbers)")
        self.rate, self.burst = float(rate), float(burst)
        self.steps = 0
        self._on_step = on_step
        self._bucket = _Bucket(asked, float(burst))
        self._corrector = Corrector(
            constraint,
            self._bucket,
            1,
            closing="none",
            groups=as_groups(groups),
            on_failure=on_failure,
            on_step=None if on_step is None else self._report,  # a method: a copy reports its own steps
        )
        self._needs_previous = "previous" in constraint.needs
        self._projected: Tensor | None = None

    def __repr__(self) -> str:
        """Show the settings in one line."""
        return f"Stream({self._bucket.schedule!r}, rate={self.rate:g}, burst={self.burst:g}, {self.steps} steps so far)"

    def begin(self, x: Any) -> None:
        """Start again at the states `x` with full buckets. Constraints that need "previous" need this call."""
        self._corrector._owned_trace()  # raises for another thread's run before anything is forgotten
        self.steps = 0
        self._projected = None
        self._bucket.books = {}
        self._corrector.begin(x)

    def __call__(self, proposal: Any, **context: Any) -> Any:
        """Return the next state: corrected where the schedule wants it and there is a token, else the proposal.

        Args:
            proposal: The state after the loop's own update, (n, *event), or a tree of such arrays. Not modified.
            **context: As in `Corrector`.
        """
        corrector = self._corrector
        trace, previous = corrector._trace, corrector._previous
        try:
            x = corrector(proposal, **context)
        except BaseException:
            failed = corrector._trace
            if failed is not None and (failed.broken or failed.complete):
                corrector.reset()  # the same step can be made again
                if trace is not None and previous is not None:
                    corrector.begin(trace.form.state(previous))
            raise
        self._projected = corrector.projected
        groups = corrector.groups
        decided = self._projected if groups is None else self._projected[groups.first_row]
        self._bucket.settle(decided, self.rate)
        self.steps += 1
        if self._needs_previous:
            corrector.begin(x)
        return x

    @property
    def tokens(self) -> Tensor:
        """Tokens of each sample (or group), (n,)."""
        return self._bucket.now("tokens").clone()

    @property
    def spent(self) -> Tensor:
        """Corrections of each sample (or group) so far, (n,) int64."""
        return self._bucket.now("spent").clone()

    @property
    def projected(self) -> Tensor:
        """Which samples the last call corrected, (n,) bool."""
        if self._projected is None:
            raise RuntimeError("the stream has not been called yet")
        return self._projected.clone()

    def _report(self, t: int, numbers: dict[str, float]) -> None:
        assert self._on_step is not None
        self._on_step(self.steps, numbers)


class _Bucket(Schedule):
    """A schedule with a budget of one correction per sample that has a token."""

    def __init__(self, schedule: Schedule, burst: float) -> None:
        self.schedule, self.burst = schedule, burst
        self.books: dict[str, Tensor] = {}

    def now(self, name: str) -> Tensor:
        if not self.books:
            raise RuntimeError("the stream has not been called yet")
        return self.books[name]

    @property
    def budget(self) -> Any:
        return (self.books["tokens"] >= 1 - _ROUNDING).long() if self.books else 1

    def decide(self, view: StepView) -> Tensor:
        if not self.books:
            n, device = len(view), view.defect.device
            self.books = {
                "tokens": torch.full((n,), self.burst, dtype=torch.float64, device=device),
                "since": torch.ones(n, dtype=torch.int64, device=device),
                "spent": torch.zeros(n, dtype=torch.int64, device=device),
            }
        seen = {name: self.books[name].clone() for name in ("tokens", "since")}
        view.context = {**view.context, **seen}
        wanted: Tensor = self.schedule.decide(view)
        return wanted

    def settle(self, corrected: Tensor, rate: float) -> None:
        books = self.books
        books["tokens"] = (books["tokens"] - corrected.double() + rate).clamp(max=self.burst)
        books["since"] = torch.where(corrected, 1, books["since"] + 1)
        books["spent"] = books["spent"] + corrected
