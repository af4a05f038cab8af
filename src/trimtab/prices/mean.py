"""A budget on average: prices that hold a mean cost over many samples, and the schedule they make.

An exact budget makes each sample save: it must keep something back for what may come, and what is left at the end is
lost. Where only the mean cost counts, a correction has the same price at each step whatever a sample has spent. How the
prices are found is in `trimtab.prices.mean_program`. On other seeds the mean cost is what was asked for only up to
chance; the record of a run says what it was.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field, replace
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from trimtab.core.budget import Unit
from trimtab.core.checks import check_floats
from trimtab.core.checks import check_number, check_type, unknown
from trimtab.core.files import save_tensors
from trimtab.core.record import Closing
from trimtab.core.schedule import Schedule
from trimtab.core.view import StepView
from trimtab.prices.provenance import Provenance, reading

__all__ = ["AtPrice", "Mean", "MeanPrices", "within_reach"]

_TENSORS = ("table", "costs", "onward")


@dataclass(frozen=True)
class Mean:
    """A budget that holds on average over samples: a count per sample, or a share of the steps as a float.

    Example:
        >>> Mean(0.25).units(100), Mean(12).units(100)
        (25.0, 12.0)
    """

    value: int | float

    def __post_init__(self) -> None:
        """Refuse what is no number of corrections."""
        if check_number(self.value, "a mean budget", 0.0) == math.inf:
            raise ValueError("a mean budget is a finite number of corrections, or a share of the steps: got inf")

    def units(self, n_steps: int) -> float:
        """Corrections per sample."""
        return float(self.value) if isinstance(self.value, int | np.integer) else self.value * n_steps


@dataclass(frozen=True, eq=False)
class AtPrice(Schedule):
    """Correct where the defect is at least the price of the step, with no limit for any one sample.

    Attributes:
        prices: (T,), or (T, n) where samples pay different ones.
        onward: The prices of going on within a step, after its first iteration, where those are others; as `prices`.
        seeds: The calibration seeds.
        ending: The closing that it was made for; "" for any.
        counted: "projection" or "iteration"; "" for either.
    """

    prices: Tensor
    seeds: tuple[int, ...] = ()
    ending: str = ""
    counted: str = ""
    budget: Any = None
    onward: Tensor | None = None

    def __post_init__(self) -> None:
        """Refuse what are no prices."""
        for prices in (self.prices, *(() if self.onward is None else (self.onward,))):
            if not isinstance(prices, Tensor) or prices.ndim not in (1, 2) or bool(prices.isnan().any()):
                raise ValueError(f"prices are (T,) or (T, n) numbers, none of them NaN: got {prices!r:.60}")
        if self.onward is not None and self.onward.shape != self.prices.shape:
            raise ValueError(
                f"prices of going on are as many as those of beginning, {tuple(self.prices.shape)}: got "
                f"{tuple(self.onward.shape)}"
            )
        if not isinstance(self.seeds, tuple) or not all(isinstance(seed, int) for seed in self.seeds):
            raise TypeError(f"seeds are the calibration seeds, a tuple of whole numbers: got {self.seeds!r:.60}")
        for name, value, known in (
            ("ending", self.ending, ("", *get_args(Closing))),
            ("counted", self.counted, ("", *get_args(Unit))),
        ):
            if value not in known:
                raise unknown(name, value, known)

    @property
    def calibration_seeds(self) -> tuple[int, ...]:
        """Seeds this schedule must not be evaluated on."""
        return self.seeds

    @property
    def closing(self) -> str:
        """As it was made for."""
        return self.ending

    @property
    def unit(self) -> str:
        """As it was made for."""
        return self.counted

    @property
    def repeats(self) -> bool:
        """Asked after each iteration."""
        return True

    def decide(self, view: StepView) -> Tensor:
        """Where s >= tau[t]; within a step, the tau of going on."""
        if view.n_steps != len(self.prices):
            raise ValueError(
                f"the prices are of T = {len(self.prices)} steps and cannot be used for T = {view.n_steps}"
            )
        price = (self.prices if self.onward is None or not view.iteration else self.onward)[view.t]
        if price.ndim and len(price) != len(view):
            raise ValueError(
                f"there are prices for {len(price)} samples, and {len(view)} samples; give (T,) or one each"
            )
        return view.defect >= price

    def to(self, device: torch.device) -> AtPrice:
        """The same on `device`."""
        onward = None if self.onward is None else self.onward.to(device)
        return replace(self, prices=self.prices.to(device), onward=onward)


@dataclass(frozen=True, eq=False)
class MeanPrices(Provenance):
    """Prices of steps for all mean costs that calibration has seen.

    Attributes:
        table: tau at each step for each level, (T, k).
        costs: What each level costs a sample on average, closing included, falling, (k,).
        unit: What is bought.
        onward: tau of going on within a step, after its first iteration, where those are others, (T, k): a solver that
            is set up at a cost is bought more of once it runs.

    How they were made is told as for all prices: see `Provenance`.
    """

    table: Tensor
    costs: Tensor
    unit: Unit = "projection"
    onward: Tensor | None = None
    method: str = field(default="mean", kw_only=True)

    def __post_init__(self) -> None:
        """Refuse a table no schedule could use."""
        super().__post_init__()
        table = check_floats(self.table, "the table of mean prices", finite=False)
        costs = check_floats(self.costs, "the costs of mean prices")
        if self.unit not in get_args(Unit):
            raise unknown("unit", self.unit, get_args(Unit))
        if table.ndim != 2 or costs.shape != table.shape[1:] or 0 in table.shape or not table.is_floating_point():
            raise ValueError(
                "mean prices are (T, k) floats with k costs: got "
                f"{tuple(table.shape)} of {table.dtype} with {tuple(costs.shape)}"
            )
        if bool(table.isnan().any()) or not bool(costs.isfinite().all()) or bool((costs.diff() > 0).any()):
            raise ValueError("mean prices must not be NaN, and their costs must be finite and not rise")
        if self.onward is not None:
            check_type(self.onward, Tensor, "the prices of going on")
            if self.onward.shape != table.shape or self.unit != "iteration":
                raise ValueError("prices of going on are of iterations, and as many as those of beginning")
            replace(self, table=self.onward, onward=None)  # which refuses what is no table

    def __repr__(self) -> str:
        """One line."""
        return (
            f"MeanPrices(T={self.n_steps}, {float(self.costs[-1]):.3g} to {float(self.costs[0]):.3g} {self.unit}s per "
            f"sample, objective={self.objective!r}, {len(self.seeds)} calibration seeds)"
        )

    @property
    def n_steps(self) -> int:
        """T."""
        return len(self.table)

    def at(self, budget: Mean | float) -> AtPrice:
        """The schedule that costs so much on average."""
        wanted = (budget if isinstance(budget, Mean) else Mean(budget)).units(self.n_steps)
        if not within_reach(wanted, self.costs):
            raise ValueError(
                f"a mean of {wanted:g} {self.unit}s per sample is out of reach: calibration has seen "
                f"{float(self.costs[-1]):.3g} to {float(self.costs[0]):.3g}; calibrate with that budget"
            )
        rising = self.costs.flip(0).numpy()
        place = float(np.interp(wanted, rising, np.arange(len(rising))))
        prices, onward = _between(self.table, place), None if self.onward is None else _between(self.onward, place)
        return AtPrice(prices, self.seeds, self.closing, self.unit, onward=onward)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one safetensors file."""
        tensors = {name: part for name in _TENSORS if (part := getattr(self, name)) is not None}
        save_tensors(path, "mean prices", tensors, self.told() | {"unit": self.unit})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> MeanPrices:
        """Read what `save` wrote; a truncated, foreign or inconsistent file is refused."""
        with reading(path, "mean prices", "usable mean prices") as (tensors, facts):
            return cls(tensors["table"], tensors["costs"], **facts, onward=tensors.get("onward"))


def within_reach(wanted: float, costs: Tensor) -> bool:
    """Whether some levels, whose mean costs do not rise, (k,), cost so much, up to half a unit."""
    return float(costs[-1]) - 0.5 <= wanted <= float(costs[0]) + 0.5


def _between(table: Tensor, place: float) -> Tensor:
    """The prices between two levels, (T, k) to (T,), those of the least cost first; infinite ones are not mixed."""
    levels, below, share = table.flip(1), int(place), place - int(place)
    lower, upper = levels[:, below], levels[:, min(below + 1, levels.shape[1] - 1)]
    between = torch.lerp(lower, upper, share)
    return torch.where(lower.isfinite() & upper.isfinite(), between, lower if share < 0.5 else upper)
