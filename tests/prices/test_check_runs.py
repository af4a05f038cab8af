"""Loops of one's own that do not do what they are asked: said at once, instead of prices and advice that are wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import trimtab as tt
from cases import Sphere, Walk
from trimtab.calibration.calibrate import METHODS
from trimtab.core.record import Rollout
from trimtab.core.schedule import Schedule

SEEDS, OTHERS = range(100, 116), range(200, 216)


def loop(seeds=SEEDS, n_steps=12, closing="paid") -> Callable[[Schedule], Rollout]:
    problem = tt.Problem(Walk(n_steps), Sphere(), seeds)
    return lambda schedule: problem.rollout(schedule, closing=closing, measure_defects=True)


def deaf(schedule: Schedule) -> Callable[[Schedule], Rollout]:
    """A loop that goes by a schedule of its own."""
    return lambda given: loop()(schedule)


def turning(*runs: Callable[[Schedule], Rollout]) -> Callable[[Schedule], Rollout]:
    """A loop that becomes another one after three calls."""
    calls = []

    def run(schedule):
        calls.append(schedule)
        return runs[len(calls) > 3](schedule)

    return run


@pytest.mark.parametrize("schedule", [tt.Stepwise(), tt.Periodic(4)])
@pytest.mark.parametrize("method", METHODS)
def test_a_loop_that_corrects_although_it_is_told_not_to_calibrates_nothing(method, schedule):
    with pytest.raises(ValueError, match=r"corrections under Terminal\(\).*pass the schedule"):
        tt.calibrate(deaf(schedule), method=method)


@pytest.mark.parametrize("method", ["dp", "planned"])
def test_a_loop_that_never_corrects_calibrates_nothing(method):
    with pytest.raises(ValueError, match=r"corrected nothing under schedules that correct some.*pass the schedule"):
        tt.calibrate(deaf(tt.Terminal()), method=method)


@pytest.mark.parametrize("schedule", [tt.Terminal(), tt.Stepwise(), tt.Periodic(4)])
def test_a_loop_that_goes_by_its_own_schedule_is_neither_compared_nor_advised_on(schedule):
    said = r"the same corrections under Stepwise\(\) as under Terminal\(\).*pass the schedule"
    with pytest.raises(ValueError, match=said):
        tt.compare(deaf(schedule), {})
    with pytest.raises(ValueError, match=said):
        tt.advise(loop(OTHERS), deaf(schedule), cost="projections")


def test_one_step_is_corrected_alike_by_all():
    assert [row.projections for row in tt.compare(loop(n_steps=1), {}, [1]).rows] == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (loop(n_steps=13), "16 samples over 12 steps.* and then 16 samples over 13 steps"),
        (loop(closing="free"), "closing='paid', and then .*closing='free'"),
        (loop(range(101, 117)), "the same seeds each time"),
    ],
)
def test_a_loop_that_becomes_another_is_told_so(other, said):
    with pytest.raises(ValueError, match=said):
        tt.calibrate(turning(loop(), other), method="planned", objective="path")
    with pytest.raises(ValueError, match=said):
        tt.advise(loop(OTHERS), turning(loop(), other), cost="projections")


def test_nor_may_the_number_of_samples_change():
    with pytest.raises(ValueError, match=r"16 samples over 12 steps.* and then 17 samples over 12 steps"):
        tt.advise(loop(OTHERS), turning(loop(), loop(range(100, 117))), cost="projections")
