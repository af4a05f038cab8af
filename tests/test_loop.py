from __future__ import annotations

import copy
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import trimtab as tt
from cases import Solver, Sphere, Walk, row_norm

BAD = st.sampled_from([torch.nan, torch.inf, -torch.inf])


def correct(x, constraint=None, schedule=None, n_steps=1, **options):
    return tt.Corrector(constraint or Sphere(), schedule or tt.Stepwise(), n_steps, **options)(x)


# ------------------------------------------------------------------ bad input


@given(BAD, st.integers(0, 4), st.booleans())
def test_bad_states_are_refused_by_name(bad, row, dense):
    x = torch.ones(5, 3)
    x[row, 1] = bad
    with pytest.raises(ValueError, match=f"for 1 of 5 samples at step 0 of 1 \\(first: sample {row}, seed {row + 40}"):
        correct(x, seeds=range(40, 45), dense=dense)


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
    with pytest.raises(ValueError, match=r"one number a sample, \(5,\) floats"):
        correct(torch.ones(5, 3), constraint)


@pytest.mark.parametrize(
    ("project", "message"),
    [
        (lambda x: x[:, :2], r"given \(5, 3\) float32 on cpu and returned \(5, 2\) float32"),
        (lambda x: x.double(), "returned .* float64"),
        (lambda x: x * torch.nan, "returned,? NaN or inf for 5 of 5 (finite states|samples)"),
        (lambda x: None, "Tensor or a Projection, got NoneType"),
        (lambda x: tt.Projection(None), "returned None"),
        (lambda x: tt.Projection(x, torch.ones(2, dtype=torch.bool)), "converged as a tensor with one number a sample"),
        (lambda x: tt.Projection(x, True), "converged as a tensor .* got True"),
        (lambda x: tt.Projection(x, torch.ones(5, dtype=torch.int64)), "converged as bool, got torch.int64"),
        (lambda x: tt.Projection(x, None, 3), "iterations as a tensor .* got 3"),
    ],
)
def test_bad_projections_are_refused(project, message):
    for dense in (False, True):
        with pytest.raises((tt.ProjectionError, ValueError) if dense else tt.ProjectionError, match=message):
            correct(torch.ones(5, 3), tt.as_constraint(project, Sphere().defect), dense=dense)


EVEN = tt.Fixed(torch.tensor([[True, False, True, False, True]]))  # some rows, so that they are taken


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


@pytest.mark.parametrize("residual", [None, torch.zeros(1), torch.zeros(3, 1), torch.zeros(3, dtype=torch.int64)])
def test_residuals_that_are_not_one_number_a_row_are_refused(residual):
    with pytest.raises(ValueError, match=r"one number a sample, \(3,\) floats"):
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
    with pytest.raises(NotImplementedError, match="meta"):  # as good as any device whose memory is not the host's
        correct(torch.ones(5, 3), tt.as_constraint(Sphere().project, lambda x: torch.ones(len(x), device="meta")))


@pytest.mark.parametrize("x", [[[1.0, 2.0]], None])
def test_states_that_are_no_tensor_are_refused(x):
    with pytest.raises(ValueError, match=r"a torch tensor, \(n, \*event\): got (list|NoneType)"):
        correct(x)


@pytest.mark.parametrize("x", [torch.ones(0, 3), torch.ones(3, dtype=torch.int64), torch.tensor(1.0)])
def test_batches_that_are_none_are_refused(x):
    with pytest.raises(ValueError, match="one row a sample"):
        correct(x)


@pytest.mark.parametrize("n_steps", [0, -1, 2.0, True])
def test_impossible_step_counts_are_refused(n_steps):
    with pytest.raises(ValueError, match="n_steps must be a whole number"):
        tt.Corrector(Sphere(), tt.Stepwise(), n_steps)


@pytest.mark.parametrize("budget", [11, -1, 1.01, -0.1, True, "half", torch.tensor([11])])
def test_impossible_budgets_are_refused_before_anything_runs(budget):
    with pytest.raises(ValueError, match="budget"):
        tt.Corrector(Sphere(), tt.Periodic(budget), 10)


