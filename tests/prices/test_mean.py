"""A budget that holds on average: the program against a plain one, and what it costs on other seeds."""

import pytest
import torch

import trimtab as tt
from price_cases import contraction
from trimtab.prices import Mean, MeanPrices
from trimtab.prices.mean import AtPrice, solve_mean
from trimtab.prices.transitions import NODES

CALIBRATION, EVALUATION = range(1000, 1032), range(32)


@pytest.mark.parametrize("mu", [0.5, 1.5, 4.0])
def test_where_a_correction_is_all_the_prices_cost_least(mu):
    n_steps = 5

    def least(t: int, s: int) -> float:
        if t == n_steps:
            return 0.0
        stay = s + least(t + 1, min(s + 1, NODES - 1))
        return min(stay, mu + least(t + 1, 1)) if s else stay

    prices = solve_mean(contraction(0.0, n_steps), mu)
    s, total = 3, 0.0
    for t in range(n_steps):
        if s >= prices[t]:
            s, total = 0, total + mu
        total, s = total + s, min(s + 1, NODES - 1)
    assert total == pytest.approx(least(0, 3))


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
    prices.save(tmp_path / "mean.safetensors")
    again = MeanPrices.load(tmp_path / "mean.safetensors")
    assert torch.equal(again.table, prices.table)
    assert again.seeds == (1, 2)
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
