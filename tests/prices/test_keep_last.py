"""Prices that keep corrections back for the last steps."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import trimtab as tt

T = 10
ANY = tt.as_constraint(torch.zeros_like, lambda x: x[:, 0])


@settings(max_examples=60, deadline=None)
@given(st.integers(0, T - 1), st.integers(1, T), st.sampled_from(["paid", "free"]), st.integers(0, 1000))
def test_budgets_stay_exact_and_the_last_steps_are_corrected(k, budget, closing, seed):
    generator = torch.Generator().manual_seed(seed)
    problem = torch.rand(T - (closing == "paid"), 6, dtype=torch.float64, generator=generator)
    most = T - (closing == "paid")
    table = tt.prices.quantile_table(problem, most)
    if closing == "paid":
        table = tt.prices.price.with_closing(table, 1)
    price = tt.prices.Thresholds(table, closing=closing).keep_last(k)
    corrector = tt.Corrector(ANY, price.at(budget), T, closing=closing)
    for t in range(T):
        corrector(torch.rand(6, 1, dtype=torch.float64, generator=generator), t)
    run, free = corrector.rollout, budget - (closing == "paid")
    assert run.spent.tolist() == [budget] * 6
    last = run.projected[: T - (closing == "paid")]
    assert last[len(last) - min(k, free) :].all()


def test_nothing_kept_changes_nothing_that_is_reached():
    domain = tt.domain("so3-impulse", n_steps=20)
    price = tt.calibrate(domain.problem(range(1000, 1016)), method="dp", objective="path")
    runs = [domain.problem(range(8)).rollout(one.at(5)) for one in (price, price.keep_last(0))]
    assert torch.equal(runs[0].projected, runs[1].projected)


def test_it_lands_nearer():
    domain = tt.domain("so3-impulse", n_steps=20)
    price = tt.calibrate(domain.problem(range(1000, 1032)), method="dp", objective="path")
    plain, kept = (domain.problem(range(64)).rollout(one.at(5)).landing for one in (price, price.keep_last(2)))
    assert kept.mean() < plain.mean()
    with pytest.raises(ValueError, match="the last steps to keep corrections for"):
        price.keep_last(20)
