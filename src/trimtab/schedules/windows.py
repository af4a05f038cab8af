"""What people use today: a stretch of steps, or times that grow denser towards the end. None looks at defects."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from trimtab.core.budget import Budget, corrections
from trimtab.core.checks import check_integer, check_number, check_type
from trimtab.core.noise import uniform_numbers
from trimtab.core.schedule import Schedule
from trimtab.core.view import StepView
from trimtab.schedules.basic import MOST_STEPS, brief_repr, needs_budget

__all__ = ["Geometric", "RandomRamp", "Window", "windows"]


@dataclass(frozen=True)
class Window(Schedule):
    """Correct every sample at every step of a stretch, and nowhere else.

    It spends one correction per step of the stretch. One that ends before the last step pays for the closing projection
    on top, if that is paid for; `windows` lists those of one total cost.

    Attributes:
        start: The first step that is corrected; a whole number is a step, a float a fraction of T.
        stop: The first step that is not corrected any more; likewise.

    Example:
        >>> Window(0.5)  # the last half
        Window(start=0.5, stop=1.0)
        >>> Window(0.75).steps(20), Window(3, 6).steps(20)
        (range(15, 20), range(3, 6))
    """

    start: int | float
    stop: int | float = 1.0
    uses_defects: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Refuse what no number of steps could make a stretch of."""
        for name, value in (("start", self.start), ("stop", self.stop)):
            if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
                raise ValueError(f"Window: {name} is a step (a whole number) or a fraction of T: got {value!r}")
            plain = int(value) if isinstance(value, int | np.integer) else float(value)
            object.__setattr__(self, name, plain)
            if plain < 0 or (isinstance(plain, float) and not plain <= 1):
                raise ValueError(
                    f"Window: {name} = {value} is neither a step (a whole number of at least 0) nor a fraction of T "
                    "(a float from 0 to 1)"
                )
        if type(self.start) is type(self.stop) and self.start >= self.stop:
            raise ValueError(f"Window: the start comes before the stop: got {self.start} and {self.stop}")

    def steps(self, n_steps: int) -> range:
        """The steps that are corrected, of a rollout of `n_steps`; fractions are rounded to the nearest step."""
        check_integer(n_steps, "n_steps")
        ends = [end if isinstance(end, int) else int(end * n_steps + 0.5) for end in (self.start, self.stop)]
        if ends[1] > n_steps or ends[0] > ends[1]:
            raise ValueError(f"{self} is steps {ends[0]} to {ends[1]}, which do not fit a rollout of {n_steps} steps")
        return range(*ends)

    def decide(self, view: StepView) -> Tensor:
        """All samples, inside the stretch."""
        return torch.full_like(view.defect, view.t in self.steps(view.n_steps), dtype=torch.bool)


def windows(budget: Budget, n_steps: int, closing: Literal["paid", "free"] = "paid") -> list[Window]:
    """All windows that cost exactly the budget, for a search of the best one.

    Args:
        budget: What a rollout pays for: a count or a fraction of T.
        n_steps: T.
        closing: "paid": the closing projection is part of the budget, so that a window which ends before the last
            step is one step shorter. "free": it is counted apart, as in the paper.

    Returns:
        From the earliest to the latest, at most T of them; none for a budget that leaves nothing for a window.

    Example:
        >>> [(w.start, w.stop) for w in windows(3, 5)]  # the first two pay for the closing projection too
        [(0, 2), (1, 3), (2, 5)]
        >>> [(w.start, w.stop) for w in windows(3, 5, closing="free")]
        [(0, 3), (1, 4), (2, 5)]
    """
    if closing not in ("paid", "free"):
        raise ValueError(f"closing is 'paid' or 'free': got {closing!r}")
    check_integer(n_steps, "n_steps", most=MOST_STEPS)
    b = corrections(budget, n_steps)
    if isinstance(b, Tensor) or budget is None:
        got = "None" if budget is None else "a tensor"
        raise ValueError(f"windows: one budget for all samples is needed, a count or a fraction: got {got}")
    latest = n_steps - b
    length = b - 1 if closing == "paid" else b
    early = [Window(start, start + length) for start in range(latest)] if length > 0 else []
    return [*early, Window(latest, n_steps)] if b > 0 else []


@dataclass(frozen=True, eq=False)
class Geometric(Schedule):
    """Correct at exactly `budget` steps whose distance to the end shrinks by a constant factor, the last step included.

    Where that would ask for one step twice, earlier ones are taken, so that the budget is always spent.

    Example:
        >>> import trimtab as tt
        >>> problem = tt.domain("so3", n_steps=16).problem(range(1))
        >>> run = tt.rollout(problem.sampler, problem.constraint, Geometric(4), range(1))
        >>> run.projected[:, 0].nonzero().squeeze(1).tolist()
        [8, 12, 14, 15]
    """

    budget: Budget
    uses_defects: ClassVar[bool] = False
    __repr__ = brief_repr

    def __post_init__(self) -> None:
        """Refuse to be without a budget."""
        needs_budget("Geometric", self.budget)

    def decide(self, view: StepView) -> Tensor:
        """All samples at those steps; samples with budgets of their own each at theirs."""
        b = corrections(self.budget, view.n_steps)
        if isinstance(b, Tensor):
            due = [view.t in _geometric_steps(int(count), view.n_steps) for count in b]
            return torch.tensor(due, device=view.defect.device)
        return torch.full_like(view.defect, view.t in _geometric_steps(b, view.n_steps), dtype=torch.bool)


