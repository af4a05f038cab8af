"""The price of a correction: a table lambda[t, b], what it was made from, and its file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, get_args

import torch
from torch import Tensor

from trimtab.core import html
from trimtab.core.budget import Budget, PerBatch, Unit
from trimtab.core.checks import check_integer, check_type
from trimtab.core.files import save_tensors
from trimtab.core.view import StepView, as_array
from trimtab.prices.provenance import Priced, Provenance, budget_within, reading
from trimtab.prices.resample import Keep, resampled_table
from trimtab.prices.sample_scale import SampleScale
from trimtab.schedules.basic import brief_repr

__all__ = ["Adaptive", "Thresholds", "choices", "with_closing"]


@dataclass(frozen=True, eq=False)
class Thresholds(Provenance):
    """Prices lambda[t, b]: at step t with b corrections left, project where the defect is at least this.

    Attributes:
        table: (T, B + 1); +inf in column 0, no NaN.
        sample_scale: Where samples differ in scale, how to tell; prices are multiplied by it.
        unit: What is bought at this price: a whole "projection", or one "iteration" of the solver at a time.
        closing_reserve: How many of a budget are kept for a closing projection that it pays for; 1 where projections count.
        onward: The prices of going on within a step, after its first iteration, (T, B + 1), where those are others than
            the prices of beginning: a solver that is set up at a cost is bought more of once it runs.

    How they were made is told as for all prices: see `Provenance`.

    Example:
        >>> import torch
        >>> prices = Thresholds(torch.tensor([[torch.inf, 0.5], [torch.inf, -torch.inf]]))
        >>> prices.n_steps, prices.budget
        (2, 1)
    """

    table: Tensor
    sample_scale: SampleScale | None = None
    unit: Unit = "projection"
    closing_reserve: int = 1
    onward: Tensor | None = None

    def __post_init__(self) -> None:
        """Refuse a table no schedule could use."""
        super().__post_init__()
        table = self.table
        if not isinstance(table, Tensor):
            raise ValueError(f"a threshold table is a (T, B + 1) tensor of floats: got {type(table).__name__}")
        if table.ndim != 2 or len(table) == 0 or table.shape[1] == 0 or not table.is_floating_point():
            raise ValueError(
                f"a threshold table is (T, B + 1) floats with T >= 1: got {tuple(table.shape)} of {table.dtype}"
            )
        if self.unit not in get_args(Unit):
            raise ValueError(f"the unit of prices is 'projection' or 'iteration': got {self.unit!r}")
        check_integer(self.closing_reserve, "what is kept back for the closing projection", 1)
        if self.unit == "projection" and table.shape[1] - 1 > len(table):
            raise ValueError(f"a table for B = {table.shape[1] - 1} corrections does not fit T = {len(table)} steps")
        if bool(table.isnan().any()):
            t, b = table.isnan().nonzero()[0].tolist()
            raise ValueError(f"the threshold table has NaN, first at t = {t}, b = {b}; use inf for 'never'")
        if bool((table[:, 0] != torch.inf).any()):
            raise ValueError("column 0 of a threshold table must be +inf: with no budget left nothing can be spent")
        if self.sample_scale is not None:
            hint = "how prices were made is given by name, as in method='dp'"
            check_type(self.sample_scale, SampleScale, "sample_scale of prices", hint).check_steps(len(table))
        if self.onward is not None:
            if (
                check_type(self.onward, Tensor, "the prices of going on").shape != table.shape
                or self.unit != "iteration"
            ):
                raise ValueError("prices of going on are of iterations, and as many as those of beginning")
            replace(self, table=self.onward, onward=None, sample_scale=None)  # which refuses what is no table

    def __repr__(self) -> str:
        """One line."""
        return (
            f"Thresholds(T={self.n_steps}, budgets up to {self.budget}, method={self.method!r}, "
            f"objective={self.objective!r}, {len(self.seeds)} calibration seeds)"
        )

    def _repr_html_(self) -> str:
        """What they were made from, and the prices at some budgets, in a notebook."""
        facts = [("method", self.method), ("objective", self.objective), ("steps", self.n_steps)]
        facts += [("largest budget", self.budget), ("calibration seeds", len(self.seeds))]
        lefts = dict.fromkeys(max(1, round(share * self.budget)) for share in (0.0, 0.05, 0.1, 0.25))
        lines = {f"{b} left": list(enumerate(self.table[:, b].tolist())) for b in lefts if b <= self.budget}
        note = "<p>Project where the defect is at least the price; no line: always, or never.</p>"
        drawing = html.draw(lines, "step", "price")
        return html.panel("Prices of a correction", html.table(facts), drawing + note if drawing else "")

    @cached_property
    def n_steps(self) -> int:
        """T."""
        return self.table.shape[0]

    @property
    def budget(self) -> int:
        """The largest budget the table serves."""
        return self.table.shape[1] - 1

    @cached_property
    def _prices(self) -> Any:
        """The table where it is read: as a numpy array on the host."""
        return as_array(self.table)

    @cached_property
    def _onward(self) -> Any:
        """The prices of going on, likewise."""
        return self._prices if self.onward is None else as_array(self.onward)

    def at(self, budget: Budget) -> Adaptive:
        """The schedule for a budget, at most the table's own."""
        return Adaptive(self, budget)

    def price(self, view: StepView, left: Any) -> Any:
        """What a correction costs each sample now with so many left, (n,) int64 to (n,): arrays as in `StepView`."""
        row = (self._onward if view.iteration else self._prices)[view.t]
        price = interpolated(row, left) if isinstance(left, float) else row[left]
        return price if self.sample_scale is None else price * self.sample_scale.now(view)

    def resample(self, n_steps: int, keep: Keep = "count") -> Thresholds:
        """The same prices for another number of steps; what that loses is in docs/prices.md.

        Args:
            n_steps: S.
            keep: What a budget of S steps stands for: the same "count" of corrections of T steps, where there is a
                number of events in a run that need one, or the same "share", where every step adds its own noise.

        Example:
            >>> import trimtab as tt
            >>> problem = tt.domain("so3").problem(range(1000, 1016))
            >>> price = tt.calibrate(problem, 0.5, "dp", objective="path")
            >>> price.resample(50).n_steps, price.resample(50).budget
            (50, 50)
        """
        if self.unit == "iteration":
            raise ValueError(f"prices of iterations serve the steps they were calibrated for; calibrate for {n_steps}")
        return replace(
            self,
            table=resampled_table(self.table, n_steps, keep),
            sample_scale=self.sample_scale and self.sample_scale.resample(n_steps),
            fingerprint="",  # of a sampler with another number of steps
            notes={**self.notes, "resampled_from": self.n_steps},
        )

    def to(self, device: torch.device) -> Thresholds:
        """The same prices on `device`."""
        if self.table.device == device:
            return self
        onward = None if self.onward is None else self.onward.to(device)
        sample_scale = self.sample_scale and self.sample_scale.to(device)
        return replace(self, table=self.table.to(device), sample_scale=sample_scale, onward=onward)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one safetensors file."""
        tensors, told = self.written()
        save_tensors(path, "thresholds", tensors, self.told() | told)

    def written(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """What a file keeps of the prices themselves: tensors, and JSON."""
        tensors = {"table": self.table} | ({} if self.onward is None else {"onward": self.onward})
        told: dict[str, Any] = {name: getattr(self, name) for name in ("method", "unit", "closing_reserve")}
        SampleScale.write(self.sample_scale, tensors, told)
        return tensors, told

    @classmethod
    def read(cls, tensors: Mapping[str, Tensor], told: Mapping[str, Any]) -> Thresholds:
        """What `written` wrote."""
        facts = dict(told)
        sample_scale = SampleScale.read(tensors, facts)
        return cls(tensors["table"], **facts, sample_scale=sample_scale, onward=tensors.get("onward"))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Thresholds:
        """Read what `save` wrote; a truncated, foreign or inconsistent file is refused."""
        with reading(path, "thresholds", "a usable threshold table") as (tensors, facts):
            return cls.read(tensors, facts)


@dataclass(frozen=True, eq=False)
class Adaptive(Priced):
    """Algorithm 1 of the paper: correct where the defect reaches the price of a correction.

    Attributes:
        thresholds: The price table, usually from `calibrate`.
        budget: At most the table's own largest budget, which is the default.
    """

    thresholds: Thresholds
    budget: Any = None
    __repr__ = brief_repr

    def __post_init__(self) -> None:
        """Check the budget against the table."""
        prices = check_type(self.thresholds, Thresholds, "the prices of Adaptive", "calibrate(…) makes them")
        wanted = prices.budget if self.budget is None else self.budget
        within = budget_within(wanted, prices.n_steps, prices.budget, prices.unit)
        object.__setattr__(self, "budget", PerBatch(within) if isinstance(wanted, PerBatch) else within)

    @property
    def made_from(self) -> Thresholds:
        """The price table."""
        return self.thresholds

    @property
    def unit(self) -> str:
        """What the prices count."""
        return self.thresholds.unit

    @property
    def repeats(self) -> bool:
        """Asked again after each iteration, if those are what is bought."""
        return True

    @property
    def closing_reserve(self) -> int:
        """As the prices progress."""
        return self.thresholds.closing_reserve

    def decide(self, view: StepView) -> Any:
        """Where b > 0 and s >= lambda[t, b], with b what is left of this schedule's own budget."""
        if view.n_steps != self.thresholds.n_steps:
            raise ValueError(
                f"the thresholds were calibrated for T = {self.thresholds.n_steps} steps and cannot be used for "
                f"T = {view.n_steps}; calibrate again, or use price.resample({view.n_steps})"
            )
        s, b = view.arrays(self)
        return s >= self.thresholds.price(view, b)  # where b is 0 the price is inf

    def to(self, device: torch.device) -> Adaptive:
        """The same schedule with its table on `device`."""
        thresholds = self.thresholds.to(device)
        budget = self.budget.to(device) if isinstance(self.budget, Tensor) else self.budget
        there = thresholds is self.thresholds and budget is self.budget
        return self if there else replace(self, thresholds=thresholds, budget=budget)


