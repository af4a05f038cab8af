"""A race of prices on calibration seeds: whatever the measure, the best for each range of budgets wins.

All candidates run the same samples with the same noise at the same budgets, which are spread over all rates, so that
every comparison is paired. After the first round, those that are clearly behind in every range drop out. Even spacing
is the one to beat: where nothing beats it by more than noise, it is the answer.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from trimtab._version import __version__
from trimtab.core import show
from trimtab.core.files import load_tensors, save_tensors
from trimtab.core.noise import uniform_numbers
from trimtab.core.record import Rollout
from trimtab.core.schedule import Budget, Moment, Schedule, corrections
from trimtab.prices.own_scale import OwnScale
from trimtab.prices.plan import Plan
from trimtab.prices.resample import Keep, old_budgets
from trimtab.prices.thresholds import Thresholds

if TYPE_CHECKING:
    from trimtab.prices.batches import Batches

__all__ = ["EVEN", "Measure", "Mixed", "Raced", "fixed_plans", "race"]

EVEN = "even spacing"
_RANGES = 5  # of budgets, in each of which one candidate wins
_NEAR = 0.35  # how much a neighbouring range counts
_SECOND_ROUND = 2  # candidates at the most, beside even spacing
_BEHIND = 2.5  # standard errors in every range: no second round
_SHUFFLES = 1 << 37  # a stream of noise of its own


class Measure(NamedTuple):
    """What the race goes by.

    Attributes:
        name: As notes and words call it.
        cost: Of each sample of a record, (n,), lower being better.
    """

    name: str
    cost: Callable[[Rollout], Tensor]


@dataclass(frozen=True, eq=False)
class Raced:
    """The winner of a race for every budget.

    Attributes:
        parts: The prices that won somewhere, each a table or a plan.
        winner: Which of them each budget from 0 to B goes by, (B + 1,) int64.
        seeds: The calibration seeds; evaluation on any of them is refused.
        objective: What the race went by.
        fingerprint: Of the sampler and the constraint it was run on; "" if unknown.
        version: Of the library that made it.
        notes: The ranges of budgets with their winners and margins, and what was raced; JSON only.
        closing: The accounting of the budgets, "paid" or "free".
    """

    parts: tuple[Thresholds | Plan, ...]
    winner: Tensor
    seeds: tuple[int, ...] = ()
    objective: str = "endpoint"
    fingerprint: str = ""
    version: str = __version__
    notes: Mapping[str, Any] = field(default_factory=dict)
    closing: str = ""
    method: str = "race"

    def __post_init__(self) -> None:
        """Refuse parts that do not belong together."""
        if not self.parts or any(part.n_steps != self.parts[0].n_steps for part in self.parts):
            raise ValueError("a race has winners, all of the same number of steps")
        winner = self.winner
        if winner.ndim != 1 or winner.is_floating_point() or len(winner) - 1 > min(p.budget for p in self.parts):
            raise ValueError(f"winner names a part for every budget from 0 to B: got {tuple(winner.shape)}")
        if len(winner) == 0 or int(winner.min()) < 0 or int(winner.max()) >= len(self.parts):
            raise ValueError(f"winner must name one of {len(self.parts)} parts for every budget")

    def __repr__(self) -> str:
        """One line."""
        names = ", ".join(dict.fromkeys(part.method for part in self.parts))
        return f"Raced(T={self.n_steps}, budgets up to {self.budget}, by {self.objective!r}: {names})"

    def _repr_html_(self) -> str:
        """Which candidate won where, in a notebook."""
        facts = [("measure", self.objective), ("steps", self.n_steps), ("largest budget", self.budget)]
        rows = []
        for part in self.notes.get("ranges", ()):
            ahead, se = part["ahead_of_even_spacing"]
            rows.append((f"{part['from']} to {part['to']}", part["winner"], f"{ahead:.0%} ± {se:.0%}"))
        told = show.table(rows, ("budgets", "winner", "ahead of even spacing")) if rows else ""
        return show.panel("Prices by a race", show.table(facts), told)

    @property
    def n_steps(self) -> int:
        """T."""
        return self.parts[0].n_steps

    @property
    def budget(self) -> int:
        """The largest budget it serves."""
        return len(self.winner) - 1

    def at(self, budget: Budget) -> Schedule:
        """The schedule for a budget: that of the winner there."""
        b = corrections(budget, self.n_steps)
        if int(torch.as_tensor(b).max()) > self.budget:
            raise ValueError(f"a budget of {budget} is more than the {self.budget} corrections this race went up to")
        parts = [replace(part, seeds=self.seeds, closing=self.closing) for part in self.parts]
        if isinstance(b, Tensor):
            which = self.winner[b.cpu()]
            return Mixed(tuple(part.at(b) for part in parts), which, b)
        return parts[int(self.winner[b])].at(b)

    def resample(self, n_steps: int, keep: Keep = "count") -> Raced:
        """The same winners for another number of steps; see `Thresholds.resample`."""
        stands_for = old_budgets(n_steps, self.n_steps, self.budget, keep).round().long()
        return replace(
            self,
            parts=tuple(part.resample(n_steps, keep) for part in self.parts),
            winner=self.winner[stands_for.to(self.winner.device)],
            fingerprint="",
            notes={**self.notes, "resampled_from": self.n_steps},
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one safetensors file."""
        tensors = {"winner": self.winner}
        facts: dict[str, Any] = {name: getattr(self, name) for name in ("seeds", "objective", "fingerprint", "closing")}
        facts |= {"notes": dict(self.notes), "parts": []}
        for i, part in enumerate(self.parts):
            told: dict[str, Any] = {"method": part.method}
            if isinstance(part, Plan):
                tensors[f"{i}.masks"] = part.masks
            else:
                tensors[f"{i}.table"] = part.table
                if part.own_scale is not None:
                    tensors[f"{i}.typical"], told["prior"] = part.own_scale.typical, part.own_scale.prior
            facts["parts"].append(told)
        save_tensors(path, "race", tensors, facts)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Raced:
        """Read what `save` wrote; a truncated, foreign or inconsistent file is refused."""
        tensors, facts = load_tensors(path, "race")
        try:
            parts: list[Thresholds | Plan] = []
            for i, told in enumerate(facts.pop("parts")):
                if f"{i}.masks" in tensors:
                    parts.append(Plan(tensors[f"{i}.masks"], method=str(told["method"])))
                    continue
                own = OwnScale(tensors[f"{i}.typical"], told["prior"]) if "prior" in told else None
                parts.append(Thresholds(tensors[f"{i}.table"], str(told["method"]), own_scale=own))
            return cls(tuple(parts), tensors["winner"], **facts | {"seeds": tuple(map(int, facts["seeds"]))})
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"{path}: not a usable race: {error}") from error


