"""A budget that the batch shares: exact in total, never overdrawn, and replayed from the record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

import trimtab as tt
from cases import Sphere, Walk
from trimtab.core import state as accounts
from trimtab.core.budget import PerBatch
from trimtab.core.state import Pools, Terms
from trimtab.loop.replay import replay

T = 12


@dataclass(frozen=True, eq=False)
class Above(tt.Schedule):
    """Wants every sample whose defect reaches a value."""

    budget: Any = 1
    value: float = 0.2

    def decide(self, view):
        return view.defect >= self.value


def walk(schedule, n=6, **options):
    return tt.rollout(Walk(), Sphere(), schedule, range(n), measure_defects=True, **options)


@given(st.floats(0, 1.5), st.integers(1, T), st.integers(1, 7), st.sampled_from(["paid", "free", "none"]))
def test_a_shared_budget_is_spent_exactly_whatever_the_schedule_wants(value, budget, n, closing):
    schedule = Above(PerBatch(budget), value)
    run = walk(schedule, n, closing=closing)
    assert int(run.spent.sum()) == n * budget
    assert bool(run.projected[-1].all()) or closing != "paid"
    assert torch.equal(replay(schedule, run), run.projected)


@given(st.floats(0, 1.5), st.integers(1, T), st.integers(1, 7))
def test_a_schedule_may_spend_less_if_it_says_so(value, budget, n):
    class Sparing(Above):
        spends_all = False

    run = walk(Sparing(PerBatch(budget), value), n)
    assert int(run.spent.sum()) <= n * budget
    chosen = run.projected[:-1]
    assert bool((run.defects[:-1][chosen] >= value).all())


def test_the_samples_with_the_largest_defects_go_first_if_not_all_can_be_paid_for():
    terms = Terms(n_steps=4, pools=Pools.of_labels(torch.tensor([0, 0, 0, -1]), exact=False))
    state = accounts.start(terms, torch.tensor([1, 1, 0, 5]))
    wanted = torch.tensor([True, True, True, True])
    chosen = accounts.decide(terms, state, wanted, torch.tensor([0.1, 0.3, 0.2, 0.0]))
    assert chosen.tolist() == [False, True, True, True]  # two units for three, and the last has its own budget
    state = accounts.spend(terms, state, chosen)
    assert state.left.tolist() == [0, 4]
    assert accounts.left_per_sample(terms, state).tolist() == [0.0, 0.0, 0.0, 4.0]


def test_what_later_steps_could_not_spend_is_spent_now():
    terms = Terms(n_steps=2, pools=Pools.of_labels(torch.zeros(3, dtype=torch.int64), exact=True))
    state = accounts.start(terms, torch.tensor([2, 2, 1]))
    nobody = torch.zeros(3, dtype=torch.bool)
    chosen = accounts.decide(terms, state, nobody, torch.tensor([0.1, 0.3, 0.2]))
    assert chosen.tolist() == [False, True, True]  # the next step has room for three of five


def test_a_view_shows_the_mean_that_is_left():
    seen = []

    class Looks(Above):
        def decide(self, view):
            seen.append(view.spendable.tolist())
            return super().decide(view)

    walk(Looks(PerBatch(4)), 3)
    assert seen[0] == [3.0, 3.0, 3.0]


@given(st.floats(0, 1.5), st.integers(1, T), st.integers(1, 7), st.integers(1, 9))
def test_samples_may_share_in_parts_of_a_batch(value, budget, n, size):
    budgets = torch.full((n,), budget)
    schedule = Above(PerBatch(budgets, torch.arange(n) // size), value)
    run = walk(schedule, n)
    for part in run.spent.split(size):
        assert int(part.sum()) == budget * len(part)
    if size >= n:
        assert torch.equal(run.spent, walk(Above(PerBatch(budget), value), n).spent)
    assert torch.equal(replay(schedule, run), run.projected)
