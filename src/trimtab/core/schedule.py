"""What a schedule is: it looks at a `StepView` and returns which samples of the batch to correct now, and how.

A schedule holds no running state: what was spent, when the last correction was and which defects were measured is
recorded by the loop and shown to it. One schedule therefore serves any number of batches, seeds and processes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from trimtab.core.budget import Cost, PerBatch
from trimtab.core.view import StepView

__all__ = ["WHOLE", "Schedule", "as_schedule"]

WHOLE = "whole"
"""The name of the way that is the constraint's own `project`."""


class Schedule:
    """Decides which samples to correct. Derive from it, or write a plain function of a `StepView`.

    Attributes:
        budget: What each sample may spend, or `PerBatch(…)`; None for a schedule without a limit.
        ways: The names of the ways of correcting that it chooses from; see `trimtab.constraints.ways`.
        uses_defects: Whether `decide` reads defects; a rollout does not measure them otherwise.
        spends_all: Whether a shared budget must be spent whole.
        calibration_seeds: Seeds this schedule must not be evaluated on.
        closing: The `closing` its prices were made for; "" if it fits any.
        unit: What its budget counts; "" if it fits any.
        cost: What calls, rows and iterations cost, if that is not what the unit says.
        closing_reserve: Units of each budget that are kept for the closing projection.
    """

    budget: Any = 1.0
    ways: tuple[str, ...] = (WHOLE,)
    uses_defects: ClassVar[bool] = True
    spends_all: bool = True
    calibration_seeds: Any = ()
    closing: Any = ""
    unit: Any = ""
    cost: Cost | None = None
    closing_reserve: float = 1

    def decide(self, view: StepView) -> Any:
        """Return the samples to correct, (n,) bool, or which way each takes, (n,) int64; 0 is to stay as proposed.

        The i-th way is the number i, from 1; True is the last way. The loop leaves out samples with no budget left.
        """
        raise NotImplementedError(f"{type(self).__name__} must define decide(self, view): which samples to correct")

    def priority(self, view: StepView) -> Tensor:
        """Return the priority of each sample, (n,), larger first, if a shared budget does not pay for all."""
        return view.defect.nan_to_num(0.0)

    def pools(self, n: int) -> Tensor | None:
        """Return the pool that each of n samples draws from, (n,) int64, -1 for its own budget; None if none share."""
        return self.budget.pools(n) if isinstance(self.budget, PerBatch) else None

    def trials(self, n: int) -> Tensor | None:
        """Return the rows on which every way is tried at every step, beside what they take, (k,); None for none."""
        return None

    def check_fits(self, event: tuple[int, ...] | None = None, constraint: str = "", defect: float = 0.0) -> None:
        """Raise if the schedule was made for other states, another constraint or another scale of defects."""

    def to(self, device: torch.device) -> Self:
        """Return the same schedule with its tensors on `device`."""
        return self


def as_schedule(schedule: Any) -> Schedule:
    """Return the schedule itself, or a plain function of a `StepView` as a schedule without a limit."""
    if isinstance(schedule, Schedule):
        return schedule
    if isinstance(schedule, type) or not callable(schedule):
        hint = "a class of your own derives from trimtab.Schedule"
        if isinstance(schedule, type):
            hint = "did you forget the parentheses, as in Stepwise()?"
        elif hasattr(schedule, "at"):
            hint = "a price becomes a schedule by its budget, as in price.at(0.25)"
        raise TypeError(
            "a schedule must be a trimtab.Schedule, a function of a StepView or a budget: got "
            f"{schedule!r:.60} ({hint})"
        )
    return _Function(schedule)


def check_seeds_unused(schedule: Schedule, seeds: Tensor) -> None:
    """Raise if one of the seeds, (n,), calibrated the schedule."""
    used = schedule.calibration_seeds
    shared = sorted(set(used) & set(seeds.tolist())) if used else []
    if shared:
        raise ValueError(
            f"{len(shared)} seeds were used to calibrate this schedule and cannot be used to evaluate it (first: "
            f"{shared[:5]}); use others"
        )


@dataclass(frozen=True, eq=False)
class _Function(Schedule):
    function: Callable[[StepView], Tensor]
    budget: Any = None

    def decide(self, view: StepView) -> Tensor:
        return self.function(view)
