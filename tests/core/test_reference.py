"""The library's loop against the plain reference, bit by bit: decisions, defects, failures, closing, final states."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import pytest
import torch
from torch import Tensor

import trimtab as tt
from reference import Record, Reference, run
from trimtab.core.noise import Noise, as_seeds
from trimtab_lab.domains import SYNTHETIC, domain

N, BUDGET = 6, 9
SAME = ("defects", "residuals", "projected", "failed", "closing", "closing_failed", "spent", "paid")


@dataclass(frozen=True)
class Unreliable(tt.Constraint):
    """A constraint whose projection fails for every second row it gets: halfway, nowhere, or in NaN."""

    constraint: tt.Constraint

    def project(self, x: Tensor) -> tt.Projection:
        answer = self.constraint.project(x)
        full = answer.x if isinstance(answer, tt.Projection) else answer
        kind = torch.arange(len(x)) % 6
        failed = kind % 2 == 1
        shape = (-1, *[1] * (x.ndim - 1))
        share = torch.tensor([1.0, 0.5, 1.0, -1.0, 1.0, torch.nan], dtype=x.dtype)[kind].reshape(shape)
        y = torch.where(failed.reshape(shape), x + share * (full - x), full)
        return tt.Projection(y, ~failed, 1 + kind)

    def defect(self, x: Tensor) -> Tensor:
        return self.constraint.defect(x)


@cache
def prices(name: str) -> Tensor:
    """A table of quantiles, from free runs of other seeds."""
    problem = domain(name).problem(range(100, 100 + N))
    free = tt.rollout(
        problem.sampler, problem.constraint, tt.Terminal(), range(100, 100 + N), measure_defects=True
    ).defects
    return tt.prices.quantile_table(free.double(), BUDGET)


def both(name: str, closing: str, then: str, unreliable: bool) -> tuple[tt.Rollout, Record]:
    problem = domain(name).problem(range(N))
    constraint = Unreliable(problem.constraint) if unreliable else problem.constraint
    table, budget = prices(name), torch.tensor([BUDGET, 1, 2, 5, BUDGET, 3])
    schedule = tt.prices.Thresholds(table).at(budget)
    found = tt.rollout(problem.sampler, constraint, schedule, range(N), closing=closing, on_failure=then)
    expected = run(Reference(constraint, table, budget, closing, then), problem, Noise(as_seeds(range(N))))
    return found, expected


@pytest.mark.filterwarnings("ignore::trimtab.core.record.InfeasibleWarning")
@pytest.mark.parametrize("name", SYNTHETIC)
@pytest.mark.parametrize(
    ("closing", "then", "unreliable"),
    [("paid", "keep", False), ("free", "keep", False), ("none", "keep", False), ("paid", "keep", True),
     ("free", "revert", True)],
)  # fmt: skip
def test_a_run_is_bit_for_bit_that_of_the_reference(name, closing, then, unreliable):
    found, expected = both(name, closing, then, unreliable)
    for field in SAME:
        assert torch.equal(getattr(found, field), getattr(expected, field)), field
    assert torch.equal(found.final, expected.final)
    if unreliable:
        assert found.failed.any()
        assert torch.equal(found.iterations, expected.iterations)
    else:
        assert (found.rows["projection"], found.calls["projection"]) == (expected.rows, expected.calls)
    assert bool((found.spent <= torch.tensor([BUDGET, 1, 2, 5, BUDGET, 3])).all())
