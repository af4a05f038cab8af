import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.core.noise import Noise, as_seeds
from trimtab_lab.domains.reaction_flow.domain import gaussian_field
from trimtab_lab.domains.reaction_flow.equation import (
    CELLS,
    TIMES,
    MassBalance,
    draw_conditions,
    mass_imbalance,
    solve,
)

TOLERANCE = 1e-9


def wild(seeds, scale):
    """Constraints and fields that have nothing to do with each other."""
    noise = Noise(as_seeds(seeds))
    balance = MassBalance(draw_conditions(noise, 1)[0], tolerance=TOLERANCE)
    return balance, 0.5 + scale * gaussian_field(noise.normal(0, (TIMES, CELLS)))


def distance(a, b):
    return (a - b).square().mean(dim=(1, 2)).sqrt()


@settings(max_examples=15)
@given(st.integers(0, 2**40), st.floats(0.01, 3.0))
def test_projected_fields_are_feasible_and_stay_where_they_are(first, scale):
    balance, u = wild(range(first, first + 4), scale)
    answer = balance.project(u)
    assert answer.converged.all()
    assert balance.defect(answer.x).max() <= TOLERANCE
    assert torch.equal(answer.x[:, 0], balance.conditions.initial)
    again = balance.project(answer.x)
    assert distance(again.x, answer.x).max() <= 10 * TOLERANCE


@settings(max_examples=5)
@given(st.integers(0, 2**40), st.floats(0.1, 1.0))
def test_the_way_to_the_projection_is_normal_to_the_set(first, scale):
    balance, u = wild([first], scale)
    projected = balance.project(u).x

    def equations(field):
        field = field.reshape(1, TIMES, CELLS)
        return torch.cat([field[0, 0], mass_imbalance(field, balance.conditions)[0]])

    jacobian = torch.autograd.functional.jacobian(equations, projected.flatten())
    way = (u - projected).flatten()
    multipliers = torch.linalg.lstsq(jacobian.T, way[:, None]).solution
    assert (jacobian.T @ multipliers - way[:, None]).abs().max() < 1e-6


def test_solutions_are_nearly_feasible_and_hardly_moved():
    conditions, nu = draw_conditions(Noise(as_seeds(range(8))))
    balance, u = MassBalance(conditions), solve(conditions, nu)
    assert balance.defect(u).max() < 1e-4
    assert distance(balance.project(u).x, u).max() < 1e-4


def test_the_defect_is_the_distance_where_nothing_reacts(monkeypatch):
    monkeypatch.setattr("trimtab_lab.domains.reaction_flow.equation.GROWTH", 0.0)
    balance, u = wild(range(6), 0.5)
    torch.testing.assert_close(balance.defect(u), distance(balance.project(u).x, u), rtol=1e-9, atol=0)


def test_a_field_that_is_not_finite_fails_alone():
    balance, u = wild(range(12), 1.0)
    u[5, 3, 7] = torch.nan
    answer = balance.project(u)
    assert answer.converged.tolist() == [row != 5 for row in range(12)]
    assert torch.equal(balance.take(torch.tensor([4])).project(u[4:5]).iterations, answer.iterations[4:5])


def test_a_tolerance_that_nothing_could_meet_is_refused():
    conditions, _ = draw_conditions(Noise(as_seeds(range(4)), torch.float64), 1)
    with pytest.raises(ValueError, match=r"tolerance of MassBalance must be a finite number above 0: got -1\.0"):
        MassBalance(conditions, -1.0)


def test_a_projection_cut_short_says_so_for_each_sample():
    conditions, nu = draw_conditions(Noise(as_seeds(range(4)), torch.float64), 1)
    balance = MassBalance(conditions, max_iterations=2)
    u = solve(conditions, nu)
    u[2:] += 0.5
    answer = balance.project(u)
    assert answer.converged.tolist() == [True, True, False, False]
    assert answer.iterations.tolist()[2:] == [2, 2]
    assert answer.x.isfinite().all()
