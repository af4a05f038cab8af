"""The schedules of prices. `PricedSchedule.decide` is the comparison of Algorithm 1 in the paper."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from trimtab.core.budget import PerBatch
from trimtab.core.schedule import Around, Schedule
from trimtab.core.view import StepView
from trimtab.prices.price import Allowance, Plan, Price, Raced, Thresholds, budget_within
from trimtab.schedules.basic import brief_repr


@dataclass(frozen=True, eq=False)
class PricedSchedule(Schedule):
    """Algorithm 1 of the paper: correct where the defect reaches the price of a correction.

    Attributes:
        price: Usually from `calibrate`.
        budget: At most the largest budget of the price, which is the default.
    """

    price: Any
    budget: Any = None
    rules: ClassVar[tuple[type[Price], ...]] = (Thresholds,)
    __repr__ = brief_repr

    def __post_init__(self) -> None:
        """Check the budget against the price."""
        if not isinstance(self.price, self.rules):
            rules = " or ".join(rule.__name__ for rule in self.rules)
            raise TypeError(
                f"{type(self).__name__} takes {rules}: got {self.price!r:.80} of type {type(self.price).__name__}; "
                "calibrate(…) makes a price, and price.at(budget) its schedule"
            )
        price: Any = self.price
        wanted = price.budget if self.budget is None else self.budget
        within = budget_within(wanted, price.n_steps, price.budget, price.unit)
        planned = isinstance(price, Plan)  # which fits either unit, and is asked once per step
        terms = {
            "budget": replace(wanted, budget=within) if isinstance(wanted, PerBatch) else within,
            "calibration_seeds": price.seeds,
            "closing": price.closing,
            "closing_reserve": price.closing_reserve,
            "unit": "" if planned else price.unit,
            "repeats": not planned,
        }
        for name, value in terms.items():
            object.__setattr__(self, name, value)

    def decide(self, view: StepView) -> Any:
        """Return which samples to correct now, (n,) bool."""
        self._check_steps(view)
        s, b = view.arrays(self)  # the defects, and what is left of the budget
        return s >= self.price.threshold(view, b)  # lambda[t, b], which is +inf for b = 0

    def _check_steps(self, view: StepView) -> None:
        T = self.price.n_steps
        if view.n_steps != T:
            raise ValueError(
                f"the price was calibrated for T = {T} steps and cannot be used for T = {view.n_steps}; calibrate "
                f"again, or use price.resample({view.n_steps})"
            )

    thresholds = plan = property(lambda self: self.price)  # names of the price in version 0.2

    def priority(self, view: StepView) -> Tensor:
        """Return the defects in units of each sample's scale, (n,)."""
        scale = getattr(self.price, "sample_scale", None)
        return super().priority(view) if scale is None else view.defect / scale.now(view)

    def check_fits(self, event: tuple[int, ...] | None = None, constraint: str = "", defect: float = 0.0) -> None:
        """Raise if the price was made for another problem; see `Price.check_fits`."""
        self.price.check_fits(event, constraint, defect)

    def to(self, device: torch.device) -> Self:
        """Return the same schedule with its tensors on `device`."""
        budget = self.budget.to(device) if isinstance(self.budget, Tensor) else self.budget
        price = self.price.to(device)
        return self if price is self.price and budget is self.budget else replace(self, price=price, budget=budget)


Adaptive = PricedSchedule
"""The name of the schedule of a threshold table."""


@dataclass(frozen=True, eq=False, repr=False)
class Planned(PricedSchedule):
    """Project all samples at the steps of a `Plan`, or iterate as often as an `Allowance` says."""

    uses_defects: ClassVar[bool] = False
    rules: ClassVar[tuple[type[Price], ...]] = (Plan, Allowance)

    def decide(self, view: StepView) -> Tensor:
        """Return which samples to correct now, (n,) bool."""
        self._check_steps(view)
        due: Tensor = self.price.due(view)
        budget = self.budget.budget if isinstance(self.budget, PerBatch) else self.budget
        return due[budget] if isinstance(budget, Tensor) else due[int(budget)].expand(len(view))


@dataclass(frozen=True, eq=False, repr=False)
class Mixed(PricedSchedule):
    """The schedule of a `Raced` price for samples with different budgets: each goes by the winner at its budget."""

    rules: ClassVar[tuple[type[Price], ...]] = (Raced,)

    @cached_property
    def schedules(self) -> list[PricedSchedule]:
        """The schedule of every part, for all samples."""
        return [self.price.part_at(i, self.budget) for i in range(len(self.price.parts))]

    def decide(self, view: StepView) -> Tensor:
        """Return which samples to correct now, (n,) bool."""
        decided = torch.stack([torch.as_tensor(schedule.decide(view)) for schedule in self.schedules])
        return decided.gather(0, self.price.winner[self.budget][None])[0]


@dataclass(frozen=True, eq=False, repr=False)
class CloseCalls(Around):
    """Decide as the wrapped schedule of thresholds, and note which defects lie within the interval of their price.

    Attributes:
        found: Where they did, (T, n) bool; filled in as steps are decided.
    """

    found: Tensor

    def decide(self, view: StepView) -> Any:
        """Return the decision of the wrapped schedule."""
        price: Thresholds = self.schedule.price  # type: ignore[attr-defined]
        assert price.interval is not None
        s, b = view.arrays(self.schedule)
        low, high = (replace(price, table=end, interval=None).threshold(view, b) for end in price.interval)
        self.found[view.t] |= torch.as_tensor((s >= low) & (s <= high))
        return self.schedule.decide(view)
