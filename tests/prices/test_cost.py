"""What a calibration costs: said before it starts, and close to what it then takes."""

from __future__ import annotations

import math

import pytest

import trimtab as tt
from trimtab.calibration.calibrate import METHODS
from trimtab.calibration.cost import calibration_cost

DOMAIN, SEEDS = tt.domain("so3", n_steps=24), range(1000, 1012)


@pytest.mark.parametrize("objective", ["path", "endpoint"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("as_function", [False, True])
def test_what_is_said_first_is_close_to_what_is_taken(method, objective, as_function):
    said, problem = [], DOMAIN.problem(SEEDS)

    def run(schedule):
        return problem.rollout(schedule, measure_defects=True)

    source = run if as_function else problem
    price = tt.calibrate(source, 0.25, method, objective=objective, progress=said.append)
    estimate = calibration_cost(method, 24, len(SEEDS), 0.25, objective=objective)
    assert said[int(as_function)] == f"this will take {estimate}"  # a function shows T by its first batch
    assert 0.7 < price.notes["batches"] / estimate.batches < 1.3
    assert 0.7 < price.notes["projections"] / estimate.spent < 1.3
    assert price.notes["pays_back_after"] == math.ceil(price.notes["projections"] / (24 - 6))
    assert f"{price.notes['projections']:,} projections to calibrate" in repr(price)


def test_a_price_for_all_budgets_is_taken_to_serve_a_quarter():
    assert calibration_cost("dp", 100, 16, 1.0).budget == 25


def test_a_single_step_saves_nothing_and_still_counts_projections():
    cost = calibration_cost("paper", 1, 16)
    assert cost.pays_back_after == math.inf
    assert str(cost).endswith("32 rollouts and 32 projections")


def test_it_is_said_first_and_once():
    heard = []
    tt.calibrate(DOMAIN.problem(SEEDS), 0.25, "dp", progress=heard.append)
    assert [i for i, line in enumerate(heard) if "this will take about" in line] == [0]
