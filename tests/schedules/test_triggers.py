from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import free
import trimtab as tt
from cases import Sphere, Walk
from trimtab.schedules import AboveNoise, AccumulatedDefect, Trigger, UntilBelow

every_length = pytest.mark.parametrize("T", [1, 2, 3, 10, 100])


def times(schedule, defects):
    """When one sample is corrected whose proposals have these defects, whatever was corrected before."""
    T = len(defects)
    corrector = free.Corrector(tt.as_constraint(torch.zeros_like, lambda x: x[:, 0]), schedule, T)
    for defect in defects:
        corrector(torch.tensor([[defect]], dtype=torch.float64))
    return corrector.rollout.projected[:, 0].nonzero().squeeze(1).tolist()


defect_lists = st.lists(st.floats(0, 4).map(lambda d: round(d * 4) / 4), min_size=1, max_size=30)  # sums are exact


# ------------------------------------------------------------------ accumulated


def test_defects_add_up_from_one_correction_to_the_next():
    assert times(AccumulatedDefect(1.0), [0.5, 0.25, 0.25, 0.5, 0.75, 3.0, 0.0, 0.5]) == [2, 4, 5]


@given(defect_lists, st.sampled_from([0.0, 0.5, 2.0]), st.integers(1, 5))
def test_accumulated_defects_by_a_running_sum(defects, value, budget):
    expected, total = [], 0.0
    for t, defect in enumerate(defects):
        total += defect
        if total >= value and len(expected) < min(budget, len(defects)):
            expected.append(t)
            total = 0.0
    assert times(AccumulatedDefect(value, min(budget, len(defects))), defects) == expected


@every_length
def test_no_value_corrects_always_and_an_infinite_one_never(T):
    assert times(AccumulatedDefect(0.0), [1.0] * T) == list(range(T))
    assert times(AccumulatedDefect(float("inf")), [1.0] * T) == []


# ------------------------------------------------------------------ with a gap


@every_length
@pytest.mark.parametrize("gap", [1, 2, 7, 1000])
def test_a_trigger_that_is_always_pulled_corrects_every_gap(T, gap):
    assert times(Trigger(0.5, gap), [1.0] * T) == list(range(0, T, gap))


@given(defect_lists, st.integers(1, 6))
def test_a_trigger_corrects_large_defects_that_are_not_too_soon(defects, gap):
    expected: list[int] = []
    for t, defect in enumerate(defects):
        if defect >= 1.0 and (not expected or t - expected[-1] >= gap):
            expected.append(t)
    assert times(Trigger(1.0, gap), defects) == expected


def test_a_budget_ends_it():
    assert times(Trigger(0.5, 2, budget=2), [1.0] * 9) == [0, 2]


# ------------------------------------------------------------------ until below


@given(defect_lists)
def test_it_stops_for_good_at_the_first_defect_below_the_tolerance(defects):
    first = next((t for t, defect in enumerate(defects) if defect < 1.0), len(defects))
    assert times(UntilBelow(1.0), defects) == list(range(first))


@every_length
def test_a_tolerance_of_0_never_stops(T):
    assert times(UntilBelow(0.0), [0.0] * T) == list(range(T))
    assert times(UntilBelow(0.0, budget=1), [0.0] * T) == [0]


# ------------------------------------------------------------------ above what noise explains


def test_it_corrects_above_the_threshold_of_each_step():
    schedule = AboveNoise(torch.tensor([2.0, 1.0, 0.5, 0.0]))
    assert times(schedule, [1.5, 1.5, 0.5, 0.0]) == [1]
    assert times(schedule, [2.5, 0.5, 0.75, 1.0]) == [0, 2, 3]


def test_feasible_data_is_left_alone_and_other_data_is_not():
    T, generator = 10, torch.Generator().manual_seed(0)

    def noised(t, seed=0, shift=0.0):
        # points on the first axis, with less and less noise
        generator.manual_seed(seed + t)
        noise = torch.randn(400, 2, generator=generator, dtype=torch.float64)
        return (1 - t / T) * noise + torch.tensor([5.0, shift], dtype=torch.float64)

    line = tt.as_constraint(lambda x: x * torch.tensor([1.0, 0.0]), lambda x: x[:, 1].abs())
    schedule = AboveNoise.from_data(line, noised, T, quantile=0.9)
    assert (schedule.thresholds.diff() < 0).all()

    def share(shift):
        corrector = free.Corrector(line, schedule, T)
        for t in range(T):
            corrector(noised(t, seed=1000, shift=shift))
        return corrector.rollout.projected.double().mean(dim=1)

    feasible, other = share(0.0), share(2.0)
    assert (feasible - 0.1).abs().max() < 5 * (0.1 * 0.9 * 2 / 400) ** 0.5  # both sets are drawn
    assert other[-1] > 0.99
    assert (other > feasible).all()


def test_thresholds_of_a_stepwise_rollout_are_quantiles_and_refuse_its_seeds():
    stepwise = free.rollout(Walk(), Sphere(), tt.Stepwise(), range(40))
    schedule = AboveNoise.from_stepwise(stepwise, quantile=0.75, budget=5)
    assert torch.equal(schedule.thresholds, stepwise.defects.quantile(0.75, dim=1))
    assert (free.rollout(Walk(), Sphere(), schedule, range(40, 80)).projected.sum(dim=0) <= 5).all()
    with pytest.raises(ValueError, match="40 seeds were used to calibrate this schedule"):
        free.rollout(Walk(), Sphere(), schedule, range(40))
    with pytest.raises(ValueError, match=r"give one of Stepwise\(\)"):
        AboveNoise.from_stepwise(free.rollout(Walk(), Sphere(), tt.Periodic(3), range(4)))


