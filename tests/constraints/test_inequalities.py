"""Nonlinear inequalities: feasible, near, and honest about what has no solution."""

from __future__ import annotations

import pytest
import torch

from constraint_cases import beyond_disc, numbers, on_parabola, outside_disc
from trimtab.constraints import Ball, Box, NonlinearInequality, NonlinearProgram


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_box_written_as_inequalities_is_the_box(dtype):
    x = (3 * numbers(30, 5)).to(dtype)
    answer = NonlinearInequality(lambda y: torch.cat([y - 1, -y - 1])).project(x)
    assert answer.converged.all()
    off = 1e-4 if dtype == torch.float32 else 1e-6
    torch.testing.assert_close(answer.x, Box(-1.0, 1.0).project(x), rtol=0, atol=2 * off)


def test_a_ball_written_as_an_inequality_is_the_ball():
    x = 2 * numbers(30, 4)
    answer = NonlinearInequality(lambda y: (y * y).sum()[None] - 1).project(x)
    assert answer.converged.all()
    torch.testing.assert_close(answer.x, Ball().project(x), rtol=0, atol=2e-3)
    inside = (x.norm(dim=1) < 1).nonzero().squeeze(1)
    assert torch.equal(answer.x[inside], x[inside])


def test_it_ends_as_near_as_ipopt():
    pytest.importorskip("casadi", reason="the IPOPT projection needs casadi")
    x, p = 1.5 * numbers(40, 3, seed=5), numbers(40, 2, seed=3)
    answer = NonlinearInequality(beyond_disc, on_parabola, (p,)).project(x)
    peer = NonlinearProgram(outside_disc, p).project(x)
    assert answer.converged.all()
    ratio = (answer.x - x).norm(dim=1) / (peer.x - x).norm(dim=1)
    assert ratio.median() <= 1.001
    assert ratio.max() <= 1.5  # both are local


def test_what_has_no_solution_fails_alone():
    beyond = NonlinearInequality(lambda y, r: torch.stack([y[0] - r, 1 - y[0]]), data=(torch.tensor([2.0, 0.0]),))
    answer = beyond.project(torch.full((2, 2), 5.0, dtype=torch.float64))
    assert answer.converged.tolist() == [True, False]
    assert abs(float(answer.x[0, 0]) - 2) <= 1e-5
    assert answer.x.isfinite().all()


def test_a_state_that_is_not_finite_fails_alone():
    x = 2 * numbers(4, 3)
    x[1, 0], x[2, 2] = torch.nan, torch.inf
    answer = NonlinearInequality(lambda y: (y * y).sum()[None] - 1).project(x)
    assert answer.converged.tolist() == [True, False, False, True]


def test_improving_until_done_is_projecting():
    disc, x, state = NonlinearInequality(lambda y: 1 - (y * y).sum()[None]), 0.5 * numbers(12, 2), None
    whole = disc.project(x)
    y = x
    for _ in range(40):
        y, defect, done, state, _ = disc.improve(y, state)
        torch.testing.assert_close(defect, disc.defect(y))
        if done.all():
            break
    assert done.all()
    assert (defect <= 1e-6).all()
    torch.testing.assert_close(y, whole.x, rtol=0, atol=1e-2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: NonlinearInequality(3), "inequalities must be a function"),
        (lambda: NonlinearInequality(lambda y: y, 3), "equations must be a function"),
        (lambda: NonlinearInequality(lambda y: y, tolerance=-1.0), "above 0"),
    ],
)
def test_settings_that_mean_nothing_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_functions_of_a_batch_are_solved_as_those_of_a_sample():
    x, p = 1.5 * numbers(10, 3, seed=5), numbers(10, 2, seed=3)
    one = NonlinearInequality(beyond_disc, on_parabola, (p,)).project(x)
    many = NonlinearInequality(torch.func.vmap(beyond_disc), torch.func.vmap(on_parabola), (p,), batched=True).project(
        x
    )
    torch.testing.assert_close(one.x, many.x, rtol=0, atol=1e-9)
    assert torch.equal(one.converged, many.converged)


def test_functions_of_a_batch_must_keep_samples_apart():
    with pytest.raises(ValueError, match="its own sample alone"):
        NonlinearInequality(lambda y: y - y.mean(dim=0), batched=True).project(numbers(4, 3))


def test_a_function_that_fails_is_told_of_as_an_inequality():
    def slope(y):
        return torch.autograd.grad((y * y).sum(), y)[0]

    with pytest.raises(ValueError, match=r"of NonlinearInequality failed on states \(4, 3\).*batched=True"):
        NonlinearInequality(slope).project(numbers(4, 3))
    with pytest.raises(ValueError, match=r"NonlinearInequality must return \(m,\) values"):
        NonlinearInequality(lambda y: y.sum()).project(numbers(4, 3))
