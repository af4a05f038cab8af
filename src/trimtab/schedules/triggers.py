"""Schedules that decide by the defect, without calibration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

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
from trimtab.schedules.basic import MOST_STEPS, FrozenSchedule

__all__ = ["AboveNoise", "AccumulatedDefect", "FixedThreshold", "Trigger", "UntilBelow"]


@dataclass(frozen=True, eq=False, repr=False)
class FixedThreshold(FrozenSchedule):
    """Project if the defect is at least `value`, until the budget is spent (a control)."""

    value: float
    budget: Budget = 1.0

    def __post_init__(self) -> None:
        """Check the threshold."""
        check_number(self.value, "the value of FixedThreshold")

    def decide(self, view: StepView) -> Tensor:
        """Choose samples with a defect of at least `value`."""
        return view.defect >= self.value


class _PerSample(FrozenSchedule):
    """A schedule with one value for all samples, or one for each, (n,)."""

    _name = "value"

    def __post_init__(self) -> None:
        """Check that the value is a number of at least 0, or a (n,) float tensor of such numbers."""
        value, what = getattr(self, self._name), f"{type(self).__name__}: {self._name}"
        if isinstance(value, Tensor):
            if value.ndim != 1 or not value.is_floating_point() or not bool((value >= 0).all()):
                raise ValueError(f"{what} must be a number of at least 0, or one for each sample: got {value!r}")
        else:
            check_number(value, what, 0.0)


@dataclass(frozen=True, eq=False, repr=False)
class AccumulatedDefect(_PerSample):
    """Project once the defects since the last correction add up to `value`, until the budget is spent.

    Caching schemes decide like this when to recompute: small errors pass, but not forever.

    Attributes:
        value: What the sum must reach, at least 0; inf never corrects. One for all samples, or one for each, (n,).
        budget: A count, a fraction of T or a count per sample.
    """

    value: float | Tensor
    budget: Budget = 1.0

    def decide(self, view: StepView) -> Tensor:
        """Choose samples whose sum has reached the value."""
        steps = torch.arange(view.t + 1, device=view.defect.device)
        since = torch.where(steps[:, None] >= view.last, view.defects, 0.0)
        return since.nan_to_num(0.0, torch.inf).sum(dim=0) >= _fitting(self, self.value, view)  # NaN: not measured


@dataclass(frozen=True, eq=False, repr=False)
class Trigger(_PerSample):
    """Project if the defect is at least `value` and the last correction is at least `gap` steps ago.

    Attributes:
        value: What the defect must reach, at least 0; inf never corrects. One for all samples, or one for each, (n,).
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

    def __post_init__(self) -> None:
        """Check value and gap."""
        super().__post_init__()
        check_integer(self.gap, "Trigger: gap, the steps from one correction to the next,")

    def decide(self, view: StepView) -> Tensor:
        """Choose samples with a large defect and no recent correction."""
        return (view.defect >= _fitting(self, self.value, view)) & ((view.last == 0) | (view.since >= self.gap))


@dataclass(frozen=True, eq=False, repr=False)
class UntilBelow(_PerSample):
    """Project at every step until the defect has been below `tolerance` once; then stop for good.

    Attributes:
        tolerance: At least 0; with 0 it never stops. One for all samples, or one for each, (n,).
        budget: A count, a fraction of T or a count per sample.
    """

    tolerance: float | Tensor
    budget: Budget = 1.0
    _name = "tolerance"

    def decide(self, view: StepView) -> Tensor:
        """Choose samples whose defect has not been below the tolerance yet."""
        return ~(view.defects < _fitting(self, self.tolerance, view)).any(dim=0)


