"""What a schedule is, what it sees, and what a budget is.

A schedule looks at a `Moment` and says which samples of the batch to correct now. It holds no running state: what has
been spent, when the last correction was and which defects were seen is kept by the loop and shown to it. One schedule
can therefore serve any number of batches, seeds and processes, with nothing to reset.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

__all__ = ["Budget", "Moment", "Schedule", "as_schedule", "corrections", "last_corrections", "most_corrections"]

Budget = int | float | Tensor
"""A whole number counts corrections, a float is a fraction of T, an integer tensor (n,) is a count per sample."""


def corrections(budget: Budget, n_steps: int) -> int | Tensor:
    """The budget as a number of corrections, between 0 and `n_steps`.

    Args:
        budget: A count, a fraction of `n_steps` (rounded to the nearest count), or a count for each sample.
        n_steps: T, the number of update locations.

    Example:
        >>> corrections(0.25, 100), corrections(7, 100), corrections(1.0, 100)
        (25, 7, 100)
    """
    if isinstance(budget, Tensor):
        if budget.ndim != 1 or budget.is_floating_point() or budget.is_complex() or budget.dtype == torch.bool:
            raise ValueError(
                "a budget tensor must hold one whole number per sample, shape (n,): got "
                f"{tuple(budget.shape)} of {budget.dtype}"
            )
        if bool(((budget < 0) | (budget > n_steps)).any()):
            raise ValueError(f"budgets must be between 0 and T = {n_steps}: got {budget.tolist()[:8]}")
        return budget
    if isinstance(budget, bool) or not isinstance(budget, int | float | np.integer | np.floating):
        raise ValueError(f"a budget is a whole number, a fraction of T or an integer tensor: got {budget!r}")
    if isinstance(budget, int | np.integer):
        if not 0 <= budget <= n_steps:
            raise ValueError(f"a budget of {budget} corrections does not fit T = {n_steps} steps: give 0 to {n_steps}")
        return int(budget)
    if not 0.0 <= budget <= 1.0:
        raise ValueError(
            f"a float budget is a fraction of T and must be in [0, 1]: got {budget} (for a count, give a whole number)"
        )
    return int(budget * n_steps + 0.5)


def most_corrections(budget: Budget, n_steps: int) -> int:
    """The largest number of corrections that any sample may spend."""
    return int(torch.as_tensor(corrections(budget, n_steps)).max())


class Moment:
    """What a schedule may look at when it decides.

    It is for reading only: every tensor is a copy, and nothing that is done to it changes the run.

    Attributes:
        t: The step, 0 to n_steps - 1.
        n_steps: T.
        proposal: The states before the decision, as the loop keeps them; None when decisions are replayed from a
            record.
        context: What the loop passed with this step by name, such as a noise level.
    """

    __slots__ = ("_defect", "_kept_back", "_memo", "_record", "_sample", "context", "n_steps", "proposal", "t")

    def __init__(
        self,
        t: int,
        n_steps: int,
        defects: Tensor,
        projected: Tensor,
        budget_left: Tensor,
        last: Tensor,
        *,
        spent: Tensor | None = None,
        seeds: Tensor | None = None,
        proposal: Any = None,
        context: Mapping[str, Any] | None = None,
        defect: Tensor | None = None,
        kept_back: int = 0,
        memo: dict[Hashable, Any] | None = None,
    ) -> None:
        """Made by the loop.

        Args:
            t: The step.
            n_steps: T.
            defects: Of all steps, (T, n), filled in up to now.
            projected: Decisions of all steps, (T, n) bool, filled in up to the step before.
            budget_left: (n,) int64.
            last: 1 + the step after which each sample was last corrected, 0 for never, (n,) int64.
            spent: (n,) int64; counted from `projected` if not given.
            seeds: (n,), if the loop knows them.
            proposal: See the class.
            context: See the class.
            defect: Of the present states, (n,), where that is no longer the proposal's.
            kept_back: How many corrections of each sample's budget belong to the closing projection.
            memo: Sums that go on from step to step, kept by the run.
        """
        self.t, self.n_steps = t, n_steps
        self.proposal, self.context = proposal, context or {}
        self._defect = defects[t] if defect is None else defect
        self._record, self._sample = (defects, projected), (budget_left, last, spent, seeds)
        self._kept_back = kept_back
        self._memo: dict[Hashable, Any] = {} if memo is None else memo

    def __len__(self) -> int:
        """The number of samples."""
        return len(self._defect)

    @property
    def defect(self) -> Tensor:
        """Of the proposals, (n,)."""
        return self._defect.clone()

    @property
    def budget_left(self) -> Tensor:
        """Corrections each sample may still spend, (n,) int64."""
        return self._sample[0].clone()

    @property
    def spendable(self) -> Tensor:
        """Corrections each sample may spend before the closing projection, (n,) int64."""
        return self._sample[0] - self._kept_back

    @property
    def steps_to_go(self) -> int:
        """At how many steps, this one included, those can be spent."""
        return self.n_steps - self.t - self._kept_back

    @property
    def spent(self) -> Tensor:
        """Corrections each sample has spent so far, (n,) int64."""
        spent = self._sample[2]
        return self._record[1][: self.t].sum(dim=0) if spent is None else spent.clone()

    @property
    def last(self) -> Tensor:
        """1 + the step after which each sample was last corrected, 0 for never, (n,) int64."""
        return self._sample[1].clone()

    @property
    def since(self) -> Tensor:
        """Updates since each sample was last corrected (or began), (n,), at least 1."""
        return self.t + 1 - self._sample[1]

    @property
    def seeds(self) -> Tensor | None:
        """Each sample's seed, (n,), where the loop knows it."""
        seeds = self._sample[3]
        return None if seeds is None else seeds.clone()

    @property
    def defects(self) -> Tensor:
        """All defects so far, the present one last, (t + 1, n)."""
        return self._record[0][: self.t + 1].clone()

    @property
    def projected(self) -> Tensor:
        """All decisions so far, (t, n) bool."""
        return self._record[1][: self.t].clone()

    def take(self, rows: slice) -> Moment:
        """The same moment for some of the samples; the proposal is left out."""
        left, last, spent, seeds = (None if part is None else part[rows] for part in self._sample)
        assert left is not None
        assert last is not None
        defects, projected = (part[:, rows] for part in self._record)
        memo = self._memo.setdefault((rows.start, rows.stop), {})
        return Moment(
            self.t,
            self.n_steps,
            defects,
            projected,
            left,
            last,
            spent=spent,
            seeds=seeds,
            context=self.context,
            kept_back=self._kept_back,
            memo=memo,
        )

    def running_sum(self, term: RunningTerm) -> Tensor:
        """The sum of `term(u, defect, last)` over all steps u up to now, (n,).

        It depends on the record alone. What was summed up to the step before is remembered by the run under the term
        itself, so that two schedules with different terms do not disturb each other.

        Args:
            term: `term(u, defect, last)` of step u, (n,), with the defects (n,) of that step and 1 + the step of the
                last correction before it (n,).
        """
        done: int
        total: Tensor | None
        done, total = self._memo.get(term, (-1, None))
        if done == self.t and total is not None:
            return total.clone()
        now = term(self.t, self._record[0][self.t], self._sample[1])
        if done != self.t - 1 or total is None:  # nothing was summed before, or steps were left out
            last = last_corrections(self._record[1][: self.t + 1])
            for u in range(self.t):
                earlier = term(u, self._record[0][u], last[u])
                total = earlier if u == 0 or total is None else total + earlier
        total = now if self.t == 0 or total is None else total + now
        self._memo[term] = (self.t, total)
        return total.clone()