@dataclass(frozen=True, eq=False)
class Mixed(Schedule):
    """Several schedules, each for some of the samples.

    Attributes:
        schedules: Each for all samples.
        which: The one that decides for each sample, (n,).
        budget: Of each sample, (n,).
    """

    schedules: tuple[Schedule, ...]
    which: Tensor
    budget: Any

    @property
    def calibration_seeds(self) -> tuple[int, ...]:
        """Those of all."""
        return tuple(sorted({seed for schedule in self.schedules for seed in schedule.calibration_seeds}))

    @property
    def closing(self) -> str:
        """As the first one's."""
        return self.schedules[0].closing

    def decide(self, now: Moment) -> Tensor:
        """Each sample by its own."""
        decided = torch.stack([torch.as_tensor(schedule.decide(now)) for schedule in self.schedules])
        return decided.gather(0, self.which[None].to(decided.device))[0]

    def to(self, device: torch.device) -> Mixed:
        """The same on `device`."""
        return Mixed(tuple(s.to(device) for s in self.schedules), self.which.to(device), self.budget.to(device))


def fixed_plans(n_steps: int, budget: int) -> dict[str, Tensor]:
    """What needs no calibration, as masks for every budget, (B + 1, T) bool: even spacing, and windows."""
    steps, b = torch.arange(n_steps), torch.arange(budget + 1)[:, None]
    # the step after the last is the closing projection's, so that gaps are even up to it
    even = ((steps + 1) * (b + 1)) // (n_steps + 1) > (steps * (b + 1)) // (n_steps + 1)
    plans = {EVEN: even}
    for name, stop in (("last steps", n_steps), ("window before the last quarter", (3 * n_steps) // 4)):
        end = torch.maximum(torch.tensor(stop), b)
        plans[name] = (steps >= end - b) & (steps < end)
    return plans


def race(batches: Batches, candidates: Mapping[str, Thresholds | Plan | Raced], measure: Measure) -> Raced:
    """Run the candidates against each other and keep the best for each range of budgets.

    Args:
        batches: Runs calibration batches.
        candidates: By name; "even spacing" is among them.
        measure: What to go by.
    """
    # on calibration seeds, which a schedule of theirs would refuse
    candidates = {name: replace(one, seeds=()) for name, one in candidates.items()}
    names = list(candidates)
    rounds: list[_Round] = []
    for number in range(2):
        if number:
            names = _still_in(rounds[0], names)
        budgets, place = _spread(batches, seed=number)
        costs = {}
        for name in names:
            batches.say(f"race, round {number + 1}: {name}")
            costs[name] = measure.cost(batches.run(candidates[name].at(budgets)))
        rounds.append(_Round(costs, place))
    standing = [_standing(rounds, name) for name in names]
    winners = _winners(dict(zip(names, standing, strict=True)))
    ranges = _edges(batches)
    parts: list[Thresholds | Plan] = []
    kept: dict[str, int] = {}
    for name in dict.fromkeys(winner for winner, _, _ in winners):
        one = candidates[name]
        if isinstance(one, Raced):
            raise ValueError(f"{name}: the winner of another race cannot be raced; give what it is made of")
        kept[name] = len(parts)
        parts.append(replace(one, notes={}, fingerprint="", method=name))
    winner = torch.zeros(batches.budget + 1, dtype=torch.int64)
    for (low, high), (name, _, _) in zip(ranges, winners, strict=True):
        winner[low : high + 1] = kept[name]
    facts = batches.facts(
        {
            "measure": measure.name,
            "candidates": list(candidates),
            "second_round": names,
            "ranges": [
                {"from": low, "to": high, "winner": name, "ahead_of_even_spacing": [ahead, se]}
                for (low, high), (name, ahead, se) in zip(ranges, winners, strict=True)
            ],
        }
    )
    return Raced(tuple(parts), winner, **facts | {"objective": measure.name})


class _Round(NamedTuple):
    """Costs by candidate, (n,) each, and the range of budgets each sample was run in, (n,)."""

    costs: dict[str, Tensor]
    place: Tensor


def _spread(batches: Batches, seed: int) -> tuple[Tensor, Tensor]:
    """Budgets for all samples, as many in each range, (n,), and their ranges, (n,); small budgets lie closer."""
    n = batches.n
    order = uniform_numbers(torch.tensor([seed]), range(1), (n,), _SHUFFLES)[0, 0].argsort().argsort()
    share = (order + 0.5) / n
    spend = (share.square() * batches.spendable).ceil().long().clamp(1, batches.spendable)
    return spend + batches.kept_back, (share * _RANGES).long()


def _edges(batches: Batches) -> list[tuple[int, int]]:
    """The first and last budget of each range, the closing projection included."""
    ends = [int((((k + 1) / _RANGES) ** 2) * batches.spendable) + batches.kept_back for k in range(_RANGES)]
    ends[-1] = batches.budget
    begins = [0, *(end + 1 for end in ends[:-1])]
    return list(zip(begins, ends, strict=True))


def _standing(rounds: list[_Round], name: str) -> list[tuple[float, float]]:
    """The mean cost in each range relative to even spacing's there, with its SE; neighbouring ranges count a little."""
    gaps = []
    for k in range(_RANGES):
        found = []
        for one in rounds:
            if name in one.costs:
                here = one.place == k
                even = one.costs[EVEN][here]
                found.append((one.costs[name][here] - even) / even.abs().mean().clamp(min=1e-300))
        gaps.append(torch.cat(found) if found else torch.zeros(0))
    standing = []
    for k in range(_RANGES):
        near = [(1.0 if j == k else _NEAR, gaps[j]) for j in (k - 1, k, k + 1) if 0 <= j < _RANGES and len(gaps[j])]
        total = sum(weight * len(gap) for weight, gap in near)
        mean = sum(weight * float(gap.sum()) for weight, gap in near) / max(total, 1e-300)
        variance = sum(weight**2 * float(((gap - gap.mean()) ** 2).sum()) for weight, gap in near) / max(total, 1) ** 2
        standing.append((mean, variance**0.5))
    return standing


def _still_in(first: _Round, names: list[str]) -> list[str]:
    """Even spacing, and the few that are not clearly behind in every range, best first."""
    standing = {name: _standing([first], name) for name in names}
    best = [min(standing[name][k][0] for name in names) for k in range(_RANGES)]

    def behind(name: str) -> float:
        """By how many standard errors it is behind the best where it comes closest."""
        return min((mean - best[k]) / max(se, 1e-12) for k, (mean, se) in enumerate(standing[name]))

    others = sorted((name for name in names if name != EVEN), key=lambda name: min(m for m, _ in standing[name]))
    leading = dict.fromkeys(min(names, key=lambda name: standing[name][k][0]) for k in range(_RANGES))
    close = [name for name in [*leading, *others] if name != EVEN and behind(name) <= _BEHIND]
    return [EVEN, *list(dict.fromkeys(close))[:_SECOND_ROUND]]


def _winners(standing: Mapping[str, list[tuple[float, float]]]) -> list[tuple[str, float, float]]:
    """The winner of each range, by how much of even spacing's cost it is ahead, and the SE of that."""
    winners = []
    for k in range(_RANGES):
        name = min(standing, key=lambda one: standing[one][k][0])
        mean, se = standing[name][k]
        winners.append((name, -mean, se) if mean < -se else (EVEN, 0.0, se))
    return winners
