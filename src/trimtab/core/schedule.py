"""What a schedule is: it looks at a `StepView` and says which samples of the batch to correct now.

It holds no running state: what has been spent, when the last correction was and which defects were seen is kept by the
loop and shown to it. One schedule therefore serves any number of batches, seeds and processes, with nothing to reset.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from trimtab.core.errors import check_type
from trimtab.core.view import StepView

__all__ = ["Schedule", "as_schedule"]


class Schedule:
    """Which samples to correct now. Derive from it, or write a plain function of a `StepView`.

    Attributes:
        budget: What each sample may spend; None for a schedule that spends at will.
        uses_defects: Whether `decide` reads defects; a rollout does not measure them for one that does not.
        measure_every: After how many updates it looks, if it does; 1 is at every step. In between no defect is measured,
            `StepView.defect` is NaN, and what `decide` says there it says blindly.
        calibration_seeds: Seeds this schedule must not be evaluated on.
        closing: The accounting its prices were made for, "paid" or "free"; "" if it fits any.
        unit: What its prices count, "projection" or "iteration"; "" if it fits either.
        repeats: Whether it is asked again after each iteration of a step, where those are what is counted; otherwise a
            yes is worth one.
        closing_reserve: How many iterations of a budget are kept for a closing projection that it pays for.
    """

    budget: Any = 1.0
    uses_defects: ClassVar[bool] = True

    @property
    def measure_every(self) -> int:
        """Each."""
        return 1

    @property
    def repeats(self) -> bool:
        """Not asked again."""
        return False

    @property
    def unit(self) -> str:
        """Either."""
        return ""

    @property
    def closing_reserve(self) -> int:
        """One, if nothing is known."""
        return 1

    @property
    def calibration_seeds(self) -> tuple[int, ...]:
        """None for a schedule that was not calibrated."""
        return ()

    @property
    def closing(self) -> str:
        """Any."""
        return ""

    def decide(self, view: StepView) -> Any:
        """The samples to correct, (n,) bool; samples with no budget left are left out afterwards."""
        raise NotImplementedError(f"{type(self).__name__} must say which samples to correct: def decide(self, view)")

    def to(self, device: torch.device) -> Self:
        """The same schedule with its tensors on `device`."""
        return self


class ByIteration(Schedule):
    """A schedule that spends iterations of the solver, and is asked again after each."""

    @property
    def unit(self) -> str:
        """Iterations."""
        return "iteration"

    @property
    def repeats(self) -> bool:
        """Asked after each."""
        return True


def as_schedule(schedule: Schedule | Callable[[StepView], Tensor]) -> Schedule:
    """The schedule itself, or a plain function of a `StepView` made into one that spends at will."""
    if isinstance(schedule, Schedule):
        return schedule
    if isinstance(schedule, type) or not callable(schedule):
        hint = (
            "did you forget the parentheses, as in Stepwise()?"
            if isinstance(schedule, type)
            else "a class of your own derives from trimtab.Schedule"
        )
        raise TypeError(f"a schedule is a trimtab.Schedule or a function of a StepView: got {schedule!r} ({hint})")
    return _Function(schedule)


def check_seeds_unused(schedule: Schedule, seeds: Tensor) -> None:
    """Calibration and evaluation never share a seed, (n,)."""
    used = schedule.calibration_seeds
    shared = sorted(set(used) & set(seeds.tolist())) if used else []
    if shared:
        raise ValueError(
            f"{len(shared)} seeds were used to calibrate this schedule and cannot be used to evaluate it (first: "
            f"{shared[:5]}); take others"
        )


@dataclass(frozen=True, eq=False)
class Around(Schedule):
    """Another schedule with something about it changed: all else is as it has it, but for its looks.

    It looks at defects at every step unless a class that derives from it says otherwise.

    Attributes:
        schedule: The other one.
    """

    schedule: Schedule
    budget: Any = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        """Spend what the other one does."""
        object.__setattr__(self, "budget", self.schedule.budget)

    @property
    def calibration_seeds(self) -> tuple[int, ...]:
        """As the other one's."""
        return self.schedule.calibration_seeds

    @property
    def closing(self) -> str:
        """As the other one's."""
        return self.schedule.closing

    @property
    def repeats(self) -> bool:
        """As the other one does."""
        return self.schedule.repeats

    @property
    def unit(self) -> str:
        """As the other one's."""
        return self.schedule.unit

    @property
    def closing_reserve(self) -> int:
        """As the other one's."""
        return self.schedule.closing_reserve

    def decide(self, view: StepView) -> Any:
        """As the other one does."""
        return self.schedule.decide(view)

    def to(self, device: torch.device) -> Self:
        """The same on `device`."""
        return replace(self, schedule=self.schedule.to(device))


@dataclass(frozen=True, eq=False)
class Watched(Around):
    """A schedule whose rollouts have the defects of all steps measured, although it does not look at them itself.

    Attributes:
        schedule: What decides.
    """

    def __post_init__(self) -> None:
        """Refuse what is no schedule."""
        check_type(
            self.schedule, Schedule, "the schedule that is watched", "trimtab.core.schedule.as_schedule makes one"
        )
        super().__post_init__()


def watched(schedule: Schedule) -> Schedule:
    """The schedule itself if it looks at every step, else the same with all its steps measured."""
    return schedule if schedule.uses_defects and schedule.measure_every == 1 else Watched(schedule)


@dataclass(frozen=True, eq=False)
class _Function(Schedule):
    function: Callable[[StepView], Tensor]
    budget: Any = None

    @property
    def repeats(self) -> bool:
        return True

    def decide(self, view: StepView) -> Tensor:
        return self.function(view)