def interpolated(row, left):
    """Return the price at a fractional budget."""
    low = int(left)
    if low + 1 >= len(row):
        return row[-1]
    if not torch.isfinite(row[low]) and row[low] > 0:
        return row[low + 1] / max(left - low, 1e-9)
    if not (torch.isfinite(row[low]) and torch.isfinite(row[low + 1])):
        return row[low] if left - low < 0.5 else row[low + 1]
    return torch.lerp(row[low], row[low + 1], left - low)


def choices(n_steps: int, budget: int, closing: str) -> tuple[int, int]:
    """The steps at which there is a choice and the corrections to spend there, beside a closing projection to pay for.

    Example:
        >>> choices(12, 3, "paid"), choices(12, 3, "free")
        ((11, 2), (12, 3))
    """
    closing_reserve = int(closing == "paid")
    if n_steps == closing_reserve:
        raise ValueError(
            "there is one step, which the closing projection corrects: there is nothing to choose, and Terminal() does "
            "all that can be done"
        )
    if budget < closing_reserve:
        raise ValueError(
            f"a budget of {budget} leaves nothing for the closing projection, which is one; give at least 1"
        )
    return n_steps - closing_reserve, budget - closing_reserve


def with_closing(table: Tensor, closing_reserve: int) -> Tensor:
    """The prices of T steps and B corrections as those of one step more, which corrects all, and what is kept for it.

    Args:
        table: (T, B + 1).
        closing_reserve: k, what a closing projection that is paid for takes, 1 in projections; 0 leaves the table as it is.

    Returns:
        (T + 1, B + k + 1): column b has the prices with b - k to spend on the way; the last step is always corrected.
    """
    if not closing_reserve:
        return table
    whole = torch.full((table.shape[0] + 1, table.shape[1] + closing_reserve), torch.inf, dtype=table.dtype)
    whole[:-1, closing_reserve:] = table
    whole[-1, 1:] = -torch.inf
    return whole
