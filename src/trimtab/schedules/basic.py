"""Schedules with times fixed in advance or drawn at random; none of them reads a defect."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from trimtab.core.budget import Budget, corrections
from trimtab.core.checks import check_floats, check_integer, check_number
from trimtab.core.noise import uniform_numbers
from trimtab.core.schedule import WHOLE, Schedule, as_schedule
from trimtab.core.view import StepView

__all__ = ["By", "Fixed", "Geometric", "Periodic", "RandomRamp"]
__all__ += ["RandomTimes", "Stepwise", "Terminal", "Window", "windows"]

MOST_STEPS = 10_000_000
"""The largest accepted number of steps; a larger one is a mistake."""

_RANDOM_TIMES, _RANDOM_RAMP = 1 << 32, 2 << 32  # random streams that no sampler uses


def brief_repr(schedule: Any) -> str:
    """Return a one-line repr of a dataclass; long tensors and tuples are abbreviated."""
    named = [(part.name, getattr(schedule, part.name)) for part in fields(schedule) if part.repr]
    return f"{type(schedule).__name__}({', '.join(f'{name}={_brief(value)}' for name, value in named)})"


def _brief(value: object) -> str:
    if isinstance(value, tuple) and len(value) > 12:
        return f"<{len(value)} steps from {value[0]} to {value[-1]}>"
    if not isinstance(value, Tensor) or value.numel() <= 8:
        return repr(value)
    count = f"{int(value.sum())} True" if value.dtype == torch.bool else f"{value.min().item()} to {value.max().item()}"
    return f"<{tuple(value.shape)} of {str(value.dtype).removeprefix('torch.')}, {count}>"


class FrozenSchedule(Schedule):
    """A schedule that is a dataclass: it has a short repr, and `to` moves its tensors."""

    __repr__ = brief_repr

    def to(self, device: torch.device) -> Any:
        """Move all tensors to `device`."""
        parts = {part.name: getattr(self, part.name) for part in fields(self) if part.init}  # type: ignore[arg-type]
        moved = {name: value.to(device) for name, value in parts.items() if isinstance(value, Tensor)}
        return replace(self, **moved) if moved else self  # type: ignore[type-var]


class _Timed(FrozenSchedule):
    """A schedule that does not read defects; `_due` returns one bool for all samples, or one for each, (n,)."""

    uses_defects: ClassVar[bool] = False

    def decide(self, view: StepView) -> Tensor:
        """Choose the samples that are due at this step."""
        due = self._due(view)
        return due if isinstance(due, Tensor) else torch.full_like(view.defect, due, dtype=torch.bool)

    def _due(self, view: StepView) -> bool | Tensor:
        raise NotImplementedError


class _Spread(_Timed):
    """A schedule that spreads its budget over the steps, and therefore needs one."""

    seed: int = 0

    def __post_init__(self) -> None:
        """Check budget and seed."""
        name = type(self).__name__
        if self.budget is None:
            raise TypeError(f"{name} needs a budget (a count, a fraction of T or a count per sample): got None")
        check_integer(self.seed, f"the seed of {name}", 0)

    def _coins(self, view: StepView, stream: int) -> Tensor:
        """Return one uniform number per sample, (n,), that depends on its seed, the step and the stream."""
        seeds = view.seeds if view.seeds is not None else torch.zeros_like(view.budget_left)
        return uniform_numbers(seeds, range(view.t, view.t + 1), (), stream + self.seed)[0]


@dataclass(frozen=True)
class Terminal(_Timed):
    """Never project during the rollout; only the closing projection makes the result feasible."""

    budget: int = field(default=1, init=False, repr=False)

    def _due(self, view: StepView) -> bool:
        return False


@dataclass(frozen=True)
class Stepwise(_Timed):
    """Project every sample after every update."""

    budget: float = field(default=1.0, init=False, repr=False)

    def _due(self, view: StepView) -> bool:
        return True


@dataclass(frozen=True, eq=False, repr=False)
class Periodic(_Spread):
    """Project at evenly spaced steps, exactly `budget` of them, the last at the last step."""

    budget: Budget

    def _due(self, view: StepView) -> bool | Tensor:
        b = corrections(self.budget, view.n_steps)
        return ((view.t + 1) * b) // view.n_steps > (view.t * b) // view.n_steps


@dataclass(frozen=True)
class By(Schedule):
    """Correct in another way than by whole projections, at every step or at the times of a schedule.

    The closing projection stays whole. See `trimtab.constraints.ways` for the names of ways.

    Example:
        >>> import trimtab as tt
        >>> run = tt.domain("linkage", n_steps=4).problem(range(2)).rollout(By("2 iterations"))
        >>> run.iterations[:3, 0].tolist()
        [2, 2, 2]
    """

    way: str
    schedule: Schedule = field(default_factory=Stepwise)

    def __post_init__(self) -> None:
        """Take over the settings of the schedule."""
        object.__setattr__(self, "schedule", as_schedule(self.schedule))
        if self.schedule.ways != (WHOLE,):
            raise ValueError(f"By takes a schedule of whole projections: got {self.schedule!r}")
        for name in ("budget", "uses_defects", "spends_all", "calibration_seeds", "closing", "unit", "closing_reserve"):
            object.__setattr__(self, name, getattr(self.schedule, name))
        object.__setattr__(self, "ways", (self.way,))

    def decide(self, view: StepView) -> Any:
        """Choose the samples that the schedule chooses."""
        return self.schedule.decide(view)

    def priority(self, view: StepView) -> Tensor:
        """Return the priority of the schedule."""
        return self.schedule.priority(view)

    def pools(self, n: int) -> Tensor | None:
        """Return the pools of the schedule."""
        return self.schedule.pools(n)

    def to(self, device: torch.device) -> By:
        """Return the same schedule on `device`."""
        return replace(self, schedule=self.schedule.to(device))


@dataclass(frozen=True, eq=False, repr=False)
class Fixed(_Timed):
    """Project at given steps, or replay a mask.

    Args:
        mask: Whole numbers are steps for any T: 0 is the first, -1 the last. A bool tensor is a mask, (T,) or (T, n):
            sample i is projected after step t if `mask[t, i]`.

    Example:
        >>> Fixed([3, -1])
        Fixed(mask=(3, -1))
        >>> Fixed(torch.tensor([False, True, False])).budget  # one in the mask, and the closing projection
        2
    """

    mask: Tensor | Sequence[int]

    def __post_init__(self) -> None:
        """Check that the mask is a list of steps or a (T,) or (T, n) bool tensor."""
        mask = self.mask
        if isinstance(mask, Tensor) and mask.dtype == torch.bool and mask.ndim in (1, 2) and len(mask):
            return
        steps = _as_list(mask)
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
        """Return the mask of all samples at the given steps of T; negative steps count from the end.

        Example:
            >>> Fixed.at([3, -1], n_steps=5).mask
            tensor([False, False, False,  True,  True])
        """
        check_integer(n_steps, "n_steps", most=MOST_STEPS)
        listed = list(_as_list(steps)) if isinstance(steps, Iterable) else [steps]
        wrong = [step for step in listed if not _is_step(step)]
        if wrong or not isinstance(steps, Iterable):
            raise ValueError(f"Fixed.at takes a list of steps, whole numbers: got {(wrong or [steps])[0]!r}")
        _check_steps(listed, n_steps)
        mask = torch.zeros(n_steps, dtype=torch.bool)
        mask[torch.tensor(listed, dtype=torch.int64)] = True
        return cls(mask)

    @cached_property
    def budget(self) -> int | Tensor | None:
        """Return what the mask spends, plus a closing projection if it leaves out the last step; None for steps."""
        if not isinstance(self.mask, Tensor):
            return None
        spent = self.mask.sum(dim=0) + ~self.mask[-1]
        return int(spent) if self.mask.ndim == 1 else spent

    def _due(self, view: StepView) -> bool | Tensor:
        mask = self.mask
        if not isinstance(mask, Tensor):
            _check_steps(mask, view.n_steps)
            return view.t in mask or view.t - view.n_steps in mask
        if len(mask) != view.n_steps or (mask.ndim == 2 and mask.shape[1] != len(view.defect)):
            raise ValueError(
                f"the mask is {tuple(mask.shape)}, but this rollout has T = {view.n_steps} steps and "
                f"{len(view.defect)} samples"
            )
        return mask[view.t].expand_as(view.defect)


def _as_list(steps: Any) -> Any:
    """Return steps in an array as a list; an array of bool stays, even if it is empty, because it is a mask."""
    if not isinstance(steps, Tensor | np.ndarray) or steps.ndim != 1 or str(steps.dtype).endswith("bool"):
        return steps
    return steps.tolist()


def _is_step(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _check_steps(steps: Sequence[int], n_steps: int) -> None:
    outside = [step for step in steps if not -n_steps <= step < n_steps]
    if outside:
        raise ValueError(f"Fixed: step {outside[0]} is not one of T = {n_steps}, 0 to {n_steps - 1}")


@dataclass(frozen=True)
class Window(_Timed):
    """Project every sample at every step from `start` to `stop`, and nowhere else.

    It spends one correction per step. A window that ends before the last step also pays for the closing projection, if
    that is paid for; `windows` lists all windows of one total cost.

    Attributes:
        start: The first step that is corrected; a whole number is a step, a float a fraction of T.
        stop: The first step after the window; likewise.

    Example:
        >>> Window(0.5)  # the last half
        Window(start=0.5, stop=1.0)
        >>> Window(0.75).steps(20), Window(3, 6).steps(20)
        (range(15, 20), range(3, 6))
    """

    start: int | float
    stop: int | float = 1.0

    def __post_init__(self) -> None:
        """Check both ends."""
        for name, value in (("start", self.start), ("stop", self.stop)):
            most = math.inf if isinstance(value, int | np.integer) else 1.0
            check_number(value, f"Window: {name}, a step (a whole number) or a fraction of T,", 0.0, most)
            object.__setattr__(self, name, int(value) if most > 1 else float(value))
        if type(self.start) is type(self.stop) and self.start >= self.stop:
            raise ValueError(f"Window: start must be below stop: got {self.start} and {self.stop}")

    def steps(self, n_steps: int) -> range:
        """Return the steps of the window in a rollout of `n_steps`; fractions are rounded to the nearest step."""
        check_integer(n_steps, "n_steps")
        ends = [end if isinstance(end, int) else int(end * n_steps + 0.5) for end in (self.start, self.stop)]
        if ends[1] > n_steps or ends[0] > ends[1]:
            raise ValueError(f"{self} is steps {ends[0]} to {ends[1]}, which do not fit a rollout of {n_steps} steps")
        return range(*ends)

    def _due(self, view: StepView) -> bool:
        return view.t in self.steps(view.n_steps)


def windows(budget: Budget, n_steps: int, closing: Literal["paid", "free"] = "paid") -> list[Window]:
    """Return all windows that cost exactly the budget, from the earliest to the latest.

    Args:
        budget: What a rollout pays for: a count or a fraction of T.
        n_steps: T.
        closing: "paid": the closing projection is part of the budget, so a window that ends before the last step is one
            step shorter. "free": it is counted separately, as in the paper.

    Example:
        >>> [(w.start, w.stop) for w in windows(3, 5)]  # the first two pay for the closing projection too
        [(0, 2), (1, 3), (2, 5)]
        >>> [(w.start, w.stop) for w in windows(3, 5, closing="free")]
        [(0, 3), (1, 4), (2, 5)]
    """
    if closing not in ("paid", "free"):
        raise ValueError(f"closing must be 'paid' or 'free': got {closing!r}")
    check_integer(n_steps, "n_steps", most=MOST_STEPS)
    b = corrections(budget, n_steps)
    if isinstance(b, Tensor) or budget is None:
        got = "None" if budget is None else "a tensor"
        raise ValueError(f"windows needs one budget for all samples, a count or a fraction: got {got}")
    latest = n_steps - b
    length = b - 1 if closing == "paid" else b
    early = [Window(start, start + length) for start in range(latest)] if length > 0 else []
    return [*early, Window(latest, n_steps)] if b > 0 else []


@dataclass(frozen=True, eq=False, repr=False)
class Geometric(_Spread):
    """Project at exactly `budget` steps whose distance to the end shrinks by a constant factor, the last step included.

    Steps that would coincide are moved to earlier ones, so the budget is always spent.

    Example:
        >>> from trimtab.examples import problem
        >>> problem(range(1), n_steps=16).rollout(Geometric(4)).projected[:, 0].nonzero().squeeze(1).tolist()
        [8, 12, 14, 15]
    """

    budget: Budget

    def _due(self, view: StepView) -> bool | Tensor:
        b = corrections(self.budget, view.n_steps)
        if not isinstance(b, Tensor):
            return view.t in _geometric_steps(b, view.n_steps)
        due = [view.t in _geometric_steps(int(count), view.n_steps) for count in b]
        return torch.tensor(due, device=view.defect.device)


@lru_cache(maxsize=4096)
def _geometric_steps(budget: int, n_steps: int) -> frozenset[int]:
    """Return the distinct steps T - 1 - d whose d + 1 grows by a factor of T^(1/B)."""
    found, before = set(), -1
    for j in range(budget):
        away = math.floor(n_steps ** (j / budget) + 1e-9) - 1  # 8^(1/3) is a hair below 2 in floating point
        before = max(before + 1, min(away, n_steps - budget + j))
        found.add(n_steps - 1 - before)
    return frozenset(found)


@dataclass(frozen=True, eq=False, repr=False)
class RandomTimes(_Spread):
    """Project at random steps, exactly `budget` of them, different for each sample (a control, and exploration).

    With b corrections left and k steps to go, it projects with probability b / k, so every set of times is equally
    likely. Samples without a seed share their times.
    """

    budget: Budget
    seed: int = 0

    def _due(self, view: StepView) -> Tensor:
        return self._coins(view, _RANDOM_TIMES) * view.steps_to_go < view.spendable


@dataclass(frozen=True, eq=False, repr=False)
class RandomRamp(_Spread):
    """Project at random steps, exactly `budget` of them, with probabilities in proportion to the steps' weights.

    By default weights rise linearly along the rollout; `RandomRamp.over` derives them from noise levels, as DDAT does.
    Each sample has different times, which depend on its seed and on `seed`; samples without a seed share them. If the
    weights leave no other way to spend the budget, the last steps are taken.

    Attributes:
        budget: A count, a fraction of T or a count per sample.
        weights: Of the steps, (T,), at least 0; None for a linear rise.
        seed: Selects the random numbers.
    """

    budget: Budget
    weights: Tensor | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Check budget, weights and seed."""
        super().__post_init__()
        w = self.weights
        if w is not None and (bool((check_floats(w, "RandomRamp: weights", ("T",)) < 0).any()) or not bool(w.any())):
            raise ValueError("RandomRamp: weights must be at least 0, and not all of them 0")

    @classmethod
    def over(cls, levels: Tensor, low: float, high: float, budget: Budget, seed: int = 0) -> RandomRamp:
        """Derive weights from noise levels: 0 at `high` and above, 1 at `low` and below, linear in between.

        `levels` are the noise levels after each step, (T,).

        Example:
            >>> import torch
            >>> RandomRamp.over(torch.tensor([80.0, 0.3, 0.2, 0.1, 0.0]), low=0.1, high=0.3, budget=2).weights
            tensor([0.0000, 0.0000, 0.5000, 1.0000, 1.0000])
        """
        check_floats(levels, "the noise levels of RandomRamp.over", ("T",))
        check_number(low, "the low level of RandomRamp")
        check_number(high, "the high level of RandomRamp")
        if not -math.inf < low < high < math.inf:
            raise ValueError(f"RandomRamp: low must be below high: got {low} and {high}")
        return cls(budget, ((high - levels) / (high - low)).clamp(0, 1), seed)

    def _due(self, view: StepView) -> Tensor:
        weights = self.weights
        if weights is None:
            weights = torch.arange(1.0, view.n_steps + 1, device=view.defect.device)
        elif len(weights) != view.n_steps:
            raise ValueError(f"RandomRamp has weights for {len(weights)} steps, but this rollout has {view.n_steps}")
        left, to_go = view.spendable, view.steps_to_go
        remaining = weights[view.t : view.t + to_go].double().sum()
        chosen = self._coins(view, _RANDOM_RAMP) * remaining < left * weights[view.t].double()
        return chosen | (left >= to_go)
