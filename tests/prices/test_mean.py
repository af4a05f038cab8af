"""A budget that holds on average: the program against a plain one, and what it costs on other seeds."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

import trimtab as tt
from price_cases import SetUp, contraction
from trimtab.core.replay import replay
from trimtab.prices import Mean, MeanPrices
from trimtab.prices.mean import AtPrice
from trimtab.prices.mean_program import falling, shared_out, solve_mean
from trimtab.prices.transitions import NODES
from trimtab.schedules import Trigger

CALIBRATION, EVALUATION = range(1000, 1032), range(32)


@pytest.mark.parametrize("mu", [0.5, 1.5, 4.0])
def test_where_a_correction_is_all_the_prices_cost_least(mu):
    n_steps = 5

    def least(t: int, s: int) -> float:
        if t == n_steps:
            return 0.0
        stay = s + least(t + 1, min(s + 1, NODES - 1))
        return min(stay, mu + least(t + 1, 1)) if s else stay

    prices, onward = solve_mean(contraction(0.0, n_steps), mu)
    assert onward is None  # beginning and going on cost the same
    s, total = 3, 0.0
    for t in range(n_steps):
        if s >= prices[t]:
            s, total = 0, total + mu
        total, s = total + s, min(s + 1, NODES - 1)
    assert total == pytest.approx(least(0, 3))


@pytest.mark.parametrize("mu", [0.2, 0.5, 1.5])
@pytest.mark.parametrize(("begin", "go_on"), [(4, 1), (3, 2), (2, 2)])
@pytest.mark.parametrize("share", [0.0, 0.5])
def test_with_a_set_up_cost_no_stopping_rule_costs_less(mu, begin, go_on, share):
    n_steps = 5

    @cache
    def least(t: int, s: int, begun: bool) -> float:
        if t == n_steps:
            return 0.0
        stay = s + least(t + 1, min(s + 1, NODES - 1), False)
        better = int(s * share)
        return min(stay, mu * (go_on if begun else begin) + least(t, better, True)) if better < s else stay

    steps = replace(contraction(share, n_steps), begin=begin, go_on=go_on)
    prices, onward = solve_mean(steps, mu)
    assert (onward is None) == (begin == go_on)
    s, total = 3, 0.0
    for t in range(n_steps):
        price, pay = prices[t], begin
        while s >= price:
            s, total = int(s * share), total + mu * pay
            price, pay = (prices if onward is None else onward)[t], go_on
        total, s = total + s, min(s + 1, NODES - 1)
    assert total == pytest.approx(least(0, 3, False))


def test_a_mean_budget_counts_the_set_up():
    domain = tt.domain("linkage", n_steps=24)
    known, fresh = (
        replace(problem, constraint=SetUp(problem.constraint, 3))
        for problem in (domain.problem(CALIBRATION), domain.problem(EVALUATION))
    )
    prices = tt.calibrate(known, Mean(40), unit="iteration", objective="path")
    assert prices.onward is not None
    assert (prices.onward <= prices.table).double().mean() > 0.9  # it is gone on with for longer than it is begun
    schedule = prices.at(Mean(40))
    run = fresh.rollout(schedule)
    assert abs(float(run.paid.double().mean()) - 40) < 12
    assert torch.equal(replay(schedule, run), run.iterations.long())


@pytest.mark.parametrize(
    ("name", "unit", "budget"), [("so3-impulse", "projection", 0.25), ("linkage", "iteration", 30)]
)
def test_other_seeds_cost_about_as_much_on_average(name, unit, budget):
    domain = tt.domain(name, n_steps=40)
    prices = tt.calibrate(domain.problem(CALIBRATION), Mean(budget), unit=unit, objective="path")
    run = domain.problem(EVALUATION).rollout(prices.at(Mean(budget)))
    paid = run.paid.double()
    wanted = Mean(budget).units(40)
    assert run.unit == unit
    assert abs(float(paid.mean()) - wanted) < 0.2 * wanted
    assert float(paid.std()) > 0  # no sample is held to it


def test_mean_prices_come_back_from_their_file(tmp_path):
    prices = MeanPrices(torch.tensor([[0.1, 0.2], [0.3, torch.inf]]), torch.tensor([2.0, 1.0]), seeds=(1, 2))
    onward = torch.tensor([[0.0, 0.1], [0.2, 0.3]])
    for kept in (prices, replace(prices, unit="iteration", onward=onward)):
        kept.save(tmp_path / "mean.safetensors")
        again = MeanPrices.load(tmp_path / "mean.safetensors")
        assert torch.equal(again.table, prices.table)
        assert again.seeds == (1, 2)
        assert (again.onward is None) == (kept.onward is None)
    assert torch.equal(again.onward, onward)
    assert torch.equal(again.at(1).onward, onward[:, 1])
    with pytest.raises(ValueError, match=r"MeanPrices\.load"):
        tt.load(tmp_path / "mean.safetensors")


def test_a_cost_that_was_not_seen_is_refused():
    prices = MeanPrices(torch.tensor([[0.1, 0.2]]), torch.tensor([9.0, 5.0]))
    assert isinstance(prices.at(7), AtPrice)
    with pytest.raises(ValueError, match="out of reach"):
        prices.at(20)
    with pytest.raises(ValueError, match="must not be NaN"):
        MeanPrices(torch.tensor([[torch.nan, 0.2]]), torch.tensor([9.0, 5.0]))
    with pytest.raises(ValueError, match="must not be NaN, and their costs"):
        MeanPrices(torch.tensor([[0.1, 0.2]]), torch.tensor([5.0, 9.0]))
    with pytest.raises(ValueError, match="mean budget"):
        Mean(-1)


def test_prices_of_another_number_of_steps_are_refused():
    with pytest.raises(ValueError, match="cannot be used for T = 40"):
        tt.domain("so3", n_steps=40).problem(EVALUATION).rollout(AtPrice(torch.zeros(3)))


@pytest.mark.parametrize("kind", [int, np.int64, np.int32, np.uint8])
def test_a_whole_number_counts_corrections_whatever_its_kind(kind):
    assert Mean(kind(12)).units(100) == 12.0
    assert Mean(np.float64(0.25)).units(100) == 25.0


@pytest.mark.parametrize("n", [4, 9, 16, 31])
def test_few_samples_try_out_prices_of_all_heights(n):
    levels = torch.cat([shared_out(32, n, stream=7, trial=k, trials=4) for k in range(4)])
    assert levels.min() <= 32 // n
    assert levels.max() >= 31 - 32 // n
    assert len(levels.unique()) >= min(3 * n, 24)


def test_a_mean_budget_can_be_calibrated_with_few_samples():
    domain = tt.domain("so3", n_steps=20)
    price = tt.calibrate(domain.problem(range(1000, 1012)), Mean(0.25), objective="path")
    run = domain.problem(range(32)).rollout(price.at(Mean(0.25)))
    assert 2.5 <= run.paid.double().mean() <= 10  # 5, to what so few can tell


def test_levels_that_nobody_tried_cost_what_lies_between():
    paid, count = np.array([8.0, 0.0, 4.0, 0.0, 0.0]), np.array([1.0, 0.0, 2.0, 0.0, 0.0])
    assert falling(paid, count).tolist() == [8.0, 5.0, 2.0, 2.0, 2.0]


def test_a_mean_budget_where_nothing_is_ever_wrong_is_refused():
    everywhere = tt.as_constraint(lambda x: x, lambda x: torch.zeros(len(x)))
    problem = tt.domain("so3", n_steps=12).problem(range(8))
    with (
        pytest.warns(UserWarning, match="the defect is 0 at every step"),
        pytest.raises(ValueError, match="no correction is worth anything"),
    ):
        tt.calibrate(replace(problem, constraint=everywhere), Mean(0.25), objective="path")


@pytest.mark.parametrize("budget", [5, 30])
def test_a_mean_budget_that_no_price_comes_to_is_refused_by_calibration(budget):
    """Not only by the schedule, which would ask to calibrate with that very budget."""
    problem = tt.domain("linkage", n_steps=6).problem(range(1000, 1016))
    with pytest.raises(ValueError, match=rf"a mean of {budget} iterations .*is out of reach: prices of"):
        tt.calibrate(problem, Mean(budget), unit="iteration")


def test_a_mean_budget_whose_objective_no_correction_lowers_is_refused():
    problem = tt.domain("so3", n_steps=12).problem(range(8))
    with pytest.raises(ValueError, match="no correction is worth anything by the objective 'endpoint'"):
        tt.calibrate(problem, Mean(0.25), objective="endpoint", distance=lambda a, b: torch.zeros(len(a)))


@pytest.mark.parametrize(("n_steps", "closing"), [(2, "paid"), (1, "none")])
def test_a_mean_budget_of_one_choice_is_refused_with_what_serves_it(n_steps, closing):
    domain = tt.domain("so3", n_steps=n_steps)
    with pytest.raises(ValueError, match=f"T = {n_steps} and closing='{closing}' there is one step .* use Trigger"):
        tt.calibrate(domain.problem(CALIBRATION), Mean(0.5), objective="path", closing=closing)
    free = domain.problem(CALIBRATION).rollout(tt.Terminal(), closing=closing, measure_defects=True)
    run = domain.problem(CALIBRATION).rollout(Trigger(float(free.defects[0].quantile(0.75))), closing=closing)
    assert float(run.paid.double().mean()) == n_steps - 1 + 0.25
