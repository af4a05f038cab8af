"""Calibration batches: whose they are, and what they count."""

from __future__ import annotations

import pytest
import torch

import trimtab as tt
from cases import Sphere, Walk
from trimtab.calibration.calibrate import METHODS

KNOWN = range(100, 116)
PAIRS = torch.arange(16) // 2


@pytest.mark.parametrize("method", METHODS)
def test_one_step_that_the_closing_projection_corrects_leaves_nothing_to_choose(method):
    with pytest.raises(ValueError, match=r"one step, which the closing projection corrects.* Terminal\(\)"):
        tt.calibrate(tt.Problem(Walk(n_steps=1), Sphere(), KNOWN), method=method, objective="path")
    assert tt.calibrate(
        tt.Problem(Walk(n_steps=1), Sphere(), KNOWN), method=method, objective="path", closing="free"
    ).at(1)


def test_a_loop_that_counts_iterations_is_told_to_leave_that_out():
    problem = tt.domain("linkage", n_steps=8).problem(range(1000, 1008))

    def run(schedule):
        return problem.rollout(schedule, unit="iteration", measure_defects=True)

    with pytest.raises(ValueError, match=r"counted iterations.*leave unit= out of your Corrector"):
        tt.calibrate(run, 8, check=False)


def test_nothing_is_explored_where_there_is_nothing_to_choose():
    alone = tt.calibrate(tt.Problem(Walk(), Sphere(), KNOWN), 1, "dp")
    assert alone.notes["batches"] == 2  # the one that is checked
    assert torch.equal(alone.table, tt.calibrate(tt.Problem(Walk(), Sphere(), KNOWN), 1, "paper").table)


def test_a_price_holds_the_free_decisions_of_its_runs():
    problem = tt.Problem(Walk(), Sphere(), KNOWN)
    for method in METHODS:
        paid, free = (tt.calibrate(problem, 5, method, closing=closing) for closing in ("paid", "free"))
        assert (paid.n_steps, paid.budget) == (free.n_steps, free.budget) == (12, 5)
        name = "masks" if method == "planned" else "table"
        sizes = [tuple(getattr(price, name).shape) for price in (paid, free)]
        assert sizes == ([(5, 11), (6, 12)] if method == "planned" else [(11, 5), (12, 6)])
        for budget in (1, 3, torch.tensor([1, 5, 2, 4])):
            run = tt.rollout(Walk(), Sphere(), paid.at(budget), range(4))
            assert run.projected[-1].all()
            assert torch.equal(run.spent, torch.as_tensor(budget).expand(4))


def test_too_few_are_counted_as_they_are_decided_on():
    with pytest.raises(ValueError, match=r"3 calibration rollouts are too few.* at least 4 seeds"):
        tt.calibrate(tt.Problem(Walk(), Sphere(), KNOWN[:3]), method="dp")
