from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import free
import trimtab as tt
from cases import Sphere, Walk
from trimtab.core.budget import corrections


def masks(schedule, T, n=3, seeds=None):
    corrector = free.Corrector(tt.as_constraint(torch.zeros_like, lambda x: x[:, 0]), schedule, T, seeds=seeds)
    for _ in range(T):
        corrector(torch.ones(n, 1))
    return corrector.rollout.projected


@given(st.integers(1, 60), st.data())
def test_periodic_spends_exactly_its_budget_evenly_and_ends_with_the_last_step(T, data):
    budget = data.draw(st.integers(0, T))
    mask = masks(tt.Periodic(budget), T)[:, 0]
    assert int(mask.sum()) == budget
    if budget:
        assert bool(mask[-1])
        times = torch.cat([torch.tensor([-1]), mask.nonzero().squeeze(1)])
        gaps = times.diff()
        assert int(gaps.max() - gaps.min()) <= 1


@given(st.integers(1, 30), st.data())
def test_random_times_spend_exactly_their_budget(T, data):
    budget = data.draw(st.integers(0, T))
    mask = masks(tt.schedules.RandomTimes(budget, seed=5), T, n=4, seeds=[1, 2, 3, 4])
    assert (mask.sum(dim=0) == budget).all()


def test_random_times_are_uniform_and_each_samples_own():
    mask = masks(tt.schedules.RandomTimes(5, seed=1), 20, n=4000, seeds=range(4000))
    rates = mask.double().mean(dim=1)
    assert (rates - 0.25).abs().max() < 5 * (0.25 * 0.75 / 4000) ** 0.5
    assert len(mask.T.unique(dim=0)) > 2000
    other = masks(tt.schedules.RandomTimes(5, seed=2), 20, n=4000, seeds=range(4000))
    assert not torch.equal(mask, other)


def test_budgets_can_differ_from_sample_to_sample():
    budgets = torch.tensor([0, 3, 10])
    for schedule in (tt.Periodic(budgets), tt.schedules.RandomTimes(budgets)):
        mask = masks(schedule, 10)
        assert torch.equal(mask.sum(dim=0), budgets)
    for i, b in enumerate(budgets.tolist()):
        assert torch.equal(masks(tt.Periodic(budgets), 10)[:, i], masks(tt.Periodic(b), 10)[:, i])


def test_a_fixed_threshold_stops_when_the_budget_is_gone():
    mask = masks(tt.schedules.FixedThreshold(0.5, 3), 10)
    assert torch.equal(mask[:, 0].nonzero().squeeze(1), torch.arange(3))
    assert not masks(tt.schedules.FixedThreshold(2.0), 10).any()


def test_any_function_of_a_moment_is_a_schedule():
    def every_other(view):
        return torch.full_like(view.defect, view.t % 2 == 0, dtype=torch.bool)

    assert torch.equal(masks(every_other, 4)[:, 0], torch.tensor([True, False, True, False]))


def test_a_moment_shows_history():
    seen = []

    def look(view):
        seen.append((view.t, view.defects.shape, view.since.tolist(), view.budget_left.tolist(), view.projected.shape))
        return torch.full_like(view.defect, view.t == 1, dtype=torch.bool)

    masks(look, 4, n=1)
    assert seen == [
        (0, (1, 1), [1], [4], (0, 1)),
        (1, (2, 1), [2], [4], (1, 1)),
        (2, (3, 1), [1], [3], (2, 1)),
        (3, (4, 1), [2], [3], (3, 1)),
    ]


@pytest.mark.parametrize(
    ("budget", "count"),
    [(0, 0), (10, 10), (0.0, 0), (1.0, 10), (0.25, 3), (0.24, 2), (1, 1), (np.int64(1), 1), (np.float32(0.5), 5)],
)
def test_a_budget_is_a_count_or_a_fraction(budget, count):
    assert corrections(budget, 10) == count
    assert type(corrections(budget, 10)) is int


def test_masks_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"a tensor of bool, as in .*: got \(3,\) of torch.float32"):
        tt.schedules.Fixed(torch.ones(3))
    with pytest.raises(ValueError, match=r"a tensor of bool, as in .*: got \(0,\) of torch.bool"):
        tt.schedules.Fixed(torch.ones(0, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"Fixed takes steps, as in Fixed\(\[3, 7\]\), or a .* mask.*: got list"):
        tt.schedules.Fixed([True, False])
    with pytest.raises(ValueError, match=r"the mask is \(3,\), but this rollout has T = 12 steps"):
        free.rollout(Walk(), Sphere(), tt.schedules.Fixed(torch.ones(3, dtype=torch.bool)), [1])


def test_a_threshold_that_is_not_a_number_is_refused():
    with pytest.raises(ValueError, match="NaN"):
        tt.schedules.FixedThreshold(float("nan"))


def test_no_loop_may_name_seeds_that_calibrated_its_schedule():
    schedule = tt.schedules.AboveNoise(torch.full((3,), 0.2), calibration_seeds=(7, 8))
    for seeds in ([8, 9], torch.tensor([7, 9])):
        with pytest.raises(ValueError, match="1 seeds were used to calibrate this schedule"):
            tt.Corrector(Sphere(), schedule, 3, seeds=seeds)
        with pytest.raises(ValueError, match="1 seeds were used to calibrate this schedule"):
            tt.rollout(Walk(3), Sphere(), schedule, seeds)
    assert tt.Corrector(Sphere(), schedule, 3, seeds=[9, 10]).seeds.tolist() == [9, 10]
    tt.Corrector(Sphere(), schedule, 3)  # a loop that knows no seeds of its samples cannot be told
