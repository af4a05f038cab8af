"""What a schedule sees that looks at defects after every few updates alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trimtab.core.moment import Moment

__all__ = ["SeenEvery", "looked_at"]


def looked_at(t: int, every: int) -> bool:
    """Whether step t is one at which a schedule looks that does so after every so many updates."""
    return (t + 1) % every == 0


class SeenEvery(Moment):
    """A moment with the defects of looks alone, whether or not the run has measured others for its record.

    In a sum over all steps a look stands for the steps since the last one.
    """

    __slots__ = ("every",)

    def __init__(self, now: Moment, every: int) -> None:
        """What is seen of `now` by a schedule that looks after every so many updates."""
        super().__init__(now.t, now._books, now.proposal, now.context, now._defect, now.again)
        self.every: int = math.lcm(every, now.every) if isinstance(now, SeenEvery) else every

    @property
    def steps_seen(self) -> int:
        """Those up to the last look."""
        return self.every * ((self.t + 1) // self.every)

    @property
    def defects(self) -> Tensor:
        """All defects so far, the present one last, (t + 1, n); NaN where nobody looked."""
        defects = super().defects
        looked = [looked_at(t, self.every) for t in range(self.t + 1)]
        return torch.where(torch.tensor(looked, device=defects.device)[:, None], defects, torch.nan)

    def take(self, rows: slice) -> Moment:
        """The same moment for some of the samples; the proposal is left out."""
        return SeenEvery(super().take(rows), self.every)

    def running_sum(self, term: Callable[[int, Any, Any], Any]) -> Any:
        """As `Moment.running_sum`, of terms that are linear in the defect: a look stands for the steps before it."""
        return super().running_sum(_AtLooks(term, self.every))


@dataclass(frozen=True)
class _AtLooks:
    """A term of a sum over all steps, from what is seen at looks: in between, as if there was no defect."""

    term: Callable[[int, Any, Any], Any]
    every: int

    def __call__(self, t: int, defect: Any, last: Any) -> Any:
        return self.term(t, self.every * defect if looked_at(t, self.every) else 0.0 * last, last)
