"""Prices for another number of steps."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import free
import trimtab as tt
from trimtab.core.metrics import path_error
from trimtab.prices.plan import Plan
from trimtab.prices.price import interpolate_rows, resample_masks, resample_table
from trimtab.prices.sample_scale import SampleScale

SIZES = st.integers(1, 24)
KEEP = st.sampled_from(["count", "share"])


def tables():
    """Tables as the dynamic program makes them: enough for all steps to go means spend."""

    @st.composite
    def build(draw):
        T = draw(SIZES)
        B = draw(st.integers(1, T))
        seed = draw(st.integers(0, 99))
        table = torch.rand(T, B + 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        left = torch.arange(B + 1)
        table[left >= (T - torch.arange(T))[:, None]] = -torch.inf
        table[:, 0] = torch.inf
        return table

    return build()


@settings(max_examples=60)
@given(tables(), SIZES, KEEP)
def test_a_resampled_table_is_a_table(table, n_steps, keep):
    price = tt.prices.Thresholds(table).resample(n_steps, keep)  # which refuses what is none
    T, B = table.shape[0], table.shape[1] - 1
    assert price.table.shape == (n_steps, (min(B, n_steps) if keep == "count" else B * n_steps // T) + 1)
    known = price.table[price.table.isfinite()]
    finite = table[table.isfinite()]
    if len(known):
        assert finite.min() <= known.min()
        assert known.max() <= finite.max()
    left = torch.arange(price.budget + 1)
    enough = (left >= (n_steps - torch.arange(n_steps))[:, None]) & (left > 0)
    assert (price.table[enough] == -torch.inf).all()


@settings(max_examples=30)
@given(tables(), KEEP)
def test_the_same_number_of_steps_changes_nothing(table, keep):
    assert torch.equal(resample_table(table, len(table), keep), table)
    masks = torch.stack([_periodic(b, len(table)) for b in range(len(table) + 1)])
    assert torch.equal(resample_masks(masks, len(table), keep), masks)


def _periodic(b, T):
    t = torch.arange(T)
    return (t + 1) * b // T > t * b // T


@settings(max_examples=60)
@given(SIZES, SIZES, st.integers(0, 99))
def test_a_resampled_plan_keeps_its_budgets_and_its_place_in_the_run(T, n_steps, seed):
    rank = torch.rand(T, generator=torch.Generator().manual_seed(seed)).argsort().argsort()
    plan = Plan(torch.stack([rank < b for b in range(T + 1)])).resample(n_steps, "share")  # refuses a wrong sum
    assert (plan.n_steps, plan.budget) == (n_steps, n_steps)
    for b in range(n_steps + 1):
        old = min(T, round(b * T / n_steps))
        before, after = (rank < old).double().cumsum(0), plan.masks[b].double().cumsum(0)
        for t in range(n_steps):
            share = before[max(0, round((t + 1) * T / n_steps) - 1)] / T
            assert abs(float(after[t] / n_steps - share)) <= 2 / n_steps + 2 / T + 1e-9


@settings(max_examples=60)
@given(SIZES, st.integers(1, 4), st.integers(0, 99))
def test_a_plan_of_counts_keeps_its_times_where_there_are_more_steps(T, factor, seed):
    rank = torch.rand(T, generator=torch.Generator().manual_seed(seed)).argsort().argsort()
    old = Plan(torch.stack([rank < b for b in range(T + 1)]))
    new = old.resample(factor * T)
    assert new.budget == T
    for b in range(T + 1):  # each correction in the steps that the old one was cut into
        assert torch.equal(new.masks[b].reshape(T, factor).any(dim=1), old.masks[b])


@settings(max_examples=60)
@given(SIZES, SIZES, st.integers(0, 99))
def test_a_plan_of_counts_keeps_its_budgets(T, n_steps, seed):
    rank = torch.rand(T, generator=torch.Generator().manual_seed(seed)).argsort().argsort()
    assert Plan(torch.stack([rank < b for b in range(T + 1)])).resample(n_steps).budget == min(T, n_steps)


def test_infinite_neighbours():
    rows = torch.tensor([[-torch.inf, 1.0], [2.0, torch.inf]])
    assert interpolate_rows(rows, torch.tensor([0.4])).tolist() == [[-torch.inf, 1.0]]
    assert interpolate_rows(rows, torch.tensor([0.6])).tolist() == [[2.0, torch.inf]]


@pytest.mark.parametrize("method", ["dp", "planned"])
@pytest.mark.parametrize("n_steps", [20, 80])
def test_a_resampled_price_serves_another_length(method, n_steps):
    """Better than nothing fitted: less path error than even spacing where timing pays, within its budget."""
    old = tt.domain("so3-impulse", n_steps=40)
    seeds = range(1000, 1032)
    problem = old.problem(seeds)
    price = free.calibrate(problem, 0.5, method=method, objective="path")
    new = tt.domain("so3-impulse", n_steps=n_steps).problem(range(32))
    with pytest.raises(ValueError, match=rf"resample\({n_steps}\)"):
        free.rollout(new.sampler, new.constraint, price.at(0.25), range(32))
    resampled = price.resample(n_steps)
    assert resampled.notes["resampled_from"] == 40
    assert resampled.seeds == price.seeds
    run = free.rollout(new.sampler, new.constraint, resampled.at(0.25), range(32))
    assert (run.spent <= n_steps // 4).all()
    even = free.rollout(new.sampler, new.constraint, tt.Periodic(0.25), range(32))
    if method == "dp":
        assert path_error(run).mean() < path_error(even).mean()


def test_scales_go_along():
    typical = torch.rand(7, 6, dtype=torch.float64) + 0.5
    price = tt.prices.Thresholds(torch.full((6, 3), torch.inf), sample_scale=SampleScale(typical, 3.0)).resample(12)
    assert price.sample_scale.typical.shape == (13, 12)
    assert price.sample_scale.prior == 6.0
    torch.testing.assert_close(price.sample_scale.typical[0, 1::2], typical[0])
    torch.testing.assert_close(price.sample_scale.typical[2::2, 1::2], typical[1:])


@pytest.mark.parametrize("n_steps", [0, -3, 2.5, True])
def test_what_is_no_number_of_steps_is_refused(n_steps):
    price = tt.prices.Thresholds(torch.full((6, 3), torch.inf))
    with pytest.raises((TypeError, ValueError), match="n_steps must be a whole number"):
        price.resample(n_steps)


def test_what_cannot_be_kept_is_refused():
    with pytest.raises(ValueError, match="the 'count' or the 'share' of a budget: got 'rate'"):
        tt.prices.Thresholds(torch.full((6, 3), torch.inf)).resample(4, "rate")
