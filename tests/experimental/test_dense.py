from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch

from trimtab.core.constraint import Constraint, Projection
from trimtab.experimental import dense
from trimtab.experimental.dense import dense_pays


@dataclass
class Clocked(Constraint):
    """A projection that takes some time for a call and some for each row, on a clock of its own."""

    a_call: float
    a_row: float
    taking: float = 0.0
    clock: list[float] = field(default_factory=lambda: [0.0])
    asked: list[int] = field(default_factory=list)

    def project(self, x):
        self.clock[0] += self.a_call + self.a_row * len(x)
        self.asked.append(len(x))
        return Projection(x * 0)

    def defect(self, x):
        return x.abs().sum(dim=1)

    def take(self, rows):
        self.clock[0] += self.taking
        return self


@pytest.fixture
def clocked(monkeypatch):
    def make(**settings):
        made = Clocked(**settings)
        monkeypatch.setattr(dense, "perf_counter", lambda: made.clock[0])
        return made

    return make


def test_rows_are_gathered_where_each_costs_the_same(clocked):
    assert dense_pays(clocked(a_call=1.0, a_row=1.0), torch.ones(64, 3)) is False


def test_all_are_projected_where_choosing_costs_more_than_it_saves(clocked):
    assert dense_pays(clocked(a_call=1.0, a_row=0.01, taking=0.5), torch.ones(64, 3)) is True


@pytest.mark.parametrize(("share", "count"), [(0.25, 16), (0.5, 32), (1.0, 64), (1 / 64, 1)])
def test_as_many_rows_are_tried_as_the_budget_projects(clocked, share, count):
    constraint = clocked(a_call=1.0, a_row=1.0)
    dense_pays(constraint, torch.ones(64, 3), share, repeats=2)
    assert constraint.asked == [count, 64] * 3


def test_a_share_of_nothing_is_refused():
    with pytest.raises(ValueError, match="above 0 and at most 1"):
        dense_pays(Clocked(1, 1), torch.ones(4, 3), 0.0)
    with pytest.raises(ValueError, match="not one row of 3"):
        dense_pays(Clocked(1, 1), torch.ones(3, 3), 0.25)


def test_a_projection_that_works_in_place_leaves_the_states_as_they_were():
    @dataclass
    class InPlace(Clocked):
        def project(self, x):
            assert bool((x == 5).all())  # each time the same work
            return x.clamp_(-1, 1)

    x = torch.full((8, 2), 5.0)
    dense_pays(InPlace(1, 1), x)
    assert bool((x == 5).all())


def test_a_constraint_that_needs_to_know_more_than_states_is_refused():
    @dataclass
    class Noised(Clocked):
        needs = ("sigma", "t")

    with pytest.raises(ValueError, match=r"where sigma, t, which the constraint needs, cannot be told; wrap it"):
        dense_pays(Noised(1, 1), torch.ones(8, 3))
