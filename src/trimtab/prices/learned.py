"""The schedule of one learned run: each row follows an arm, and an arm is a rule with its own share of the budget."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from trimtab.core.budget import Cost, PerBatch, Unit
from trimtab.core.schedule import WHOLE, Schedule
from trimtab.core.view import StepView

__all__ = ["Arm", "Counted", "Even", "Every", "Explore", "Last", "Learned", "Priced", "Programmed"]


_SCALE = 100.0  # defects of the first step may differ by this factor from those that were learned from


@dataclass(frozen=True, eq=False)
class Arm:
    """A rule for some rows of a run.

    `decide` returns the way of each of its rows, (k,) int64: 0 is to stay, the last way of the run is whole.

    Attributes:
        rows: The rows that follow it, (k,) int64.
        limit: What each of them may spend, in units of the run; None if the rule limits itself.
        shared: Whether they share it.
    """

    rows: Tensor
    limit: float | None = None
    shared: bool = False

    def decide(self, view: StepView, defect: Tensor, left: Tensor, ways: int) -> Tensor:
        """Return ways for defects, (k,), with `left` units, (k,), and ways 1 to `ways`."""
        raise NotImplementedError

    def worth(self, view: StepView, defect: Tensor) -> Tensor:
        """Return what goes first if the budget does not pay for all, (k,)."""
        return defect

    def to(self, device: torch.device) -> Arm:
        """Return the same arm on `device`."""
        moved = {name: part.to(device) for name, part in vars(self).items() if hasattr(part, "to")}
        return replace(self, **moved)


@dataclass(frozen=True, eq=False)
class Even(Arm):
    """Project whole at evenly spaced steps, each row with a phase of its own.

    Attributes:
        count: How often before the closing projection.
        phase: Where the spacing starts, (k,) in [0, 1).
    """

    count: float = 0.0
    phase: Any = None

    def decide(self, view: StepView, defect: Tensor, left: Tensor, ways: int) -> Tensor:
        """Return `whole` for the rows that are due."""
        pace = self.count / max(view.t + view.steps_to_go, 1)
        due = torch.floor((view.t + 1) * pace + self.phase) > torch.floor(view.t * pace + self.phase)
        return ways * due.long()


@dataclass(frozen=True, eq=False)
class Last(Arm):
    """Project whole in the last `count` steps before the closing projection; 0 is one at the end."""

    count: float = 0.0

    def decide(self, view: StepView, defect: Tensor, left: Tensor, ways: int) -> Tensor:
        """Return `whole` for all rows in the last steps."""
        return torch.full_like(self.rows, ways if view.steps_to_go <= self.count else 0)


@dataclass(frozen=True, eq=False)
class Every(Arm):
    """Take one way at every step; the last way is full projection."""

    way: int = 1

    def decide(self, view: StepView, defect: Tensor, left: Tensor, ways: int) -> Tensor:
        """Return the way for all rows."""
        return torch.full_like(self.rows, self.way)


@dataclass(frozen=True, eq=False)
class Explore(Arm):
    """Take a way at random with some probability, else stay.

    Attributes:
        coins: Uniform numbers by step and row, (T, k).
        chance: Of any way but to stay.
    """

    coins: Any = None
    chance: float = 0.5

    def decide(self, view: StepView, defect: Tensor, left: Tensor, ways: int) -> Tensor:
        """Return a random way for each row."""
        scaled = self.coins[view.t] / self.chance
        return torch.where(scaled < 1, (scaled * ways).long().clamp(max=ways - 1) + 1, 0)


@dataclass(frozen=True, eq=False)
class Programmed(Arm):
    """Follow a program over ways."""

    program: Any = None

    def decide(self, view: StepView, defect: Tensor, left: Tensor, ways: int) -> Tensor:
        """Return the way that costs least at the price of work that the rows can pay."""
        decided: Tensor = self.program.decide(view.t, defect, float(left.sum()))
        return decided

    def worth(self, view: StepView, defect: Tensor) -> Tensor:
        """Return what correcting gains."""
        gain: Tensor = self.program.gain(view.t, defect)
        return gain


@dataclass(frozen=True, eq=False)
class Priced(Arm):
    """Project whole where the defect reaches a price of the paper's kind."""

    price: Any = None

    def decide(self, view: StepView, defect: Tensor, left: Tensor, ways: int) -> Tensor:
        """Return `whole` for the rows whose defect is at least the price."""
        most = view.budget_left.clamp(max=self.price.budget)  # rows of other arms may have more
        reached: Tensor = view.defect >= self.price.threshold(view, most)
        return ways * reached[self.rows].long()

    def worth(self, view: StepView, defect: Tensor) -> Tensor:
        """Return the defects in units of each sample's scale."""
        scale = self.price.sample_scale
        return defect if scale is None else defect / scale.now(view)[self.rows]


