"""One run: which numbers it refuses, what it does to the rows that were chosen, what it records and counts."""

from __future__ import annotations

import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import free
import trimtab as tt
from cases import Solver, Sphere, Walk, correct, row_norm
from trimtab.core.bound_constraint import ProjectionError
from trimtab.core.noise import Noise

BAD = st.sampled_from([torch.nan, torch.inf, -torch.inf])


@given(BAD, st.integers(0, 4))
def test_bad_states_are_refused_by_name(bad, row):
    x = torch.ones(5, 3)
    x[row, 1] = bad
    with pytest.raises(ValueError, match=f"for 1 of 5 samples at step 0 of 1 \\(first: sample {row}, seed {row + 40}"):
        correct(x, seeds=range(40, 45))


@given(st.sampled_from([torch.nan, torch.inf, -1e-9, -3.0]), st.integers(0, 4))
def test_bad_defects_are_refused_by_name(bad, row):
    defect = torch.zeros(5)
    defect[row] = bad
    constraint = tt.as_constraint(Sphere().project, lambda x: defect[: len(x)])
    with pytest.raises(ValueError, match=f"the defect is negative, NaN or inf for 1 of 5 .* sample {row}"):
        correct(torch.ones(5, 3), constraint)


@pytest.mark.parametrize("shape", [(5, 1), (4,), ()])
def test_defects_of_another_shape_are_refused(shape):
    constraint = tt.as_constraint(Sphere().project, lambda x: torch.zeros(shape))
    with pytest.raises(ValueError, match=r"one number per sample, \(5,\) floats"):
        correct(torch.ones(5, 3), constraint)


EVEN = tt.schedules.Fixed(torch.tensor([[True, False, True, False, True]]))  # some rows, so that they are taken


class Odd(Sphere):
    """A sphere that is in order until rows are taken, and then says something else."""

    def __init__(self, defect):
        object.__setattr__(self, "other", defect)

    def take(self, rows):
        return tt.as_constraint(Sphere().project, self.other)


@pytest.mark.parametrize("schedule", [tt.Stepwise(), EVEN])
@pytest.mark.parametrize(
    ("residual", "message"),
    [(torch.nan, "the defect after projecting is"), (-1.0, "the defect after projecting is"), (torch.inf, "inf")],
)
def test_bad_residuals_are_refused_by_name(schedule, residual, message):
    solver = tt.as_constraint(lambda x: tt.Projection(x, None, None, torch.full((len(x),), residual)), Sphere().defect)
    with pytest.raises(ValueError, match=f"{message}.* sample 0"):
        correct(torch.ones(5, 3), solver, schedule)


@pytest.mark.parametrize("residual", [torch.nan, -1.0, torch.inf])
def test_bad_residuals_are_refused_where_defects_are_not_measured(residual):
    solver = tt.as_constraint(lambda x: tt.Projection(x, None, None, torch.full((len(x),), residual)), Sphere().defect)
    with pytest.raises(ValueError, match="the defect after projecting is negative, NaN or inf for 5 of 5"):
        tt.Corrector(solver, tt.Stepwise(), 1)(torch.ones(5, 3))


@pytest.mark.parametrize("iterations", [-1, 1.5, float("nan"), True])
def test_iterations_that_count_nothing_are_refused(iterations):
    """They would be written down, and the file of the record could not be read again."""
    solver = tt.as_constraint(lambda x: tt.Projection(x, None, torch.full((len(x),), iterations)), Sphere().defect)
    with pytest.raises(ProjectionError, match="must report iterations as whole numbers of at least 0"):
        correct(torch.ones(5, 3), solver)


def never(view):
    return view.defect > 1e9


def nan_at(call):
    """A projection onto the sphere that answers with NaN when it is called for the so-manieth time."""
    calls = []

    def project(x):
        calls.append(len(x))
        return Sphere().project(x) * (torch.nan if len(calls) == call else 1)

    return project


@pytest.mark.parametrize(
    ("constraint", "closing"),
    [
        (tt.as_constraint(nan_at(1), Sphere().defect), "free"),  # apart from the budget, and not measured
        (tt.as_constraint(nan_at(4)), "paid"),  # three looks are projections; what the fourth leaves is taken to be 0
        (tt.as_constraint(nan_at(1), lambda x: (x.abs() > 2).double().sum(dim=1)), "paid"),  # blind to NaN
    ],
)
def test_no_projection_ends_a_run_with_nan(constraint, closing):
    corrector = tt.Corrector(constraint, never, 3, closing=closing)
    x = torch.ones(2, 3)
    for t in range(2):
        x = corrector(x, t)
    with pytest.raises((ValueError, RuntimeError), match=r"returned,? NaN or inf.* 2 of 2"):
        corrector(x, 2)
    with pytest.raises(RuntimeError, match="called 2 of 3 times"):
        corrector.rollout  # noqa: B018


def test_no_run_ends_with_what_half_precision_cannot_hold():
    far = tt.as_constraint(lambda x: x * 1e4, lambda x: (x[:, 0] - 1e5).clamp(min=0))
    with pytest.raises(ValueError, match="or what half precision cannot hold for 2 of 2"):
        correct(torch.full((2, 3), 10.0, dtype=torch.float16), far)


@pytest.mark.parametrize("residual", [None, torch.zeros(1), torch.zeros(3, 1), torch.zeros(3, dtype=torch.int64)])
def test_residuals_that_are_not_one_number_a_row_are_refused(residual):
    with pytest.raises(ValueError, match=r"one number per sample, \(3,\) floats"):
        correct(torch.ones(5, 3), Odd(lambda x: residual), EVEN)


