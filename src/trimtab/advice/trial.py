"""One schedule at one budget, as it was measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from trimtab.advice.diagnosis import Interval
from trimtab.core.schedule import Schedule

__all__ = ["KINDS", "Cost", "Kind", "Trial"]

Cost = Literal["seconds", "projections"]
Kind = Literal["terminal", "periodic", "window", "planned", "adaptive", "stepwise"]

KINDS = ("periodic", "window", "planned", "adaptive")
"""Schedules that take a budget, the simplest first."""


@dataclass(frozen=True, eq=False)
class Trial:
    """One schedule at one budget, measured on the seeds kept apart.

    Attributes:
        kind: Of schedule.
        budget: Corrections.
        values: The loss of each sample or group, (n,): 0 is full projection, 1 is terminal projection on average; NaN
            where timing is of no consequence.
        loss: The mean of that, with the interval of the share as a whole.
        measured: The measure itself, (n,), lower being better.
        nepe: Mean normalised excess path error.
        seconds: Wall clock per sample, in a batch of n.
        projections: Per sample, the closing one included, and looks at what one is said to cost.
        endpoint: Mean distance of the final states to those of the stepwise rollout.
        schedule: That was run.
    """

    kind: Kind
    budget: int
    values: Tensor
    loss: Interval
    measured: Tensor
    nepe: float
    seconds: float
    projections: float
    endpoint: float
    schedule: Schedule

    @property
    def never_projects(self) -> bool:
        """Whether no state is corrected, as of a terminal rollout whose loop leaves its last state as it is."""
        return self.projections == 0

    def cost(self, unit: Cost) -> float:
        """In seconds or in projections per sample."""
        return self.seconds if unit == "seconds" else self.projections
