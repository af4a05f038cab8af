from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import free
import trimtab as tt
from trimtab.schedules import Geometric, RandomRamp, Window, windows

every_length = pytest.mark.parametrize("T", [1, 2, 3, 10, 100])


def masks(schedule, T, n=3, seeds=None):
    """What it decides, (T, n); no defect is measured, which it says it does not need."""
    constraint = tt.as_constraint(torch.zeros_like, lambda x: x[:, 0])
    corrector = free.Corrector(constraint, schedule, T, seeds=seeds, measure_defects=False)
    for _ in range(T):
        corrector(torch.ones(n, 1))
    return corrector.rollout.projected


def times(schedule, T, **options):
    return masks(schedule, T, **options)[:, 0].nonzero().squeeze(1).tolist()


# ------------------------------------------------------------------ windows


@every_length
def test_a_window_is_corrected_at_each_of_its_steps_and_nowhere_else(T):
    for start in range(T):
        for stop in range(start + 1, T + 1, max(1, T // 5)):
            assert times(Window(start, stop), T, n=1) == list(range(start, stop))


def test_numbers_of_numpy_are_numbers():
    assert Window(np.int64(3), np.int32(6)) == Window(3, 6)
    assert Window(np.float32(0.5)).steps(20) == Window(0.5).steps(20)
    assert repr(Window(np.int64(3), np.float64(1.0))) == "Window(start=3, stop=1.0)"


@every_length
def test_fractions_cover_the_rollout_without_gap_or_overlap(T):
    cuts = [0.0, 0.1, 0.5, 0.75, 1.0]
    steps = [t for a, b in pairwise(cuts) for t in Window(a, b).steps(T)]
    assert steps == list(range(T))
    assert times(Window(0.0), T) == list(range(T))


def test_a_step_and_a_fraction_go_together():
    assert times(Window(3, 0.5), 10) == [3, 4]
    assert times(Window(0.9, 10), 10) == [9]
    with pytest.raises(ValueError, match=r"steps 7 to 5, which do not fit a rollout of 10 steps"):
        times(Window(7, 0.5), 10)


@pytest.mark.parametrize(
    ("ends", "message"),
    [
        ((3, 3), "start must be below stop"),
        ((0.5, 0.25), "start must be below stop"),
        ((-1, 3), "of at least 0: got -1"),
        ((0.5, 1.5), "from 0 to 1: got 1.5"),
        ((0.5, float("nan")), "got NaN"),
        ((True, 3), "got True"),
        (("0", 3), "got '0'"),
    ],
)
def test_windows_that_are_none_are_refused(ends, message):
    with pytest.raises((TypeError, ValueError), match=message):
        Window(*ends)


def test_a_window_beyond_the_end_is_refused():
    with pytest.raises(ValueError, match="do not fit a rollout of 10 steps"):
        times(Window(8, 12), 10)


@given(st.integers(1, 30), st.data())
def test_windows_of_one_budget_cost_exactly_that_and_all_differ(T, data):
    b = data.draw(st.integers(0, T))
    for closing in ("paid", "free"):
        found = [tuple(w.steps(T)) for w in windows(b, T, closing)]
        if closing == "paid":  # with the closing projection after the last step
            found = [tuple(sorted({*steps, T - 1})) for steps in found]
        assert all(len(steps) == b for steps in found)
        assert len(set(found)) == len(found) == (0 if b == 0 else 1 if (b, closing) == (1, "paid") else T - b + 1)
        assert b == 0 or found[-1] == tuple(range(T - b, T))


def test_windows_take_a_fraction_and_refuse_budgets_per_sample():
    assert windows(0.3, 10) == windows(3, 10)
    with pytest.raises(ValueError, match="one budget for all samples"):
        windows(torch.tensor([1, 2]), 10)
    with pytest.raises(ValueError, match="one budget for all samples"):
        windows(None, 10)
    with pytest.raises(ValueError, match="'paid' or 'free': got 'none'"):
        windows(3, 10, "none")


# ------------------------------------------------------------------ geometric times


@every_length
def test_geometric_times_spend_exactly_their_budget_denser_towards_the_end(T):
    for b in range(0, T + 1, max(1, T // 10)):
        found = times(Geometric(b), T, n=1)
        assert len(found) == b
        assert b == 0 or found[-1] == T - 1
        gaps = [after - before for before, after in pairwise(found)]
        assert all(later <= earlier + 1 for earlier, later in pairwise(gaps))  # 1 is rounding


def test_geometric_times_shrink_by_a_factor():
    assert times(Geometric(6), 64) == [32, 48, 56, 60, 62, 63]
    assert times(Geometric(0.5), 10) == times(Geometric(5), 10)


# ------------------------------------------------------------------ a random ramp


@every_length
def test_a_ramp_spends_exactly_its_budget(T):
    for b in range(0, T + 1, max(1, T // 10)):
        assert (masks(RandomRamp(b), T, n=20, seeds=range(20)).sum(dim=0) == b).all()


@every_length
def test_with_a_paid_closing_the_budget_is_the_whole_cost(T):
    constraint = tt.as_constraint(torch.zeros_like, lambda x: x[:, 0])
    for b in range(1, T + 1, max(1, T // 7)):
        for schedule in (Geometric(b), RandomRamp(b), *windows(b, T)[:: max(1, T // 5)], windows(b, T)[-1]):
            corrector = free.Corrector(constraint, schedule, T, seeds=range(5), closing="paid")
            for _ in range(T):
                corrector(torch.ones(5, 1))
            run = corrector.rollout
            assert run.projected[-1].all()
            assert not run.closing.any()
            assert (run.projected.sum(dim=0) == b).all()


def test_a_ramp_that_pays_for_its_closing_rises_as_one_that_does_not():
    def rates(schedule, closing, T=20, n=4000):
        constraint = tt.as_constraint(torch.zeros_like, lambda x: x[:, 0])
        corrector = free.Corrector(constraint, schedule, T, seeds=range(n), closing=closing)
        for _ in range(T):
            corrector(torch.ones(n, 1))
        return corrector.rollout.projected[:-1].double().mean(dim=1)

    # one of six is kept for the last step, which leaves five for 19 steps
    apart, paid = rates(RandomRamp(5, torch.ones(20)), "free"), rates(RandomRamp(6, torch.ones(20)), "paid")
    noise = 5 * (0.26 * 0.74 / 4000) ** 0.5
    assert (apart - 5 / 20).abs().max() < noise
    assert (paid - 5 / 19).abs().max() < noise


def test_budgets_can_differ_from_sample_to_sample():
    budgets = torch.tensor([0, 3, 10])
    for schedule in (RandomRamp(budgets), Geometric(budgets)):
        assert torch.equal(masks(schedule, 10).sum(dim=0), budgets)
    for i, b in enumerate(budgets.tolist()):
        assert torch.equal(masks(Geometric(budgets), 10)[:, i], masks(Geometric(b), 10)[:, i])


def test_a_ramp_rises_and_each_sample_has_its_own_times():
    mask = masks(RandomRamp(5), 20, n=4000, seeds=range(4000))
    thirds = mask.double().reshape(4, 5, 4000).mean(dim=(1, 2))
    assert (thirds.diff() > 0.05).all()
    assert len(mask.T.unique(dim=0)) > 2000
    again = masks(RandomRamp(5), 20, n=100, seeds=range(100, 200))
    assert torch.equal(again, mask[:, 100:200])  # paired by the sample's seed
    assert not torch.equal(masks(RandomRamp(5, seed=1), 20, n=4000, seeds=range(4000)), mask)


def test_a_ramp_with_equal_weights_is_uniform():
    mask = masks(RandomRamp(5, torch.ones(20)), 20, n=4000, seeds=range(4000))
    assert (mask.double().mean(dim=1) - 0.25).abs().max() < 5 * (0.25 * 0.75 / 4000) ** 0.5


def test_a_ramp_over_noise_levels_leaves_high_ones_alone():
    levels = torch.linspace(10, 0, 20)
    schedule = RandomRamp.over(levels, low=1, high=5, budget=4)
    mask = masks(schedule, 20, n=500, seeds=range(500))
    assert not mask[levels >= 5].any()
    assert (mask.sum(dim=0) == 4).all()
    assert torch.equal(schedule.weights, ((5 - levels) / 4).clamp(0, 1))


def test_a_ramp_spends_its_budget_even_where_weights_leave_no_room():
    late = torch.tensor([0.0, 0.0, 0.0, 1.0])
    assert (masks(RandomRamp(3, late), 4, n=5, seeds=range(5)).sum(dim=0) == 3).all()


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0], "of type list"),
        (torch.ones(2, 2), r"got \(2, 2\)"),
        (torch.ones(2, dtype=torch.int64), "int64"),
        (torch.tensor([1.0, -1.0]), "at least 0"),
        (torch.tensor([1.0, torch.nan]), "finite"),
    ],
)
def test_weights_that_are_none_are_refused(weights, message):
    with pytest.raises((TypeError, ValueError), match=message):
        RandomRamp(1, weights)


def test_ramps_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="weights for 3 steps, but this rollout has 4"):
        masks(RandomRamp(1, torch.ones(3)), 4)
    with pytest.raises(ValueError, match="low must be below high"):
        RandomRamp.over(torch.ones(3), 2.0, 1.0, budget=1)
