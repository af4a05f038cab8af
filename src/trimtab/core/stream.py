"""Corrections in a loop with no known end: a rate instead of a budget."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from threading import get_ident
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trimtab.core.bound_constraint import OnFailure
from trimtab.core.constraint import Constraint
from trimtab.core.corrector import Corrector
from trimtab.core.errors import check_callable, check_type
from trimtab.core.groups import Groups, as_groups
from trimtab.core.schedule import Schedule, as_schedule
from trimtab.core.view import StepView

__all__ = ["Stream"]

_ROUNDING = 1e-9  # ten tenths of a token are one


class Stream:
    """Corrects the states of a loop with no known end: at most `rate` corrections per step in the long run.

    Each sample has a bucket of at most `burst` tokens, full at the beginning. Every step adds `rate` of one, a
    correction takes one, and without a whole one there is none: k steps see at most `burst + rate * k` corrections of a
    sample, whatever its defects do. Every step is a run of its own to a `Corrector`, so that constraints, context,
    trees, groups and failures are as there; there is no last step, and no closing projection.

    The schedule decides on a `StepView` of one step. `view.context` also has "tokens" and "since", the steps since each
    sample was last corrected (or began), (n,) each; `trimtab.prices.rates` calibrates a price that reads them.

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
        """Make a corrector for a loop that may go on for ever.

        Args:
            constraint: As in `Corrector`.
            schedule: When a correction is worth a token; a schedule value or a function of a `StepView`.
            rate: Corrections per step in the long run, above 0 and at most 1.
            burst: How many may be saved up, at least 1.
            groups: As in `Corrector`.
            on_failure: As in `Corrector`.
            on_step: As in `Corrector`, with the number of the step.
        """
        if not (isinstance(rate, int | float | np.integer | np.floating) and 0 < rate <= 1):
            raise ValueError(f"rate is corrections per step, above 0 and at most 1: got {rate!r}")
        if not (isinstance(burst, int | float | np.integer | np.floating) and 1 <= burst < math.inf):
            raise ValueError(f"burst is how many corrections may be saved up, at least 1 and finite: got {burst!r}")
        if isinstance(rate, bool) or isinstance(burst, bool):
            raise TypeError(f"rate and burst are numbers: got rate={rate!r} and burst={burst!r}")
        check_type(constraint, Constraint, "the constraint of a Stream", "as_constraint(…) makes one of functions")
        if "t" in constraint.needs:
            raise ValueError(
                "the constraint needs 't', the step of a run, and a stream has no runs; call it by another name and "
                "pass it, as in stream(x, time=…)"
            )
        asked = as_schedule(schedule)
        if not asked.uses_defects and not (isinstance(asked.budget, float) and asked.budget == 1.0):
            raise ValueError(
                f"{asked!r} goes by the steps of a run of known length, and a stream has none; give a function of a "
                "StepView, FixedThreshold(value), what calibrate_rate returns, or Stepwise(), as often as the rate allows"
            )
        if asked.measure_every != 1:
            raise ValueError(
                f"{asked!r} counts the steps of a run between its looks, and a step of a stream is a run of its own; "
                "give the schedule that it is made of"
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
            on_step=None if on_step is None else self._tell,  # a method: a copy tells of its own steps
        )
        self._needs_previous = "previous" in constraint.needs
        self._projected: Tensor | None = None

    def __repr__(self) -> str:
        """One line."""
        return f"Stream({self._bucket.schedule!r}, rate={self.rate:g}, burst={self.burst:g}, {self.steps} steps so far)"

    def begin(self, x: Any) -> None:
        """Begin anew with the initial states `x`: full buckets. Needed by constraints that need "previous"."""
        self._corrector._own()  # another thread's run is refused before anything is forgotten
        self.steps = 0
        self._projected = None
        self._bucket.empty()
        self._corrector.begin(x)

    def __call__(self, proposal: Any, **context: Any) -> Any:
        """The state to go on with: corrected where the schedule wants it and there is a token, the proposal elsewhere.

        Args:
            proposal: The state after the loop's own update, (n, *event), or a tree of such arrays. Not modified.
            **context: As in `Corrector`.
        """
        corrector = self._corrector
        ledger, previous = corrector._ledger, corrector._previous
        try:
            x = corrector(proposal, **context)
        except BaseException:
            failed = corrector._ledger
            if failed is not None and failed.thread == get_ident() and (failed.broken or failed.complete):
                corrector.reset()  # the step can be made again, from where it was
                if ledger is not None and previous is not None:
                    corrector.begin(ledger.form.state(previous))
            raise
        self._projected = corrector.projected
        self._bucket.settle(self._decided(self._projected), self.rate)
        self.steps += 1
        if self._needs_previous:
            corrector.begin(x)
        return x

    @property
    def tokens(self) -> Tensor:
        """What each sample (or group) has saved up, (n,)."""
        return self._bucket.now("tokens").clone()

    @property
    def spent(self) -> Tensor:
        """Corrections each sample (or group) has had, (n,) int64."""
        return self._bucket.now("spent").clone()

    @property
    def projected(self) -> Tensor:
        """Which samples the last call corrected, (n,) bool."""
        if self._projected is None:
            raise RuntimeError("the stream has not been called yet")
        return self._projected.clone()

    def _tell(self, t: int, numbers: dict[str, float]) -> None:
        """Hand on the numbers of a step, which is step 0 of a run of its own, with its number in the stream."""
        assert self._on_step is not None
        self._on_step(self.steps, numbers)

    def _decided(self, projected: Tensor) -> Tensor:
        """Which samples, or groups, were corrected."""
        groups = self._corrector.groups
        return projected if groups is None else projected[groups.first_row]


class _Bucket(Schedule):
    """What each sample may spend at this step: one correction, or none."""

    def __init__(self, schedule: Schedule, burst: float) -> None:
        self.schedule, self.burst = schedule, burst
        self.books: dict[str, Tensor] = {}

    def empty(self) -> None:
        self.books = {}

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
        """After a step: take what was spent, add what came in."""
        books = self.books
        books["tokens"] = (books["tokens"] - corrected.double() + rate).clamp(max=self.burst)
        books["since"] = torch.where(corrected, 1, books["since"] + 1)
        books["spent"] = books["spent"] + corrected