def test_a_constraint_that_changes_its_rows_does_no_harm():
    class Shifts(Sphere):
        def take(self, rows):
            rows += 10**6
            return self

    with pytest.raises(IndexError):
        correct(torch.ones(5, 3), Shifts(), EVEN)


def test_defects_too_large_for_the_record_are_refused():
    large = tt.as_constraint(Sphere().project, lambda x: torch.full((len(x),), 1e300, dtype=torch.float64))
    with pytest.raises(ValueError, match="the defect is negative, NaN or inf for 5 of 5"):
        correct(torch.ones(5, 3), large)


def test_defects_that_lie_elsewhere_are_not_read():
    # "meta" is as good as any device whose memory is not the host's
    with pytest.raises(ValueError, match="numbers on cpu, as the states: got meta"):
        correct(torch.ones(5, 3), tt.as_constraint(Sphere().project, lambda x: torch.ones(len(x), device="meta")))


@pytest.mark.parametrize("x", [[[1.0, 2.0]], None])
def test_states_that_are_no_tensor_are_refused(x):
    with pytest.raises(TypeError, match=r"states must be .* got (list|NoneType|int|float)"):
        correct(x)


@pytest.mark.parametrize("x", [torch.ones(0, 3), torch.ones(3, dtype=torch.int64), torch.tensor(1.0)])
def test_batches_that_are_none_are_refused(x):
    with pytest.raises(ValueError, match="one row per sample"):
        correct(x)


def in_place(x):
    x /= row_norm(x)[:, None]
    return x


@pytest.mark.parametrize("schedule", [tt.Periodic(0.4), tt.schedules.RandomTimes(0.4)])
@pytest.mark.parametrize("defect", [None, Sphere().defect])
def test_a_projection_may_work_in_place(defect, schedule):
    fresh = free.rollout(Walk(), tt.as_constraint(Sphere().project, defect), schedule, range(6))
    reused = free.rollout(Walk(), tt.as_constraint(in_place, defect), schedule, range(6))
    torch.testing.assert_close(reused.defects, fresh.defects)
    torch.testing.assert_close(reused.final, fresh.final)
    assert float(fresh.defects.max()) > 0.01


def test_a_failed_projection_that_works_in_place_can_be_reverted():
    def fails(x):
        x.mul_(0.5)
        return tt.Projection(x, torch.zeros(len(x), dtype=torch.bool))

    for schedule in (tt.Stepwise(), EVEN):
        solver = tt.as_constraint(fails, Sphere().defect)
        corrector = free.Corrector(solver, schedule, 1, on_failure="revert")
        assert torch.equal(corrector(torch.full((5, 3), 2.0)), torch.full((5, 3), 2.0))


def test_a_defect_that_changes_states_is_refused():
    with pytest.raises(ValueError, match="defect changed the states it was given"):
        correct(
            torch.full((5, 3), 2.0), tt.as_constraint(Sphere().project, lambda x: (row_norm(in_place(x)) - 1).abs())
        )


def test_path_states_are_kept_only_when_asked_for():
    record = free.rollout(Walk(), Sphere(), tt.Periodic(3), range(4))
    assert record.states is None
    kept = free.rollout(Walk(), Sphere(), tt.Periodic(3), range(4), keep_states=True)
    assert kept.states.shape == (13, 4, 3)
    assert torch.equal(kept.states[0], Walk().start(Noise(torch.arange(4))))
    assert torch.equal(kept.states[-1], kept.final)
    assert torch.allclose(
        Sphere().defect(kept.states[1:-1].flatten(0, 1)).reshape(11, 4), kept.residuals[:-1], atol=1e-15
    )


def test_costs_are_counted():
    record = free.rollout(Walk(), Sphere(), tt.Periodic(3), range(4))
    assert record.calls == {"update": 12, "defect": 12 + 3, "projection": 3}
    assert record.rows == {"update": 48, "defect": 60, "projection": 12}
    assert set(record.seconds) == {"update", "defect", "projection", "scheduling"}
    assert min(record.seconds.values()) > 0
    closed = free.rollout(Walk(), Sphere(), tt.Terminal(), range(4))
    assert closed.rows["projection"] == 4
    assert closed.spent.tolist() == [0] * 4
    assert closed.closing.all()


def test_a_defect_that_is_a_projection_is_counted_as_one():
    record = free.rollout(Walk(), tt.as_constraint(Sphere().project), tt.Periodic(3), range(4))
    assert record.rows == {"update": 48, "defect": 0, "projection": 48 + 12}


def test_closing_earns_no_credit():
    record = free.rollout(Walk(), Sphere(), tt.Terminal(), range(4))
    assert torch.equal(record.residuals, record.defects)


def test_solver_iterations_and_failures_are_recorded():
    record = free.rollout(Walk(), Solver(limit=0.5), tt.Stepwise(), range(20))
    assert record.failed.any()
    assert not record.failed.all()
    assert set(record.iterations.unique().tolist()) == {3, 50}
    assert torch.equal(record.iterations == 50, record.failed)


def test_a_step_that_is_made_again_is_not_timed_twice():
    corrector = free.Corrector(Sphere(), tt.Stepwise(), 2)
    corrector(torch.ones(2, 3))
    time.sleep(0.02)
    with pytest.raises(ValueError, match="NaN"):
        corrector(torch.full((2, 3), torch.nan))
    corrector(torch.ones(2, 3))
    seconds = corrector.rollout.seconds
    assert min(seconds.values()) >= 0