@dataclass(frozen=True, eq=False, repr=False)
class AboveNoise(FrozenSchedule):
    """Project if the defect is larger than the noise of the step explains.

    Feasible data with noise has a defect too, and correcting that works against the sampler. So each step has a
    threshold: a quantile of the defects of noisy feasible data. CDIM knows that distribution for linear measurements;
    here it is measured.

    Attributes:
        thresholds: At least 0, (T,), or (T, n) with one per sample.
        budget: A count, a fraction of T or a count per sample.
        calibration_seeds: Seeds that the thresholds were measured on; evaluating on them raises an error.
    """

    thresholds: Tensor
    budget: Budget = 1.0
    calibration_seeds: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Check the thresholds."""
        h = self.thresholds
        if not isinstance(h, Tensor) or h.ndim not in (1, 2) or not h.is_floating_point():
            got = f"{tuple(h.shape)} of {h.dtype}" if isinstance(h, Tensor) else type(h).__name__
            raise ValueError(f"AboveNoise: thresholds must be a (T,) or (T, n) tensor of floats: got {got}")
        if not bool((h >= 0).all()):  # False for NaN
            raise ValueError("AboveNoise: thresholds must be at least 0")

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
        r"""Measure thresholds on feasible data at the noise level of each step.

        Args:
            constraint: Measures the defects; it must need nothing but the states.
            noised: `noised(t)` returns feasible data with as much noise as a sample has after step t, (n, \*event); n
                may differ between steps.
            n_steps: T.
            quantile: The share of feasible samples below the threshold of a step.
            budget: A count, a fraction of T or a count per sample.

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
                "AboveNoise.from_data measures defects outside of a run, but the constraint needs "
                f"{', '.join(constraint.needs)}; use AboveNoise.from_stepwise, which measures them in a run"
            )
        with torch.no_grad():
            defects = [_defects_of(constraint, noised(t), t) for t in range(n_steps)]
        return cls(_quantiles(defects, quantile), budget)

    @classmethod
    def from_stepwise(cls, run: Rollout, *, quantile: float = 0.95, budget: Budget = 1.0) -> AboveNoise:
        """Take thresholds from a stepwise rollout, whose defects are those of one update of a feasible state.

        The threshold of a step is a quantile over the samples.
        """
        hint = "give corrector.rollout of a run with Stepwise()"
        check_type(run, Rollout, "the run of AboveNoise.from_stepwise", hint)
        if not bool(run.projected.all()):
            raise ValueError("AboveNoise: every step of the rollout has to be corrected; give one of Stepwise()")
        seeds = () if run.seeds is None else tuple(run.seeds.tolist())
        return cls(_quantiles(list(run.defects), quantile), budget, seeds)

    def decide(self, view: StepView) -> Tensor:
        """Choose samples with a defect above the threshold of the step."""
        steps = len(self.thresholds)
        if steps != view.n_steps:
            raise ValueError(f"AboveNoise has thresholds for {steps} steps, but this rollout has {view.n_steps}")
        return view.defect > _fitting(self, self.thresholds[view.t], view)


def _quantiles(defects: Sequence[Tensor], quantile: float) -> Tensor:
    """Return the quantile of each step's defects, (T,)."""
    _check_quantile(quantile)
    if not all(bool(some.isfinite().all()) for some in defects):
        raise ValueError("AboveNoise: the defects have to be finite; were they measured?")
    return torch.stack([some.double().quantile(quantile) for some in defects])


def _check_quantile(quantile: float) -> None:
    check_number(quantile, "AboveNoise: the quantile, a share of the samples,", 0, 1)


def _defects_of(constraint: Constraint, x: Any, t: int) -> Tensor:
    """Return the defects of noisy feasible data, (n,)."""
    try:
        applied, leaves = bind(constraint, x)
    except (TypeError, ValueError) as error:
        raise ValueError(f"AboveNoise: noised({t}) must be states, one row per sample: {error}") from error
    if not all_finite(leaves):
        raise ValueError(f"AboveNoise: noised({t}) has NaN or inf; it must be feasible data with finite noise")
    return applied.defect(leaves)


def _fitting(schedule: Schedule, value: float | Tensor, view: StepView) -> float | Tensor:
    """Return the value; raise if it is for another number of samples."""
    if isinstance(value, Tensor) and value.ndim and len(value) != len(view):
        name = type(schedule).__name__
        raise ValueError(f"{name} has values for {len(value)} samples, but this rollout has {len(view)}")
    return value