RunningTerm = Callable[[int, Tensor, Tensor], Tensor]


def last_corrections(projected: Tensor) -> Tensor:
    """1 + the step after which each sample was last corrected before each step, 0 for never: (T, n) to (T, n)."""
    steps = torch.arange(1, len(projected) + 1, device=projected.device)
    at = torch.where(projected, steps[:, None], 0).cummax(dim=0).values
    return torch.cat([torch.zeros_like(at[:1]), at[:-1]])


class Schedule:
    """Which samples to correct now. Derive from it, or write a plain function of a `Moment`.

    Attributes:
        budget: What each sample may spend; a schedule that spends at will has T.
        looks_at_defects: Whether `decide` reads defects; a rollout does not measure them for one that does not.
        calibration_seeds: Seeds this schedule must not be evaluated on.
        closing: The accounting its prices were made for, "paid" or "free"; "" if it fits any.
    """

    budget: Any = 1.0
    looks_at_defects: ClassVar[bool] = True

    @property
    def calibration_seeds(self) -> tuple[int, ...]:
        """None for a schedule that was not calibrated."""
        return ()

    @property
    def closing(self) -> str:
        """Any."""
        return ""

    def decide(self, now: Moment) -> Tensor:
        """The samples to correct, (n,) bool. Samples with no budget left are left out afterwards."""
        raise NotImplementedError(f"{type(self).__name__} must say which samples to correct: def decide(self, now)")

    def to(self, device: torch.device) -> Self:
        """The same schedule with its tensors on `device`."""
        return self


def as_schedule(schedule: Schedule | Callable[[Moment], Tensor]) -> Schedule:
    """The schedule itself, or a plain function of a `Moment` made into one with a budget of T."""
    if isinstance(schedule, Schedule):
        return schedule
    if isinstance(schedule, type) or not callable(schedule):
        hint = (
            "did you forget the parentheses, as in Stepwise()?"
            if isinstance(schedule, type)
            else "a class of your own derives from trimtab.Schedule"
        )
        raise TypeError(f"a schedule is a trimtab.Schedule or a function of a Moment: got {schedule!r} ({hint})")
    return _Function(schedule)


@dataclass(frozen=True, eq=False)
class _Function(Schedule):
    function: Callable[[Moment], Tensor]

    def decide(self, now: Moment) -> Tensor:
        return self.function(now)