def test_budgets_for_another_batch_are_refused():
    with pytest.raises(ValueError, match="budgets for 3 samples, but the batch has 5"):
        correct(torch.ones(5, 3), schedule=tt.Periodic(torch.tensor([1, 0, 1])))


@pytest.mark.parametrize("decision", [torch.ones(5), torch.ones(4, dtype=torch.bool), True])
def test_decisions_that_are_no_mask_are_refused(decision):
    with pytest.raises(ValueError, match=r"decide with a \(5,\) bool tensor"):
        correct(torch.ones(5, 3), schedule=lambda now: decision)


def test_a_schedule_class_is_not_a_schedule():
    with pytest.raises(ValueError, match="forget the parentheses"):
        correct(torch.ones(5, 3), schedule=tt.Stepwise)


def test_a_constraint_needs_its_methods():
    with pytest.raises(ValueError, match="Linear has no project"):
        tt.Corrector(torch.nn.Linear(1, 1), tt.Stepwise(), 3)


def test_seeds_must_fit_the_batch():
    with pytest.raises(ValueError, match="3 seeds were given for a batch of 5"):
        correct(torch.ones(5, 3), seeds=range(3))


# ------------------------------------------------------------------ the life of a run


def test_too_few_calls_are_told():
    corrector = tt.Corrector(Sphere(), tt.Stepwise(), 3)
    corrector(torch.ones(2, 3))
    with pytest.raises(RuntimeError, match="called 1 of 3 times"):
        corrector.rollout  # noqa: B018
    with pytest.raises(RuntimeError, match="called only 1 of 3 times"):
        corrector(torch.ones(2, 3), 0)
    corrector.reset()
    corrector(torch.ones(2, 3), 0)
    with pytest.raises(RuntimeError, match="called 0 of 3 times"), corrector:
        pass


def test_too_many_calls_are_told():
    corrector = tt.Corrector(Sphere(), tt.Stepwise(), 1)
    with corrector:
        corrector(torch.ones(2, 3))
        with pytest.raises(RuntimeError, match="more than n_steps = 1 times"):
            corrector(torch.ones(2, 3))


def test_a_step_out_of_order_is_told():
    corrector = tt.Corrector(Sphere(), tt.Stepwise(), 3)
    corrector(torch.ones(2, 3), 0)
    with pytest.raises(RuntimeError, match="expected step 1 of 3 next, got t = 2"):
        corrector(torch.ones(2, 3), 2)


def test_a_batch_that_changes_size_is_told():
    corrector = tt.Corrector(Sphere(), tt.Stepwise(), 3)
    corrector(torch.ones(2, 3))
    with pytest.raises(ValueError, match=r"began with states \(2, 3\), step 1 came with \(4, 3\)"):
        corrector(torch.ones(4, 3))


def test_a_step_that_failed_half_way_is_not_paid_for_twice():
    class Moody(Sphere):
        def project(self, x):
            if moods.pop():
                raise RuntimeError("no licence")
            return super().project(x)

    moods = [False] * 20 + [True]
    corrector = tt.Corrector(Moody(), tt.Fixed(torch.tensor([True, False, True])), 3)
    with pytest.raises(RuntimeError, match="no licence"):
        corrector(torch.ones(5, 3), 0)
    for t in (None, 1):
        with pytest.raises(RuntimeError, match=r"step 0 of 3 failed half-way.* t = 0 or after reset\(\)"):
            corrector(torch.ones(5, 3), t)
    for t in range(3):
        corrector(torch.ones(5, 3), t)
    assert corrector.rollout.spent.tolist() == [2] * 5
    corrector.reset()
    corrector(torch.ones(5, 3))
    with pytest.raises(ValueError, match="NaN"):  # found before anything is decided: the step can be made again
        corrector(torch.full((5, 3), torch.nan))
    corrector(torch.ones(5, 3), 1)
    corrector(torch.ones(5, 3), 2)
    assert corrector.rollout.spent.tolist() == [2] * 5


