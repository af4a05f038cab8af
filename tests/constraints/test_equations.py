"""Nonlinear equations: every way of solving them finds solutions, and says so where it does not."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from constraint_cases import numbers, torus
from trimtab.constraints import NonlinearEquality, NonlinearInequality

WAYS = {
    "fresh": {},
    "frozen": {"jacobian": "frozen", "max_iterations": 60},
    "one Jacobian": {"jacobian": torch.func.jacrev(torus)(torch.tensor([2.0, 0.3, 0.0])), "max_iterations": 60},
}
every_way = pytest.mark.parametrize("way", WAYS)


@every_way
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_way_finds_solutions_to_what_the_dtype_allows(way, dtype):
    x = numbers(20, 3, seed=1).to(dtype)
    answer = NonlinearEquality(torus, **WAYS[way]).project(x)
    assert answer.converged.all()
    assert answer.x.dtype == dtype
    assert NonlinearEquality(torus).defect(answer.x).max() <= (1e-5 if dtype == torch.float32 else 1e-8)


@pytest.mark.parametrize(
    "way", [way for way in WAYS if way != "one Jacobian"]
)  # steps that are short there are longer elsewhere
def test_ways_end_about_as_near(way):
    x = numbers(20, 3, seed=1)
    nearest = NonlinearEquality(torus, refinements=60, nearness=0.0).project(x).x
    found = NonlinearEquality(torus, **WAYS[way]).project(x).x
    assert ((found - x).norm(dim=1) <= 1.1 * (nearest - x).norm(dim=1) + 1e-6).all()


@every_way
def test_improving_until_done_solves_the_equations(way):
    equations, x, state = NonlinearEquality(torus, **WAYS[way]), numbers(12, 3, seed=2), None
    last = equations.defect(x)
    for _ in range(80):
        x, defect, done, state, _ = equations.improve(x, state)
        assert (defect <= last + 1e-12).all()
        torch.testing.assert_close(defect, equations.defect(x))
        assert all(len(part) == 12 for part in state)
        last = defect
        if done.all():
            break
    assert (last <= 1e-8).all()


@settings(max_examples=20)
@given(p=st.integers(0, 4), q=st.integers(0, 3), seed=st.integers(0, 1000))
def test_linear_equations_among_others_are_solved(p, q, seed):
    if p + q == 0:
        return
    A, B = numbers(p, 8, seed=seed), 0.2 * numbers(q, 8, 8, seed=seed + 1)

    def equations(y, own):
        return torch.cat([A @ y - own[:p], torch.einsum("qij,i,j->q", B, y, y) + y[:q] - own[p : p + q]])

    x, own = numbers(5, 8, seed=seed + 2), 0.1 * numbers(5, 7, seed=seed + 3)
    constraint = NonlinearEquality(equations, (own,), refinements=0)
    answer = constraint.project(x)
    assert answer.converged.double().mean() >= 0.6
    assert (constraint.defect(answer.x)[answer.converged] <= 1e-8).all()


def test_a_function_that_overflows_far_out_is_solved_where_it_does_not():
    growing = NonlinearEquality(lambda y: torch.stack([y.sum() - 1, y.exp().sum() - 6]))
    assert growing.project(numbers(4, 3)).converged.all()


def test_more_equations_than_unknowns_are_solved_where_they_agree():
    matrix = numbers(9, 3)
    many = NonlinearEquality(lambda y: matrix @ (y**3))
    answer = many.project(numbers(4, 3, seed=1))
    assert answer.converged.all()


def energy_gradient(y):
    """A user's function that takes a derivative of its own, (n, d) to (n, 1)."""
    with torch.enable_grad():
        at = y if y.requires_grad else y.detach().requires_grad_()
        (slope,) = torch.autograd.grad((at**4).sum() / 4 + (at * at).sum() / 2, at, create_graph=True)
    return slope[:, :1] - 1


def test_a_function_may_take_derivatives_of_its_own():
    equations = NonlinearEquality(energy_gradient, batched=True)
    with torch.no_grad():  # as in a corrector
        answer = equations.project(numbers(3, 2))
        assert equations.defect(answer.x).max() <= 1e-8
    assert answer.converged.all()
    with pytest.raises(ValueError, match="needs batched=True"):
        NonlinearEquality(energy_gradient).defect(numbers(3, 2))


def in_inference_mode(equations, x):
    with torch.inference_mode():
        return equations.project(x.clone()).x


def under_a_transform(equations, x):
    found = []

    def spread(scale):
        found.append(equations.project(x).x)
        return (scale * found[0]).sum()

    torch.func.grad(spread)(torch.tensor(1.0))
    return found[0]


@every_way
@pytest.mark.parametrize("call", [in_inference_mode, under_a_transform])
def test_solutions_are_the_same_where_ordinary_derivatives_cannot_be_taken(way, call):
    equations, x = NonlinearEquality(torus, **WAYS[way]), numbers(6, 3, seed=4)
    torch.testing.assert_close(call(equations, x).clone(), equations.project(x).x)


