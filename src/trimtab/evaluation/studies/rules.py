"""Rules that are tuned on calibration rollouts: values at which a rule spends a budget, and the best window.

The value of a rule that knows no budget is searched: the higher it is, the less the rule spends. A rollout stops at its
budget, and may spend less.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from trimtab.core.files import load_tensors, save_tensors
from trimtab.core.noise import as_seeds
from trimtab.core.record import Closing
from trimtab.core.schedule import Schedule
from trimtab.evaluation.domains.base import Problem
from trimtab.evaluation.studies.batches import counting, first_of, n_deciders, replicate_problem
from trimtab.prices.plan import Plan
from trimtab.schedules import AboveNoise, AccumulatedDefect, Fixed, Stepwise, Terminal, Trigger, UntilBelow

__all__ = ["BEST_WINDOW", "RULES", "Rule", "best_windows", "find_rule"]

RULES = ("accumulated", "event", "above-noise", "until-below")
"""The names of the rules."""

BEST_WINDOW = "best-window"
"""The name of the best window in studies."""

_SHARES = (0.05, 0.1, 0.25, 0.5, 0.75, 0.95)  # of the steps, at which values and windows are tried
_ROUNDS = 8
_SAMPLES = 16  # at most, unless a group has more
_GAP = 2  # steps between two corrections of an event rule
_PLACES = 8  # window positions, from the first step to the last possible one


@dataclass(frozen=True, eq=False)
class Rule:
    """A rule with the values at which it spends some budgets.

    Attributes:
        name: One of `RULES`.
        counts: Numbers of corrections, ascending, (k,) float64.
        values: The rule's values at these counts, (k,) float64, positive.
        noise: The 95% quantile, per step, of the defect after one update of a feasible state, (T,).
    """

    name: str
    counts: Tensor
    values: Tensor
    noise: Tensor

    def at(self, budgets: Tensor) -> Schedule:
        """Return the schedule that spends at most these numbers of corrections, (n,); values are interpolated."""
        wanted = budgets.double().clamp(self.counts[0], self.counts[-1])
        right = torch.searchsorted(self.counts, wanted).clamp(1, len(self.counts) - 1)
        low, high = self.counts[right - 1], self.counts[right]
        logs = self.values.log()
        share = (wanted - low) / (high - low).clamp(min=1)  # a single step has one count
        return self.schedule(torch.lerp(logs[right - 1], logs[right], share).exp(), budgets)

    def schedule(self, values: Tensor, budgets: Tensor) -> Schedule:
        """Return the rule with these values and budgets for the samples, (n,) each."""
        if self.name == "accumulated":
            return AccumulatedDefect(values, budgets)
        if self.name == "event":
            return Trigger(values, _GAP, budgets)
        if self.name == "until-below":
            return UntilBelow(values, budgets)
        return AboveNoise(self.noise[:, None] * values, budgets)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one safetensors file."""
        tensors = {"counts": self.counts, "values": self.values, "noise": self.noise}
        save_tensors(path, "rule", tensors, {"name": self.name})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Rule:
        """Read what `save` wrote."""
        tensors, facts = load_tensors(path, "rule")
        return cls(str(facts["name"]), **tensors)


def find_rule(name: str, problem: Callable[[Tensor], Problem], seeds: Iterable[int] | Tensor, closing: Closing) -> Rule:
    """Search the values at which a rule spends a few budgets on average, on about 16 of the calibration seeds.

    Args:
        name: One of `RULES`.
        problem: Makes the problem for seeds.
        seeds: Calibration seeds.
        closing: Whether budgets include the closing projection.
    """
    seeds, options = first_of(problem, as_seeds(seeds), _SAMPLES), counting(closing)
    one = problem(seeds)
    n, T = n_deciders(one), one.sampler.n_steps
    counts = _lengths(T).double()
    full, free = (one.rollout(schedule, **options).grouped().defects.double() for schedule in (Stepwise(), Terminal()))
    defects = torch.cat([full, free], dim=1)
    small = float(defects[defects > 0].min()) if bool((defects > 0).any()) else 1e-12
    most = {"accumulated": float(free.sum(dim=0).max()), "above-noise": float(free.max()) / small}
    low = torch.full_like(counts, 0.5 * (1e-3 if name == "above-noise" else small)).log()
    high = torch.full_like(counts, 2 * max(most.get(name, float(free.max())), small)).log()
    rule = Rule(name, counts, counts, full.quantile(0.95, dim=1).clamp(min=small))
    many = replicate_problem(problem, seeds, len(counts))
    unlimited = torch.full((n * len(counts),), T)
    for _ in range(_ROUNDS):
        middle = (low + high) / 2
        run = many.rollout(rule.schedule(middle.exp().repeat_interleave(n), unlimited), **options)
        too_much = run.grouped().spent.double().reshape(len(counts), n).mean(dim=1) > counts
        low, high = torch.where(too_much, middle, low), torch.where(too_much, high, middle)
    return replace(rule, values=high.exp())


def best_windows(problem: Callable[[Tensor], Problem], seeds: Iterable[int] | Tensor, closing: Closing) -> Plan:
    """Find the window of least path error for a few lengths, on about 16 of the calibration seeds; interpolate between.

    Args:
        problem: Makes the problem for seeds.
        seeds: Calibration seeds.
        closing: Whether budgets include the closing projection.

    Returns:
        A plan whose row b is a window of b steps; if the budget pays for the closing projection, of b - 1 steps and the
        last.
    """
    tried, reserve = first_of(problem, as_seeds(seeds), _SAMPLES), int(closing == "paid")
    T = problem(tried).sampler.n_steps - reserve  # steps with a choice
    lengths = _lengths(T)
    places = torch.linspace(0, 1, _PLACES, dtype=torch.float64)
    rows = _windows(lengths.repeat_interleave(_PLACES), places.repeat(len(lengths)), T)  # (lengths x places, T)
    many = replicate_problem(problem, tried, len(rows))
    masks = _with_last(rows, reserve).repeat_interleave(n_deciders(many) // len(rows), dim=0)
    run = many.rollout(Fixed(masks.T), **counting(closing)).grouped()
    costs = run.residuals.double().sum(dim=0).cpu().reshape(len(lengths), _PLACES, -1).mean(dim=2)
    best = places[costs.argmin(dim=1)]
    budgets = torch.arange(T + 1)
    right = torch.searchsorted(lengths, budgets).clamp(1, len(lengths) - 1)
    low, high = lengths[right - 1], lengths[right]
    share = ((budgets - low) / (high - low).clamp(min=1)).double().clamp(0, 1)
    starts = torch.lerp(best[right - 1], best[right], share)
    masks = _with_last(_windows(budgets, starts, T), reserve)
    masks = torch.cat([torch.zeros_like(masks[:reserve]), masks])
    return Plan(masks, seeds=tuple(tried.tolist()), method=BEST_WINDOW, closing=closing)


def _lengths(n_steps: int) -> Tensor:
    return torch.tensor(sorted({max(1, round(share * n_steps)) for share in _SHARES}))


def _with_last(masks: Tensor, reserve: int) -> Tensor:
    """Append steps that are always corrected to masks (m, T)."""
    return torch.cat([masks, torch.ones(len(masks), reserve, dtype=torch.bool)], dim=1)


def _windows(lengths: Tensor, places: Tensor, n_steps: int) -> Tensor:
    """Return windows of these lengths (m,) at places between earliest (0) and latest (1), (m,), as masks (m, T)."""
    first = (places * (n_steps - lengths)).round().long()[:, None]
    steps = torch.arange(n_steps)
    return (steps >= first) & (steps < first + lengths[:, None])
