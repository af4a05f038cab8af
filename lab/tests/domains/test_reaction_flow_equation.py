import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.core.noise import Noise, as_seeds
from trimtab_lab.domains.reaction_flow.equation import (
    CELLS,
    DIFFUSIVITY,
    GROWTH,
    INFLOW,
    TIMES,
    Conditions,
    cumulative_rule,
    draw_conditions,
    mass_imbalance,
    solve,
)


def conditions_of(seeds):
    return draw_conditions(Noise(as_seeds(seeds)))


@settings(max_examples=5)
@given(st.integers(0, 2**40))
def test_solutions_keep_the_balance_of_mass(first):
    conditions, nu = conditions_of(range(first, first + 8))
    imbalance = mass_imbalance(solve(conditions, nu), conditions)
    # the rule in time is of fourth order; what it misses is far below what a sample gets wrong
    assert imbalance.abs().max() < 1e-3
    assert imbalance.square().mean().sqrt() < 1e-4


def test_a_small_wave_decays_and_grows_as_the_linear_equation_says():
    x = (torch.arange(CELLS, dtype=torch.float64) + 0.5) / CELLS
    small, nu = 1e-7, torch.tensor([0.03], dtype=torch.float64)
    initial = small * (1 + torch.cos(math.pi * x))[None]
    u = solve(Conditions(initial, torch.zeros(1, dtype=torch.float64)), nu)[0] / small
    t = torch.linspace(0, 1, TIMES, dtype=torch.float64)[:, None]
    exact = torch.exp(GROWTH * t) * (1 + torch.cos(math.pi * x) * torch.exp(-nu * math.pi**2 * t))
    torch.testing.assert_close(u, exact, rtol=1e-3, atol=1e-3)


def test_saturation_is_a_steady_state():
    conditions = Conditions(torch.ones(2, CELLS, dtype=torch.float64), torch.zeros(2, dtype=torch.float64))
    u = solve(conditions, torch.tensor([0.005, 0.05], dtype=torch.float64))
    torch.testing.assert_close(u, torch.ones_like(u), rtol=0, atol=1e-14)


def test_inflow_adds_its_mass_where_nothing_reacts(monkeypatch):
    monkeypatch.setattr("trimtab_lab.domains.reaction_flow.equation.GROWTH", 0.0)
    conditions, nu = conditions_of(range(4))
    mass = solve(conditions, nu).mean(dim=2)
    t = torch.linspace(0, 1, TIMES, dtype=torch.float64)
    torch.testing.assert_close(mass, mass[:, :1] + conditions.inflow[:, None] * t, rtol=0, atol=1e-12)


def test_a_finer_grid_gives_nearly_the_same():
    conditions, nu = conditions_of(range(3))
    error = (solve(conditions, nu, refine=2) - solve(conditions, nu)).square().mean(dim=(1, 2)).sqrt()
    assert error.max() < 2e-3


def test_conditions_are_those_of_the_seed_alone_and_in_range():
    together, nu = conditions_of([3, 70, 5])
    alone, nu_alone = conditions_of([70])
    # a matrix product may round differently for another number of rows
    torch.testing.assert_close(together.initial[1], alone.initial[0], rtol=0, atol=1e-14)
    assert together.inflow[1] == alone.inflow[0]
    assert nu[1] == nu_alone[0]
    many, nu = conditions_of(range(500))
    assert ((many.initial > 0) & (many.initial < 1)).all()
    assert ((many.inflow > INFLOW[0]) & (many.inflow < INFLOW[1])).all()
    assert ((nu > DIFFUSIVITY[0]) & (nu < DIFFUSIVITY[1])).all()


@pytest.mark.parametrize("power", [0, 1, 2, 3])
def test_the_rule_in_time_is_exact_for_cubics(power):
    t = torch.linspace(0, 1, TIMES, dtype=torch.float64)
    torch.testing.assert_close(cumulative_rule() @ t**power, t ** (power + 1) / (power + 1), rtol=0, atol=1e-14)
