"""What a schedule sees that looks at defects after every few updates alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trimtab.core.view import StepView

__all__ = ["SparseView", "is_measured_step"]


def is_measured_step(t: int, every: int) -> bool:
    """Whether step t is one at which a schedule looks that does so after every so many updates."""
    return (t + 1) % every == 0


class SparseView(StepView):
    """A moment with the defects of looks alone, whether or not the run has measured others for its record.

    In a sum over all steps a look stands for the steps since the last one.
    """

    __slots__ = ("every",)

    def __init__(self, view: StepView, every: int) -> None:
        """What is seen of `now` by a schedule that looks after every so many updates."""
        super().__init__(view.t, view._books, view.proposal, view.context, view._defect, view.again)
        self.every: int = math.lcm(every, view.every) if isinstance(view, SparseView) else every

    @property
    def steps_measured(self) -> int:
        """Those up to the last look."""
        return self.every * ((self.t + 1) // self.every)

    @property
    def defects(self) -> Tensor:
        """All defects so far, the present one last, (t + 1, n); NaN where nobody looked."""
        defects = super().defects
        looked = [is_measured_step(t, self.every) for t in range(self.t + 1)]
        return torch.where(torch.tensor(looked, device=defects.device)[:, None], defects, torch.nan)

    def take(self, rows: slice) -> StepView:
        """The same moment for some of the samples; the proposal is left out."""
        return SparseView(super().take(rows), self.every)

    def running_sum(self, term: Callable[[int, Any, Any], Any]) -> Any:
        """As `StepView.running_sum`, of terms that are linear in the defect: a look stands for the steps before it."""
        return super().running_sum(_AtLooks(term, self.every))


@dataclass(frozen=True)
class _AtLooks:
    """A term of a sum over all steps, from what is seen at looks: in between, as if there was no defect."""

    term: Callable[[int, Any, Any], Any]
    every: int

    def __call__(self, t: int, defect: Any, last: Any) -> Any:
        return self.term(t, self.every * defect if is_measured_step(t, self.every) else 0.0 * last, last)
