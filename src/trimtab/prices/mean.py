"""A budget on average: what a correction must remove to be worth its cost, whoever pays.

An exact budget makes each sample save: it must keep something back for what may come, and what is left at the end is
lost. Where only the mean cost over many samples counts, a correction has one price mu for all of them, and the program
has no budget in it:

    U[t](r) = r + E[ V[t+1](s') | r ],     V[t](s) = min( U[t](s),  mu + E[ V[t](r1(s)) ] )

with tau[t] the defect from which on a correction (a projection, or one more iteration) pays. Calibration rollouts show
what each mu costs on average, and the one that costs what was asked for is taken. On other seeds the mean cost is that
only up to chance; the record of a run says what it was.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from trimtab._version import __version__
from trimtab.core.budget import Unit
from trimtab.core.checks import float_tensor
from trimtab.core.errors import real_number, unknown
from trimtab.core.files import UNUSABLE, load_tensors, save_tensors
from trimtab.core.moment import Moment
from trimtab.core.noise import uniform_numbers
from trimtab.core.record import Closing, Rollout
from trimtab.core.schedule import Schedule
from trimtab.prices.batches import Batches
from trimtab.prices.dynamic import break_even
from trimtab.prices.explore import ExploreIterations
from trimtab.prices.graded import IterationSteps, iteration_steps
from trimtab.prices.pools import Array
from trimtab.prices.transitions import NODES

__all__ = ["AtPrice", "Mean", "MeanPrices", "falling", "mean_prices", "solve_mean"]

_LEVELS = 32
_SPREAD = 1e-6  # of the dearest price: the cheapest
_PASSES = 64  # within a step
_TRIALS = 4
_NEAR = 0.6  # of the cost asked for, where prices are tried out more closely
_ORDER = 1 << 35  # a stream of noise of its own


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
        if real_number(self.value, "a mean budget", 0.0) == math.inf:
            raise ValueError("a mean budget is a finite number of corrections, or a share of the steps: got inf")

    def units(self, n_steps: int) -> float:
        """Corrections per sample."""
        return float(self.value) if isinstance(self.value, int) else self.value * n_steps


@dataclass(frozen=True, eq=False)
class AtPrice(Schedule):
    """Correct where the defect is at least the price of the step, with no limit for any one sample.

    Attributes:
        prices: (T,), or (T, n) where samples pay different ones.
        seeds: The calibration seeds.
        ending: The closing that it was made for; "" for any.
        counted: "projection" or "iteration"; "" for either.
    """

    prices: Tensor
    seeds: tuple[int, ...] = ()
    ending: str = ""
    counted: str = ""
    budget: Any = None

    def __post_init__(self) -> None:
        """Refuse what are no prices."""
        if not isinstance(self.prices, Tensor) or self.prices.ndim not in (1, 2) or bool(self.prices.isnan().any()):
            raise ValueError(f"prices are (T,) or (T, n) numbers, none of them NaN: got {self.prices!r:.60}")
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

    def decide(self, now: Moment) -> Tensor:
        """Where s >= tau[t]."""
        if now.n_steps != len(self.prices):
            raise ValueError(f"the prices are of T = {len(self.prices)} steps and cannot be used for T = {now.n_steps}")
        price = self.prices[now.t]
        if price.ndim and len(price) != len(now):
            raise ValueError(
                f"there are prices for {len(price)} samples, and {len(now)} samples; give (T,) or one each"
            )
        return now.defect >= price

    def to(self, device: torch.device) -> AtPrice:
        """The same on `device`."""
        return replace(self, prices=self.prices.to(device))


@dataclass(frozen=True, eq=False)
class MeanPrices:
    """Prices of steps for all mean costs that calibration has seen.

    Attributes:
        table: tau at each step for each level, (T, k).
        costs: What each level costs a sample on average, closing included, falling, (k,).
        unit: What is bought.
        method: How it was estimated.
        seeds: The calibration seeds; evaluation on any of them is refused.
        objective: What the price is meant to lower.
        fingerprint: Of the sampler and the constraint; "" if unknown.
        version: Of the library that made it.
        notes: Anything else worth keeping, JSON only.
        closing: The accounting they were made for.
    """

    table: Tensor
    costs: Tensor
    unit: Unit = "projection"
    method: str = "mean"
    seeds: tuple[int, ...] = ()
    objective: str = "path"
    fingerprint: str = ""
    version: str = __version__
    notes: Mapping[str, Any] = field(default_factory=dict)
    closing: str = ""

    def __post_init__(self) -> None:
        """Refuse a table no schedule could use."""
        table = float_tensor(self.table, "the table of mean prices", finite=False)
        costs = float_tensor(self.costs, "the costs of mean prices")
        if self.unit not in get_args(Unit):
            raise unknown("unit", self.unit, get_args(Unit))
        if table.ndim != 2 or costs.shape != table.shape[1:] or 0 in table.shape or not table.is_floating_point():
            raise ValueError(
                "mean prices are (T, k) floats with k costs: got "
                f"{tuple(table.shape)} of {table.dtype} with {tuple(costs.shape)}"
            )
        if bool(table.isnan().any()) or not bool(costs.isfinite().all()) or bool((costs.diff() > 0).any()):
            raise ValueError("mean prices must not be NaN, and their costs must be finite and not rise")

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
        least, most = float(self.costs[-1]), float(self.costs[0])
        if not least - 0.5 <= wanted <= most + 0.5:
            raise ValueError(
                f"a mean of {wanted:g} {self.unit}s per sample is out of reach: calibration has seen {least:.3g} to "
                f"{most:.3g}; calibrate with that budget"
            )
        rising = self.costs.flip(0).numpy()
        place = float(np.interp(wanted, rising, np.arange(len(rising))))
        below, share = int(place), place - int(place)
        levels = self.table.flip(1)
        lower = levels[:, below]
        upper = levels[:, min(below + 1, levels.shape[1] - 1)]
        between = torch.lerp(lower, upper, share)
        prices = torch.where(lower.isfinite() & upper.isfinite(), between, lower if share < 0.5 else upper)
        return AtPrice(prices, self.seeds, self.closing, self.unit)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one safetensors file."""
        facts = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("table", "costs", "version")}
        save_tensors(
            path, "mean prices", {"table": self.table, "costs": self.costs}, facts | {"notes": dict(self.notes)}
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> MeanPrices:
        """Read what `save` wrote; a truncated, foreign or inconsistent file is refused."""
        tensors, facts = load_tensors(path, "mean prices")
        try:
            return cls(tensors["table"], tensors["costs"], **facts | {"seeds": tuple(map(int, facts["seeds"]))})
        except UNUSABLE as error:
            raise ValueError(f"{path}: not usable mean prices: {error}") from error


def solve_mean(steps: IterationSteps, mu: float, weights: Tensor | None = None) -> Tensor:
    """The defect from which on a correction that costs mu pays, at each step, (T,).

    Args:
        steps: What a correction and what a step do to a defect.
        mu: The price of a correction, in the units of the objective.
        weights: What a unit of residual costs at each step, (T,); 1 for path error.
    """
    nodes, improved, following = (part.numpy() for part in (steps.nodes, steps.improved, steps.following))
    T = len(nodes)
    unit = np.ones(T) if weights is None else weights.double().numpy()
    prices, sums = np.empty(T), np.empty((NODES, 1))
    value: Array = np.zeros(NODES)
    for t in reversed(range(T)):
        stay = unit[t] * nodes[t] + (following[t] @ value if t < T - 1 else 0.0)
        value = stay
        for _ in range(_PASSES):
            go = mu + improved[t] @ value
            better = np.minimum(stay, go)
            if np.allclose(better, value, rtol=1e-9, atol=0):
                break
            value = better
        prices[t] = break_even(nodes[t], (stay - go)[:, None], sums)[0]
    return torch.from_numpy(prices)


def mean_prices(batches: Batches, budget: Mean) -> MeanPrices:
    """Calibrate prices for mean costs around the one asked for: about half of it to twice as much."""
    wanted = budget.units(batches.n_steps)
    if batches.unit == "projection" and wanted > batches.n_steps:
        raise ValueError(
            f"a mean of {wanted:g} projections does not fit T = {batches.n_steps} steps: give at most that"
        )
    runs = [*_explored(batches, budget), batches.cut(batches.free)]
    steps = iteration_steps(runs)
    top = _dearest(steps, batches.weights)
    mus = np.geomspace(_SPREAD * top, top, _LEVELS)
    _, costs = _tried(batches, steps, mus, trials=1)
    near = np.flatnonzero((costs >= _NEAR * wanted) & (costs <= wanted / _NEAR))
    if len(near) == 0:
        raise ValueError(
            f"a mean of {wanted:g} {batches.unit}s per sample is out of reach: prices of all heights cost "
            f"{costs[-1]:.3g} to {costs[0]:.3g}; ask for a budget between those"
        )
    finer = np.geomspace(mus[max(near[0] - 1, 0)], mus[min(near[-1] + 1, _LEVELS - 1)], _LEVELS)
    table, costs = _tried(batches, steps, finer, _TRIALS)
    return MeanPrices(table, torch.from_numpy(costs), batches.unit, **batches.facts({}))


def _tried(batches: Batches, steps: IterationSteps, mus: Array, trials: int) -> tuple[Tensor, Array]:
    """The prices of all levels, (T, k), and what each costs on the calibration seeds, shared out among them, (k,)."""
    table = torch.stack([solve_mean(steps, float(mu), batches.weights) for mu in mus], dim=1)
    if batches.kept_back:  # the last step corrects all
        table = torch.cat([table, torch.full((1, len(mus)), -torch.inf, dtype=table.dtype)])
    paid, count = torch.zeros(2, len(mus), dtype=torch.float64)
    for k in range(trials):
        level = uniform_numbers(torch.tensor([k]), range(1), (batches.n,), _ORDER)[0, 0].argsort() % len(mus)
        run = batches.run(AtPrice(table[:, level], counted=batches.unit))
        paid.index_add_(0, level, run.paid.double().cpu())
        count.index_add_(0, level, torch.ones(batches.n, dtype=torch.float64))
    return table, falling(paid.numpy(), count.numpy())


def _explored(batches: Batches, budget: Mean) -> list[Rollout]:
    """Batches with corrections at random."""
    if batches.unit == "projection":
        return batches.explore(range(4))
    most = 2 * budget.units(batches.n_steps)
    runs = []
    for k in range(4):
        order = uniform_numbers(torch.tensor([k]), range(1), (batches.n,), _ORDER + 1)[0, 0].argsort()
        budgets = ((order + 0.5) / batches.n * most).long() + 1
        runs.append(batches.cut(batches.run(ExploreIterations(budgets, seed=k))))
    return runs


def _dearest(steps: IterationSteps, weights: Tensor | None) -> float:
    """The largest gain that a correction could have if it lasted to the end."""
    unit = torch.ones(len(steps.nodes), dtype=torch.float64) if weights is None else weights.double()
    return float((unit * steps.nodes[:, -1]).sum())


def falling(paid: Array, count: Array) -> Array:
    """Mean costs of levels that do not rise, nearest to those seen: neighbours that would rise are taken together."""
    blocks: list[list[float]] = []  # sum, weight, levels
    for total, weight in zip(paid, count, strict=True):
        blocks.append([float(total), float(weight), 1.0])
        while len(blocks) > 1 and blocks[-2][0] * blocks[-1][1] < blocks[-1][0] * blocks[-2][1]:
            last = blocks.pop()
            blocks[-1] = [a + b for a, b in zip(blocks[-1], last, strict=True)]
    return np.concatenate([np.full(int(levels), total / max(weight, 1.0)) for total, weight, levels in blocks])