@lru_cache(maxsize=4096)
def _geometric_steps(budget: int, n_steps: int) -> frozenset[int]:
    """Steps T - 1 - d whose d + 1 grows by a factor of T^(1/B), no two alike."""
    found, before = set(), -1
    for j in range(budget):
        away = math.floor(n_steps ** (j / budget) + 1e-9) - 1  # 8^(1/3) is a hair below 2 in floating point
        before = max(before + 1, min(away, n_steps - budget + j))
        found.add(n_steps - 1 - before)
    return frozenset(found)


@dataclass(frozen=True, eq=False)
class RandomRamp(Schedule):
    """Correct at random steps, exactly `budget` of them, the more likely the larger the weight of the step.

    By default weights rise linearly along the rollout. `RandomRamp.over` takes them from noise levels, as DDAT does:
    none above a high level, all alike below a low one, linear between. Each sample has its own times, which depend on
    its seed and this schedule's; samples whose seed the loop does not know share them. Where the weights leave no other
    way to spend the budget, the last steps are taken.

    Attributes:
        budget: A count, a fraction of T or a count per sample.
        weights: Of the steps, (T,), at least 0; None for a linear rise.
        seed: Of the coins.
    """

    budget: Budget
    weights: Tensor | None = None
    seed: int = 0
    uses_defects: ClassVar[bool] = False
    __repr__ = brief_repr

    def __post_init__(self) -> None:
        """Refuse weights that are none."""
        check_integer(self.seed, "the seed of RandomRamp", 0)
        needs_budget("RandomRamp", self.budget)
        w = self.weights
        if w is None:
            return
        if not isinstance(w, Tensor) or w.ndim != 1 or not w.is_floating_point():
            got = f"{tuple(w.shape)} of {w.dtype}" if isinstance(w, Tensor) else type(w).__name__
            raise ValueError(f"RandomRamp: weights are a (T,) tensor of floats: got {got}")
        if not bool((w.isfinite() & (w >= 0)).all()):
            raise ValueError("RandomRamp: weights are finite and at least 0")

    @classmethod
    def over(cls, levels: Tensor, low: float, high: float, budget: Budget, seed: int = 0) -> RandomRamp:
        """Weights from noise levels: 0 at `high` and above, 1 at `low` and below, linear between.

        Args:
            levels: Noise level after each step, (T,).
            low: Below it all steps weigh the same.
            high: Above it no step weighs anything.
            budget: As above.
            seed: As above.

        Example:
            >>> import torch
            >>> RandomRamp.over(torch.tensor([80.0, 0.3, 0.2, 0.1, 0.0]), low=0.1, high=0.3, budget=2).weights
            tensor([0.0000, 0.0000, 0.5000, 1.0000, 1.0000])
        """
        check_type(levels, Tensor, "the levels of RandomRamp.over", "give the noise level after each step, (T,)")
        if not bool(levels.isfinite().all()):
            raise ValueError("RandomRamp: noise levels are finite: got NaN or inf among them")
        check_number(low, "the low level of RandomRamp")
        check_number(high, "the high level of RandomRamp")
        if not -math.inf < low < high < math.inf:
            raise ValueError(f"RandomRamp: the low level is below the high one: got {low} and {high}")
        return cls(budget, ((high - levels) / (high - low)).clamp(0, 1), seed)

    def decide(self, view: StepView) -> Tensor:
        """A coin for each sample, from its seed, this schedule's seed and the step."""
        weights = self.weights
        if weights is None:
            weights = torch.arange(1.0, view.n_steps + 1, device=view.defect.device)
        elif len(weights) != view.n_steps:
            raise ValueError(f"RandomRamp has weights for {len(weights)} steps, but this rollout has {view.n_steps}")
        left, to_go = view.spendable, view.steps_to_go
        seeds = view.seeds if view.seeds is not None else torch.zeros_like(left)
        coin = uniform_numbers(seeds, range(view.t, view.t + 1), (), _RANDOM_RAMP + self.seed)[0]
        ahead = weights[view.t : view.t + to_go].double().sum()
        return (coin * ahead < left * weights[view.t].double()) | (left >= to_go)

    def to(self, device: torch.device) -> RandomRamp:
        """The same schedule with its weights on `device`."""
        return self if self.weights is None else RandomRamp(self.budget, self.weights.to(device), self.seed)


_RANDOM_RAMP = 2 << 32  # a stream far from those of the samplers and of RandomTimes