def test_an_error_inside_the_block_is_not_hidden():
    with pytest.raises(ZeroDivisionError), tt.Corrector(Sphere(), tt.Stepwise(), 3):
        raise ZeroDivisionError


def in_place(x):
    x /= row_norm(x)[:, None]
    return x


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("schedule", [tt.Periodic(0.4), tt.RandomTimes(0.4)])
@pytest.mark.parametrize("defect", [None, Sphere().defect])
def test_a_projection_may_work_in_place(defect, schedule, dense):
    fresh = tt.rollout(Walk(), tt.as_constraint(Sphere().project, defect), schedule, range(6), dense=dense)
    reused = tt.rollout(Walk(), tt.as_constraint(in_place, defect), schedule, range(6), dense=dense)
    torch.testing.assert_close(reused.defects, fresh.defects)
    torch.testing.assert_close(reused.final, fresh.final)
    assert float(fresh.defects.max()) > 0.01


def test_a_failed_projection_that_works_in_place_can_be_reverted():
    def fails(x):
        x.mul_(0.5)
        return tt.Projection(x, torch.zeros(len(x), dtype=torch.bool))

    for schedule in (tt.Stepwise(), EVEN):
        solver = tt.as_constraint(fails, Sphere().defect)
        corrector = tt.Corrector(solver, schedule, 1, on_failure="revert")
        assert torch.equal(corrector(torch.full((5, 3), 2.0)), torch.full((5, 3), 2.0))


def test_a_defect_that_changes_states_is_refused():
    with pytest.raises(ValueError, match="defect changed the states it was given"):
        correct(
            torch.full((5, 3), 2.0), tt.as_constraint(Sphere().project, lambda x: (row_norm(in_place(x)) - 1).abs())
        )


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda corrector: pickle.loads(pickle.dumps(corrector))])
def test_a_copy_made_in_mid_run_goes_on_by_itself(duplicate):
    table = torch.full((9, 4), 0.02, dtype=torch.float64)
    table[:, 0] = torch.inf
    for schedule in (tt.Thresholds(table).at(3), tt.Periodic(3)):
        corrector = tt.Corrector(Sphere(), schedule, 9)
        noise = torch.randn(9, 5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) / 20
        x = torch.eye(3, dtype=torch.float64)[[0, 1, 2, 0, 1]]
        for t in range(4):
            x = corrector(x + noise[t], t)
        other, y = duplicate(corrector), x
        for t in range(4, 9):
            x = corrector(x + noise[t], t)
        before = corrector.rollout.projected.clone()
        for t in range(4, 9):
            y = other(y + noise[t], t)
        assert torch.equal(x, y)
        for mine, theirs in ((before, corrector.rollout.projected), (before, other.rollout.projected)):
            assert torch.equal(mine, theirs)
        assert torch.equal(corrector.rollout.residuals, other.rollout.residuals)


def test_proposals_are_not_modified():
    x = torch.full((4, 3), 2.0)
    correct(x, schedule=lambda now: torch.tensor([True, False, True, False]))
    assert (x == 2).all()


# ------------------------------------------------------------------ records


def test_path_states_are_kept_only_when_asked_for():
    record = tt.rollout(Walk(), Sphere(), tt.Periodic(3), range(4))
    assert record.states is None
    kept = tt.rollout(Walk(), Sphere(), tt.Periodic(3), range(4), keep_states=True)
    assert kept.states.shape == (13, 4, 3)
    assert torch.equal(kept.states[0], Walk().start(tt.Noise(torch.arange(4))))
    assert torch.equal(kept.states[-1], kept.final)
    assert torch.allclose(
        Sphere().defect(kept.states[1:-1].flatten(0, 1)).reshape(11, 4), kept.residuals[:-1], atol=1e-15
    )


