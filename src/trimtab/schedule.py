"""When to project: schedules as frozen values.

A schedule looks at a `Moment` and says which samples of the batch to project now. It holds no running state: what
has been spent, when the last projection was and which defects were seen is kept by the rollout and shown to it. One
schedule can therefore serve any number of batches, seeds and processes, with nothing to reset.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from trimtab.noise import uniform_numbers
from trimtab.thresholds import Thresholds

__all__ = [
    "Adaptive",
    "Budget",
    "Fixed",
    "FixedThreshold",
    "Moment",
    "Periodic",
    "RandomTimes",
    "Schedule",
    "Stepwise",
    "Terminal",
    "corrections",
]

Budget = int | float | Tensor
"""A whole number counts projections, a float is a fraction of T, an integer tensor (n,) is a count a sample."""


def corrections(budget: Budget, n_steps: int) -> int | Tensor:
    """The budget as a number of corrections, between 0 and `n_steps`.

    Args:
        budget: A count, a fraction of `n_steps` (rounded to the nearest count), or a count for each sample.
        n_steps: T, the number of update locations.

    Example:
        >>> corrections(0.25, 100), corrections(7, 100), corrections(1.0, 100)
        (25, 7, 100)
    """
    if isinstance(budget, Tensor):
        if budget.ndim != 1 or budget.is_floating_point() or budget.dtype == torch.bool:
            raise ValueError(
                "a budget tensor must hold one whole number a sample, shape (n,): got "
                f"{tuple(budget.shape)} of {budget.dtype}"
            )
        if bool(((budget < 0) | (budget > n_steps)).any()):
            raise ValueError(f"budgets must be between 0 and T = {n_steps}: got {budget.tolist()[:8]}")
        return budget
    if isinstance(budget, bool) or not isinstance(budget, int | float | np.integer | np.floating):
        raise ValueError(f"a budget is a whole number, a fraction of T or an integer tensor: got {budget!r}")
    if isinstance(budget, int | np.integer):
        if not 0 <= budget <= n_steps:
            raise ValueError(f"a budget of {budget} corrections does not fit T = {n_steps} steps: give 0 to {n_steps}")
        return int(budget)
    if not 0.0 <= budget <= 1.0:
        raise ValueError(
            f"a float budget is a fraction of T and must be in [0, 1]: got {budget} (for a count, give a whole number)"
        )
    return int(budget * n_steps + 0.5)


class Moment(NamedTuple):
    """What a schedule may look at when it decides; everything is for reading only.

    Attributes:
        t: The step, 0 to n_steps - 1.
        n_steps: T.
        defect: Of the proposals, (n,).
        budget_left: Corrections each sample may still spend, (n,) int64.
        proposal: The states before the decision, (n, *event); None when decisions are replayed from a record.
        record: Defects and decisions of all T steps, (T, n) each, filled in up to now; see `defects`, `projected`.
        seeds: Each sample's seed, (n,), where the loop knows it.
        last: 1 + the step after which each sample was last projected, 0 for never, (n,) int64.
        memory: Belongs to the run: a schedule that needs running sums may keep them here.
    """

    t: int
    n_steps: int
    defect: Tensor
    budget_left: Tensor
    proposal: Tensor | None
    record: tuple[Tensor, Tensor]
    seeds: Tensor | None
    last: Tensor
    memory: dict[str, Tensor]

    @property
    def defects(self) -> Tensor:
        """All defects so far, the present one last, (t + 1, n)."""
        return self.record[0][: self.t + 1]

    @property
    def projected(self) -> Tensor:
        """All decisions so far, (t, n) bool."""
        return self.record[1][: self.t]

    @property
    def since(self) -> Tensor:
        """Updates since each sample was last projected (or began), (n,), at least 1."""
        return self.t + 1 - self.last


@runtime_checkable
class Schedule(Protocol):
    """Which samples to project now. Any callable of a `Moment` will do too.

    A schedule that never looks at defects says so with an attribute `looks_at_defects = False`; a rollout can then be
    asked not to measure them.
    """

    def decide(self, now: Moment) -> Tensor:
        """The samples to project, (n,) bool. Samples with no budget left are left out afterwards."""
        ...


@dataclass(frozen=True)
class Terminal:
    """Never project during the rollout; only the closing projection makes the result feasible."""

    budget: int = 0
    looks_at_defects: ClassVar[bool] = False

    def decide(self, now: Moment) -> Tensor:
        """No sample."""
        return torch.zeros_like(now.defect, dtype=torch.bool)


@dataclass(frozen=True)
class Stepwise:
    """Project every sample after every update."""

    budget: float = 1.0
    looks_at_defects: ClassVar[bool] = False

    def decide(self, now: Moment) -> Tensor:
        """Every sample."""
        return torch.ones_like(now.defect, dtype=torch.bool)


@dataclass(frozen=True, eq=False)
class Periodic:
    """Project at evenly spread steps, exactly `budget` of them, the last at the last step."""

    budget: Budget
    looks_at_defects: ClassVar[bool] = False

    def decide(self, now: Moment) -> Tensor:
        """All samples at the steps where the even share of the budget reaches the next whole number."""
        b = corrections(self.budget, now.n_steps)
        due = ((now.t + 1) * b) // now.n_steps > (now.t * b) // now.n_steps
        return due if isinstance(due, Tensor) else torch.full_like(now.defect, due, dtype=torch.bool)


@dataclass(frozen=True, eq=False)
class Adaptive:
    """Algorithm 1 of the paper: project where the defect reaches the price of a correction.

    Attributes:
        thresholds: The price table, usually from `calibrate`.
        budget: At most the table's own largest budget, which is the default.
    """

    thresholds: Thresholds
    budget: Budget | None = None

    def __post_init__(self) -> None:
        """Check the budget against the table."""
        limit = self.thresholds.budget
        b = limit if self.budget is None else corrections(self.budget, self.thresholds.n_steps)
        if (int(b.max()) if isinstance(b, Tensor) else b) > limit:
            raise ValueError(
                f"a budget of {b} needs a table for at least that many corrections; this one was calibrated for up "
                f"to {limit} (calibrate with a larger budget)"
            )
        object.__setattr__(self, "budget", b)

    @property
    def calibration_seeds(self) -> tuple[int, ...]:
        """Seeds this schedule must not be evaluated on."""
        return self.thresholds.seeds

    def decide(self, now: Moment) -> Tensor:
        """Where s_t >= lambda[t, b]."""
        self.check_steps(now.n_steps)
        return now.defect >= self.thresholds.price(now)

    def check_steps(self, n_steps: int) -> None:
        """Refuse a rollout of another length than the table was calibrated for."""
        if n_steps != self.thresholds.n_steps:
            raise ValueError(
                f"the thresholds were calibrated for T = {self.thresholds.n_steps} steps and cannot be used for "
                f"T = {n_steps}; calibrate again"
            )

    def to(self, device: torch.device) -> Adaptive:
        """The same schedule with its table on `device`."""
        return replace(self, thresholds=self.thresholds.to(device))


@dataclass(frozen=True, eq=False)
class Fixed:
    """Replay a mask: project sample i after step t where `mask[t, i]` (or `mask[t]`, for all samples alike)."""

    mask: Tensor
    looks_at_defects: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Refuse anything but a (T,) or (T, n) bool mask."""
        mask = self.mask
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.ndim not in (1, 2):
            came = f"{tuple(mask.shape)} of {mask.dtype}" if isinstance(mask, Tensor) else type(mask).__name__
            raise ValueError(f"Fixed takes a (T,) or (T, n) bool mask, a tensor: got {came}")

    @cached_property
    def budget(self) -> int | Tensor:
        """What the mask spends."""
        spent = self.mask.sum(dim=0)
        return int(spent) if self.mask.ndim == 1 else spent

    def decide(self, now: Moment) -> Tensor:
        """Row t of the mask."""
        if len(self.mask) != now.n_steps or (self.mask.ndim == 2 and self.mask.shape[1] != len(now.defect)):
            raise ValueError(
                f"the mask is {tuple(self.mask.shape)}, but this rollout has T = {now.n_steps} steps and "
                f"{len(now.defect)} samples"
            )
        return self.mask[now.t].expand_as(now.defect)

    def to(self, device: torch.device) -> Fixed:
        """The same schedule with its mask on `device`."""
        return Fixed(self.mask.to(device))


