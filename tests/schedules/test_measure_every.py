"""Any schedule, looking less often."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import trimtab as tt
from cases import SCHEDULES, Sphere, Walk
from trimtab.loop.replay import replay
from trimtab.core.schedule import as_schedule
from trimtab.schedules import AccumulatedDefect, FixedThreshold, MeasureEvery, UntilBelow

T, SEEDS = 12, range(6)
LOOKING = [name for name, make in SCHEDULES.items() if as_schedule(make(Walk(T))).uses_defects]


def run(schedule, **options) -> tt.Rollout:
    return tt.rollout(Walk(T), Sphere(), schedule, SEEDS, closing="free", **options)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(LOOKING), st.integers(2, T))
def test_it_corrects_where_it_looks_alone_and_whatever_else_is_measured(name, every):
    schedule = MeasureEvery(SCHEDULES[name](Walk(T)), every)
    record, measured = run(schedule), run(schedule, measure_defects=True)
    assert record.calls["defect"] == T // schedule.measure_every
    assert not bool(record.projected[record.defects.isnan()].any())
    assert torch.equal(record.projected, measured.projected)
    assert torch.equal(replay(schedule, record), record.projected)
    assert torch.equal(replay(schedule, measured), record.projected)


@pytest.mark.parametrize("name", LOOKING)
def test_every_one_is_the_same_schedule_to_the_bit(name):
    schedule = SCHEDULES[name](Walk(T))
    plain, same = run(schedule), run(MeasureEvery(schedule, 1))
    for part in ("final", "defects", "residuals", "projected"):
        torch.testing.assert_close(getattr(plain, part), getattr(same, part), rtol=0, atol=0, equal_nan=True)
    assert plain.calls == same.calls


def test_looks_of_looks_are_where_both_look():
    both = MeasureEvery(MeasureEvery(FixedThreshold(0.0), 2), 3)
    assert both.measure_every == 6
    assert run(both).projected[:, 0].nonzero().squeeze(1).tolist() == [5, 11]


def test_what_was_not_looked_at_neither_adds_up_nor_ends_anything():
    zeros = tt.as_constraint(torch.zeros_like, lambda x: x[:, 0])

    def times(schedule, defects):
        corrector = tt.Corrector(zeros, schedule, len(defects), closing="none")
        for defect in defects:
            corrector(torch.tensor([[defect]]))
        return corrector.rollout.projected[:, 0].nonzero().squeeze(1).tolist()

    assert times(MeasureEvery(AccumulatedDefect(1.0), 2), [9.0, 0.5, 9.0, 0.5, 9.0, 0.75]) == [3]
    assert times(MeasureEvery(UntilBelow(0.5), 2), [0.0, 1.0, 0.0, 1.0, 0.0, 0.25, 1.0, 1.0]) == [1, 3]


def test_states_of_numpy_are_looked_at_as_seldom():
    walked = torch.randn(T, 5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    sphere = tt.as_constraint(lambda x: x / ((x**2).sum(-1) ** 0.5)[:, None], lambda x: abs((x**2).sum(-1) ** 0.5 - 1))
    masks = []
    for kind in (torch.asarray, np.asarray):
        corrector = tt.Corrector(sphere, MeasureEvery(FixedThreshold(0.4, 3), 3), T)
        for t in range(T):
            corrector(kind(walked[t]), t)
        masks.append(corrector.rollout.projected)
        assert corrector.rollout.calls["defect"] == 4
    assert torch.equal(*masks)


def test_it_keeps_what_the_other_one_is_and_moves_with_it():
    price = tt.calibrate(tt.Problem(Walk(T), Sphere(), range(100, 116)), method="paper")
    inner = price.at(torch.tensor([3, 4]))
    outer = MeasureEvery(inner, 2).to(torch.device("cpu"))
    assert (outer.calibration_seeds, outer.closing, outer.unit) == (price.seeds, "paid", "projection")
    assert torch.equal(outer.budget, inner.budget)
    assert repr(MeasureEvery(FixedThreshold(0.5), 3)) == (
        "MeasureEvery(schedule=FixedThreshold(value=0.5, budget=1.0), every=3)"
    )


def test_what_cannot_look_less_often_is_refused():
    with pytest.raises(ValueError, match="needs a schedule that uses defects"):
        MeasureEvery(tt.Periodic(3), 2)
    with pytest.raises(TypeError, match=r"trimtab\.Schedule, a function"):
        MeasureEvery(3, 2)
    with pytest.raises(ValueError, match="must be a whole number of at least 1: got 0"):
        MeasureEvery(FixedThreshold(0.1), 0)
    with pytest.raises(TypeError, match=r"must be a whole number: got 1\.5"):
        MeasureEvery(FixedThreshold(0.1), 1.5)


def test_the_old_name_still_works_with_a_warning():
    with pytest.warns(DeprecationWarning, match="MeasureEvery"):
        assert tt.schedules.LookEvery is MeasureEvery
