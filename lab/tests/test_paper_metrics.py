"""The paper's metrics: shares of a benefit, pairs that win, means with standard errors."""

from __future__ import annotations

import math

import pytest
import torch

import trimtab as tt
from cases import Sphere, Walk
from trimtab.core import metrics as former
from trimtab_lab import metrics


def test_what_was_spent_is_a_share_of_the_steps():
    run = tt.rollout(Walk(), Sphere(), tt.Periodic(4), range(6))
    assert (metrics.achieved_budget(run) == 4 / 12).all()


def test_a_benefit_is_what_the_excess_is_not():
    assert metrics.benefit(torch.tensor([0.25, 1.0])).tolist() == [0.75, 0.0]


def test_degenerate_values_are_left_out():
    assert metrics.summary(torch.tensor([torch.nan, 2.0])).n == 1


def test_names_of_the_release_before_are_found_with_a_warning():
    with pytest.warns(DeprecationWarning, match=r"trimtab_lab.metrics.MeanError"):
        assert former.Summary is metrics.MeanError
    with pytest.warns(DeprecationWarning, match=r"trimtab_lab.metrics.win_rate"):
        assert former.win_rate is metrics.win_rate


def test_improvement_gap_and_wins_are_of_pairs():
    method, baseline = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2.0, 2.0, 0.0])
    gained = metrics.improvement(method, baseline)
    assert gained[:2].tolist() == [0.5, 0.0]
    assert gained[2].isnan()
    won = metrics.win_rate(method, baseline)  # a tie is not a win
    assert won == metrics.MeanError(pytest.approx(1 / 3), pytest.approx(math.sqrt(2 / 27)), 3)
    assert metrics.gap_closed(torch.tensor([0.2]), torch.tensor([0.5]), torch.tensor([0.1])) == pytest.approx(0.75)
    assert metrics.win_rate(torch.tensor([torch.nan]), torch.tensor([1.0])).n == 0


def test_a_seed_that_is_repeated_counts_once():
    values, seeds = torch.tensor([1.0, 1.0, 1.0, 3.0]), torch.tensor([7, 7, 7, 2])
    assert metrics.summary(values, seeds) == metrics.MeanError(2.0, 1.0, 2)
    assert metrics.win_rate(values, torch.full((4,), 2.0), seeds).n == 2
    assert metrics.win_rate(values, torch.full((4,), 2.0), seeds).mean == 0.5
