"""Schedules that wait for the defect to do something: what event-triggered control and caching schemes do today."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trimtab.core.arrays import all_finite
from trimtab.core.bound_constraint import bind
from trimtab.core.budget import Budget
from trimtab.core.checks import check_callable, check_integer, check_number, check_type
from trimtab.core.constraint import Constraint
from trimtab.core.record import Rollout
from trimtab.core.schedule import Schedule
from trimtab.core.view import StepView
from trimtab.schedules.basic import MOST_STEPS, brief_repr

__all__ = ["AboveNoise", "AccumulatedDefect", "Trigger", "UntilBelow"]


@dataclass(frozen=True, eq=False)
class AccumulatedDefect(Schedule):
    """Correct once the defects since the last correction add up to a value, until the budget is gone.

    So caching schemes decide when to compute anew: a small error is let pass, but not for ever.

    Attributes:
        value: What the sum has to reach, at least 0; inf never corrects. One for all samples, or one for each, (n,).
        budget: A count, a fraction of T or a count per sample.
    """

    value: float | Tensor
    budget: Budget = 1.0
    __repr__ = brief_repr

    def __post_init__(self) -> None:
        """Refuse a value that no sum could be held against."""
        _at_least_zero("AccumulatedDefect", "value", self.value)

    def decide(self, view: StepView) -> Tensor:
        """Where the sum has reached the value."""
        steps = torch.arange(view.t + 1, device=view.defect.device)
        since = torch.where(steps[:, None] >= view.last, view.defects, 0.0).nan_to_num(0.0, torch.inf)  # NaN: no look
        # one after the other: a plain sum groups its terms by the batch size, to other last bits
        return since.cumsum(dim=0)[-1] >= _fitting("AccumulatedDefect", self.value, view)

    def to(self, device: torch.device) -> AccumulatedDefect:
        """The same schedule with its values on `device`."""
        return replace(self, value=_on(self.value, device))


@dataclass(frozen=True, eq=False)
class Trigger(Schedule):
    """Correct where the defect reaches a value, but not before `gap` steps have passed since the last correction.

    Attributes:
        value: What the defect has to reach, at least 0; inf never corrects. One for all samples, or one for each, (n,).
        gap: Least number of steps from one correction to the next; 1 allows every step. The first needs no gap.
        budget: A count, a fraction of T or a count per sample.

    Example:
        >>> import torch, trimtab as tt
        >>> ball = tt.as_constraint(torch.zeros_like, lambda x: x.norm(dim=1))
        >>> corrector = tt.Corrector(ball, Trigger(0.5, gap=3), n_steps=7)
        >>> for t in range(7):
        ...     x = corrector(torch.ones(1, 2), t)
        >>> corrector.rollout.projected[:, 0].nonzero().squeeze(1).tolist()
        [0, 3, 6]
    """

    value: float | Tensor
    gap: int = 1
    budget: Budget = 1.0
    __repr__ = brief_repr

    def __post_init__(self) -> None:
        """Refuse a value or a gap that cannot be."""
        _at_least_zero("Trigger", "value", self.value)
        if isinstance(self.gap, bool) or not isinstance(self.gap, int | np.integer) or self.gap < 1:
            raise ValueError(f"Trigger: gap is a whole number of steps, at least 1: got {self.gap!r}")

    def decide(self, view: StepView) -> Tensor:
        """Where the defect is large enough and the last correction long enough ago."""
        return (view.defect >= _fitting("Trigger", self.value, view)) & ((view.last == 0) | (view.since >= self.gap))

    def to(self, device: torch.device) -> Trigger:
        """The same schedule with its values on `device`."""
        return replace(self, value=_on(self.value, device))


@dataclass(frozen=True, eq=False)
class UntilBelow(Schedule):
    """Correct at every step until the defect has once been below a tolerance, and then stop for good.

    Attributes:
        tolerance: At least 0; at 0 it never stops. One for all samples, or one for each, (n,).
        budget: A count, a fraction of T or a count per sample.
    """

    tolerance: float | Tensor
    budget: Budget = 1.0
    __repr__ = brief_repr

    def __post_init__(self) -> None:
        """Refuse a tolerance that cannot be."""
        _at_least_zero("UntilBelow", "tolerance", self.tolerance)

    def decide(self, view: StepView) -> Tensor:
        """Where no defect has been below the tolerance yet."""
        return ~(view.defects < _fitting("UntilBelow", self.tolerance, view)).any(dim=0)

    def to(self, device: torch.device) -> UntilBelow:
        """The same schedule with its tolerances on `device`."""
        return replace(self, tolerance=_on(self.tolerance, device))


@dataclass(frozen=True, eq=False)
class AboveNoise(Schedule):
    """Correct where the defect is more than the noise of the step explains.

    Feasible data has a defect too as soon as it is noised, and to correct that is to fight the sampler. So the defects
    of feasible data set a threshold for each step. CDIM knows their distribution for linear measurements; here it is
    measured, and a quantile of it is the threshold.

    Attributes:
        thresholds: At least 0: (T,), or (T, n) for samples with thresholds of their own.
        budget: A count, a fraction of T or a count per sample.
        calibration_seeds: Of the rollouts the thresholds were measured on: the schedule is not evaluated on them.
    """

    thresholds: Tensor
    budget: Budget = 1.0
    __repr__ = brief_repr
    calibration_seeds: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Refuse thresholds that are none."""
        h = self.thresholds
        if not isinstance(h, Tensor) or h.ndim not in (1, 2) or not h.is_floating_point():
            got = f"{tuple(h.shape)} of {h.dtype}" if isinstance(h, Tensor) else type(h).__name__
            raise ValueError(f"AboveNoise: thresholds are a (T,) or (T, n) tensor of floats: got {got}")
        if not bool((h >= 0).all()):  # NaN is not
            raise ValueError("AboveNoise: thresholds are at least 0")

    @classmethod
    def from_data(
        cls,
        constraint: Constraint,
        noised: Callable[[int], Any],
        n_steps: int,
        *,
        quantile: float = 0.95,
        budget: Budget = 1.0,
    ) -> AboveNoise:
        r"""Thresholds from feasible data at the noise level of each step.

        Args:
            constraint: Measures the defects; one that needs to know nothing beside the states.
            noised: `noised(t)` is feasible data with as much noise as a sample has after step t, (n, \*event); n may
                differ from step to step.
            n_steps: T.
            quantile: The share of feasible samples that is left alone at each step.
            budget: As above.

        Example:
            >>> import torch, trimtab as tt
            >>> line = tt.as_constraint(lambda x: x * torch.tensor([1.0, 0.0]), lambda x: x[:, 1].abs())
            >>> noise = torch.randn(1000, 2, generator=torch.Generator().manual_seed(0))
            >>> found = AboveNoise.from_data(line, lambda t: (2 - t) * noise, n_steps=3)
            >>> [round(value) for value in found.thresholds.tolist()]
            [4, 2, 0]
        """
        check_type(constraint, Constraint, "the constraint of AboveNoise", "as_constraint(…) makes one of functions")
        check_callable(noised, "noised", "noised(t), feasible data with the noise of step t")
        check_integer(n_steps, "n_steps", most=MOST_STEPS)
        _check_quantile(quantile)
        if constraint.needs:
            raise ValueError(
                f"AboveNoise.from_data measures defects outside of a run, where {', '.join(constraint.needs)}, which "
                "the constraint needs, cannot be told; AboveNoise.from_stepwise measures them in a run of Stepwise()"
            )
        with torch.no_grad():
            defects = [_defects_of(constraint, noised(t), t) for t in range(n_steps)]
        return cls(_quantiles(defects, quantile), budget)

    @classmethod
    def from_stepwise(cls, run: Rollout, *, quantile: float = 0.95, budget: Budget = 1.0) -> AboveNoise:
        """Thresholds from a stepwise rollout: what one update does to a feasible state, or to a group of them.

        Args:
            run: Corrected at every step, so that every defect in it is of one update of a feasible state.
            quantile: The share of those that is left alone at each step.
            budget: As above.
        """
        check_type(
            run, Rollout, "the run of AboveNoise.from_stepwise", "give corrector.rollout of a run with Stepwise()"
        )
        if not bool(run.projected.all()):
            raise ValueError("AboveNoise: every step of the rollout has to be corrected; give one of Stepwise()")
        seeds = () if run.seeds is None else tuple(run.seeds.tolist())
        return cls(_quantiles(list(run.grouped().defects), quantile), budget, seeds)

    def decide(self, view: StepView) -> Tensor:
        """Where the defect is above the threshold of the step."""
        if len(self.thresholds) != view.n_steps:
            raise ValueError(
                f"AboveNoise has thresholds for {len(self.thresholds)} steps, but this rollout has {view.n_steps}"
            )
        return view.defect > _fitting("AboveNoise", self.thresholds[view.t], view)

    def to(self, device: torch.device) -> AboveNoise:
        """The same schedule with its thresholds on `device`."""
        return AboveNoise(self.thresholds.to(device), self.budget, self.calibration_seeds)


