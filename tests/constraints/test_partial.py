"""Corrections that do not end on a set: a few iterations of a solver, a few steps down an energy."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
import torch

import trimtab as tt
from constraint_cases import CASES, N, numbers, states
from trimtab.constraints import Ball, EnergyDescent, FewIterations, NonlinearEquality

ITERATING = [name for name in CASES if CASES[name].make().improves]


@pytest.mark.parametrize("name", ITERATING)
@pytest.mark.parametrize("count", [1, 3])
def test_a_few_iterations_are_those_of_the_solver(name, count):
    case = CASES[name]
    constraint, x = case.make(), states(case)
    answer = FewIterations(constraint, count).project(x)
    y, state, done = x, None, constraint.defect(x) == 0
    for _ in range(count):
        new = constraint.improve(y, state)
        y, state, done = torch.where(done.reshape(N, *[1] * (x.ndim - 1)), y, new.x), new.state, done | new.done
    torch.testing.assert_close(answer.x, y, rtol=0, atol=1e-9)
    torch.testing.assert_close(answer.residual, constraint.defect(answer.x), rtol=1e-6, atol=1e-9)
    rows = torch.tensor([4, 1])
    some = FewIterations(constraint, count).take(rows).project(x[rows])
    torch.testing.assert_close(some.x, answer.x[rows], rtol=0, atol=1e-9)


def test_many_iterations_are_the_projection():
    circle, x = NonlinearEquality(lambda y: (y * y).sum()[None] - 1, refinements=0), numbers(5, 2)
    whole, few = circle.project(x), FewIterations(circle, 50).project(x)
    torch.testing.assert_close(few.x, whole.x, rtol=0, atol=1e-9)
    assert torch.equal(few.iterations, whole.iterations)


@pytest.mark.parametrize("name", ITERATING)
def test_cheaper_variants_take_what_their_constraint_takes(name):
    case = CASES[name]
    constraint, x = case.make(), states(case)
    for cheaper in constraint.cheaper().values():
        answer = tt.core.constraint.Projection(None)._replace(x=cheaper.project(x))
        found = answer.x if isinstance(answer.x, torch.Tensor) else answer.x.x
        assert found.shape == x.shape
        assert found.isfinite().all()


def test_a_constraint_without_iterations_is_an_error():
    with pytest.raises(ValueError, match="Ball has no iterations"):
        FewIterations(Ball())


def wells(x):
    """A double well in every coordinate, (n, *event) to (n,)."""
    return ((x * x - 1) ** 2).flatten(1).sum(dim=1)


DESCENT = EnergyDescent(wells, steps=6, step_size=0.02, floor=0.1)


def test_energy_falls_with_a_small_step_size():
    x = numbers(20, 3, 2)
    y, last = x, DESCENT.defect(x)
    for _ in range(40):
        y, defect, *_ = DESCENT.improve(y)
        torch.testing.assert_close(defect, DESCENT.defect(y))
        assert (defect <= last).all()
        last = defect
    assert (last < 0.5 * DESCENT.defect(x)).all()
    assert not DESCENT.is_projection


def test_a_descent_is_its_steps_and_stops_at_the_floor():
    x = numbers(20, 3, 2)
    x[3] = 1.0  # in a well
    y = x
    for _ in range(DESCENT.steps):
        y = DESCENT.improve(y).x
    answer = DESCENT.project(x)
    torch.testing.assert_close(answer.x, y, rtol=0, atol=0)
    assert answer.converged is None
    assert torch.equal(answer.x[3], x[3])
    assert int(answer.iterations[3]) == 0
    assert int(answer.iterations.max()) == DESCENT.steps


def test_without_measuring_after_a_descent_reports_what_its_last_gradient_saw():
    calls = []

    def counted(x):
        calls.append(len(x))
        return wells(x)

    x = numbers(20, 3, 2)
    free = EnergyDescent(counted, steps=3, step_size=0.02, floor=0.1, measure_after=False)
    answer = free.project(x)
    assert len(calls) == 3
    torch.testing.assert_close(answer.x, replace(DESCENT, steps=3).project(x).x, rtol=0, atol=0)
    assert torch.equal(answer.residual, DESCENT.defect(replace(DESCENT, steps=2).project(x).x))
    improved = free.improve(x)
    assert torch.equal(improved.defect, DESCENT.defect(x))
    calls.clear()  # nothing else is measured in a run that does not ask for defects
    corrector = tt.Corrector(free, tt.Periodic(2), n_steps=4, closing="none", measure_defects=False)
    for t in range(4):
        x = corrector(x, t)
    assert len(calls) == 2 * 3
    assert corrector.rollout.residuals[corrector.rollout.projected].isfinite().all()


def test_rows_of_a_descent_are_independent():
    x = numbers(9, 4)
    whole = DESCENT.project(x).x
    for i in range(9):
        torch.testing.assert_close(DESCENT.project(x[i : i + 1]).x[0], whole[i], rtol=0, atol=1e-12)
    assert DESCENT.project(x[:0]).x.shape == (0, 4)
    x[2] = torch.nan
    torch.testing.assert_close(DESCENT.project(x).x[3:], whole[3:], rtol=0, atol=1e-12)


def test_a_descent_runs_without_gradients_of_the_caller():
    x = numbers(4, 3)
    expected = DESCENT.project(x).x
    with torch.no_grad():
        assert torch.equal(DESCENT.project(x).x, expected)
    with torch.inference_mode():
        inside = DESCENT.project(x.clone()).x
    torch.testing.assert_close(inside.clone(), expected)
    corrected = tt.Corrector(DESCENT, tt.Stepwise(), n_steps=1, closing="none")(x, 0)
    torch.testing.assert_close(corrected, expected)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: EnergyDescent(3, 1, 0.1), "energy"),
        (lambda: EnergyDescent(wells, 0, 0.1), "steps"),
        (lambda: EnergyDescent(wells, 1, 0.0), "step_size"),
        (lambda: EnergyDescent(lambda x: x, 1, 0.1).defect(torch.ones(2, 3)), r"shape \(2,\): got \(2, 3\)"),
    ],
)
def test_settings_of_a_descent_are_checked(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()


def test_prices_for_path_error_of_a_descent_warn():
    with pytest.warns(UserWarning, match="EnergyDescent is not a projection .* quality="):
        tt.Corrector(DESCENT, 0.5, n_steps=4, closing="none")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        judged = tt.prices.Learner(0.5, quality=lambda x: x.norm(dim=1))
        tt.Corrector(DESCENT, judged, n_steps=4, closing="none")
        tt.Corrector(Ball(), 0.5, n_steps=4)
