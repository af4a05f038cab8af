"""Schedules that need no calibration, as frozen values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from trimtab.core.budget import Budget, corrections
from trimtab.core.errors import real_number, whole_number
from trimtab.core.moment import Moment
from trimtab.core.noise import uniform_numbers
from trimtab.core.schedule import Schedule

__all__ = ["Fixed", "FixedThreshold", "Inexact", "Periodic", "RandomTimes", "Stepwise", "Terminal"]


MOST_STEPS = 10_000_000
"""Of a mask: more would be a mistake for something else."""


def needs_budget(schedule: str, budget: object) -> None:
    """Refuse None, which means as many as it likes: a schedule that spreads its corrections has to know how many."""
    if budget is None:
        raise TypeError(f"{schedule} needs a budget, a count, a fraction of T or a count per sample: got None")


@dataclass(frozen=True)
class Terminal(Schedule):
    """Never project during the rollout; only the closing projection makes the result feasible."""

    budget: int = field(default=1, init=False, repr=False)
    looks_at_defects: ClassVar[bool] = False

    def decide(self, now: Moment) -> Tensor:
        """No sample."""
        return torch.zeros_like(now.defect, dtype=torch.bool)


@dataclass(frozen=True)
class Stepwise(Schedule):
    """Project every sample after every update."""

    budget: float = field(default=1.0, init=False, repr=False)
    looks_at_defects: ClassVar[bool] = False

    def decide(self, now: Moment) -> Tensor:
        """Every sample."""
        return torch.ones_like(now.defect, dtype=torch.bool)


@dataclass(frozen=True, eq=False)
class Periodic(Schedule):
    """Project at evenly spread steps, exactly `budget` of them, the last at the last step."""

    budget: Budget
    looks_at_defects: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Refuse to be without a budget."""
        needs_budget("Periodic", self.budget)

    def decide(self, now: Moment) -> Tensor:
        """All samples at the steps where the even share of the budget reaches the next whole number."""
        b = corrections(self.budget, now.n_steps)
        due = ((now.t + 1) * b) // now.n_steps > (now.t * b) // now.n_steps
        return due if isinstance(due, Tensor) else torch.full_like(now.defect, due, dtype=torch.bool)


@dataclass(frozen=True)
class Inexact(Schedule):
    """So many iterations of the solver at every step, and no more: a projection that is cut short.

    The number need not be whole: 1.5 is one and two in turn. Below 1 there are steps without any.

    Example:
        >>> import trimtab as tt
        >>> run = tt.domain("linkage", n_steps=4).problem(range(2)).rollout(Inexact(2), closing="none")
        >>> run.iterations[:, 0].tolist()
        [2, 2, 2, 2]
    """

    per_step: float
    budget: None = field(default=None, init=False, repr=False)
    looks_at_defects: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Refuse what is no number of iterations."""
        real_number(self.per_step, "the iterations per step of Inexact", 0.0)

    @property
    def unit(self) -> str:
        """Iterations."""
        return "iteration"

    @property
    def repeats(self) -> bool:
        """Asked after each."""
        return True

    def decide(self, now: Moment) -> Tensor:
        """Every sample while the step has had fewer than its share."""
        due = math.floor((now.t + 1) * self.per_step) - math.floor(now.t * self.per_step)
        return torch.full_like(now.defect, now.again < due, dtype=torch.bool)


@dataclass(frozen=True, eq=False)
class Fixed(Schedule):
    """Replay a mask: project sample i after step t where `mask[t, i]` (or `mask[t]`, for all samples alike).

    `Fixed.at` takes the steps themselves.
    """

    mask: Tensor
    looks_at_defects: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Refuse anything but a (T,) or (T, n) bool mask."""
        mask = self.mask
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.ndim not in (1, 2) or len(mask) == 0:
            came = f"{tuple(mask.shape)} of {mask.dtype}" if isinstance(mask, Tensor) else type(mask).__name__
            raise ValueError(
                f"Fixed takes a (T,) or (T, n) bool mask, a tensor: got {came} (for steps, Fixed.at([3, 7], n_steps))"
            )

    @classmethod
    def at(cls, steps: Sequence[int], n_steps: int) -> Fixed:
        """All samples at these steps.

        Args:
            steps: 0 to T - 1; negative ones count from the end, -1 being the last.
            n_steps: T.

        Example:
            >>> Fixed.at([3, -1], n_steps=5).mask
            tensor([False, False, False,  True,  True])
        """
        whole_number(n_steps, "n_steps", most=MOST_STEPS)
        if not isinstance(steps, Iterable):
            raise TypeError(f"Fixed.at takes a list of steps: got {steps!r}")
        listed = list(steps)
        wrong = [step for step in listed if isinstance(step, bool) or not isinstance(step, int | np.integer)]
        if wrong:
            raise ValueError(f"Fixed.at takes steps, whole numbers: got {wrong[0]!r}")
        outside = [step for step in listed if not -n_steps <= step < n_steps]
        if outside:
            raise ValueError(f"Fixed.at: step {outside[0]} is not one of T = {n_steps}, 0 to {n_steps - 1}")
        mask = torch.zeros(n_steps, dtype=torch.bool)
        mask[torch.tensor(listed, dtype=torch.int64)] = True
        return cls(mask)

    @cached_property
    def budget(self) -> int | Tensor:
        """What the mask spends, and one more for the closing projection where the last step is not in it."""
        spent = self.mask.sum(dim=0) + ~self.mask[-1]
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
class FixedThreshold(Schedule):
    """Project wherever the defect reaches one fixed value, until the budget is gone (a control)."""

    value: float
    budget: Budget = 1.0

    def __post_init__(self) -> None:
        """Refuse a threshold that is not a number."""
        real_number(self.value, "the value of FixedThreshold")

    def decide(self, now: Moment) -> Tensor:
        """Where the defect is at least the value."""
        return now.defect >= self.value


@dataclass(frozen=True, eq=False)
class RandomTimes(Schedule):
    """Project at random steps, exactly `budget` of them, each sample at its own (a control, and exploration).

    Selection sampling: with b corrections left and k steps to go, project with probability b / k. Every set of
    times is equally likely and no state is needed. Samples whose seed the loop does not know share their times.
    """

    budget: Budget
    seed: int = 0
    looks_at_defects: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Refuse a seed that is none, and to be without a budget."""
        needs_budget("RandomTimes", self.budget)
        whole_number(self.seed, "the seed of RandomTimes", 0)

    def decide(self, now: Moment) -> Tensor:
        """A coin for each sample, from its seed, this schedule's seed and the step."""
        seeds = now.seeds if now.seeds is not None else torch.zeros_like(now.budget_left)
        coin = uniform_numbers(seeds, range(now.t, now.t + 1), (), _RANDOM_TIMES + self.seed)[0]
        return coin * now.steps_to_go < now.spendable


_RANDOM_TIMES = 1 << 32  # a stream far from those the samplers use
