"""Measure what a set-up cost does to prices of iterations, and write its table into docs/effort.md.

    python docs/make_setup_cost.py

The solver is made up: that of the linkage, whose first iteration of a step is said to cost 3 units more. Prices are
calibrated for path error on 64 seeds from 1,100,000 on and measured on 128 seeds from 700,000 on, at the same budgets
in units, set-up included: prices that know of the set-up, with a table for beginning and one for going on, for each
sample or on average; prices made as if there were none; whole projections at evenly spaced steps; and one iteration at
evenly spaced steps.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

import trimtab as tt
from _page import renew
from trimtab.core.constraint import Improvement
from trimtab.prices import Mean
from trimtab.prices.iterations import Allowance, counts_with_closing, even_counts, whole_counts
from trimtab.prices.race import EVEN, fixed_plans

SET_UP = 3
SHARES = (0.1, 0.25, 0.5)
MEAN = "calibrated for each mean cost"


@dataclass(frozen=True, eq=False)
class SetUp(tt.Constraint):
    """A constraint whose solver is set up at a cost before its first iteration of a step."""

    solver: tt.Constraint
    units: int

    improves = True

    def project(self, x: Tensor, *args: Any, **context: Any) -> tt.Projection:
        """As the solver does; the set-up counts as iterations."""
        answer: tt.Projection = self.solver.project(x)
        assert answer.iterations is not None
        return answer._replace(iterations=answer.iterations + self.units * (answer.iterations > 0))

    def defect(self, x: Tensor, *args: Any, **context: Any) -> Tensor:
        """Of the solver."""
        defect: Tensor = self.solver.defect(x)
        return defect

    def improve(self, x: Tensor, state: tuple[Tensor, ...] | None, **context: Any) -> Improvement:
        """As the solver does, and what it cost."""
        cost = torch.full((len(x),), 1 + self.units * (state is None), device=x.device)
        return self.solver.improve(x, state)._replace(cost=cost)


def table() -> str:
    """Path error and endpoint distance at equal cost, one row per share."""
    domain = tt.domain("linkage", kappa=0.3)
    plain = domain.problem(range(1_100_000, 1_100_064))
    known = replace(plain, constraint=SetUp(plain.constraint, SET_UP))
    fresh = domain.problem(range(700_000, 700_128))
    measuring = replace(fresh, constraint=SetUp(fresh.constraint, SET_UP))
    full, terminal = (measuring.rollout(s, measure_defects=True) for s in (tt.Stepwise(), tt.Terminal()))
    cost = float(full.all_iterations.double().mean())
    most, T = int(SHARES[-1] * cost) + 1, fresh.n_steps
    knowing, unaware = (
        tt.calibrate(problem, most, "dp", unit="iteration", objective="path") for problem in (known, plain)
    )
    held = knowing.closing_reserve
    each = cost / T
    evenly = Allowance(counts_with_closing(even_counts(T - 1, most - held, 1 + SET_UP), held), held)
    whole = Allowance(counts_with_closing(whole_counts(fixed_plans(T - 1, T - 1)[EVEN], most - held, each), held), held)
    ways: dict[str, Any] = {
        "two tables": knowing,
        "two tables, on average": MEAN,
        "one table, set-up unknown": unaware,
        "whole, evenly": whole,
        "one iteration, evenly": evenly,
    }
    low, high = (end.residuals[:-1].double().sum(dim=0).mean() for end in (full, terminal))
    lines = [f"| cost | {' | '.join(ways)} |", "|---|" + "---|" * len(ways)]
    for share in SHARES:
        cells = []
        for price in ways.values():
            units = int(share * cost)
            if price is MEAN:
                price = tt.calibrate(known, Mean(units), unit="iteration", objective="path")
            run = measuring.rollout(price.at(units), measure_defects=True)
            nepe = float((run.residuals[:-1].double().sum(dim=0).mean() - low) / (high - low))
            apart = domain.distance(run.final, full.final)
            spent = float(run.all_iterations.double().mean()) / cost
            cells.append(f"{nepe:.3f}, {float(apart.median()):.1e} ({spent:.0%})")
        lines.append(f"| {share:.0%} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    torch.set_num_threads(1)
    renew("effort.md", "set-up", table())
