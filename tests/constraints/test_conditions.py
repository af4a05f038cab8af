"""Functions of one sample or of a batch: how they are called, and what is refused of their answers."""

from __future__ import annotations

import pytest
import torch

from constraint_cases import numbers
from trimtab.constraints import NonlinearEquality, NonlinearInequality


def to_radius(y, radius):
    return (y * y).sum()[None] - radius


def to_radii(y, radius):
    return (y * y).sum(dim=1, keepdim=True) - radius[:, None]


WAYS = {
    "vmap": lambda data: NonlinearEquality(to_radius, data),
    "batched": lambda data: NonlinearEquality(to_radii, data, batched=True),
    "inequality": lambda data: NonlinearInequality(to_radius, data=data),
    "batched inequality": lambda data: NonlinearInequality(to_radii, data=data, batched=True),
}
every_way = pytest.mark.parametrize("way", WAYS)


@every_way
def test_solutions_are_the_same_in_inference_mode(way):
    x, radius = numbers(5, 3), numbers(5, seed=1).abs() + 0.5
    expected = WAYS[way]((radius,)).project(x)
    assert expected.converged.all()
    with torch.inference_mode():
        inside, made_inside = WAYS[way]((radius.clone(),)).project(x.clone()), x.clone()
    after = WAYS[way]((radius,)).project(made_inside)
    for found in (inside, after):
        torch.testing.assert_close(found.x.clone(), expected.x)


@every_way
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_data_in_another_dtype_is_brought_to_that_of_the_states(way, dtype):
    x, radius = numbers(5, 3).to(dtype), numbers(5, seed=1).abs() + 0.5
    found = WAYS[way]((radius.float(),)).project(x)
    assert found.x.dtype == dtype
    assert torch.equal(found.x, WAYS[way]((radius.float().to(dtype),)).project(x).x)
    whole = WAYS[way]((torch.arange(1, 6),)).project(x)  # which stays what it is
    assert whole.converged.all()


@every_way
def test_samples_taken_from_those_taken_are_the_same_samples(way):
    x, radius = numbers(5, 3), numbers(5, seed=1).abs() + 0.5
    constraint = WAYS[way]((radius,))
    taken = constraint.take(torch.tensor([4, 0, 2])).take(torch.tensor([2, 0]))
    for some, rows in ((taken, [2, 4]), (constraint.take(torch.arange(4, -1, -1)), [4, 3, 2, 1, 0])):
        torch.testing.assert_close(some.project(x[rows]).x, constraint.project(x).x[rows])
        torch.testing.assert_close(some.defect(x[rows]), constraint.defect(x)[rows])


@pytest.mark.parametrize("settings", [{}, {"batched": True}, {"jacobian": "frozen"}])
def test_no_equations_are_solved_by_every_state(settings):
    x = numbers(4, 3)
    free = NonlinearEquality(lambda y: y[..., :0], **settings)
    answer = free.project(x)
    assert torch.equal(answer.x, x)
    assert answer.converged.all()
    assert free.improve(x).done.all()
    assert torch.equal(free.defect(x), torch.zeros(4, dtype=torch.float64))


@pytest.mark.parametrize("make", [NonlinearEquality, NonlinearInequality])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_first_sample_that_is_not_finite_fails_alone(make, bad):
    x = numbers(4, 3)
    x[0, 1] = bad
    answer = make(lambda y: (y * y).sum(dim=1, keepdim=True) - 1, batched=True).project(x)
    assert answer.converged.tolist() == [False, True, True, True]


@pytest.mark.parametrize("make", [NonlinearEquality, NonlinearInequality])
@pytest.mark.parametrize("first", ["one sample", "not finite"])
def test_samples_are_kept_apart_also_where_the_first_call_could_not_tell(make, first):
    def mixing(y):
        return y - y.mean(dim=0) * y[:, :1].isfinite()

    mixed, x = make(mixing, batched=True), numbers(4, 3)
    mixed.defect(x[:1] if first == "one sample" else torch.full_like(x, torch.nan))
    with pytest.raises(ValueError, match="its own sample alone"):
        mixed.project(x)


@pytest.mark.parametrize("make", [NonlinearEquality, NonlinearInequality])
def test_a_sample_that_spoils_another_is_seen(make):
    x = numbers(4, 3)
    x[2] = torch.nan
    with pytest.raises(ValueError, match=r"its own sample alone: the first row starts with \[nan, nan, nan\] among 4"):
        make(lambda y: y - y.mean(dim=0), batched=True).defect(x)
