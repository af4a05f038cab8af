"""A schedule that looks less often, where a look at the defect is not negligible."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from trimtab.core.errors import whole_number
from trimtab.core.looks import SeenEvery, looked_at
from trimtab.core.moment import Moment
from trimtab.core.schedule import Around, as_schedule
from trimtab.schedules.basic import brief_repr

__all__ = ["LookEvery"]


@dataclass(frozen=True, eq=False)
class LookEvery(Around):
    """Another schedule that looks at defects, and corrects, after every so many updates alone.

    No defect is measured in between, and what was measured there for the record is not shown to it.

    Attributes:
        schedule: What decides where it looks; a schedule value or a function of a `Moment`.
        every: After how many updates; 1 leaves the other one as it is.

    Example:
        >>> import torch, trimtab as tt
        >>> from trimtab.schedules import FixedThreshold, LookEvery
        >>> ball = tt.as_constraint(torch.zeros_like, lambda x: x.norm(dim=1))
        >>> corrector = tt.Corrector(ball, LookEvery(FixedThreshold(0.5), 3), n_steps=8)
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
        if not self.schedule.looks_at_defects:
            raise ValueError(f"{self.schedule!r} looks at no defect at all, and cannot do so less often")
        whole_number(self.every, "every, the updates from one look to the next,", 1)
        super().__post_init__()

    @property
    def looks_every(self) -> int:
        """So many, and as the other one does."""
        return math.lcm(self.every, self.schedule.looks_every)

    def decide(self, now: Moment) -> Any:
        """As the other one does where it looks; no sample in between."""
        if self.every == 1:
            return self.schedule.decide(now)
        if not looked_at(now.t, self.every):
            return torch.zeros(len(now), dtype=torch.bool, device=now.defect.device)
        return self.schedule.decide(SeenEvery(now, self.every))
