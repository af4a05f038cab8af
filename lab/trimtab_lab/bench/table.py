"""What the cells say: figures and tables per system, and ranks at equal work with intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trimtab.core.statistics import Summary, summarize

__all__ = ["Rank", "Result", "eligible", "ranks", "results"]

OVER = 1.2
"""A run counts at a budget if it costs at most this times as much."""

_RESAMPLES = 400


@dataclass(frozen=True, eq=False)
class Result:
    """One run of a rule on a system: (n,) each of quality and distance, and what it cost per sample."""

    system: str
    rule: str
    budget: float | None
    quality: Tensor
    distance: Tensor
    work: float  # a share of full projection's
    units: float  # iterations, or projections if the solver counts none, with looks
    calls: float  # of the projection in a batch
    seconds: float  # of the correction: projections, defects, scheduling
    beside: float  # seconds of the model
    feasible: float

    @property
    def mean(self) -> Summary:
        """The mean quality with its interval."""
        return summarize(self.quality)

    @property
    def median(self) -> float:
        """The median quality."""
        return float(self.quality.median())


@dataclass(frozen=True)
class Rank:
    """The place of a rule at a budget, 0 (best) to 1, over samples and systems, with its 95% interval."""

    rule: str
    place: float
    low: float
    high: float
    systems: int
    first: int  # systems in which no rule has a better place
    wins: float  # share of samples that end better than under even spacing, ties counting half; NaN if never compared


def results(cells: Sequence[Mapping[str, Any]]) -> list[Result]:
    """Return the cells that have numbers."""
    found = []
    for cell in cells:
        if "skipped" in cell:
            continue
        key, seconds = cell["key"], cell["seconds"]
        units = float(torch.tensor(cell["work"], dtype=torch.float64).mean())
        found.append(
            Result(
                key["system"],
                key["rule"],
                key["budget"],
                torch.tensor(cell["quality"], dtype=torch.float64),
                torch.tensor(cell["distance"], dtype=torch.float64),
                units / cell["full"],
                units,
                cell["calls"],
                sum(value for kind, value in seconds.items() if kind != "update"),
                seconds.get("update", 0.0),
                cell["feasible"],
            )
        )
    return found


def eligible(found: Sequence[Result], budget: float) -> dict[str, dict[str, Result]]:
    """Return the runs that count at a budget, by system and rule: the dearest of each rule that fits."""
    chosen: dict[str, dict[str, Result]] = {}
    for result in sorted(found, key=lambda result: result.work):
        if result.work <= OVER * budget and result.rule != "full":
            chosen.setdefault(result.system, {})[result.rule] = result
    return chosen


def ranks(found: Sequence[Result], budget: float) -> list[Rank]:
    """Return the mean place of every rule at a budget, best first.

    Samples are ranked rule against rule on the same seed and noise, ties sharing their place, so that no heavy tail
    decides. Intervals resample systems, and samples within them.
    """
    tables = {system: _places(list(rules.values())) for system, rules in eligible(found, budget).items()}
    names = sorted({result.rule for result in found if result.rule != "full"})
    order = {system: list(rules) for system, rules in eligible(found, budget).items()}
    generator = torch.Generator().manual_seed(0)

    def means(again: bool) -> tuple[Tensor, Tensor]:
        """Return the sum of places of each rule over the systems, and how many systems have it."""
        total, count = torch.zeros(len(names)), torch.zeros(len(names))
        systems = list(tables)
        if again:
            systems = [systems[i] for i in torch.randint(len(systems), (len(systems),), generator=generator)]
        for system in systems:
            table = tables[system]
            rows = torch.randint(table.shape[1], table.shape[1:], generator=generator) if again else slice(None)
            for rule, place in zip(order[system], table[:, rows].mean(dim=1).tolist(), strict=True):
                total[names.index(rule)] += place
                count[names.index(rule)] += 1
        return total, count

    if not tables:
        return []
    total, count = means(again=False)
    spread = [total / count for total, count in (means(again=True) for _ in range(_RESAMPLES))]
    low, high = torch.stack(spread).nanquantile(torch.tensor([0.025, 0.975]), dim=0)
    first = dict.fromkeys(names, 0)
    for system, table in tables.items():
        places = table.mean(dim=1)
        for i in (places <= places.min() + 1e-9).nonzero().flatten().tolist():
            first[order[system][i]] += 1
    wins = _wins(eligible(found, budget))
    found_ranks = [
        Rank(name, float(total[i] / count[i]), float(low[i]), float(high[i]), int(count[i]), first[name], wins[name])
        for i, name in enumerate(names)
        if count[i] > 0
    ]
    return sorted(found_ranks, key=lambda rank: rank.place)


def _wins(chosen: Mapping[str, Mapping[str, Result]]) -> dict[str, float]:
    """Return the share of samples in which each rule is better than even spacing, averaged over systems."""
    shares: dict[str, list[float]] = {}
    for rules in chosen.values():
        for name, result in rules.items():
            kept = shares.setdefault(name, [])
            if "even" in rules:
                other = rules["even"].quality
                kept.append(float(((result.quality < other).double() + 0.5 * (result.quality == other)).mean()))
    return {name: sum(kept) / len(kept) if kept else math.nan for name, kept in shares.items()}


def _places(results: Sequence[Result]) -> Tensor:
    """Return the place of every result on every sample, 0 to 1, (rules, n); equal numbers share a place."""
    values = torch.stack([result.quality for result in results])
    below = (values[None] < values[:, None]).sum(dim=1).double()
    equal = (values[None] == values[:, None]).sum(dim=1).double() - 1
    return (below + equal / 2) / max(1, len(results) - 1)
