"""Calibration batches: whose they are, and what they count."""

from __future__ import annotations

import pytest
import torch

import trimtab as tt
from cases import Sphere, Walk
from trimtab.prices.calibration import METHODS

KNOWN = range(100, 116)
PAIRS = torch.arange(16) // 2


@pytest.mark.parametrize("unit", ["projection", "iteration"])
def test_a_loop_that_says_what_is_counted_is_told_to_leave_that_to_the_schedule(unit):
    problem = tt.domain("linkage", n_steps=8).problem(range(1000, 1008))

    def run(schedule):
        return problem.rollout(schedule, unit="iteration", measure_defects=True)

    with pytest.raises(ValueError, match=r"iterations under a schedule of projections.*leave unit out of your"):
        tt.calibrate(run, 8, unit=unit, check=False)


@pytest.mark.parametrize("method", METHODS)
def test_one_step_that_the_closing_projection_corrects_leaves_nothing_to_choose(method):
    with pytest.raises(ValueError, match=r"one step, which the closing projection corrects.* Terminal\(\)"):
        tt.calibrate(tt.Problem(Walk(n_steps=1), Sphere(), KNOWN), method=method, objective="path")
    assert tt.calibrate(
        tt.Problem(Walk(n_steps=1), Sphere(), KNOWN), method=method, objective="path", closing="free"
    ).at(1)


@pytest.mark.parametrize("method", ["race", "dp"])
def test_nor_do_its_iterations(method):
    problem = tt.domain("linkage", n_steps=1).problem(range(1000, 1008))
    with pytest.raises(ValueError, match="one step, which the closing projection corrects"):
        tt.calibrate(problem, 30, method, unit="iteration")


def test_nothing_is_explored_where_there_is_nothing_to_choose():
    alone = tt.calibrate(tt.Problem(Walk(), Sphere(), KNOWN), 1, "on-policy")
    assert alone.notes["rounds"] == []
    assert alone.notes["batches"] == 2  # the one that is checked
    assert torch.equal(alone.table, tt.calibrate(tt.Problem(Walk(), Sphere(), KNOWN), 1, "dp").table)
    problem = tt.domain("linkage", n_steps=2).problem(range(1000, 1016))
    raced, priced = (tt.calibrate(problem, 30, method, unit="iteration") for method in ("race", "dp"))
    assert raced.notes["batches"] == priced.notes["batches"]
    assert torch.equal(raced.table, priced.table)


def test_too_few_are_counted_as_they_are_decided_on():
    with pytest.raises(ValueError, match=r"3 calibration rollouts are too few.* at least 4 seeds"):
        tt.calibrate(tt.Problem(Walk(), Sphere(), KNOWN[:3]), method="dp")
