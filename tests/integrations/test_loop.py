"""Any loop: what a loop that is not ours needs from a corrector."""

from __future__ import annotations

import pytest
import torch

import free
import trimtab as tt
from cases import Sphere


def record(schedule, seed=0, n=8, n_steps=10, seeds=None):
    corrector = free.Corrector(Sphere(), schedule, n_steps, seeds=seeds)
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    for t in range(n_steps):
        x = corrector(x + 0.1 * torch.randn(n, 3, generator=generator, dtype=torch.float64), t)
    return corrector.rollout


def test_thresholds_of_several_batches_are_those_of_all_defects_together():
    runs = [record(tt.Terminal(), seed, n) for seed, n in ((0, 8), (1, 3))]
    prices = tt.prices.paper_prices(runs, budget=0.4)
    assert torch.equal(prices.table, tt.prices.quantile_table(torch.cat([r.defects for r in runs], dim=1), 4))
    assert (prices.n_steps, prices.budget, prices.seeds) == (10, 4, ())
    assert (record(prices.at(0.2), seed=2).spent <= 2).all()


def test_seeds_of_the_runs_are_kept_and_refused_later():
    prices = tt.prices.paper_prices([record(tt.Terminal(), seeds=range(8))])
    assert prices.seeds == tuple(range(8))


def test_runs_that_cannot_calibrate_are_refused():
    with pytest.raises(ValueError, match="no runs to calibrate from"):
        tt.prices.paper_prices([])
    with pytest.raises(ValueError, match="same number of steps and the same closing"):
        tt.prices.paper_prices([record(tt.Terminal()), record(tt.Terminal(), n_steps=5)])
    with pytest.raises(ValueError, match="1 of 2 runs were corrected before their end"):
        tt.prices.paper_prices([record(tt.Terminal()), record(tt.Periodic(2))])


def test_a_corrector_says_whom_it_just_projected():
    corrector = free.Corrector(Sphere(), tt.schedules.Fixed(torch.eye(3, dtype=torch.bool)), 3)
    with pytest.raises(RuntimeError, match="has not been called yet"):
        _ = corrector.projected
    x = torch.ones(3, 2, dtype=torch.float64)
    for t in range(3):
        x = corrector(x * 1.1, t)
        assert corrector.projected.tolist() == [i == t for i in range(3)]
    corrector.reset()
    with pytest.raises(RuntimeError, match="has not been called yet"):
        _ = corrector.projected


def test_it_works_under_autocast_and_with_gradients_on():
    corrector = free.Corrector(Sphere(), tt.Stepwise(), 1)
    x = torch.full((2, 3), 2.0, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = corrector(x)
    assert y.dtype == torch.float32
    assert not y.requires_grad
    assert (Sphere().defect(y) < 1e-6).all()
