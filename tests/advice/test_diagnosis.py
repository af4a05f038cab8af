"""What a correction is worth and how sure a mean is, against what is known in closed form."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import free
import trimtab as tt
from scalar_cases import LINE, Scalar, one
from trimtab.advice.diagnosis import (
    Interval,
    bootstrap,
    correction_effects,
    mean,
    rank_correlation,
    ratio_interval,
)
from trimtab.core.metrics import euclidean


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


@pytest.mark.parametrize("interval", [partial(bootstrap, mean), lambda x: ratio_interval(x, torch.ones_like(x))])
def test_an_interval_is_the_same_every_time_and_holds_the_mean(interval):
    values = torch.arange(20, dtype=torch.float64)
    first, second = interval(values), interval(values)
    assert first == second
    assert first.low < first.mean == 9.5 < first.high
    assert first.high - first.mean == pytest.approx(2.0 * float(values.std()) / 20**0.5, rel=0.1)
    state = torch.get_rng_state()
    interval(values)
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("n", [16, 32])
def test_a_skewed_loss_is_above_its_interval_far_less_often_than_above_the_percentiles(n):
    # most lose little and a few much, and what they could lose differs too, as with endpoints of real samplers
    trials, generator = 500, torch.Generator().manual_seed(3)
    z = torch.randn(2, trials, n, generator=generator, dtype=torch.float64)
    lost, gained = 0.1 * z[0].exp(), (0.5 * z[1]).exp()
    true = 0.1 * math.exp(0.5 - 0.125)
    above = sum(true > ratio_interval(*one).high for one in zip(lost, gained, strict=True)) / trials
    both = torch.stack([lost, gained], dim=2)
    plain = [bootstrap(lambda sets: mean(sets[..., 0]) / mean(sets[..., 1]), one).high for one in both]
    assert above < 0.08  # 2.5% is the aim
    assert above < 0.7 * sum(true > high for high in plain) / trials


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.sampled_from([0.0, 0.1, 1.0, -0.5]), st.floats(0.1, 2)), min_size=1, max_size=12),
    st.floats(1e-6, 1e6),
)
def test_an_interval_holds_its_ratio_whatever_the_samples_and_has_no_unit(pairs, scale):
    part, whole = torch.tensor(pairs, dtype=torch.float64).unbind(1)
    found, scaled = ratio_interval(part, whole), ratio_interval(scale * part, scale * whole)
    assert found.mean == pytest.approx(float(part.mean() / whole.mean()), abs=1e-12)
    if len(pairs) == 1:
        assert math.isnan(found.low)
        assert math.isnan(found.high)
        return
    assert found.low <= found.mean <= found.high < math.inf
    assert found.low >= 0 or bool((part < 0).any())
    assert (scaled.low, scaled.high) == pytest.approx((found.low, found.high), rel=1e-6, abs=1e-9)


def test_an_interval_of_samples_that_agree_is_a_point_and_of_none_is_unknown():
    gained = torch.rand(16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert ratio_interval(torch.zeros(16), gained) == Interval(0.0, 0.0, 0.0)
    assert ratio_interval(gained, gained) == Interval(1.0, 1.0, 1.0)
    nothing = [ratio_interval(gained, torch.zeros(16)), ratio_interval(torch.full((3,), torch.nan), torch.ones(3))]
    assert all(math.isnan(end) for one in nothing for end in vars(one).values())


def test_one_sample_of_many_that_lost_leaves_a_wide_interval_but_a_finite_one():
    lost = torch.zeros(16, dtype=torch.float64)
    lost[5] = 1.0
    found = ratio_interval(lost, torch.ones(16))
    assert 0.2 < found.high < 0.4  # an exact binomial interval ends at 0.30
    assert found.low == 0
