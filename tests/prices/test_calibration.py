from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import free
import trimtab as tt
from cases import Sphere, Walk


def obvious_table(defects: torch.Tensor, budget: int) -> torch.Tensor:
    """The paper's rule read off the page: sort every pool, take the value that a share b / (T - t) reaches."""
    T, n = defects.shape
    table = torch.full((T, budget + 1), -math.inf, dtype=torch.float64)
    for t in range(T):
        pool = sorted(defects[t:].flatten().tolist(), reverse=True)
        for b in range(budget + 1):
            if b == 0:
                table[t, b] = math.inf
            elif b < T - t:
                table[t, b] = pool[b * n - 1]
    return table


levels = st.sampled_from([0.0, 0.5, 1.0, math.inf]) | st.floats(0, 10)  # ties and infinities are likely


@given(hnp.arrays("float64", hnp.array_shapes(min_dims=2, max_dims=2, max_side=14), elements=levels), st.data())
def test_table_equals_the_obvious_one(values, data):
    defects = torch.from_numpy(values)
    budget = data.draw(st.integers(0, len(defects)))
    assert torch.equal(tt.prices.quantile_table(defects, budget), obvious_table(defects, budget))


@pytest.mark.parametrize("n", [1, 3, 64])
def test_table_equals_the_obvious_one_when_the_pool_is_packed_often(n):
    defects = torch.rand(60, n, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(tt.prices.quantile_table(defects, 60), obvious_table(defects, 60))
    assert torch.equal(tt.prices.quantile_table(defects, 7), obvious_table(defects, 7))


def test_a_share_b_of_the_remaining_steps_is_at_or_above_the_price():
    defects = torch.rand(20, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    table = tt.prices.quantile_table(defects, 20)
    for t, b in [(0, 1), (0, 19), (5, 5), (18, 1)]:
        assert (defects[t:] >= table[t, b]).double().mean() == pytest.approx(b / (20 - t), abs=1e-12)


@settings(max_examples=40)
@given(
    hnp.arrays("float64", st.tuples(st.integers(1, 12), st.integers(1, 5)), elements=st.floats(0, 5)),
    st.data(),
)
def test_a_calibrated_table_spends_exactly_its_budget_whatever_the_defects(values, data):
    T = len(values)
    budget = data.draw(st.integers(0, T))
    schedule = tt.prices.Adaptive(tt.prices.Thresholds(tt.prices.quantile_table(torch.from_numpy(values), budget)))
    seen = data.draw(hnp.arrays("float64", (T, 4), elements=st.floats(0, 50)))
    corrector = free.Corrector(tt.as_constraint(torch.zeros_like, lambda x: x[:, 0]), schedule, T)
    for row in torch.from_numpy(seen):
        corrector(row[:, None])
    assert (corrector.rollout.spent == min(budget, T)).all()


def test_one_table_serves_every_smaller_budget():
    big = free.calibrate(tt.Problem(Walk(), Sphere(), range(100, 108)), 1.0, method="paper", objective="path")
    small = free.calibrate(tt.Problem(Walk(), Sphere(), range(100, 108)), 5, method="paper", objective="path")
    assert torch.equal(big.table[:, :6], small.table)


def test_evaluation_on_calibration_seeds_is_refused():
    schedule = tt.prices.Adaptive(
        free.calibrate(tt.Problem(Walk(), Sphere(), range(8)), 0.5, method="paper", objective="path")
    )
    with pytest.raises(ValueError, match="used to calibrate"):
        free.rollout(Walk(), Sphere(), schedule, [7, 8, 9])
    free.rollout(Walk(), Sphere(), schedule, [8, 9])


@pytest.mark.parametrize("bad", [torch.rand(3), torch.rand(0, 2), torch.full((2, 2), torch.nan)])
def test_bad_traces_are_refused(bad):
    with pytest.raises(ValueError, match="calibration defects"):
        tt.prices.quantile_table(bad, 1)


def test_a_budget_beyond_the_steps_is_refused():
    with pytest.raises(ValueError, match="T = 3 steps must be a whole number from 0 to 3: got 4"):
        tt.prices.quantile_table(torch.rand(3, 2), 4)


def test_an_objective_of_one_term_is_that_term_however_it_is_weighted():
    problem = tt.Problem(Walk(), Sphere(), range(100, 108))
    named, mixed = (free.calibrate(problem, 4, objective=o) for o in ("path", {"path": 2.0, "endpoint": 0.0}))
    assert named.method == mixed.method == "dp"
    assert torch.equal(named.table, mixed.table)
    paper = [free.calibrate(problem, 4, "paper", objective=o).table for o in ("endpoint", {"endpoint": 3.0})]
    assert torch.equal(*paper)
