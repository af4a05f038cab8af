"""Schedules that need no calibration, as frozen values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from trimtab.core.budget import Budget, corrections
from trimtab.core.checks import check_integer, check_number
from trimtab.core.noise import uniform_numbers
from trimtab.core.schedule import ByIteration, Schedule
from trimtab.core.view import StepView

__all__ = ["Fixed", "FixedThreshold", "Inexact", "Periodic", "RandomTimes", "Stepwise", "Terminal"]


MOST_STEPS = 10_000_000
"""Of a mask: more would be a mistake for something else."""


def needs_budget(schedule: str, budget: object) -> None:
    """Refuse None, which means as many as it likes: a schedule that spreads its corrections has to know how many."""
    if budget is None:
        raise TypeError(f"{schedule} needs a budget, a count, a fraction of T or a count per sample: got None")


def brief_repr(schedule: Any) -> str:
    """One line for any schedule that is a dataclass: of long tensors, what they are like."""
    named = [(part.name, getattr(schedule, part.name)) for part in fields(schedule) if part.repr]
    return f"{type(schedule).__name__}({', '.join(f'{name}={_brief(value)}' for name, value in named)})"


def _brief(value: object) -> str:
    if isinstance(value, tuple) and len(value) > 12:
        return f"<{len(value)} steps from {value[0]} to {value[-1]}>"
    if not isinstance(value, Tensor) or value.numel() <= 8:
        return repr(value)
    inside = (
        f"{int(value.sum())} True" if value.dtype == torch.bool else f"{value.min().item()} to {value.max().item()}"
    )
    return f"<{tuple(value.shape)} of {str(value.dtype).removeprefix('torch.')}, {inside}>"


@dataclass(frozen=True)
class Terminal(Schedule):
    """Never project during the rollout; only the closing projection makes the result feasible."""

    budget: int = field(default=1, init=False, repr=False)
    uses_defects: ClassVar[bool] = False

    def decide(self, view: StepView) -> Tensor:
        """No sample."""
        return torch.zeros_like(view.defect, dtype=torch.bool)


@dataclass(frozen=True)
class Stepwise(Schedule):
    """Project every sample after every update."""

    budget: float = field(default=1.0, init=False, repr=False)
    uses_defects: ClassVar[bool] = False
    whole: ClassVar[bool] = True

    def decide(self, view: StepView) -> Tensor:
        """Every sample."""
        return torch.ones_like(view.defect, dtype=torch.bool)


@dataclass(frozen=True, eq=False)
class Periodic(Schedule):
    """Project at evenly spread steps, exactly `budget` of them, the last at the last step."""

    budget: Budget
    uses_defects: ClassVar[bool] = False
    __repr__ = brief_repr

    def __post_init__(self) -> None:
        """Refuse to be without a budget."""
        needs_budget("Periodic", self.budget)

    def decide(self, view: StepView) -> Tensor:
        """All samples at the steps where the even share of the budget reaches the next whole number."""
        b = corrections(self.budget, view.n_steps)
        due = ((view.t + 1) * b) // view.n_steps > (view.t * b) // view.n_steps
        return due if isinstance(due, Tensor) else torch.full_like(view.defect, due, dtype=torch.bool)

    def to(self, device: torch.device) -> Periodic:
        """The same schedule with a budget per sample on `device`."""
        budget = self.budget
        return Periodic(budget.to(device)) if isinstance(budget, Tensor) and budget.device != device else self


@dataclass(frozen=True)
class Inexact(ByIteration):
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
    uses_defects: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Refuse what is no number of iterations."""
        check_number(self.per_step, "the iterations per step of Inexact", 0.0, 1e6)

    def decide(self, view: StepView) -> Tensor:
        """Every sample while the step has had fewer than its share."""
        due = math.floor((view.t + 1) * self.per_step) - math.floor(view.t * self.per_step)
        return torch.full_like(view.defect, view.iteration < due, dtype=torch.bool)


