"""What a race of prices ends in: for every budget the price that won there."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from trimtab.core import html
from trimtab.core.budget import Budget, Unit
from trimtab.core.checks import check_type
from trimtab.core.files import save_tensors
from trimtab.core.schedule import Schedule
from trimtab.core.view import StepView
from trimtab.prices.counts import Allowance
from trimtab.prices.plan import Plan
from trimtab.prices.provenance import Provenance, budget_within, reading
from trimtab.prices.resample import Keep, old_budgets
from trimtab.prices.thresholds import Thresholds

__all__ = ["Mixed", "Part", "Price", "Raced"]

Part = Thresholds | Plan | Allowance
"""What races."""


@dataclass(frozen=True, eq=False)
class Raced(Provenance):
    """The winner of a race for every budget.

    Attributes:
        parts: The prices that won somewhere, each a table, a plan or an allowance.
        winner: Which of them each budget from 0 to B goes by, (B + 1,) int64.
        looks: What all looks of a rollout cost, in whole units of the budget: a part that looks spends that many fewer.

    How it was run is told as for all prices: see `Provenance`. Its notes have the ranges of budgets with their winners
    and margins, and what was raced.
    """

    parts: tuple[Part, ...]
    winner: Tensor
    looks: int = 0
    objective: str = field(default="endpoint", kw_only=True)
    method: str = field(default="race", kw_only=True)

    def __post_init__(self) -> None:
        """Refuse parts that do not belong together."""
        super().__post_init__()
        if not isinstance(self.parts, tuple) or not all(isinstance(part, Part) for part in self.parts):
            raise TypeError(
                f"the parts of a race are price tables, plans and allowances, in a tuple: got {self.parts!r:.60}"
            )
        check_type(self.winner, Tensor, "winner")
        if not self.parts or any(part.n_steps != self.parts[0].n_steps for part in self.parts):
            raise ValueError("a race has winners, all of the same number of steps")
        if any((part.unit, part.closing_reserve) != (self.unit, self.closing_reserve) for part in self.parts):
            raise ValueError("the winners of a race count the same unit and keep the same for the closing projection")
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
        told = html.table(rows, ("budgets", "winner", "ahead of even spacing")) if rows else ""
        return html.panel("Prices by a race", html.table(facts), told)

    @property
    def n_steps(self) -> int:
        """T."""
        return self.parts[0].n_steps

    @property
    def budget(self) -> int:
        """The largest budget it serves."""
        return len(self.winner) - 1

    @property
    def unit(self) -> Unit:
        """What its budgets count."""
        return self.parts[0].unit

    @property
    def closing_reserve(self) -> int:
        """What is kept of a budget for a closing projection that it pays for."""
        return self.parts[0].closing_reserve

    def at(self, budget: Budget) -> Schedule:
        """The schedule for a budget: that of the winner there."""
        b = budget_within(budget, self.n_steps, self.budget, self.unit)
        parts = [replace(part, seeds=self.seeds, closing=self.closing) for part in self.parts]
        looks = torch.tensor([self.looks if isinstance(part, Thresholds) else 0 for part in parts])
        if isinstance(b, Tensor):
            which = self.winner[b.cpu()]
            left = (b - looks.to(b.device)[:, None]).clamp(min=0)
            made = tuple(part.at(some) for part, some in zip(parts, left, strict=True))
            return Mixed(made, which, left.gather(0, which[None].to(b.device))[0])
        won = int(self.winner[b])
        return parts[won].at(max(0, b - int(looks[won])))

    def resample(self, n_steps: int, keep: Keep = "count") -> Raced:
        """The same winners for another number of steps; see `Thresholds.resample`."""
        if self.unit == "iteration":
            raise ValueError(f"prices of iterations serve the steps they were calibrated for; calibrate for {n_steps}")
        stands_for = old_budgets(n_steps, self.n_steps, self.budget, keep).round().long()
        looks = math.ceil(self.looks * n_steps / self.n_steps)
        return replace(
            self,
            parts=tuple(part.resample(n_steps, keep) for part in self.parts if not isinstance(part, Allowance)),
            winner=self._affording(looks, self.winner[stands_for.to(self.winner.device)]),
            fingerprint="",
            looks=looks,
            notes={**self.notes, "resampled_from": self.n_steps},
        )

    def _affording(self, looks: int, winner: Tensor) -> Tensor:
        """The winners, (B' + 1,), but with fixed times for budgets that so many looks would use up, as in the race."""
        blind = [i for i, part in enumerate(self.parts) if not isinstance(part, Thresholds)]
        if not looks or not blind:
            return winner
        held = 0 if self.closing in ("free", "none") else self.closing_reserve
        so_far = int(self.winner[min(self.looks + held, self.budget)])  # what such budgets go by here
        looking = torch.tensor([isinstance(part, Thresholds) for part in self.parts])[winner.cpu()].to(winner.device)
        used_up = torch.arange(len(winner), device=winner.device) <= looks + held
        return torch.where(looking & used_up, so_far if so_far in blind else blind[0], winner)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one safetensors file."""
        tensors = {"winner": self.winner}
        facts: dict[str, Any] = self.told() | {"looks": self.looks, "parts": []}
        for i, part in enumerate(self.parts):
            told: dict[str, Any] = {"method": part.method}
            if isinstance(part, Plan):
                own = {"masks": part.masks}
            elif isinstance(part, Allowance):
                own, told["closing_reserve"] = {"counts": part.counts}, part.closing_reserve
            else:
                own, told = part.written()
            tensors |= {f"{i}.{name}": tensor for name, tensor in own.items()}
            facts["parts"].append(told)
        save_tensors(path, "race", tensors, facts)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Raced:
        """Read what `save` wrote; a truncated, foreign or inconsistent file is refused."""
        with reading(path, "race", "a usable race") as (tensors, facts):
            parts: list[Part] = []
            for i, told in enumerate(facts.pop("parts")):
                own = {name.partition(".")[2]: part for name, part in tensors.items() if name.startswith(f"{i}.")}
                if "masks" in own:
                    parts.append(Plan(own["masks"], method=str(told["method"])))
                elif "counts" in own:
                    parts.append(Allowance(own["counts"], int(told["closing_reserve"]), method=str(told["method"])))
                else:
                    parts.append(Thresholds.read(own, told))
            return cls(tuple(parts), tensors["winner"], **facts)


Price = Thresholds | Plan | Raced
"""What calibration makes; `price.at(budget)` is a schedule."""


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

    @property
    def unit(self) -> str:
        """As the first one's."""
        return self.schedules[0].unit

    @property
    def repeats(self) -> bool:
        """If any is asked again after each iteration."""
        return any(schedule.repeats for schedule in self.schedules)

    @property
    def closing_reserve(self) -> int:
        """As the first one's."""
        return self.schedules[0].closing_reserve

    def decide(self, view: StepView) -> Tensor:
        """Each sample by its own."""
        decided = torch.stack([torch.as_tensor(schedule.decide(view)) for schedule in self.schedules])
        return decided.gather(0, self.which[None].to(decided.device))[0]

    def to(self, device: torch.device) -> Mixed:
        """The same on `device`."""
        return Mixed(tuple(s.to(device) for s in self.schedules), self.which.to(device), self.budget.to(device))
