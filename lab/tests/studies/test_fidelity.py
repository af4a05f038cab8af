from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import free
import trimtab as tt
from study_runs import SMALL, SWEPT, finished
from trimtab_lab.distributions import compare_samples
from trimtab_lab.domains import domain
from trimtab_lab.studies.config import CALIBRATION_SEED, REFERENCE_SEED
from trimtab_lab.studies.rows import FIDELITY, SWEEP, read_rows
from trimtab_lab.studies.summary import domain_summary


@pytest.fixture
def rows():
    return read_rows(finished(SMALL), "so3")


def final(schedule, first):
    problem = domain("so3").problem(range(first, first + SMALL.seeds))
    return free.rollout(problem.sampler, problem.constraint, schedule, problem.seeds).final


@pytest.mark.parametrize(("key", "budget"), [("periodic", 0.25), ("terminal", 0.0), ("stepwise", 1.0)])
def test_columns_are_the_comparison_with_full_projection_on_other_seeds(rows, key, budget):
    schedule = {"periodic": tt.Periodic(0.25), "terminal": tt.Terminal(), "stepwise": tt.Stepwise()}[key]
    found = compare_samples(final(schedule, 0), final(tt.Stepwise(), REFERENCE_SEED))
    some = rows.where(schedule=key, budget=budget)
    for name, value in zip(FIDELITY, (found.value, found.floor_high, found.p, math.nan), strict=True):
        assert some[name].tolist() == pytest.approx([value] * SMALL.seeds, rel=1e-6, nan_ok=True)
    assert math.isinf(found.shift)  # three samples would have shown none, which a row has no number for


def test_the_seeds_of_the_reference_are_nobody_else_s():
    assert CALIBRATION_SEED + SMALL.calibration_seeds <= REFERENCE_SEED
    assert SMALL.seeds <= CALIBRATION_SEED


def test_where_terminal_or_stepwise_stands_for_a_schedule_so_does_its_distribution(rows):
    for name in FIDELITY:
        ends = rows.where(schedule="periodic", budget=0.0)[name], rows.where(schedule="terminal")[name]
        assert np.array_equal(*ends, equal_nan=True)


def test_the_sweep_has_none_and_a_summary_says_so():
    swept = read_rows(finished(SWEPT), SWEEP)
    assert all(math.isnan(value) for name in FIDELITY for value in swept[name])
    assert "distribution" not in domain_summary(swept.where(kappa=0.0))


def test_the_summary_has_one_set_of_numbers_for_a_schedule_at_a_budget(rows):
    told = domain_summary(rows)["distribution"]
    assert set(told) == set(SMALL.schedules)
    numbers = told["periodic"]["0.25"]
    assert numbers["n"] == SMALL.seeds
    assert numbers["shift"] is None
    assert numbers["p"] == rows.where(schedule="periodic", budget=0.25)["distribution_p"][0]
    assert torch.isfinite(torch.tensor([numbers[name] for name in ("value", "floor", "p")])).all()
