"""A schedule that looks less often, where a look at the defect is not negligible."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from trimtab.core.checks import check_integer
from trimtab.core.schedule import Around, as_schedule
from trimtab.core.view import SparseView, StepView, is_measured_step
from trimtab.schedules.basic import brief_repr

__all__ = ["MeasureEvery"]


@dataclass(frozen=True, eq=False)
class MeasureEvery(Around):
    """Another schedule that looks at defects, and corrects, after every so many updates alone.

    No defect is measured in between, and what was measured there for the record is not shown to it.

    Attributes:
        schedule: What decides where it looks; a schedule value or a function of a `StepView`.
        every: After how many updates; 1 leaves the other one as it is.

    Example:
        >>> import torch, trimtab as tt
        >>> from trimtab.schedules import FixedThreshold, MeasureEvery
        >>> ball = tt.as_constraint(torch.zeros_like, lambda x: x.norm(dim=1))
        >>> corrector = tt.Corrector(ball, MeasureEvery(FixedThreshold(0.5), 3), n_steps=8)
        >>> for t in range(8):
        ...     x = corrector(torch.ones(1, 2), t)
        >>> corrector.rollout.calls["defect"], corrector.rollout.projected[:, 0].nonzero().squeeze(1).tolist()
        (2, [2, 5, 7])
    """

    every: int = 2
    __repr__ = brief_repr

    def __post_init__(self) -> None:
        """Refuse what is no schedule that looks, and no number of steps."""
        object.__setattr__(self, "schedule", as_schedule(self.schedule))
        if not self.schedule.uses_defects:
            raise ValueError(f"{self.schedule!r} looks at no defect at all, and cannot do so less often")
        check_integer(self.every, "every, the updates from one look to the next,", 1)
        super().__post_init__()

    @property
    def measure_every(self) -> int:
        """So many, and as the other one does."""
        return math.lcm(self.every, self.schedule.measure_every)

    def decide(self, view: StepView) -> Any:
        """As the other one does where it looks; no sample in between."""
        if self.every == 1:
            return self.schedule.decide(view)
        if not is_measured_step(view.t, self.every):
            return torch.zeros(len(view), dtype=torch.bool, device=view.defect.device)
        return self.schedule.decide(SparseView(view, self.every))
