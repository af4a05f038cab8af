"""The equations of the grid: known optima, torch and CasADi agree, and nothing of a case is invented."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("pandapower", reason="the grid domain needs pandapower: pip install 'trimtab-lab[grid]'")
casadi = pytest.importorskip("casadi", reason="the grid domain needs casadi: pip install 'trimtab[ipopt]'")

from trimtab_lab.domains.grid.case import CASES  # noqa: E402
from trimtab_lab.domains.grid.model import given_demand, operating_points, true_points  # noqa: E402
from trimtab_lab.domains.grid.power import (  # noqa: E402
    cheapest,
    conditions,
    cost,
    flows,
    load_grid,
    loadings,
    mismatch,
    parts,
    violations,
)


def violation(grid, x, demand):
    return violations(grid, x, demand).norm(dim=1)


def state(case: str, seed: int = 0) -> torch.Tensor:
    """A random state near a flat one, (1, d)."""
    grid = load_grid(case)
    x = 0.2 * torch.randn(1, grid.dimension, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    x[:, grid.slices().voltage] += 1
    return x


@pytest.mark.parametrize(("case", "dollars"), [("case14", 8081.53), ("case30", 576.89)])
def test_the_cheapest_point_costs_what_is_published_for_the_case(case: str, dollars: float) -> None:
    grid = load_grid(case)
    answer = cheapest(grid, np.array(grid.loads)[None])
    assert bool(answer.converged)
    assert float(cost(grid, answer.x)) == pytest.approx(dollars, abs=0.01)
    demand = torch.tensor([sum(load.real for load in grid.loads)], dtype=torch.float64)
    assert float(violations(grid, answer.x, demand).max()) <= 1e-6


@pytest.mark.parametrize("case", CASES)
def test_what_torch_measures_is_what_the_program_states(case: str) -> None:
    grid, x = load_grid(case), state(case)
    y = casadi.SX.sym("y", grid.dimension)
    over, balance = conditions(grid, y)
    stated = casadi.Function("stated", [y], [casadi.vertcat(*over), casadi.vertcat(*balance)])
    ratings, balances = (torch.from_numpy(np.asarray(part)).reshape(-1) for part in stated(x[0].numpy()))
    torch.testing.assert_close(balances[: grid.buses], mismatch(grid, x)[0].real, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(balances[grid.buses :], mismatch(grid, x)[0].imag, rtol=1e-9, atol=1e-9)
    rating = torch.tensor([branch.rating for branch in grid.branches], dtype=torch.float64)
    shares = (flows(grid, x)[0].abs() / rating).square().T.flatten() - 1  # both ends of a branch, one after the other
    torch.testing.assert_close(ratings, shares, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("case", CASES)
def test_power_that_no_branch_loses_balances_over_the_whole_grid(case: str) -> None:
    grid, x = load_grid(case), state(case, seed=1)
    cut = parts(grid, x)
    lost = flows(grid, x).real.sum()
    shunted = (cut.voltage.square() * torch.tensor([y.real for y in grid.shunts], dtype=torch.float64)).sum()
    expected = cut.generation.sum() - cut.load.sum() - lost - shunted
    torch.testing.assert_close(mismatch(grid, x).real.sum(), expected, rtol=1e-9, atol=1e-9)
    assert float(lost) > 0


def test_each_limit_shows_in_the_violation() -> None:
    grid = load_grid("case14")
    x = operating_points(grid, [5])
    demand = parts(grid, x).load.sum(dim=1)
    assert float(violation(grid, x, demand)) <= 1e-6
    assert float(violation(grid, x, demand + 0.1)) == pytest.approx(0.1, rel=1e-3)
    where = grid.slices()
    for part in (where.load, where.generation, where.voltage, where.angle):
        moved = x.clone()
        moved[:, part.start] += 0.05
        assert float(violation(grid, moved, demand)) > 0.01


def test_lines_that_a_case_leaves_unrated_get_a_rating_above_what_they_carry() -> None:
    grid = load_grid("case14")
    load = loadings(grid, cheapest(grid, np.array(grid.loads)[None]).x)
    assert float(load.max()) <= 1 / 1.3 + 1e-6
    assert all(
        branch.rating >= 0.1 and branch.rating == pytest.approx(round(branch.rating, 2)) for branch in grid.branches
    )
    assert {round(branch.rating, 6) for branch in load_grid("case30").branches} == {0.16, 0.32, 0.65, 0.7, 0.9, 1.3}


def test_a_true_point_belongs_to_its_seed_and_has_the_demand_asked_for() -> None:
    grid = load_grid("case14")
    demand = given_demand(grid, [3, 4])
    together, alone = true_points(grid, [3, 4], demand), true_points(grid, [4], demand[1:])
    torch.testing.assert_close(together[1:], alone, rtol=0, atol=1e-9)
    torch.testing.assert_close(parts(grid, together).load.sum(dim=1), demand, rtol=0, atol=1e-9)
    assert float(violation(grid, together, demand).max()) <= 1e-6


def test_an_unknown_case_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="did you mean 'case14'"):
        load_grid("case41")
