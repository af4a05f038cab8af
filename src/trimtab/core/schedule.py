"""What a schedule is, what it sees, and what a budget is.

A schedule looks at a `Moment` and says which samples of the batch to project now. It holds no running state: what
has been spent, when the last projection was and which defects were seen is kept by the rollout and shown to it. One
schedule can therefore serve any number of batches, seeds and processes, with nothing to reset.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

__all__ = ["Budget", "Moment", "Schedule", "as_schedule", "corrections"]

Budget = int | float | Tensor
"""A whole number counts projections, a float is a fraction of T, an integer tensor (n,) is a count a sample."""


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
        if budget.ndim != 1 or budget.is_floating_point() or budget.dtype == torch.bool:
            raise ValueError(
                "a budget tensor must hold one whole number a sample, shape (n,): got "
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


class Moment(NamedTuple):
    """What a schedule may look at when it decides; everything is for reading only.

    Attributes:
        t: The step, 0 to n_steps - 1.
        n_steps: T.
        defect: Of the proposals, (n,).
        budget_left: Corrections each sample may still spend, (n,) int64.
        proposal: The states before the decision, (n, *event); None when decisions are replayed from a record.
        record: Defects and decisions of all T steps, (T, n) each, filled in up to now; see `defects`, `projected`.
        seeds: Each sample's seed, (n,), where the loop knows it.
        last: 1 + the step after which each sample was last projected, 0 for never, (n,) int64.
        memory: Belongs to the run: a schedule that needs running sums may keep them here.
    """

    t: int
    n_steps: int
    defect: Tensor
    budget_left: Tensor
    proposal: Tensor | None
    record: tuple[Tensor, Tensor]
    seeds: Tensor | None
    last: Tensor
    memory: dict[str, Tensor]

    @property
    def defects(self) -> Tensor:
        """All defects so far, the present one last, (t + 1, n)."""
        return self.record[0][: self.t + 1]

    @property
    def projected(self) -> Tensor:
        """All decisions so far, (t, n) bool."""
        return self.record[1][: self.t]

    @property
    def since(self) -> Tensor:
        """Updates since each sample was last projected (or began), (n,), at least 1."""
        return self.t + 1 - self.last


@runtime_checkable
class Schedule(Protocol):
    """Which samples to project now. Any callable of a `Moment` will do too.

    A schedule that never looks at defects says so with an attribute `looks_at_defects = False`; a rollout can then be
    asked not to measure them.
    """

    def decide(self, now: Moment) -> Tensor:
        """The samples to project, (n,) bool. Samples with no budget left are left out afterwards."""
        ...


def as_schedule(schedule: Schedule | Callable[[Moment], Tensor]) -> Schedule:
    """The schedule itself, or a plain function of a `Moment` made into one with a budget of T."""
    if isinstance(schedule, type) or not (hasattr(schedule, "decide") or callable(schedule)):
        raise ValueError(
            f"a schedule is a value with decide(moment) or a function of a moment: got {schedule!r} "
            "(did you forget the parentheses, as in Stepwise()?)"
        )
    return schedule if hasattr(schedule, "decide") else _Function(schedule)


@dataclass(frozen=True, eq=False)
class _Function:
    function: Callable[[Moment], Tensor]
    budget: float = 1.0

    def decide(self, now: Moment) -> Tensor:
        return self.function(now)