@dataclass(frozen=True, eq=False)
class Fixed(Schedule):
    """Project at given steps, all samples alike, or replay a mask.

    Args:
        mask: Whole numbers are steps, whatever T will be: 0 is the first, -1 the last. A bool tensor is a mask, (T,) or
            (T, n): sample i is projected after step t where `mask[t, i]`.

    Example:
        >>> Fixed([3, -1])
        Fixed(mask=(3, -1))
        >>> Fixed(torch.tensor([False, True, False])).budget  # one in the mask, and the closing projection
        2
    """

    mask: Tensor | Sequence[int]
    uses_defects: ClassVar[bool] = False
    __repr__ = brief_repr

    def __post_init__(self) -> None:
        """Refuse anything but steps and a (T,) or (T, n) bool mask."""
        mask = self.mask
        if isinstance(mask, Tensor) and mask.dtype == torch.bool and mask.ndim in (1, 2) and len(mask):
            return
        steps = _listed(mask)
        if not isinstance(steps, list | tuple | range) or not all(map(_is_step, steps)):
            got = f"{tuple(mask.shape)} of {mask.dtype}" if isinstance(mask, Tensor) else type(mask).__name__
            raise ValueError(
                "Fixed takes steps, as in Fixed([3, 7]), or a (T,) or (T, n) mask, a tensor of bool, as in "
                f"Fixed(torch.tensor([False, True])): got {got}"
            )
        if len(steps) > 2 and set(steps) <= {0, 1}:
            raise ValueError(
                f"Fixed got {len(steps)} whole numbers, all of them 0 or 1. Whole numbers are steps, as in "
                "Fixed([3, 7]); a mask is a tensor of bool, as in Fixed(torch.tensor([0, 0, 1]).bool())"
            )
        object.__setattr__(self, "mask", tuple(map(int, steps)))

    @classmethod
    def at(cls, steps: Sequence[int], n_steps: int) -> Fixed:
        """The mask of all samples at these steps of T, which are checked now rather than when they are used.

        Args:
            steps: 0 to T - 1; negative ones count from the end, -1 being the last.
            n_steps: T.

        Example:
            >>> Fixed.at([3, -1], n_steps=5).mask
            tensor([False, False, False,  True,  True])
        """
        check_integer(n_steps, "n_steps", most=MOST_STEPS)
        if not isinstance(steps, Iterable):
            raise TypeError(f"Fixed.at takes a list of steps: got {steps!r}")
        listed = list(_listed(steps))
        wrong = [step for step in listed if not _is_step(step)]
        if wrong:
            raise ValueError(f"Fixed.at takes steps, whole numbers: got {wrong[0]!r}")
        _check_outside(listed, n_steps)
        mask = torch.zeros(n_steps, dtype=torch.bool)
        mask[torch.tensor(listed, dtype=torch.int64)] = True
        return cls(mask)

    @cached_property
    def budget(self) -> int | Tensor | None:
        """What the mask spends, and one more for the closing projection where the last step is not in it.

        None for steps: what they come to depends on T.
        """
        if not isinstance(self.mask, Tensor):
            return None
        spent = self.mask.sum(dim=0) + ~self.mask[-1]
        return int(spent) if self.mask.ndim == 1 else spent

    def decide(self, view: StepView) -> Tensor:
        """Row t of the mask."""
        mask = self.mask
        if not isinstance(mask, Tensor):
            _check_outside(mask, view.n_steps)
            due = view.t in mask or view.t - view.n_steps in mask
            return torch.full_like(view.defect, due, dtype=torch.bool)
        if len(mask) != view.n_steps or (mask.ndim == 2 and mask.shape[1] != len(view.defect)):
            raise ValueError(
                f"the mask is {tuple(mask.shape)}, but this rollout has T = {view.n_steps} steps and "
                f"{len(view.defect)} samples"
            )
        return mask[view.t].expand_as(view.defect)

    def to(self, device: torch.device) -> Fixed:
        """The same schedule with its mask on `device`."""
        return Fixed(self.mask.to(device)) if isinstance(self.mask, Tensor) else self


def _listed(steps: Any) -> Any:
    """Steps that came as an array as a list; an array of bool is none, even if it is empty."""
    if not isinstance(steps, Tensor | np.ndarray) or steps.ndim != 1 or str(steps.dtype).endswith("bool"):
        return steps
    return steps.tolist()


def _is_step(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _check_outside(steps: Sequence[int], n_steps: int) -> None:
    outside = [step for step in steps if not -n_steps <= step < n_steps]
    if outside:
        raise ValueError(f"Fixed: step {outside[0]} is not one of T = {n_steps}, 0 to {n_steps - 1}")


@dataclass(frozen=True, eq=False)
class FixedThreshold(Schedule):
    """Project wherever the defect reaches one fixed value, until the budget is gone (a control)."""

    value: float
    budget: Budget = 1.0
    __repr__ = brief_repr

    def __post_init__(self) -> None:
        """Refuse a threshold that is not a number."""
        check_number(self.value, "the value of FixedThreshold")

    def decide(self, view: StepView) -> Tensor:
        """Where the defect is at least the value."""
        return view.defect >= self.value


@dataclass(frozen=True, eq=False)
class RandomTimes(Schedule):
    """Project at random steps, exactly `budget` of them, each sample at its own (a control, and exploration).

    Selection sampling: with b corrections left and k steps to go, project with probability b / k. Every set of
    times is equally likely and no state is needed. Samples whose seed the loop does not know share their times.
    """

    budget: Budget
    seed: int = 0
    uses_defects: ClassVar[bool] = False
    __repr__ = brief_repr

    def __post_init__(self) -> None:
        """Refuse a seed that is none, and to be without a budget."""
        needs_budget("RandomTimes", self.budget)
        check_integer(self.seed, "the seed of RandomTimes", 0)

    def decide(self, view: StepView) -> Tensor:
        """A coin for each sample, from its seed, this schedule's seed and the step."""
        seeds = view.seeds if view.seeds is not None else torch.zeros_like(view.budget_left)
        coin = uniform_numbers(seeds, range(view.t, view.t + 1), (), _RANDOM_TIMES + self.seed)[0]
        return coin * view.steps_to_go < view.spendable


_RANDOM_TIMES = 1 << 32  # a stream far from those the samplers use
