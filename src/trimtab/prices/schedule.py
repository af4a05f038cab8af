"""The schedules of prices. `PricedSchedule.decide` is the comparison of Algorithm 1 in the paper."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from trimtab.core.budget import PerBatch
from trimtab.core.schedule import Schedule
from trimtab.core.view import StepView
from trimtab.prices.price import Plan, Price, Thresholds, budget_within
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
        terms = {
            "budget": replace(wanted, budget=within) if isinstance(wanted, PerBatch) else within,
            "calibration_seeds": price.seeds,
            "closing": price.closing,
            "unit": "" if isinstance(price, Plan) else price.unit,  # a plan fits any unit
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
    """Project all samples at the steps of a `Plan`."""

    uses_defects: ClassVar[bool] = False
    rules: ClassVar[tuple[type[Price], ...]] = (Plan,)

    def decide(self, view: StepView) -> Tensor:
        """Return which samples to correct now, (n,) bool."""
        self._check_steps(view)
        budget = self.budget.budget if isinstance(self.budget, PerBatch) else self.budget
        due: Tensor = self.price.due(view.t, budget)
        return due.expand(len(view))
