"""What single corrections do, against what is known in closed form."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import free
import trimtab as tt
from scalar_cases import LINE, Scalar, one
from trimtab.advice.checks import correction_effects
from trimtab.core.metrics import euclidean
from trimtab.core.statistics import rank_correlation


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=3, max_size=40))
def test_rank_correlation_is_spearmans_with_ties(pairs):
    stats = pytest.importorskip("scipy.stats")
    x, y = torch.tensor(pairs, dtype=torch.float64).T
    ours = float(rank_correlation(x, y))
    if len(x.unique()) == 1 or len(y.unique()) == 1:
        assert ours != ours
    else:
        assert ours == pytest.approx(stats.spearmanr(x.numpy(), y.numpy()).statistic, abs=1e-12)


@settings(max_examples=15)
@given(st.floats(0.3, 0.97), st.integers(8, 40))
def test_a_correction_of_a_linear_chain_fades_by_its_own_factor(keep, T):
    chain = Scalar((keep,) * T, one)
    run = lambda schedule: free.rollout(chain, LINE, schedule, range(8))  # noqa: E731
    effects = correction_effects(run, run(tt.Terminal()), run(tt.Stepwise()), euclidean)
    lags = torch.arange(len(effects.survival), dtype=torch.float64)
    torch.testing.assert_close(effects.survival, keep**lags, rtol=1e-9, atol=1e-12)
    exact = torch.log(torch.tensor(0.5)) / torch.log(torch.tensor(keep))
    if effects.half_life < float("inf"):
        assert abs(effects.half_life - float(exact)) < 0.5  # it is interpolated between whole steps
    else:
        assert float(exact) > len(effects.survival) - 1
    # what it saves in all is the defect it removed and the echo of that
    left = (T - effects.step).double()
    torch.testing.assert_close(effects.value, effects.defect * (1 - keep**left) / (1 - keep), rtol=1e-9, atol=1e-12)