@dataclass(frozen=True, eq=False)
class FixedThreshold:
    """Project wherever the defect reaches one fixed value, until the budget is gone (a control)."""

    value: float
    budget: Budget = 1.0

    def __post_init__(self) -> None:
        """Refuse a threshold that is not a number."""
        if self.value != self.value:
            raise ValueError("FixedThreshold: the value is NaN; give a number (inf never projects)")

    def decide(self, now: Moment) -> Tensor:
        """Where the defect is at least the value."""
        return now.defect >= self.value


@dataclass(frozen=True, eq=False)
class RandomTimes:
    """Project at random steps, exactly `budget` of them, each sample at its own (a control, and exploration).

    Selection sampling: with b corrections left and k steps to go, project with probability b / k. Every set of
    times is equally likely and no state is needed. Samples whose seed the loop does not know share their times.
    """

    budget: Budget
    seed: int = 0
    looks_at_defects: ClassVar[bool] = False

    def decide(self, now: Moment) -> Tensor:
        """A coin for each sample, from its seed, this schedule's seed and the step."""
        seeds = now.seeds if now.seeds is not None else torch.zeros_like(now.budget_left)
        coin = uniform_numbers(seeds, range(now.t, now.t + 1), (), _RANDOM_TIMES + self.seed)[0]
        return coin * (now.n_steps - now.t) < now.budget_left


_RANDOM_TIMES = 1 << 32  # a stream far from those the samplers use


def as_schedule(schedule: Schedule | Callable[[Moment], Tensor]) -> Schedule:
    """The schedule itself, or a plain function of a `Moment` made into one with a budget of T."""
    if isinstance(schedule, type) or not (hasattr(schedule, "decide") or callable(schedule)):
        raise ValueError(
            f"a schedule is a value with decide(moment) or a function of a moment: got {schedule!r} "
            "(did you forget the parentheses, as in Stepwise()?)"
        )
    return schedule if hasattr(schedule, "decide") else _Function(schedule)


@dataclass(frozen=True, eq=False)
class _Function:
    function: Callable[[Moment], Tensor]
    budget: float = 1.0

    def decide(self, now: Moment) -> Tensor:
        return self.function(now)
