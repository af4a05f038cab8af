from __future__ import annotations

import numpy as np
import pytest
import torch

import free
import trimtab as tt
from cases import Sphere, Walk


@pytest.mark.parametrize("schedule", [tt.Stepwise, tt.Terminal])
@pytest.mark.parametrize("argument", [5, 0.5])
def test_schedules_without_arguments_refuse_them(schedule, argument):
    with pytest.raises(TypeError):
        schedule(argument)
    with pytest.raises(TypeError):
        schedule(budget=argument)
    assert repr(schedule()) == f"{schedule.__name__}()"


@pytest.mark.parametrize("steps", [[3, 7], (7, 3, 3), np.array([3, -5]), range(3, 8, 4)])
def test_fixed_takes_steps(steps):
    run = free.rollout(Walk(), Sphere(), tt.schedules.Fixed.at(steps, 12), range(3))
    assert run.projected.nonzero()[:, 0].tolist() == [3, 3, 3, 7, 7, 7]


@pytest.mark.parametrize("closing", ["paid", "free", "none"])
@pytest.mark.parametrize(
    "steps",
    [[3, 7], (7, 3, 3), np.array([3, -5]), range(3, 8, 4), torch.tensor([3, 7]), [0, 1], [1], [], [3, 11], range(12)],
)
def test_steps_of_an_unknown_number_do_what_they_do_of_a_known_one(steps, closing):
    loose, bound = (
        free.rollout(Walk(), Sphere(), schedule, range(3), closing=closing)
        for schedule in (tt.schedules.Fixed(steps), tt.schedules.Fixed.at(steps, 12))
    )
    assert torch.equal(loose.projected, bound.projected)
    assert torch.equal(loose.paid, bound.paid)


def test_steps_fit_loops_of_any_length():
    last = tt.schedules.Fixed([0, -1])
    for T in (2, 5, 12):
        corrector = free.Corrector(Sphere(), last, T)
        for _ in range(T):
            corrector(torch.ones(2, 3))
        assert corrector.rollout.projected[:, 0].nonzero().flatten().tolist() == [0, T - 1]


@pytest.mark.parametrize("mask", [[0, 1, 0], [1, 1, 1, 1], torch.ones(5, dtype=torch.int64), np.zeros(3, dtype=int)])
def test_numbers_that_look_like_a_mask_are_not_taken_for_steps(mask):
    with pytest.raises(ValueError, match=r"all of them 0 or 1.*Fixed\(torch.tensor\(\[0, 0, 1\]\).bool\(\)\)"):
        tt.schedules.Fixed(mask)


@pytest.mark.parametrize("steps", [[12], [3, -13]])
def test_a_step_outside_the_run_is_refused_when_the_run_is_known(steps):
    with pytest.raises(ValueError, match="is not one of T = 12, 0 to 11"):
        free.rollout(Walk(), Sphere(), tt.schedules.Fixed(steps), range(3))


def test_no_step_at_all_is_a_mask_too():
    assert not free.rollout(Walk(), Sphere(), tt.schedules.Fixed.at([], 12), range(3)).projected[:-1].any()


def test_the_budget_of_a_mask_pays_for_the_closing_projection_where_the_last_step_is_not_in_it():
    assert tt.schedules.Fixed.at([3, 7], 12).budget == 3
    assert tt.schedules.Fixed.at([3, 11], 12).budget == 2
    assert tt.schedules.Fixed(torch.tensor([[True, False], [False, True]])).budget.tolist() == [2, 1]


@pytest.mark.parametrize("T", [1, 2, 3, 10])
def test_a_mask_is_replayed_whole_whether_its_closing_is_paid_or_free(T):
    masks = torch.arange(2**T)[:, None] >> torch.arange(T) & 1 if T < 4 else torch.eye(T, dtype=torch.int64)
    mask = masks.T.bool()  # every one there is, or each single step
    for closing in ("paid", "free", "none"):
        corrector = free.Corrector(Sphere(), tt.schedules.Fixed(mask), T, closing=closing)
        for _ in range(T):
            corrector(torch.ones(mask.shape[1], 3))
        decided = corrector.rollout.projected
        assert torch.equal(decided[:-1], mask[:-1])
        assert closing == "paid" or torch.equal(decided[-1], mask[-1])
        assert closing != "paid" or torch.equal(decided.sum(dim=0), tt.schedules.Fixed(mask).budget)


@pytest.mark.parametrize(
    ("steps", "message"),
    [([12], "step 12 is not one of T = 12, 0 to 11"), ([-13], "step -13"), ([0.5], "got 0.5"), ([True], "got True")],
)
def test_steps_that_are_none_are_refused(steps, message):
    with pytest.raises(ValueError, match=message):
        tt.schedules.Fixed.at(steps, 12)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32])
def test_budgets_per_sample_are_spread_alike_in_any_dtype(dtype):
    budget = torch.tensor([10, 20, 1])
    wide, narrow = (
        free.rollout(Walk(300), Sphere(), tt.Periodic(counts), range(3), measure_defects=False).projected
        for counts in (budget, budget.to(dtype))
    )
    assert torch.equal(wide, narrow)
    assert wide[:, 0].nonzero().squeeze(1).tolist() == list(range(29, 300, 30))
