"""How a run ends, and what it costs: paid (the default), free (as the paper counts) and not at all."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import trimtab as tt
from cases import SCHEDULES, Sphere, Walk
from trimtab.core.budget import corrections
from trimtab.loop.replay import replay
from trimtab.schedules import Fixed, Geometric, RandomRamp, RandomTimes, Window

CLOSINGS = ("paid", "free", "none")
SEEDS = range(5)


def run(schedule, T=12, closing="paid", **options):
    return tt.rollout(Walk(n_steps=T), Sphere(), schedule, SEEDS, closing=closing, measure_defects=True, **options)


def exact(b, T):
    """Schedules that spend all they are given."""
    adaptive = []
    if T > 1:
        defects = torch.rand(T - 1, 6, generator=torch.Generator().manual_seed(b))
        table = tt.prices.quantile_table(defects, b - 1)
        adaptive = [tt.prices.Thresholds(table, closing="paid").at(b)]
    return [tt.Periodic(b), Geometric(b), RandomRamp(b), RandomTimes(b), Window(T - b, T), *adaptive]


@settings(max_examples=20)
@given(st.integers(1, 9), st.data())
def test_with_a_paid_closing_every_schedule_that_spends_its_budget_costs_exactly_that(T, data):
    b = data.draw(st.integers(1, T))
    for schedule in exact(b, T):
        record = run(schedule, T)
        assert record.paid.tolist() == [b] * 5
        assert record.projected[-1].all()
        assert not record.closing.any()


@pytest.mark.parametrize("T", [1, 2, 7, 20])
def test_terminal_costs_one_stepwise_all_and_periodic_its_budget(T):
    assert run(tt.Terminal(), T).paid.tolist() == [1] * 5
    assert run(tt.Stepwise(), T).paid.tolist() == [T] * 5
    for b in range(1, T + 1):
        record = run(tt.Periodic(b), T)
        assert record.paid.tolist() == [b] * 5
        # gaps are even up to the last step, which is one of them
        steps = torch.cat([torch.tensor([-1]), record.projected[:, 0].nonzero().squeeze(1)])
        gaps = steps.diff()
        assert int(gaps.max() - gaps.min()) <= 1


@pytest.mark.parametrize("name", [name for name in SCHEDULES if name != "adaptive"])
@pytest.mark.parametrize("closing", CLOSINGS)
def test_no_schedule_pays_for_more_than_its_budget_and_the_closing_that_is_apart_from_it(name, closing):
    schedule = SCHEDULES[name](Walk())
    record = run(schedule, closing=closing)
    budget = corrections(getattr(schedule, "budget", 1.0), 12)
    assert torch.equal(record.paid, record.spent + record.closing)
    assert (record.spent <= budget).all()
    assert closing == "free" or not record.closing.any()
    assert closing != "paid" or record.projected[-1].all()
    assert closing != "free" or torch.equal(record.closing, ~record.projected[-1])


@pytest.mark.parametrize("closing", CLOSINGS)
@pytest.mark.parametrize("name", [name for name in SCHEDULES if name != "adaptive"])
def test_what_is_replayed_is_what_was_projected(name, closing):
    schedule = SCHEDULES[name](Walk())
    record = run(schedule, closing=closing)
    assert torch.equal(replay(schedule, record), record.projected)


def test_final_states_are_feasible_unless_the_run_ends_as_it_is():
    defect = {closing: float(Sphere().defect(run(tt.Terminal(), closing=closing).final).max()) for closing in CLOSINGS}
    assert max(defect["paid"], defect["free"]) < 1e-12
    assert defect["none"] > 0.01


@pytest.mark.parametrize(
    ("schedule", "asked"),
    [
        (tt.Periodic(0), "0 with T = 12"),
        (Geometric(0.01), "0.01 with T = 12"),
        (tt.Periodic(torch.tensor([0, 1, 1, 1, 1])), "0 of some samples"),
    ],
)
def test_a_budget_that_leaves_nothing_for_a_paid_closing_is_refused(schedule, asked):
    with pytest.raises(ValueError, match=f"a budget of {asked} leaves nothing for the closing projection"):
        run(schedule)
    assert int(run(schedule, closing="free").spent.min()) == 0


def test_calibration_for_a_budget_that_leaves_nothing_is_refused():
    with pytest.raises(ValueError, match="leaves nothing for the closing projection"):
        tt.calibrate(tt.Problem(Walk(), Sphere(), range(100, 108)), 0, method="paper")


@pytest.mark.parametrize(("made", "used"), [("free", "paid"), ("paid", "free"), ("paid", "none")])
@pytest.mark.parametrize("method", ["paper", "planned"])
def test_a_price_of_another_accounting_is_refused(made, used, method):
    price = tt.calibrate(tt.Problem(Walk(), Sphere(), range(100, 108)), 0.5, method=method, closing=made)
    with pytest.raises(ValueError, match=f"made for closing='{made}': got closing='{used}'"):
        run(price.at(4), closing=used)
    assert run(price.at(4), closing=made).spent.tolist() == [4] * 5


@pytest.mark.parametrize("method", ["paper", "planned", "dp"])
@pytest.mark.parametrize("b", [1, 2, 7, 12])
def test_calibrated_prices_cost_exactly_their_budget_and_replay(method, b):
    price = tt.calibrate(tt.Problem(Walk(), Sphere(), range(100, 108)), method=method, objective="path")
    record = run(price.at(b))
    assert record.paid.tolist() == [b] * 5
    assert torch.equal(replay(price.at(b), record), record.projected)


def test_a_mask_whose_last_step_is_left_out_pays_for_the_closing_on_top():
    assert run(Fixed.at([2, 5], 12)).paid.tolist() == [3] * 5
    assert run(Fixed.at([2, 11], 12)).paid.tolist() == [2] * 5
    assert run(Fixed.at([2, 5], 12), closing="none").paid.tolist() == [2] * 5


def test_a_closing_that_there_is_none_of_is_refused():
    with pytest.raises(ValueError, match="closing must be 'paid', 'free' or 'none': got 'later'"):
        run(tt.Terminal(), closing="later")
