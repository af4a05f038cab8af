"""Rules that people use today and that know no budget: values at which each spends about one.

A rule corrects where something reaches a value. What a value comes to cannot be told in advance, so it is searched on
calibration rollouts: the higher it is, the less is spent. A rollout stops at its budget, and may spend less.
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
from trimtab.evaluation.studies.explored import counting, first_of, n_deciders, replicate_problem
from trimtab.schedules import AboveNoise, AccumulatedDefect, Stepwise, Terminal, Trigger, UntilBelow

__all__ = ["RULES", "Rule", "find_rule"]

RULES = ("accumulated", "event", "above-noise", "until-below")
"""What `Rule.name` may be."""

_SHARES = (0.05, 0.1, 0.25, 0.5, 0.75, 0.95)  # of the steps, at which values are searched
_ROUNDS = 8
_SAMPLES = 16  # at the most, unless a group has more
_GAP = 2  # steps from one correction of an event to the next


@dataclass(frozen=True, eq=False)
class Rule:
    """A rule with the values at which it spends some budgets.

    Attributes:
        name: One of `RULES`.
        counts: Corrections, rising, (k,) float64.
        values: Of the rule, (k,) float64, above 0.
        noise: What one update does to a feasible state: the 95% quantile of its defects at each step, (T,).
    """

    name: str
    counts: Tensor
    values: Tensor
    noise: Tensor

    def at(self, budgets: Tensor) -> Schedule:
        """The schedule that spends at most these numbers of corrections, (n,); values between are interpolated."""
        wanted = budgets.double().clamp(self.counts[0], self.counts[-1])
        right = torch.searchsorted(self.counts, wanted).clamp(1, len(self.counts) - 1)
        low, high = self.counts[right - 1], self.counts[right]
        logs = self.values.log()
        share = (wanted - low) / (high - low).clamp(min=1)  # of a single step there is one count
        values = torch.lerp(logs[right - 1], logs[right], share).exp()
        return self.made(values, budgets)

    def made(self, values: Tensor, budgets: Tensor) -> Schedule:
        """The rule with these values for the samples, (n,)."""
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
    """Search the values at which a rule spends a few budgets on average, on some 16 of the calibration seeds.

    Args:
        name: One of `RULES`.
        problem: Makes the problem for seeds.
        seeds: Calibration seeds.
        closing: Whether budgets count the closing projection.
    """
    seeds, options = first_of(problem, as_seeds(seeds), _SAMPLES), counting(closing)
    one = problem(seeds)
    n, T = n_deciders(one), one.sampler.n_steps
    counts = torch.tensor(sorted({max(1, round(share * T)) for share in _SHARES}), dtype=torch.float64)
    full, free = (one.rollout(schedule, **options).grouped().defects.double() for schedule in (Stepwise(), Terminal()))
    defects = torch.cat([full, free], dim=1)
    small = float(defects[defects > 0].min()) if bool((defects > 0).any()) else 1e-12
    most = {"accumulated": float(free.sum(dim=0).max()), "above-noise": float(free.max()) / small}
    low = torch.full_like(counts, 0.5 * (1e-3 if name == "above-noise" else small)).log()
    high = torch.full_like(counts, 2 * max(most.get(name, float(free.max())), small)).log()
    rule = Rule(name, counts, counts, full.quantile(0.95, dim=1).clamp(min=small))
    many = replicate_problem(problem, seeds, len(counts))
    all_of_it = torch.full((n * len(counts),), T)
    for _ in range(_ROUNDS):
        middle = (low + high) / 2
        run = many.rollout(rule.made(middle.exp().repeat_interleave(n), all_of_it), **options)
        too_much = run.grouped().spent.double().reshape(len(counts), n).mean(dim=1) > counts
        low, high = torch.where(too_much, middle, low), torch.where(too_much, high, middle)
    return replace(rule, values=high.exp())
