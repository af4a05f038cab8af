"""Solvers: what they find, how they fail, and what they refuse."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec

import pytest
import torch

from constraint_cases import numbers, outside_disc
from trimtab.constraints import (
    SE3,
    AffineEquality,
    Ball,
    Box,
    HalfSpaces,
    NonlinearEquality,
    NonlinearProgram,
    Part,
    Product,
    Simplex,
    Sphere,
    Stiefel,
)
from trimtab.core.constraint import as_constraint

needs_daqp = pytest.mark.skipif(find_spec("daqp") is None, reason="DAQP is not installed")


@needs_daqp
def test_half_spaces_satisfy_the_optimality_conditions():
    A, b, x = numbers(12, 5), 0.3 * numbers(12, seed=1).abs(), 4 * numbers(40, 5, seed=2)
    answer = HalfSpaces(A, b).project(x)
    normals, offsets = A / A.norm(dim=1, keepdim=True), b / A.norm(dim=1)
    assert answer.converged.all()
    for point, y in zip(x, answer.x, strict=True):
        touching = (normals @ y - offsets).abs() < 1e-9
        step = point - y  # a sum of touching normals with multipliers of at least 0
        multipliers = torch.linalg.lstsq(normals[touching].T, step[:, None]).solution.squeeze(1)
        assert (multipliers >= -1e-9).all()
        assert (normals[touching].T @ multipliers - step).norm() <= 1e-9


@needs_daqp
def test_half_spaces_leave_points_inside_as_they_are():
    x = 0.01 * numbers(5, 3)
    answer = HalfSpaces(numbers(4, 3), torch.ones(4)).project(x)
    assert torch.equal(answer.x, x)
    assert (answer.iterations == 0).all()


@needs_daqp
def test_half_spaces_that_leave_nothing_fail_for_their_sample_only():
    A = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)
    b = torch.tensor([[1.0, 1.0], [-1.0, -1.0], [0.5, 0.5]], dtype=torch.float64)
    answer = HalfSpaces(A, b).project(torch.full((3, 2), 3.0, dtype=torch.float64))
    assert answer.converged.tolist() == [True, False, True]
    assert answer.x[0].tolist() == [1.0, 3.0]
    assert answer.x[2].tolist() == [0.5, 3.0]


@needs_daqp
def test_a_plane_that_is_far_away_excuses_no_other():
    A = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    answer = HalfSpaces(A, torch.tensor([0.0, -1.0, 1e7], dtype=torch.float64)).project(torch.zeros(1, 2).double())
    assert answer.converged.tolist() == [False]


@needs_daqp
def test_half_spaces_take_tensors_laid_out_in_any_way():
    A, b, x = numbers(6, 4), numbers(5, 6, seed=1).abs(), 3 * numbers(5, 4, seed=2)
    turned = HalfSpaces(A.T.contiguous().T, b.T.contiguous().T).project(x.T.contiguous().T)
    torch.testing.assert_close(turned.x, HalfSpaces(A, b).project(x).x, rtol=0, atol=1e-12)


@needs_daqp
def test_parallel_and_repeated_planes_do_no_harm():
    A = torch.tensor([[1.0, 0.0], [2.0, 0.0], [1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    answer = HalfSpaces(A, torch.tensor([1.0, 1.0, 1.0, 0.0])).project(torch.tensor([[3.0, 3.0]], dtype=torch.float64))
    assert answer.converged.all()
    assert torch.allclose(answer.x, torch.tensor([[0.5, 0.0]], dtype=torch.float64), rtol=0, atol=1e-12)


@needs_daqp
def test_a_point_that_is_not_finite_fails_alone():
    planes, x = HalfSpaces(numbers(6, 4), numbers(6, seed=1).abs()), 3 * numbers(5, 4, seed=2)
    x[1, 2], x[3, 0] = torch.nan, torch.inf
    answer = planes.project(x)
    assert answer.converged.tolist() == [True, False, True, False, True]
    torch.testing.assert_close(answer.x[[0, 2, 4]], planes.project(x[[0, 2, 4]]).x, rtol=0, atol=1e-12)


@needs_daqp
def test_a_plane_may_be_infinitely_far():
    answer = HalfSpaces(torch.eye(2), torch.tensor([1.0, torch.inf])).project(torch.full((1, 2), 3.0))
    assert answer.converged.all()
    assert answer.x.tolist() == [[1.0, 3.0]]


def test_equations_are_solved_at_the_nearest_point():
    ellipse = NonlinearEquality(
        lambda y: (y[0] ** 2 / 4 + y[1] ** 2 - 1)[None], refinements=100, nearness=0.0, tolerance=1e-13
    )
    x = torch.tensor([[2.0, 2.0]], dtype=torch.float64)
    y = ellipse.project(x).x[0]
    normal = torch.stack([y[0] / 2, 2 * y[1]])
    step = x[0] - y
    assert abs(float(normal[0] * step[1] - normal[1] * step[0])) <= 1e-6  # the way back is along the normal


def test_equations_without_a_solution_fail_for_their_sample_only():
    circle = NonlinearEquality(lambda y, r: (y * y).sum()[None] - r, (torch.tensor([1.0, -1.0, 4.0]),))
    answer = circle.project(torch.tensor([[3.0, 4.0]] * 3, dtype=torch.float64))
    assert answer.converged.tolist() == [True, False, True]
    assert torch.allclose(answer.x[0], torch.tensor([0.6, 0.8], dtype=torch.float64))
    assert torch.allclose(answer.x[2], torch.tensor([1.2, 1.6], dtype=torch.float64))
    assert answer.x.isfinite().all()


def test_repeated_equations_are_no_obstacle():
    twice = NonlinearEquality(lambda y: torch.stack([y.sum() - 1, y.sum() - 1]))
    answer = twice.project(torch.tensor([[1.0, 1.0]], dtype=torch.float64))
    assert answer.converged.all()
    assert torch.allclose(answer.x, torch.tensor([[0.5, 0.5]], dtype=torch.float64))


def test_an_equation_flat_at_the_start_fails_and_says_so():
    answer = NonlinearEquality(lambda y: (y**2).sum()[None] - 1).project(torch.zeros(1, 2, dtype=torch.float64))
    assert not answer.converged.any()


def test_simplex_against_a_search():
    x = numbers(3, 2, seed=4)
    share = torch.linspace(0, 1, 100_001, dtype=torch.float64)
    points = torch.stack([share, 1 - share], dim=1)
    for point, found in zip(x, Simplex().project(x), strict=True):
        best = points[(points - point).norm(dim=1).argmin()]
        assert (found - best).abs().max() <= 2e-5


def test_the_centre_of_a_sphere_goes_somewhere_on_it():
    assert Sphere(2.0).defect(Sphere(2.0).project(torch.zeros(2, 3))).max() == 0


def test_a_free_translation_stays():
    pose = numbers(4, 3, 4)
    assert torch.equal(SE3().project(pose)[..., 3], pose[..., 3])


def test_programs_in_a_pool_give_what_one_process_gives():
    pytest.importorskip("casadi", reason="the IPOPT projection needs casadi")
    x, parameters = numbers(6, 3), numbers(6, 2, seed=3)
    alone = NonlinearProgram(outside_disc, parameters).project(x)
    pooled = NonlinearProgram(outside_disc, parameters, workers=2)
    answer = pooled.project(x)
    pooled.close()
    assert torch.equal(answer.x, alone.x)
    assert torch.equal(answer.iterations, alone.iterations)
    assert answer.converged.all()


def test_bounds_of_a_program_are_those_that_conditions_would_state():
    pytest.importorskip("casadi", reason="the IPOPT projection needs casadi")

    def plane(y, p):
        return [], [y[0] + y[1] + y[2] - 1]

    def plane_and_box(y, p):
        return [y[i] - 0.5 for i in range(3)] + [-y[i] for i in range(3)], [y[0] + y[1] + y[2] - 1]

    x = numbers(6, 3)
    zero, half = torch.zeros(3), torch.full((3,), 0.5)
    native, stated = NonlinearProgram(plane, bounds=(zero, half)), NonlinearProgram(plane_and_box)
    assert (native.project(x).x - stated.project(x).x).abs().max() <= 1e-4  # both stop within a barrier of a bound
    assert torch.equal(native.defect(x), stated.defect(x))


def test_improving_a_program_goes_on_to_the_nearest_state_past_feasible_ones():
    pytest.importorskip("casadi", reason="the IPOPT projection needs casadi")
    centres = numbers(12, 6).tolist()

    def outside_balls(y, p):
        away = [sum((y[i] - c[i]) ** 2 for i in range(6)) for c in centres]
        return [*(1.5 - far for far in away), sum(y[i] ** 4 for i in range(6)) - 3], []

    program, x = NonlinearProgram(outside_balls), 1.2 * numbers(60, 6, seed=1)
    whole = program.project(x)
    y, state, done = x, None, torch.zeros(60, dtype=torch.bool)
    for _ in range(20):
        answer = program.improve(y, state)
        y, state, done = torch.where(done[:, None], y, answer.x), answer.state, done | answer.done
    assert done.all()
    far, best = ((z - x).norm(dim=1) for z in (y, whole.x))
    assert (far <= 1.0001 * best + 1e-6).all()


def test_bounds_of_a_program_are_checked():
    pytest.importorskip("casadi", reason="the IPOPT projection needs casadi")
    with pytest.raises(ValueError, match="lower <= upper: got 1 and 0 for number 2"):
        NonlinearProgram(outside_disc, numbers(2, 2), bounds=(torch.tensor([0.0, 0.0, 1.0]), torch.zeros(3)))
    with pytest.raises(ValueError, match=r"got shapes \(2,\) and \(3,\)"):
        NonlinearProgram(outside_disc, numbers(2, 2), bounds=(torch.zeros(2), torch.zeros(3)))
    with pytest.raises(ValueError, match="bounds for 2 numbers, but a state has 3"):
        NonlinearProgram(outside_disc, numbers(2, 2), bounds=(torch.zeros(2), torch.ones(2))).project(numbers(2, 3))


def test_a_program_without_a_solution_fails_for_its_sample_only():
    pytest.importorskip("casadi", reason="the IPOPT projection needs casadi")

    def inside(y, p):
        return [y[0] ** 2 - p[0]], []

    program = NonlinearProgram(inside, torch.tensor([[1.0], [-1.0]]))
    answer = program.project(torch.full((2, 1), 3.0, dtype=torch.float64))
    assert answer.converged.tolist() == [True, False]
    assert abs(float(answer.x[0]) - 1) <= 1e-6


def test_importing_the_constraints_does_not_import_casadi():
    code = "import sys, trimtab.constraints as c; c.Box, c.NonlinearProgram; assert 'casadi' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AffineEquality(torch.ones(2, 3), torch.ones(3)), r"\(m, d\) and b .* got \(2, 3\) and \(3,\)"),
        (lambda: AffineEquality(torch.ones(2, 3), torch.tensor([0.0, 1.0])), "contradict each other"),
        (
            lambda: AffineEquality(torch.ones(2, 2), torch.tensor([[1e7, 1e7], [1.0, 1.5]])),
            "contradict each other for sample 1",
        ),
        (lambda: Box(1.0, 0.0), "low <= high"),
        (lambda: Box(torch.inf, torch.inf), "a finite number between"),
        (lambda: Box(torch.zeros(3), torch.ones(2)), r"low of shape \(3,\) and high of shape \(2,\)"),
        (lambda: Sphere(1.0, torch.tensor(0.0)), "a tensor of no dimension"),
        (lambda: Simplex(0.0), "number above 0"),
        (lambda: Ball(-1.0), "above 0: got -1.0"),
        (lambda: Sphere(float("nan")), "radius"),
        (lambda: HalfSpaces(torch.ones(2, 3), torch.ones(1)), "got"),
        (lambda: HalfSpaces(torch.zeros(1, 3), torch.ones(1)), "row 0 of A is 0"),
        (lambda: HalfSpaces(torch.ones(1, 3), torch.tensor([-torch.inf])), "b = -inf"),
        (lambda: HalfSpaces(torch.ones(1, 3), torch.ones(1), tolerance=-1.0), "above 0: got -1.0"),
        (lambda: HalfSpaces(torch.ones(1, 3), torch.ones(1), max_iterations=0), "at least 1: got 0"),
        (lambda: SE3(alpha=-1.0), "at least 0"),
        (lambda: Stiefel().project(torch.zeros(1, 2, 3)), "q <= p"),
        (lambda: Product((Part(0, 3, Ball()), Part(2, 4, Ball()))), "overlap"),
        (lambda: Product((Part(3, 3, Ball()),)), "start < stop"),
        (lambda: Product((Part(0, 9, Ball()),)).defect(torch.zeros(1, 3)), "ends at coordinate 9"),
        (
            lambda: Product((Part(0, 3, as_constraint(lambda x: x[:, :1], lambda x: x[:, 0])),)).project(
                torch.zeros(2, 4)
            ),
            r"part 0 to 3 must return .* given, \(2, 3\): got \(2, 1\)",
        ),
    ],
)
def test_bad_settings_are_explained(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@needs_daqp
def test_a_sample_of_half_spaces_does_not_depend_on_the_samples_before():
    A, b, x = numbers(12, 5, seed=0), numbers(12, seed=1).abs(), 2 * numbers(30, 5, seed=2)
    planes = HalfSpaces(A, b)
    together = planes.project(x).x
    others = [planes.project(x.flip(0)).x.flip(0), torch.cat([planes.project(row[None]).x for row in x])]
    others += [pickle.loads(pickle.dumps(planes)).project(x).x, copy.deepcopy(planes).project(x).x]
    for other in others:
        torch.testing.assert_close(together, other, rtol=0, atol=1e-10)
    own = HalfSpaces(A, b + torch.arange(30.0, dtype=torch.float64)[:, None] / 30)
    apart = own.take(torch.tensor([7, 3])).project(x[[7, 3]]).x
    torch.testing.assert_close(own.project(x).x[[7, 3]], apart, rtol=0, atol=1e-10)
    torch.testing.assert_close(HalfSpaces(A, own.b[3]).project(x[3:4]).x, apart[1:], rtol=0, atol=1e-10)


@needs_daqp
def test_threads_share_half_spaces():
    planes, x = HalfSpaces(numbers(12, 5, seed=0), numbers(12, seed=1).abs()), 2 * numbers(400, 5, seed=2)
    expected = planes.project(x).x
    with ThreadPoolExecutor(4) as pool:
        parts = list(pool.map(lambda part: planes.project(part).x, x.split(10)))
    torch.testing.assert_close(torch.cat(parts), expected, rtol=0, atol=1e-10)
