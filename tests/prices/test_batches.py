"""Calibration batches: whose they are, and what they count."""

from __future__ import annotations

import pytest
import torch

import trimtab as tt
from cases import Sphere, Walk
from trimtab.prices.calibration import METHODS

KNOWN = range(100, 116)
PAIRS = torch.arange(16) // 2


@pytest.mark.parametrize("method", METHODS)
def test_every_seed_of_a_group_was_used_to_calibrate(method):
    price = tt.calibrate(tt.Problem(Walk(), Sphere(), KNOWN, groups=PAIRS), 0.5, method, objective="path", check=False)
    assert price.seeds == tuple(KNOWN)
    with pytest.raises(ValueError, match="used to calibrate"):
        tt.rollout(Walk(), Sphere(), price.at(4), [101])


@pytest.mark.parametrize("unit", ["projection", "iteration"])
def test_a_loop_that_says_what_is_counted_is_told_to_leave_that_to_the_schedule(unit):
    problem = tt.domain("linkage", n_steps=8).problem(range(1000, 1008))

    def run(schedule):
        return problem.rollout(schedule, unit="iteration", measure_defects=True)

    with pytest.raises(ValueError, match=r"iterations under a schedule of projections.*leave unit out of your"):
        tt.calibrate(run, 8, unit=unit, check=False)