def _quantiles(defects: Sequence[Tensor], quantile: float) -> Tensor:
    """Of each step over its samples, (n,) each to (T,)."""
    _check_quantile(quantile)
    if not all(bool(some.isfinite().all()) for some in defects):
        raise ValueError("AboveNoise: the defects have to be finite; were they measured?")
    return torch.stack([some.double().quantile(quantile) for some in defects])


def _check_quantile(quantile: float) -> None:
    check_number(quantile, "AboveNoise: the quantile, a share of the samples,", 0, 1)


def _defects_of(constraint: Constraint, x: Any, t: int) -> Tensor:
    """Of feasible data with noise, (n,); refused where it can be no states."""
    try:
        applied, leaves = bind(constraint, x)
    except (TypeError, ValueError) as error:
        raise ValueError(f"AboveNoise: noised({t}) must be states, one row per sample: {error}") from error
    if not all_finite(leaves):
        raise ValueError(f"AboveNoise: noised({t}) has NaN or inf; it must be feasible data with finite noise")
    return applied.defect(leaves)


def _on(value: float | Tensor, device: torch.device) -> float | Tensor:
    return value.to(device) if isinstance(value, Tensor) else value


def _fitting(schedule: str, value: float | Tensor, view: StepView) -> float | Tensor:
    """The value for all samples or for each, refused where it is for another number of them."""
    if isinstance(value, Tensor) and value.ndim and len(value) != len(view):
        raise ValueError(f"{schedule} has values for {len(value)} samples, but this rollout has {len(view)}")
    return value


def _at_least_zero(schedule: str, name: str, value: float | Tensor) -> None:
    if isinstance(value, Tensor):
        if value.ndim != 1 or not value.is_floating_point() or not bool((value >= 0).all()):
            raise ValueError(f"{schedule}: {name} is a number of at least 0, or one for each sample: got {value!r}")
    elif (
        isinstance(value, bool)
        or not isinstance(value, int | float | np.integer | np.floating)
        or math.isnan(value)
        or value < 0
    ):
        raise ValueError(f"{schedule}: {name} is a number of at least 0: got {value!r}")