@dataclass(frozen=True, eq=False)
class Counted(Priced):
    """Project as many rows at each step as was decided before the run: those whose defects stand out most.

    Attributes:
        counts: Rows at each step with a choice, (T',).
    """

    counts: tuple[int, ...] = ()

    def decide(self, view: StepView, defect: Tensor, left: Tensor, ways: int) -> Tensor:
        """Return `whole` for the rows that stand out most."""
        first = self.worth(view, defect).topk(self.counts[view.t]).indices
        return torch.zeros_like(self.rows).index_fill(0, first, ways)


@dataclass(frozen=True, eq=False)
class Learned(Schedule):
    """The frozen schedule of one run.

    Attributes:
        arms: The arms by name; every row of the batch is in one of them.
        ways: Names of the ways, the last one whole.
        unit: What is counted.
        cost: Of a call, a row and an iteration, if seconds are counted.
        closing_reserve: What the closing projection takes.
        pilots: Rows that are projected whole at every step and on which the other ways are tried beside.
        made_for: What was learned on: constraint, shape of a state, scale of defects.
    """

    arms: Any = None
    ways: tuple[str, ...] = (WHOLE,)
    unit: Unit = "projection"
    cost: Cost | None = None
    closing_reserve: float = 1
    pilots: Any = None
    budget: Any = 1
    made_for: Any = None

    def decide(self, view: StepView) -> Tensor:
        """Return the way of each row, by its arm."""
        defect, left = view.defect, view.budget_left
        ways = torch.zeros(len(defect), dtype=torch.int64, device=defect.device)
        for arm in self.arms.values():
            ways[arm.rows] = arm.decide(view, defect[arm.rows], left[arm.rows], len(self.ways))
        return ways if len(self.ways) > 1 else ways > 0

    def priority(self, view: StepView) -> Tensor:
        """Return what goes first within each arm, (n,)."""
        defect = view.defect
        first = torch.zeros_like(defect)
        for arm in self.arms.values():
            first[arm.rows] = arm.worth(view, defect[arm.rows]).to(first)
        return first

    def pools(self, n: int) -> Tensor | None:
        """Return the pool of each row: rows of an arm that share, share; the others have their own."""
        labels, shared = torch.full((n,), -1), [arm for arm in self.arms.values() if arm.shared]
        for i, arm in enumerate(shared):
            labels[arm.rows.cpu()] = i
        return labels if shared else None

    def trials(self, n: int) -> Tensor | None:
        """Return the pilot rows."""
        rows: Tensor | None = self.pilots
        return rows

    def to(self, device: torch.device) -> Learned:
        """Return the same schedule on `device`."""
        return replace(self, arms={name: arm.to(device) for name, arm in self.arms.items()})

    def check_fits(self, event: tuple[int, ...] | None = None, constraint: str = "", defect: float = 0.0) -> None:
        """Raise if states have another shape, or defects another scale, than those that were learned from."""
        known = self.made_for or {}
        if known.get("event") is not None and event is not None and list(event) != known["event"]:
            raise ValueError(
                f"this learner has learned on states of shape {tuple(known['event'])}: got {event}; make a new one"
            )
        before = known.get("defect", 0.0)
        if before > 0 and defect > 0 and not 1 / _SCALE < defect / before < _SCALE:
            raise ValueError(
                f"this learner has learned on defects of about {before:.3g} at the first step: got {defect:.3g}; "
                "if the defect or its unit has changed, make a new one"
            )

    def rows_of(self, name: str) -> Tensor:
        """Return the rows of an arm, (k,) int64; none if there is no such arm."""
        return self.arms[name].rows.cpu() if name in self.arms else torch.zeros(0, dtype=torch.int64)


def budgets_of(arms: dict[str, Arm], n: int, unit: Unit, most: float) -> PerBatch | Tensor:
    """Return what each of n rows may spend, as a budget: `most` for rows whose rule limits itself."""
    each = torch.full((n,), most, dtype=torch.float64 if unit == "second" else torch.int64)
    for arm in arms.values():
        if arm.limit is not None:
            each[arm.rows.cpu()] = torch.tensor(arm.limit).to(each)
    return each