def test_steps_may_have_different_numbers_of_feasible_data():
    line = tt.as_constraint(torch.zeros_like, lambda x: x[:, 0].abs())
    found = AboveNoise.from_data(line, lambda t: torch.arange(3.0 + 2 * t)[:, None], 3, quantile=0.5)
    assert found.thresholds.tolist() == [1.0, 2.0, 3.0]


def test_feasible_data_is_not_measured_by_what_only_a_run_knows():
    noised = tt.as_constraint(lambda x, sigma: x, lambda x, sigma: sigma * x[:, 0].abs(), needs=("sigma",))
    with pytest.raises(ValueError, match=r"needs sigma; use AboveNoise.from_stepwise"):
        AboveNoise.from_data(noised, lambda t: torch.ones(3, 1), 2)


def test_numbers_of_numpy_are_numbers():
    defects = [1.0, 0.25, 1.0, 1.0, 0.25, 1.0]
    assert times(Trigger(np.float32(0.5), np.int64(3)), defects) == times(Trigger(0.5, 3), defects) == [0, 3]
    assert times(AccumulatedDefect(np.float64(1.25)), defects) == times(AccumulatedDefect(1.25), defects)


def test_feasible_data_is_measured_as_a_run_measures_states():
    """In numpy too, half precision in float32, and by one number per sample."""
    line = tt.as_constraint(np.zeros_like, lambda x: np.abs(x[:, 0]))
    found = AboveNoise.from_data(line, lambda t: np.arange(3.0 + 2 * t)[:, None], 3, quantile=0.5)
    assert found.thresholds.tolist() == [1.0, 2.0, 3.0]
    seen = []
    halves = tt.as_constraint(torch.zeros_like, lambda x: (seen.append(x.dtype), x[:, 0])[1])
    AboveNoise.from_data(halves, lambda t: torch.ones(3, 1, dtype=torch.float16), 1)
    assert seen == [torch.float32]
    entries = tt.as_constraint(torch.zeros_like, torch.abs)
    with pytest.raises(ValueError, match=r"defect must return one number per sample, \(3,\) floats: got \(3, 2\)"):
        AboveNoise.from_data(entries, lambda t: torch.ones(3, 2), 1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AccumulatedDefect(-1.0), "value must be a number of at least 0: got -1.0"),
        (lambda: AccumulatedDefect(float("nan")), "got NaN"),
        (lambda: Trigger("0.5"), "got '0.5'"),
        (lambda: Trigger(0.5, gap=0), "gap, .* of at least 1: got 0"),
        (lambda: Trigger(0.5, gap=1.5), "got 1.5"),
        (lambda: UntilBelow(-0.1), "tolerance must be a number of at least 0"),
        (lambda: AboveNoise([1.0]), "got list"),
        (lambda: AboveNoise(torch.ones(2, 2, 1)), r"got \(2, 2, 1\)"),
        (lambda: Trigger(torch.tensor([0.5, -0.5])), "or one for each sample"),
        (lambda: UntilBelow(torch.tensor([1])), "or one for each sample"),
        (lambda: AboveNoise(torch.tensor([1.0, torch.nan])), "at least 0"),
        (lambda: times(AboveNoise(torch.ones(3)), [1.0] * 4), "thresholds for 3 steps, but this rollout has 4"),
    ],
)
def test_what_cannot_be_is_refused(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()


def above_noise(value):
    return AboveNoise(torch.as_tensor(value) * torch.ones(Walk().n_steps, *(3,) * torch.as_tensor(value).ndim))


@pytest.mark.parametrize("make", [AccumulatedDefect, Trigger, UntilBelow, above_noise])
def test_values_of_their_own_decide_for_each_sample_as_one_for_all_does(make):
    values = [0.2, 0.5, 1.5]
    together = make(torch.tensor(values)).to(torch.device("cpu"))
    whole = free.rollout(Walk(), Sphere(), together, range(3), measure_defects=True)
    for i, value in enumerate(values):
        alone = free.rollout(Walk(), Sphere(), make(value), range(3), measure_defects=True)
        assert torch.equal(whole.projected[:, i], alone.projected[:, i])
    assert len({tuple(column.tolist()) for column in whole.projected.T}) > 1


def test_quantiles_and_defects_that_cannot_be_are_refused():
    line = tt.as_constraint(torch.zeros_like, lambda x: x[:, 0].abs())
    with pytest.raises(ValueError, match="from 0 to 1: got 2"):
        AboveNoise.from_data(line, lambda t: torch.ones(3, 1), 2, quantile=2)
    with pytest.raises(ValueError, match="finite"):
        AboveNoise.from_data(line, lambda t: torch.full((3, 1), torch.nan), 2)


@pytest.mark.parametrize("schedule", [AccumulatedDefect(1.0), Trigger(1.0), UntilBelow(1.0), AboveNoise(torch.ones(4))])
def test_triggers_need_the_defects_they_look_at(schedule):
    with pytest.raises(ValueError, match="decides by defects"):
        free.Corrector(Sphere(), schedule, 4, measure_defects=False)
