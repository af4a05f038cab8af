"""Planned times: a mask for every budget, fixed on calibration rollouts and shared by all samples."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from trimtab.core import html
from trimtab.core.budget import Budget, Unit
from trimtab.core.checks import check_type
from trimtab.core.files import save_tensors
from trimtab.core.view import StepView
from trimtab.prices.provenance import Priced, Provenance, budget_within, reading
from trimtab.prices.resample import Keep, resampled_masks

__all__ = ["Plan", "Planned"]


@dataclass(frozen=True, eq=False)
class Plan(Provenance):
    """The times to project at, for every budget up to B.

    Attributes:
        masks: Row b holds exactly b of the T steps, (B + 1, T) bool.

    How they were found is told as for all prices: see `Provenance`.
    """

    masks: Tensor
    method: str = field(default="planned", kw_only=True)

    unit: ClassVar[Unit] = "projection"
    closing_reserve: ClassVar[int] = 1

    def __post_init__(self) -> None:
        """Refuse masks that do not keep their budgets."""
        super().__post_init__()
        masks = check_type(self.masks, Tensor, "the masks of a plan")
        if masks.dtype != torch.bool or masks.ndim != 2 or 0 in masks.shape or len(masks) - 1 > masks.shape[1]:
            raise ValueError(f"a plan is (B + 1, T) bool with B <= T: got {tuple(masks.shape)} of {masks.dtype}")
        if not torch.equal(masks.sum(dim=1).cpu(), torch.arange(len(masks))):
            raise ValueError("row b of a plan must hold exactly b steps")

    def __repr__(self) -> str:
        """One line."""
        return (
            f"Plan(T={self.n_steps}, budgets up to {self.budget}, objective={self.objective!r}, "
            f"{len(self.seeds)} calibration seeds)"
        )

    def _repr_html_(self) -> str:
        """The times of some budgets, in a notebook."""
        budgets = dict.fromkeys(max(1, round(share * self.budget)) for share in (0.1, 0.25, 0.5))
        times = {b: self.masks[b].nonzero().flatten().tolist() for b in budgets if b <= self.budget}
        rows = [(b, ", ".join(map(str, steps))) for b, steps in times.items()]
        facts = [("objective", self.objective), ("steps", self.n_steps), ("calibration seeds", len(self.seeds))]
        return html.panel("Planned times", html.table(facts), html.table(rows, ("budget", "projects after steps")))

    @property
    def n_steps(self) -> int:
        """T."""
        return self.masks.shape[1]

    @property
    def budget(self) -> int:
        """The largest budget planned for."""
        return len(self.masks) - 1

    def at(self, budget: Budget) -> Planned:
        """The schedule for a budget."""
        return Planned(self, budget)

    def resample(self, n_steps: int, keep: Keep = "count") -> Plan:
        """The same plan for another number of steps; see `Thresholds.resample`."""
        notes = {**self.notes, "resampled_from": self.n_steps}
        return replace(self, masks=resampled_masks(self.masks, n_steps, keep), fingerprint="", notes=notes)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one safetensors file."""
        save_tensors(path, "plan", {"masks": self.masks}, self.told())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Plan:
        """Read what `save` wrote; a truncated, foreign or inconsistent file is refused."""
        with reading(path, "plan", "a usable plan") as (tensors, facts):
            return cls(tensors["masks"], **facts)


@dataclass(frozen=True, eq=False)
class Planned(Priced):
    """Project all samples at planned times."""

    plan: Plan
    budget: Budget
    uses_defects: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Check the budget against the plan."""
        plan = check_type(self.plan, Plan, "the plan of planned times", "calibrate(..., method='planned') makes one")
        object.__setattr__(self, "budget", budget_within(self.budget, plan.n_steps, plan.budget))

    @property
    def made_from(self) -> Plan:
        """The plan."""
        return self.plan

    def decide(self, view: StepView) -> Tensor:
        """The plan's step t."""
        if view.n_steps != self.plan.n_steps:
            raise ValueError(
                f"the plan was made for T = {self.plan.n_steps} steps and cannot be used for T = {view.n_steps}; "
                f"plan again, or use plan.resample({view.n_steps})"
            )
        due = self.plan.masks[:, view.t]
        return due[self.budget] if isinstance(self.budget, Tensor) else due[int(self.budget)].expand_as(view.defect)

    def to(self, device: torch.device) -> Planned:
        """The same schedule on `device`."""
        budget = self.budget.to(device) if isinstance(self.budget, Tensor) else self.budget
        return Planned(replace(self.plan, masks=self.plan.masks.to(device)), budget)
