"""How many iterations each step may take, fixed in advance: the simplest ways to spend a budget of iterations.

They look at no defect and are what prices have to beat: a solver that is cut short at every step, or at evenly spaced
ones, and whole projections at evenly spaced steps or in a window.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from trimtab.core.budget import Budget, Unit
from trimtab.core.checks import check_type
from trimtab.core.schedule import ByIteration
from trimtab.core.view import StepView
from trimtab.prices.provenance import Priced, Provenance, budget_within

__all__ = ["Allowance", "Allowed", "counts_with_closing", "even_counts", "whole_counts"]

WHOLE = 10_000
"""As many iterations as a step may want: the solver ends before."""


@dataclass(frozen=True, eq=False)
class Allowance(Provenance):
    """The most iterations that each step may take, for every budget up to B.

    Attributes:
        counts: (B + 1, T) int16; what a sample has left limits them further.
        closing_reserve: How many units of a budget are kept for a closing projection that it pays for.

    How they were made is told as for all prices: see `Provenance`.
    """

    counts: Tensor
    closing_reserve: int = 1
    method: str = field(default="evenly", kw_only=True)

    unit: ClassVar[Unit] = "iteration"

    def __post_init__(self) -> None:
        """Refuse what are no counts."""
        super().__post_init__()
        counts = check_type(self.counts, Tensor, "the counts of an allowance")
        if counts.dtype is not torch.int16 or counts.ndim != 2 or 0 in counts.shape or bool((counts < 0).any()):
            raise ValueError(
                f"an allowance is (B + 1, T) int16 of at least 0: got {tuple(counts.shape)} of {counts.dtype}"
            )

    @property
    def n_steps(self) -> int:
        """T."""
        return self.counts.shape[1]

    @property
    def budget(self) -> int:
        """The largest budget it serves."""
        return len(self.counts) - 1

    def at(self, budget: Budget) -> Allowed:
        """The schedule for a budget."""
        return Allowed(self, budget)


@dataclass(frozen=True, eq=False)
class Allowed(Priced, ByIteration):
    """As many iterations at each step as are allowed with a budget."""

    allowance: Allowance
    budget: Budget
    uses_defects: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Check the budget against the allowance."""
        allowance = check_type(self.allowance, Allowance, "the allowance of a schedule")
        b = budget_within(self.budget, allowance.n_steps, allowance.budget, allowance.unit)
        object.__setattr__(self, "budget", b)

    @property
    def made_from(self) -> Allowance:
        """The allowance."""
        return self.allowance

    @property
    def closing_reserve(self) -> int:
        """As the allowance says."""
        return self.allowance.closing_reserve

    def decide(self, view: StepView) -> Tensor:
        """While the step has had fewer than it may."""
        if view.n_steps != self.allowance.n_steps:
            raise ValueError(
                f"the allowance was made for T = {self.allowance.n_steps} steps and cannot be used for T = "
                f"{view.n_steps}; calibrate again"
            )
        due = self.allowance.counts[:, view.t] > view.iteration
        return due[self.budget] if isinstance(self.budget, Tensor) else due[int(self.budget)].expand_as(view.defect)

    def to(self, device: torch.device) -> Allowed:
        """The same schedule on `device`."""
        budget = self.budget.to(device) if isinstance(self.budget, Tensor) else self.budget
        return Allowed(replace(self.allowance, counts=self.allowance.counts.to(device)), budget)


def even_counts(n_steps: int, budget: int, begin: int = 1, go_on: int = 1) -> Tensor:
    """One iteration at evenly spaced steps, and more than one at every step where the budget is for that.

    Args:
        n_steps: T.
        budget: B.
        begin: What the first iteration of a step costs.
        go_on: What each further one costs.

    Returns:
        (B + 1, T) int16.

    Example:
        >>> even_counts(4, 6)[[2, 4, 6]].tolist()
        [[0, 1, 0, 1], [1, 1, 1, 1], [1, 2, 1, 2]]
    """
    b, steps = torch.arange(budget + 1)[:, None], torch.arange(n_steps + 1)
    touched = (b // begin).clamp(max=n_steps)
    more = ((b - n_steps * begin) // go_on).clamp(0, (WHOLE - 1) * n_steps)
    # the step after the last is the closing projection's, so that gaps are even up to it
    by_then = (steps * (touched + 1)) // (n_steps + 1) + (steps * more) // n_steps
    return by_then.diff(dim=1).to(torch.int16)


def whole_counts(masks: Tensor, budget: int, cost: float) -> Tensor:
    """Whole projections at planned steps, as many as a budget pays for.

    Args:
        masks: Row m holds the steps of m projections, (M + 1, T) bool.
        budget: B.
        cost: Of a whole projection on average, in units.

    Returns:
        (B + 1, T) int16.
    """
    times = (torch.arange(budget + 1) / cost).round().long().clamp(max=len(masks) - 1)
    return WHOLE * masks[times].to(torch.int16)


def counts_with_closing(counts: Tensor, closing_reserve: int) -> Tensor:
    """The counts of T steps as those of one step more, which corrects all, and what is kept for it; see `with_closing`.

    Returns:
        (B + k + 1, T + 1); as they are where nothing is kept back.
    """
    if not closing_reserve:
        return counts
    closed = torch.nn.functional.pad(counts, (0, 1), value=WHOLE)
    return torch.cat([torch.zeros_like(closed[:1]).expand(closing_reserve, -1), closed])
