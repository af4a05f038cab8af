"""What a schedule is: it looks at a `StepView` and returns which samples of the batch to correct now.

A schedule holds no running state: what was spent, when the last correction was and which defects were measured is
recorded by the loop and shown to it. One schedule therefore serves any number of batches, seeds and processes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from trimtab.core.budget import PerBatch
from trimtab.core.view import StepView

__all__ = ["Schedule", "as_schedule"]


class Schedule:
    """Decides which samples to correct. Derive from it, or write a plain function of a `StepView`.

    Attributes:
        budget: What each sample may spend, or `PerBatch(…)`; None for a schedule without a limit.
        uses_defects: Whether `decide` reads defects; a rollout does not measure them otherwise.
        whole: Whether a yes means a whole projection even if a budget counts iterations.
        spends_all: Whether a shared budget must be spent whole.
        measure_every: After how many updates it measures defects; 1 is at every step. `StepView.defect` is NaN between.
        calibration_seeds: Seeds this schedule must not be evaluated on.
        closing: The `closing` its prices were made for; "" if it fits any.
        unit: What its prices count, "projection" or "iteration"; "" if it fits either.
        repeats: Whether it is asked again after each iteration of a step; otherwise a yes buys one iteration.
        closing_reserve: How many iterations of a budget are reserved for a closing projection.
    """

    budget: Any = 1.0
    uses_defects: ClassVar[bool] = True
    whole: ClassVar[bool] = False
    spends_all: bool = True
    measure_every: Any = 1
    calibration_seeds: Any = ()
    closing: Any = ""
    unit: Any = ""
    repeats: Any = False
    closing_reserve: Any = 1

    def decide(self, view: StepView) -> Any:
        """Return the samples to correct, (n,) bool; the loop leaves out samples with no budget left."""
        raise NotImplementedError(f"{type(self).__name__} must define decide(self, view): which samples to correct")

    def priority(self, view: StepView) -> Tensor:
        """Return the priority of each sample, (n,), larger first, if a shared budget does not pay for all."""
        return view.defect.nan_to_num(0.0)

    def pools(self, n: int) -> Tensor | None:
        """Return the pool that each of n samples draws from, (n,) int64, -1 for its own budget; None if none share."""
        return self.budget.pools(n) if isinstance(self.budget, PerBatch) else None

    def to(self, device: torch.device) -> Self:
        """Return the same schedule with its tensors on `device`."""
        return self


class ByIteration(Schedule):
    """A schedule that buys iterations of the solver, and is asked again after each."""

    unit = "iteration"
    repeats = True


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
class Around(Schedule):
    """A schedule that wraps another one and forwards everything, except how often defects are measured.

    Attributes:
        schedule: The wrapped one.
    """

    schedule: Schedule
    budget: Any = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        """Forward the settings of the wrapped schedule."""
        for name in ("budget", "calibration_seeds", "closing", "repeats", "unit", "closing_reserve", "spends_all"):
            object.__setattr__(self, name, getattr(self.schedule, name))
        object.__setattr__(self, "whole", self.schedule.whole)

    def decide(self, view: StepView) -> Any:
        """Return the decision of the wrapped schedule."""
        return self.schedule.decide(view)

    def priority(self, view: StepView) -> Tensor:
        """Return the priority of the wrapped schedule."""
        return self.schedule.priority(view)

    def pools(self, n: int) -> Tensor | None:
        """Return the pools of the wrapped schedule."""
        return self.schedule.pools(n)

    def to(self, device: torch.device) -> Self:
        """Return the same schedule on `device`."""
        return replace(self, schedule=self.schedule.to(device))


class Watched(Around):
    """A schedule whose rollouts have the defects of all steps measured, although it may not use them."""


def watched(schedule: Schedule) -> Schedule:
    """Return the schedule itself if it measures every step, else the same with all steps measured."""
    return schedule if schedule.uses_defects and schedule.measure_every == 1 else Watched(schedule)


@dataclass(frozen=True, eq=False)
class _Function(Schedule):
    function: Callable[[StepView], Tensor]
    budget: Any = None
    repeats = True

    def decide(self, view: StepView) -> Tensor:
        return self.function(view)