def test_costs_are_counted():
    record = tt.rollout(Walk(), Sphere(), tt.Periodic(3), range(4))
    assert record.calls == {"update": 12, "defect": 12 + 3, "projection": 3}
    assert record.rows == {"update": 48, "defect": 60, "projection": 12}
    assert set(record.seconds) == {"update", "defect", "projection", "scheduling"}
    assert min(record.seconds.values()) > 0
    closed = tt.rollout(Walk(), Sphere(), tt.Terminal(), range(4))
    assert closed.rows["projection"] == 4
    assert closed.spent.tolist() == [0] * 4
    assert closed.closing.all()


def test_a_defect_that_is_a_projection_is_counted_as_one():
    record = tt.rollout(Walk(), tt.as_constraint(Sphere().project), tt.Periodic(3), range(4))
    assert record.rows == {"update": 48, "defect": 0, "projection": 48 + 12}


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("defect", [None, Sphere().defect])
def test_schedules_that_do_not_look_can_do_without_defects(defect, dense):
    sphere = tt.as_constraint(Sphere().project, defect)
    seen = tt.rollout(Walk(), sphere, tt.Periodic(3), range(4))
    blind = tt.rollout(Walk(), sphere, tt.Periodic(3), range(4), measure_defects=False, dense=dense)
    assert torch.equal(blind.final, seen.final)
    assert torch.equal(blind.projected, seen.projected)
    assert blind.defects.isnan().all()
    assert blind.residuals.isnan().all()
    if not dense:
        assert blind.rows == {"update": 48, "defect": 0, "projection": 12}


def test_schedules_that_look_need_defects():
    with pytest.raises(ValueError, match="FixedThreshold decides by defects"):
        tt.rollout(Walk(), Sphere(), tt.FixedThreshold(0.1), range(4), measure_defects=False)


def test_closing_earns_no_credit():
    record = tt.rollout(Walk(), Sphere(), tt.Terminal(), range(4))
    assert torch.equal(record.residuals, record.defects)


def test_solver_iterations_and_failures_are_recorded():
    record = tt.rollout(Walk(), Solver(limit=0.5), tt.Stepwise(), range(20))
    assert record.failed.any()
    assert not record.failed.all()
    assert set(record.iterations.unique().tolist()) == {3, 50}
    assert torch.equal(record.iterations == 50, record.failed)


def test_steps_can_be_logged():
    seen = []
    corrector = tt.Corrector(Sphere(), tt.Stepwise(), 3, on_step=lambda t, numbers: seen.append((t, numbers)))
    for _ in range(3):
        corrector(torch.full((2, 4), 1.0))
    assert [t for t, _ in seen] == [0, 1, 2]
    assert seen[0][1] == {"defect": 1.0, "residual": 0.0, "projected": 1.0}


# ------------------------------------------------------------------ failed projections


class Stubborn:
    """Fails until it has been tried often enough; each try halves the way to the sphere."""

    def __init__(self, needed, factor=0.5):
        self.needed, self.factor, self.tries = needed, factor, 0

    def project(self, x):
        self.tries += 1
        y = x * (1 + self.factor * (1 / row_norm(x)[:, None] - 1))
        done = self.tries >= self.needed
        return tt.Projection(Sphere().project(x) if done else y, torch.full((len(x),), done))

    def defect(self, x):
        return Sphere().defect(x)

    def take(self, rows):
        return self


def test_keep_keeps_a_better_state_and_never_a_worse_one():
    x = torch.full((2, 4), 1.0)
    assert torch.allclose(correct(x, Stubborn(99)), torch.full((2, 4), 0.75))
    worse = correct(x, Stubborn(99, factor=-1.0))
    assert torch.equal(worse, x)


def test_keep_never_keeps_what_is_not_finite():
    broken = tt.as_constraint(
        lambda x: tt.Projection(x * torch.nan, torch.zeros(len(x), dtype=torch.bool)), Sphere().defect
    )
    corrector = tt.Corrector(broken, tt.Stepwise(), 1)
    assert torch.equal(corrector(torch.ones(2, 4)), torch.ones(2, 4))
    assert corrector.rollout.failed.all()
    assert (corrector.rollout.residuals == 1).all()