def test_a_function_may_use_tensors_that_were_made_in_inference_mode():
    with torch.inference_mode():
        radii = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    ellipsoid = NonlinearEquality(lambda y: ((y / radii) ** 2).sum()[None] - 1)
    assert ellipsoid.project(numbers(5, 3)).converged.all()


@pytest.mark.parametrize("make", [NonlinearEquality, NonlinearInequality])
def test_values_in_another_dtype_are_refused(make):
    rough = make(lambda y: (y * y).sum()[None].float() - 1)
    for call in (rough.project, rough.defect, rough.improve):
        with pytest.raises(ValueError, match=rf"{make.__name__} must return values in the dtype of the states"):
            call(*([numbers(4, 3)] if call != rough.improve else [numbers(4, 3), None]))


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_equations_that_do_not_depend_on_the_state_hold_or_fail_for_all(value):
    constant = NonlinearEquality(lambda y: torch.full((2,), value, dtype=y.dtype))
    answer = constant.project(numbers(4, 3))
    assert torch.equal(answer.x, numbers(4, 3))
    assert answer.converged.tolist() == [value == 0.0] * 4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tolerance": 0.0}, "above 0"),
        ({"jacobian": "sometimes"}, "must be one of"),
        ({"jacobian": torch.full((2, 3), torch.nan)}, "a Jacobian for all samples"),
        ({"jacobian": torch.zeros(3)}, "a Jacobian for all samples"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        NonlinearEquality(torus, **settings)


def test_kept_jacobians_find_the_solution_that_plain_chord_steps_find():
    """Steps are extrapolated within their own span, where the solution is one."""
    reference = torch.tensor([1.9, 0.4, 0.6], dtype=torch.float64)
    x = reference + 0.1 * numbers(6, 3, seed=3)
    gradient = torch.func.jacrev(torus)(reference)
    step = gradient.T @ torch.linalg.inv(gradient @ gradient.T)
    y = x
    for _ in range(200):
        y = y - torch.func.vmap(torus)(y) @ step.T
    equations = NonlinearEquality(torus, jacobian=gradient, refinements=0, tolerance=1e-12)
    found = equations.project(x)
    torch.testing.assert_close(found.x, y, atol=1e-9, rtol=0)
    assert int(found.iterations.max()) <= 10


@every_way
def test_a_function_of_a_batch_is_solved_as_that_of_a_sample(way):
    x, radii = numbers(12, 3, seed=1), 1 + 0.1 * numbers(12, seed=2).abs()
    settings = WAYS[way]
    one = NonlinearEquality(lambda y, r: torus(y) + r - 1, (radii,), **settings)
    all_at_once = torch.func.vmap(one.function)
    many = NonlinearEquality(all_at_once, (radii,), batched=True, **settings)
    answers = [each.project(x) for each in (one, many)]
    torch.testing.assert_close(answers[0].x, answers[1].x, rtol=0, atol=1e-9)
    assert answers[1].converged.all()
    torch.testing.assert_close(one.improve(x).defect, many.improve(x).defect)
    rows = torch.tensor([3, 0, 7])
    torch.testing.assert_close(many.take(rows).defect(x[rows]), one.take(rows).defect(x[rows]))


@pytest.mark.parametrize("call", ["project", "defect", "improve"])
def test_a_function_of_a_batch_must_keep_samples_apart(call):
    centred = NonlinearEquality(lambda y: y - y.mean(dim=0), batched=True)
    with pytest.raises(ValueError, match="its own sample alone"):
        getattr(centred, call)(numbers(4, 3))


@pytest.mark.parametrize("wrong", [lambda y: y.sum(), lambda y: y[:1], lambda y: 3.0])
def test_a_function_of_a_batch_answers_for_every_sample(wrong):
    with pytest.raises(ValueError, match=r"must return \(n, m\) values for a batch"):
        NonlinearEquality(wrong, batched=True).project(numbers(4, 3))


def test_a_jacobian_of_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"has shape \(2, 2\), \(m, d\), but states \(2, 3\) have 3 numbers"):
        NonlinearEquality(torus, jacobian=torch.eye(2)).project(numbers(2, 3))


def test_cheaper_variants_are_nearer_to_the_set_than_the_states_and_the_first_is_one_frozen_iteration():
    equations, x = NonlinearEquality(torus), numbers(20, 3, seed=1)
    cheaper = equations.cheaper()
    assert next(iter(cheaper)) == "frozen Jacobian, 1 iteration"
    for constraint in cheaper.values():
        answer = constraint.project(x)
        assert (answer.residual <= equations.defect(x)).all()
        assert answer.iterations.sum() <= equations.project(x).iterations.sum()
    first = cheaper["frozen Jacobian, 1 iteration"].project(x)
    torch.testing.assert_close(first.x, equations.improve(x).x)
    assert first.iterations.max() == 1
