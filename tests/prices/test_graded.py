"""Prices of one iteration: the program against a plain one, and what they buy on a real mechanism."""

from dataclasses import replace

import pytest
import torch

import trimtab as tt
from price_cases import contraction
from trimtab.core.metrics import path_error
from trimtab.loop.replay import replay
from trimtab.prices.program import solve_iterations
from trimtab.prices.transitions import NODES

CALIBRATION, EVALUATION = range(1000, 1024), range(24)


def test_where_an_iteration_is_all_the_program_finds_the_least_cost_of_all_ways_to_spend():
    n_steps, budget, share = 4, 5, 0.0

    def least(t: int, s: int, b: int) -> float:
        if t == n_steps:
            return 0.0
        here = s + least(t + 1, min(s + 1, NODES - 1), b)
        return here if b == 0 else min(here, least(t, int(s * share), b - 1))

    _, expected, *_ = solve_iterations(contraction(share, n_steps), budget)
    assert expected.tolist() == pytest.approx([least(0, 3, b) for b in range(budget + 1)])


@pytest.mark.parametrize(("begin", "go_on"), [(4, 1), (3, 2), (2, 2)])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.5])
def test_with_a_set_up_cost_the_program_expects_what_its_two_tables_cost_and_no_more_than_one(begin, go_on, share):
    n_steps, budget = 5, 14
    steps = replace(contraction(share, n_steps), start=begin, onward=go_on)
    solved = solve_iterations(steps, budget)
    assert (solved.onward is None) == (begin == go_on)

    def cost(table, onward, b: int) -> float:
        s, total = 3, 0.0
        for t in range(n_steps):
            price, pay = table, begin
            while b >= pay and s >= price[t, b]:
                s, b, price, pay = int(s * share), b - pay, onward, go_on
            total, s = total + s, min(s + 1, NODES - 1)
        return total

    onward = solved.table if solved.onward is None else solved.onward
    unaware = solve_iterations(contraction(share, n_steps), budget).table
    two = [cost(solved.table, onward, b) for b in range(budget + 1)]
    assert solved.expected.tolist() == pytest.approx(two)
    one = [cost(unaware, unaware, b) for b in range(budget + 1)]
    if begin > go_on:
        assert all(a <= b + 1e-12 for a, b in zip(two, one, strict=True))
        assert sum(two) < sum(one)
    assert bool((solved.table[:, :begin] == torch.inf).all())  # nothing is begun that cannot be paid for


@pytest.mark.parametrize("share", [0.3, 0.5])
def test_the_program_expects_what_its_prices_cost(share):
    n_steps, budget = 5, 7
    table, expected, *_ = solve_iterations(contraction(share, n_steps), budget)

    def cost(b: int) -> float:
        s, total = 3, 0.0
        for t in range(n_steps):
            while b > 0 and s >= table[t, b]:
                s, b = int(s * share), b - 1
            total, s = total + s, min(s + 1, NODES - 1)
        return total

    assert expected.tolist() == pytest.approx([cost(b) for b in range(budget + 1)])


def test_more_budget_never_raises_a_price():
    table, expected, *_ = solve_iterations(contraction(0.5, 6), 12)
    assert bool((table[:, 1:-1] >= table[:, 2:]).all())
    assert bool((expected.diff() <= 1e-12).all())


def test_prices_of_iterations_beat_whole_projections_of_the_same_cost_on_a_linkage():
    domain = tt.domain("linkage", kappa=0.3, n_steps=40)
    problem = domain.problem(EVALUATION)
    full = problem.rollout(tt.Stepwise())
    budget = int(0.3 * float(full.all_iterations.double().mean()))
    prices = tt.calibrate(domain.problem(CALIBRATION), budget, unit="iteration", objective="path")
    assert isinstance(prices, tt.prices.Thresholds)
    assert prices.unit == "iteration"
    run = problem.rollout(prices.at(budget))
    assert torch.equal(replay(prices.at(budget), run), run.iterations.long())
    mean_cost = float(run.all_iterations.double().mean())
    assert mean_cost <= budget + 1
    rival = problem.rollout(tt.Periodic(0.2), measure_defects=True)
    assert float(rival.all_iterations.double().mean()) > 0.6 * mean_cost  # which is not much cheaper
    assert float(path_error(run).mean()) < float(path_error(rival).mean())


def test_the_endpoint_can_be_what_counts():
    domain = tt.domain("linkage", kappa=0.3, n_steps=30)
    prices = tt.calibrate(domain.problem(CALIBRATION), 40, unit="iteration")
    assert isinstance(prices, tt.prices.Raced)
    assert (prices.objective, prices.unit) == ("endpoint", "iteration")
    smaller = domain.problem(EVALUATION).rollout(prices.at(20))
    assert int(smaller.iterations[:-1].sum(dim=0).max()) <= 20 - prices.closing_reserve


def test_what_cannot_be_priced_by_iterations_is_refused():
    problem = tt.domain("linkage", n_steps=20).problem(CALIBRATION)
    with pytest.raises(ValueError, match="leaves nothing to choose"):
        tt.calibrate(problem, 1, unit="iteration")
    with pytest.raises(ValueError, match="method must be 'dp' or 'race'"):
        tt.calibrate(problem, 20, "paper", unit="iteration")
    with pytest.raises(ValueError, match="calibrate for 40"):
        tt.calibrate(problem, 20, unit="iteration", objective="path").resample(40)
    with pytest.raises(ValueError, match="offers improve"):
        tt.calibrate(tt.domain("terrain", n_steps=20).problem(CALIBRATION), 20, unit="iteration")
