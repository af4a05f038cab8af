"""Look-ahead beside its table and its constraint; what it finds is tested with the limits."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

import free
import trimtab as tt
from cases import Walk
from trimtab.experimental.lookahead import LookAhead
from trimtab.prices.methods import cost_to_go


@dataclass(frozen=True, eq=False)
class Box(tt.Constraint):
    """A box, with a projection that works in place or does not."""

    in_place: bool = False

    def project(self, x):
        return x.clamp_(-1, 1) if self.in_place else x.clamp(-1, 1)

    def defect(self, x):
        return (x.abs() - 1).clamp(min=0).amax(dim=1)


@pytest.fixture(scope="module")
def cost():
    return cost_to_go(lambda schedule: free.rollout(Walk(20), Box(), schedule, range(1000, 1032)), 5)


def test_a_projection_that_works_in_place_changes_no_decision(cost):
    table = tt.prices.Thresholds(cost.table)
    runs = [
        free.rollout(Walk(20), box, LookAhead(Walk(20), box, table, cost, 5, copies=4, caution=0.0), range(32))
        for box in (Box(), Box(in_place=True))
    ]
    assert torch.equal(runs[0].projected, runs[1].projected)


def test_it_is_run_as_its_table_was_made_for(cost):
    ahead = LookAhead(Walk(20), Box(), tt.prices.Thresholds(cost.table, closing="free"), cost, 5)
    with pytest.raises(ValueError, match="made for closing='free', this run has closing='paid'"):
        tt.rollout(Walk(20), Box(), ahead, range(4))


def test_a_constraint_that_needs_to_know_more_than_states_is_refused(cost):
    noised = tt.as_constraint(lambda x, sigma: x.clamp(-1, 1), lambda x, sigma: sigma * x[:, 0].abs(), needs=("sigma",))
    with pytest.raises(ValueError, match="cannot tell sigma, which the constraint needs"):
        LookAhead(Walk(20), noised, tt.prices.Thresholds(cost.table), cost, 5)


@pytest.mark.parametrize(
    ("part", "came"), [((slice(0),), "0 steps"), ((slice(None), slice(4)), "20 steps and up to 3")]
)
def test_a_cost_of_another_table_is_refused(cost, part, came):
    table = tt.prices.Thresholds(cost.table)
    with pytest.raises(ValueError, match=f"for the 20 steps of its table and up to its 5 .* got one for {came}"):
        LookAhead(Walk(20), Box(), table, replace(cost, cost=cost.cost[part]), 3)


def test_budgets_of_samples_go_where_its_table_goes(cost, monkeypatch):
    ahead = LookAhead(Walk(20), Box(), tt.prices.Thresholds(cost.table), cost, torch.tensor([5, 3]))
    monkeypatch.setattr(torch.Tensor, "to", lambda tensor, *where: tensor.clone())  # as if it were another device
    moved = ahead.to(torch.device("cpu"))
    assert moved.cost.cost is not ahead.cost.cost
    assert moved.budget is not ahead.budget
    assert torch.equal(moved.budget, ahead.budget)
