"""What iterations can be spent on, raced: simple rules keep their budgets, and the winner is not behind them."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import trimtab as tt
from trimtab.core.metrics import endpoint_distance
from trimtab.core.replay import replay
from trimtab.prices.iterations import WHOLE, Allowance, counts_with_closing, even_counts, whole_counts
from trimtab.prices.price import Raced, Thresholds
from trimtab.prices.race import builtin_candidate_names, fixed_plans
from trimtab_lab.metrics import summary

KNOWN, FRESH = range(1000, 1032), range(48)
DOMAIN = tt.domain("linkage", kappa=0.1, bursts=0, n_steps=30)
MOST = 60


@pytest.fixture(scope="module")
def raced():
    return tt.calibrate(DOMAIN.problem(KNOWN), MOST, unit="iteration")


@pytest.fixture(scope="module")
def full():
    return DOMAIN.problem(FRESH).rollout(tt.Stepwise())


@given(st.integers(1, 20), st.integers(0, 70), st.integers(1, 5), st.integers(1, 3))
@settings(max_examples=50, deadline=None)
def test_iterations_are_spread_evenly_and_no_budget_is_exceeded(n_steps, budget, begin, go_on):
    counts = even_counts(n_steps, budget, begin, go_on).long()
    cost = torch.where(counts > 0, begin + go_on * (counts - 1), 0).sum(dim=1)
    assert (cost <= torch.arange(budget + 1)).all()
    assert (cost > torch.arange(budget + 1) - max(begin, go_on)).all()  # what is left would not pay for one more
    assert (counts.amax(dim=1) - counts.amin(dim=1) <= 1).all()


def test_whole_projections_are_as_many_as_a_budget_pays_for():
    counts = whole_counts(fixed_plans(10, 10)["even spacing"], 30, 2.5)
    assert (counts > 0).sum(dim=1)[[0, 5, 10, 30]].tolist() == [0, 2, 4, 10]
    assert counts[counts > 0].unique().tolist() == [WHOLE]


def test_an_allowance_is_kept_step_by_step(full):
    counts = counts_with_closing(even_counts(29, MOST), 4)
    schedule = Allowance(counts, 4).at(torch.full((len(FRESH),), MOST))
    run = DOMAIN.problem(FRESH).rollout(schedule)
    assert (run.iterations[:-1] <= counts[MOST, :-1, None]).all()
    assert int(run.iterations[:-1].sum(dim=0).max()) <= MOST - 4
    assert torch.equal(replay(schedule, run), run.iterations.long())


def test_a_winner_keeps_every_budget_and_can_be_replayed(raced):
    budgets = torch.arange(len(FRESH)) % (MOST - raced.closing_reserve) + raced.closing_reserve
    schedule = raced.at(budgets)
    run = DOMAIN.problem(FRESH).rollout(schedule)
    assert (run.iterations[:-1].sum(dim=0) <= budgets - raced.closing_reserve).all()
    assert torch.equal(replay(schedule, run), run.iterations.long())


def test_what_the_race_calls_its_own_candidates_is_known_before(raced):
    assert set(raced.notes["candidates"]) == builtin_candidate_names("iteration")


def test_it_is_not_behind_its_simple_rivals(raced, full):
    problem = DOMAIN.problem(FRESH)
    for budget in (20, 35, 55):
        won = endpoint_distance(problem.rollout(raced.at(budget)), full, DOMAIN.distance)
        rivals = [problem.rollout(tt.Periodic(min(30, budget)), unit="iteration")]
        each = float(full.all_iterations.double().mean()) / 30
        rivals.append(problem.rollout(tt.Periodic(round(budget / each))))
        for rival in rivals:
            behind = summary(won - endpoint_distance(rival, full, DOMAIN.distance))
            assert behind.mean <= 3 * behind.se


def test_winners_come_back_from_their_file(raced, tmp_path):
    raced.save(tmp_path / "race.safetensors")
    again = tt.load(tmp_path / "race.safetensors")
    assert isinstance(again, Raced)
    assert (again.unit, again.closing_reserve, again.budget) == ("iteration", raced.closing_reserve, MOST)
    problem, budgets = DOMAIN.problem(FRESH), torch.arange(len(FRESH)) % 40 + 10
    assert torch.equal(problem.rollout(raced.at(budgets)).final, problem.rollout(again.at(budgets)).final)


def test_every_kind_of_part_comes_back_from_its_file(tmp_path):
    table = torch.full((5, 8), 0.1, dtype=torch.float64)
    table[:, 0] = torch.inf
    parts = (
        Thresholds(table, unit="iteration", onward=0.5 * table, closing_reserve=2),
        Allowance(even_counts(5, 7), 2),
    )
    Raced(parts, torch.arange(8) % 2).save(tmp_path / "race.safetensors")
    again = Raced.load(tmp_path / "race.safetensors")
    assert torch.equal(again.parts[0].onward, 0.5 * table)
    assert torch.equal(again.parts[1].counts, parts[1].counts)


def test_what_counts_something_else_does_not_race():
    plan = tt.calibrate(DOMAIN.problem(KNOWN), 5, "planned")
    with pytest.raises(ValueError, match="counts projections, and this race iterations"):
        tt.calibrate(DOMAIN.problem(KNOWN), 30, unit="iteration", candidates={"planned": plan})
    with pytest.raises(ValueError, match="the same number of steps, unit"):
        Raced((plan, Allowance(even_counts(30, 5))), torch.zeros(6, dtype=torch.int64))


def test_a_budget_that_pays_for_no_whole_projection_on_the_way_races_all_the_same():
    problem = tt.domain("linkage", n_steps=6).problem(range(1000, 1016))
    raced = tt.calibrate(problem, 10, unit="iteration")  # of which the closing projection takes 8
    assert isinstance(raced, Raced)
    assert raced.budget == 10