def test_revert_keeps_the_proposal():
    x = torch.full((2, 4), 1.0)
    assert torch.equal(correct(x, Stubborn(99), on_failure="revert"), x)


def test_raise_raises():
    with pytest.raises(tt.ProjectionError, match="failed for 2 of 2 selected states after 1 tries"):
        correct(torch.ones(2, 4), Stubborn(99), on_failure="raise")


@pytest.mark.parametrize(("needed", "solved"), [(2, True), (4, True), (5, False)])
def test_retry_tries_again_and_then_stops(needed, solved):
    stubborn = Stubborn(needed)
    corrector = tt.Corrector(stubborn, tt.Stepwise(), 1, on_failure=tt.Retry(3))
    x = corrector(torch.full((2, 4), 1.0))
    assert bool(corrector.rollout.failed.any()) is not solved
    assert stubborn.tries == min(needed, 4)
    expected = 0.0 if solved else 0.5**4  # each try started where the last one stopped
    assert torch.allclose(Sphere().defect(x), torch.full((2,), expected), atol=1e-6)


def test_a_failure_does_not_touch_its_neighbours():
    x = torch.tensor([[0.2, 3.0, 0.0], [9.0, 0.0, 0.0], [0.3, 0.4, 0.0]])
    together = correct(x, Solver())
    alone = torch.cat([correct(row[None], Solver()) for row in x])
    assert torch.equal(together, alone)
    assert torch.equal(together[[0, 2]], Sphere().project(x[[0, 2]]))


@pytest.mark.parametrize("policy", ["ignore", 3, None])
def test_unknown_policies_are_refused(policy):
    with pytest.raises(ValueError, match="on_failure must be"):
        tt.Corrector(Sphere(), tt.Stepwise(), 1, on_failure=policy)


@pytest.mark.parametrize("tries", [0, -1, 1.5])
def test_unbounded_or_empty_retries_are_refused(tries):
    with pytest.raises(ValueError, match="tries must be a whole number"):
        tt.Retry(tries)


# ------------------------------------------------------------------ precision


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_measured_and_projected_in_float32(dtype):
    seen = []

    def project(x):
        seen.append(x.dtype)
        return Sphere().project(x)

    corrector = tt.Corrector(tt.as_constraint(project, Sphere().defect), tt.Stepwise(), 1)
    y = corrector(torch.full((2, 3), 3.0, dtype=dtype))
    assert y.dtype == dtype
    assert seen == [torch.float32]
    assert corrector.rollout.defects.dtype == torch.float32


def test_autocast_does_not_reach_the_projection():
    def project(x):
        return x @ torch.eye(3)

    constraint = tt.as_constraint(project, lambda x: (x @ torch.eye(3)).abs().sum(dim=1))
    x = torch.full((2, 3), 1.0001)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(correct(x, constraint), x)


def test_no_gradient_flows_through_a_correction():
    x = torch.ones(2, 3, requires_grad=True)
    assert not correct(x * 2).requires_grad


def test_a_sampler_is_told_from_a_constraint():
    with pytest.raises(ValueError, match=r"a sampler has n_steps.*Sphere has no n_steps"):
        tt.rollout(Sphere(), Walk(), tt.Stepwise(), [1])


def test_data_for_other_samples_is_refused():
    ball = tt.as_constraint(lambda x, r: x, lambda x, r: row_norm(x), data=(torch.ones(8),))
    with pytest.raises(ValueError, match="data for 8 samples but was given 5 states"):
        correct(torch.ones(5, 3), ball)
    for data in (torch.ones(5), (torch.tensor(1.0),), (1.0,)):
        with pytest.raises(ValueError, match="a tuple of tensors with one row a sample"):
            tt.as_constraint(lambda x, r: x, data=data)
