"""The laws of a constraint, each stated once over every ready one."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from constraint_cases import CASES, N, states
from trimtab.constraints import FewIterations, NonlinearEquality
from trimtab.core.constraint import Constraint, Projection

every_case = pytest.mark.parametrize("name", CASES)
SAME = {torch.float64: 1e-9, torch.float32: 1e-4}
"""How far two computations of the same number may be apart, relative and absolute."""
every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


def project(constraint: Constraint, x: Tensor) -> Projection:
    answer = constraint.project(x)
    return answer if isinstance(answer, Projection) else Projection(answer)


def tolerance(name: str, dtype: torch.dtype) -> float:
    """In float32 the same multiple of its last place as in float64, and room for sums of a dozen terms."""
    exact = CASES[name].tolerance
    return exact if dtype == torch.float64 else max(exact, 2e-5 if exact > 0 else 0.0)


@every_case
@every_dtype
def test_projected_states_are_feasible_and_keep_shape_and_dtype(name, dtype):
    case = CASES[name]
    constraint, x = case.make(), states(case, dtype)
    answer = project(constraint, x)
    assert answer.x.shape == x.shape
    assert answer.x.dtype == dtype
    if answer.converged is not None:
        assert answer.converged.all()
    defect = constraint.defect(answer.x)
    assert defect.shape == (N,)
    assert defect.dtype == dtype
    assert (defect <= tolerance(name, dtype)).all()


@every_case
@every_dtype
def test_projecting_twice_changes_nothing(name, dtype):
    case = CASES[name]
    constraint = case.make()
    once = project(constraint, states(case, dtype)).x
    twice = project(constraint, once).x
    assert (twice - once).abs().max() <= 10 * tolerance(name, dtype)


@every_case
@settings(max_examples=15)
@given(seed=st.integers(0, 10**6), scale=st.sampled_from([0.01, 1.0, 3.0]))
def test_the_defect_is_at_least_0_and_is_0_only_where_projection_changes_nothing(name, seed, scale):
    case = CASES[name]
    constraint = case.make()
    x = states(case, seed=seed, scale=scale)
    defect = constraint.defect(x)
    moved = (project(constraint, x).x - x).flatten(1).norm(dim=1)
    assert (defect >= 0).all()
    assert (moved[defect == 0] <= 1e-12).all()
    assert (defect[moved > 10 * max(case.tolerance, 1e-13)] > 0).all()


@every_case
@settings(max_examples=15)
@given(seed=st.integers(0, 10**6))
def test_no_feasible_state_is_nearer_than_the_projection(name, seed):
    case = CASES[name]
    if not case.nearest:
        pytest.skip("this projection promises a feasible state, not the nearest")
    constraint, x = case.make(), states(case, seed=seed)
    nearest = (project(constraint, x).x - x).flatten(1).norm(dim=1)
    for other in (0, 1, 2):  # states near and far, made feasible
        candidate = project(constraint, x + 10.0 ** (-other) * states(case, seed=seed + 1 + other)).x
        assert ((candidate - x).flatten(1).norm(dim=1) >= nearest - 1e-9).all()


@every_case
@every_dtype
def test_a_sample_alone_equals_the_sample_in_a_batch(name, dtype):
    case = CASES[name]
    constraint, x = case.make(), states(case, dtype)
    whole, defect = project(constraint, x).x, constraint.defect(x)
    off = SAME[dtype]
    for rows in [torch.tensor([i]) for i in range(N)] + [torch.tensor([3, 1]), torch.arange(N).flip(0)]:
        for some in (constraint.take(rows), case.make().take(rows)):
            torch.testing.assert_close(project(some, x[rows]).x, whole[rows], rtol=off, atol=off)
            torch.testing.assert_close(some.defect(x[rows]), defect[rows], rtol=off, atol=off)


@every_case
@every_dtype
def test_no_states_are_projected_to_none(name, dtype):
    case = CASES[name]
    constraint, x = case.make().take(torch.zeros(0, dtype=torch.int64)), states(case, dtype)[:0]
    answer = project(constraint, x)
    assert answer.x.shape == x.shape
    assert answer.x.dtype == dtype
    for outcome, kind in ((answer.converged, torch.bool), (answer.iterations, torch.int64), (answer.residual, dtype)):
        assert outcome is None or (outcome.shape == (0,) and outcome.dtype == kind)
    assert constraint.defect(x).shape == (0,)
    if constraint.improves:
        better = constraint.improve(x, None)
        assert better.x.shape == x.shape
        assert better.defect.shape == better.done.shape == (0,)
        assert constraint.improve(better.x, better.state).x.shape == x.shape


@every_case
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_state_that_is_not_finite_leaves_the_others_alone(name, bad):
    case = CASES[name]
    constraint, x = case.make(), states(case)
    expected = answers(constraint, x)
    x[3].view(-1)[1] = bad
    others = torch.arange(N) != 3
    off = SAME[x.dtype]
    for found, same in zip(answers(constraint, x), expected, strict=True):
        torch.testing.assert_close(found[others], same[others], rtol=off, atol=off)
    answer = project(constraint, x)
    if answer.converged is not None and not answer.x[3].isfinite().all():
        assert not answer.converged[3]


@every_case
def test_what_has_been_used_can_be_sent_elsewhere_and_copied(name):
    case = CASES[name]
    constraint, x = case.make(), states(case)
    try:
        pickle.dumps(constraint)
    except (AttributeError, pickle.PicklingError):
        pytest.skip("this constraint is made of a function that cannot be sent")
    expected = answers(constraint, x)
    for copied in (pickle.loads(pickle.dumps(constraint)), copy.deepcopy(constraint)):
        for found, same in zip(answers(copied, x), expected, strict=True):
            torch.testing.assert_close(found, same, rtol=SAME[x.dtype], atol=SAME[x.dtype])


@every_case
def test_what_derives_from_a_constraint_stays_what_it_is(name):
    """For some samples, as a copy and in its cheaper forms: with its class, and what that holds of its own."""
    constraint = CASES[name].make()
    constraint.defect(states(CASES[name]))  # what is found once is there
    base = type(constraint)

    class Derived(base):
        def __init__(self, own):  # not the base's arguments
            self.__dict__.update(constraint.__dict__, own=own)

    derived = Derived(3)
    some = derived.take(torch.tensor([4, 0]))
    cheaper = [c.constraint if isinstance(c, FewIterations) else c for c in derived.cheaper().values()]
    for other in (some, some.take(torch.tensor([1])), copy.copy(derived), *cheaper):
        assert type(other) is Derived
        assert other.own == 3


def layouts(x: Tensor) -> dict[str, Tensor]:
    """The same numbers, as they may lie in memory."""
    turned = tuple(reversed(range(x.ndim)))
    return {
        "samples last": x.movedim(0, -1).contiguous().movedim(-1, 0),
        "the other way round": x.permute(turned).contiguous().permute(turned),
        "between others": torch.stack([x, x + 1], dim=-1)[..., 0],
        "still to be negated": torch.complex(torch.zeros_like(x), -x).conj().imag,
    }


def answers(constraint: Constraint, x: Tensor) -> list[Tensor]:
    """All that depends on the states: projected, measured, and improved twice."""
    found = [project(constraint, x).x, constraint.defect(x)]
    if constraint.improves:
        first = constraint.improve(x, None)
        found += [first.x, constraint.improve(first.x, first.state).x]
    return found


@every_case
@every_dtype
def test_how_numbers_lie_in_memory_makes_no_difference(name, dtype):
    case = CASES[name]
    constraint, x = case.make(), states(case, dtype)
    off = SAME[dtype]
    whole, alone = answers(constraint, x), constraint.take(torch.tensor([4]))
    for same in layouts(x).values():
        assert torch.equal(same, x)
        for found, expected in zip(answers(constraint, same), whole, strict=True):
            torch.testing.assert_close(found, expected, rtol=off, atol=off)
        for found, expected in zip(answers(alone, same[4:5]), whole, strict=True):
            torch.testing.assert_close(found[0], expected[4], rtol=off, atol=off)


OF_ANY_SIZE = ("simplex", "ball", "sphere", "so3", "se3 in a workspace", "stiefel")
"""Whose projections are exact, however large or small the numbers are."""


@pytest.mark.parametrize("name", OF_ANY_SIZE)
@pytest.mark.parametrize(
    ("dtype", "size"), [(torch.float32, 1e20), (torch.float32, 1e-25), (torch.float64, 1e200), (torch.float64, 1e-170)]
)
def test_states_of_any_size_are_projected(name, dtype, size):
    case = CASES[name]
    constraint = case.make()
    projected = project(constraint, (size * states(case)).to(dtype)).x
    assert (constraint.defect(projected) <= tolerance(name, dtype)).all()


@pytest.mark.parametrize("name", [name for name in OF_ANY_SIZE if CASES[name].make().improves])
@pytest.mark.parametrize(
    ("dtype", "sizes"), [(torch.float32, (1e-25, 1e-15, 1e12, 1e37)), (torch.float64, (1e-170, 1e-107, 1e102, 1e307))]
)
def test_states_of_any_size_are_improved_to_their_projections(name, dtype, sizes):
    case = CASES[name]
    constraint = case.make()
    for size in sizes:
        x = (size * states(case)).to(dtype)
        y, done = x, torch.zeros(N, dtype=torch.bool)
        for _ in range(60):
            y, _, done, *_ = constraint.improve(y, None)
        assert done.all()
        off = 1e4 * torch.finfo(dtype).eps
        torch.testing.assert_close(y, project(constraint, x).x, rtol=off, atol=off)


@pytest.mark.parametrize("name", ["so3", "stiefel"])
@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 1e12), (torch.float64, 1e90)])
def test_a_defect_is_finite_where_it_can_be_and_leaves_the_others_alone(name, dtype, size):
    case = CASES[name]
    constraint, x = case.make(), states(case).to(dtype)
    usual, large = constraint.defect(x), x[0].double().clone()
    x[0] *= size
    x[1] = torch.nan
    found = constraint.defect(x)
    torch.testing.assert_close(found[2:], usual[2:])
    assert found[1].isnan()
    expected = size**2 * float((large.mT @ large).norm()) + (size**3 * abs(float(large.det())) if name == "so3" else 0)
    assert float(found[0]) == pytest.approx(expected, rel=1e-5)
    torch.testing.assert_close(constraint.defect(x[:1]), found[:1])


@every_case
def test_outcomes_are_one_a_sample(name):
    case = CASES[name]
    constraint, x = case.make(), states(case)
    answer = project(constraint, x)
    for outcome in (answer.converged, answer.iterations, answer.residual):
        assert outcome is None or outcome.shape == (N,)
    if answer.residual is not None:
        assert torch.allclose(answer.residual, constraint.defect(answer.x), rtol=0, atol=1e-12)


@every_case
def test_the_input_is_left_alone(name):
    case = CASES[name]
    constraint, x = case.make(), states(case)
    before = x.clone()
    project(constraint, x)
    constraint.defect(x)
    assert torch.equal(x, before)


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name].make().improves])
def test_improving_step_by_step_leads_where_projection_does(name):
    """One iteration at a time: rows follow what they carry, the defect is that of the states, and it ends feasible."""
    case = CASES[name]
    constraint, x = case.make(), states(case)
    y, state, done = x, None, torch.zeros(N, dtype=torch.bool)
    for k in range(4000 if "half-spaces" in name else 200):
        before, carried = y, state
        y, defect, done, state, _ = constraint.improve(y, state)
        assert y.shape == x.shape
        assert done.shape == defect.shape == (N,)
        torch.testing.assert_close(defect, constraint.defect(y), rtol=1e-6, atol=1e-9)
        assert all(len(part) == N for part in state)
        if k == 1:
            rows = torch.tensor([4, 1])
            some = constraint.take(rows).improve(before[rows], tuple(part[rows] for part in carried))
            torch.testing.assert_close(some.x, y[rows], rtol=0, atol=1e-9)
        if done.all():
            break
    found = project(constraint, x).x
    caught = "trajectories" in name  # behind an obstacle, where only the roadmap leads out
    assert done.double().mean() >= (0.6 if caught else 1)
    limit = max(1e-5, 20 * case.tolerance)
    assert (constraint.defect(y)[done] <= limit).all()
    far, best = ((z - x).flatten(1).norm(dim=1)[done] for z in (y, found))
    assert (far <= (1.5 * best + 1e-3 if not case.nearest else best + 1e-3)).all()


DESCENDS = ("so3", "se3", "se3 in a workspace", "stiefel", "equations", "mass balance")
"""Of which every iteration lowers the defect; others say what they raised it to."""


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name].make().improves])
def test_improving_until_done_is_projecting(name):
    """The same states as the projection's, for the same iterations where it counts them."""
    case = CASES[name]
    constraint, x = case.make(), states(case)
    if isinstance(constraint, NonlinearEquality):
        constraint = replace(constraint, refinements=0)  # which come after
    y, state, done = x, None, torch.zeros(N, dtype=torch.bool)
    spent, last = torch.zeros(N, dtype=torch.int64), constraint.defect(x)
    for _ in range(4000 if "half-spaces" in name else 60):
        answer = constraint.improve(y, state)
        y, state = torch.where(done.reshape(N, *[1] * (x.ndim - 1)), y, answer.x), answer.state
        spent += torch.where(done, 0, 1 if answer.cost is None else answer.cost)
        if name in DESCENDS:
            assert (answer.defect <= last + 1e-12)[~done].all()
        last, done = torch.where(done, last, answer.defect), done | answer.done
        if done.all():
            break
    whole = project(constraint, x)
    way = (whole.x - x).flatten(1).norm(dim=1)
    same = done & ((y - whole.x).flatten(1).norm(dim=1) <= (1e-4 if "half-spaces" in name else 1e-9) * way)
    if "trajectories" in name:  # a projection looks farther where the local search is caught
        assert same.double().mean() >= 0.6
    else:
        assert same.all()
    if whole.iterations is not None and "half-spaces" not in name:  # whose projection is another method
        assert torch.equal(spent[same], whole.iterations[same].clamp(min=1))
