"""A schedule whose runs measure all defects."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch import Tensor

from trimtab.core.schedule import Schedule
from trimtab.core.view import StepView

__all__ = ["measured"]


def measured(schedule: Schedule) -> Schedule:
    """Return a schedule that decides the same, and that a `Corrector` measures the defects of all steps for.

    Calibration and comparisons give it to loops of the user, whose correctors they do not make.
    """
    return schedule if schedule.uses_defects else _Measured(schedule)


@dataclass(frozen=True, eq=False)
class _Measured(Schedule):
    schedule: Schedule
    budget: Any = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        for name in Schedule.__annotations__:
            if name != "uses_defects":
                object.__setattr__(self, name, getattr(self.schedule, name))

    def decide(self, view: StepView) -> Any:
        return self.schedule.decide(view)

    def priority(self, view: StepView) -> Tensor:
        return self.schedule.priority(view)

    def pools(self, n: int) -> Tensor | None:
        return self.schedule.pools(n)

    def to(self, device: torch.device) -> Self:
        return replace(self, schedule=self.schedule.to(device))
