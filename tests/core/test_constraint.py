"""What a constraint may answer, and what is done about projections that fail."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch

import free
import trimtab as tt
from cases import Solver, Sphere, correct, row_norm
from trimtab.core.bound_constraint import ProjectionError, Retry


@pytest.mark.parametrize(
    ("project", "message"),
    [
        (lambda x: x[:, :2], r"is \(5, 2\) of torch.float32 where \(5, 3\) of torch.float32 was expected"),
        (lambda x: x.double(), "of torch.float64 where"),
        (lambda x: x * torch.nan, "returned,? NaN or inf for 5 of 5 (finite states|samples)"),
        (lambda x: None, "torch tensors .* got NoneType"),
        (lambda x: tt.Projection(None), "torch tensors .* got NoneType"),
        (lambda x: tt.Projection(x, torch.ones(2, dtype=torch.bool)), "converged with one entry per sample"),
        (lambda x: tt.Projection(x, True), "converged with one entry .* got bool"),
        (lambda x: tt.Projection(x, torch.ones(5, dtype=torch.int64)), "converged as bool: got torch.int64"),
        (lambda x: tt.Projection(x, None, 3), "iterations with one entry .* got int"),
    ],
)
def test_bad_projections_are_refused(project, message):
    with pytest.raises(ProjectionError, match=message):
        correct(torch.ones(5, 3), tt.as_constraint(project, Sphere().defect))


class Stubborn(tt.Constraint):
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
    corrector = free.Corrector(broken, tt.Stepwise(), 1)
    assert torch.equal(corrector(torch.ones(2, 4)), torch.ones(2, 4))
    assert corrector.rollout.failed.all()
    assert (corrector.rollout.residuals == 1).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("policy", "left"), [("keep", 1.5), ("revert", 3.0)])
def test_a_failed_projection_leaves_what_it_leaves_where_measuring_is_projecting(policy, left, dtype):
    """It is not feasible: path error must not take it for a state that was projected."""

    def project(x):
        solved = x[:, 0] < 4
        nearer = torch.where(solved[:, None], x.clamp(max=1.0), x - 0.5 * (x - 1).clamp(min=0))
        return tt.Projection(nearer, solved)

    corrector = free.Corrector(tt.as_constraint(project), tt.Stepwise(), 1, on_failure=policy)
    corrector(torch.tensor([[2.0], [7.0]], dtype=dtype))
    run = corrector.rollout
    assert run.failed.tolist() == [[False, True]]
    assert run.defects.tolist() == [[1.0, 3.0]]
    assert run.residuals.tolist() == [[0.0, left]]


def test_revert_keeps_the_proposal():
    x = torch.full((2, 4), 1.0)
    assert torch.equal(correct(x, Stubborn(99), on_failure="revert"), x)


def test_raise_raises():
    with pytest.raises(ProjectionError, match="failed for 2 of 2 selected states after 1 try"):
        correct(torch.ones(2, 4), Stubborn(99), on_failure="raise")


@pytest.mark.parametrize(("needed", "solved"), [(2, True), (4, True), (5, False)])
def test_retry_tries_again_and_then_stops(needed, solved):
    stubborn = Stubborn(needed)
    corrector = free.Corrector(stubborn, tt.Stepwise(), 1, on_failure=Retry(3))
    x = corrector(torch.full((2, 4), 1.0))
    assert bool(corrector.rollout.failed.any()) is not solved
    assert stubborn.tries == min(needed, 4)
    expected = 0.0 if solved else 0.5**4  # each try started where the last one stopped
    assert torch.allclose(Sphere().defect(x), torch.full((2,), expected), atol=1e-6)


def test_tries_may_be_a_number_of_numpy():
    assert Retry(np.int64(3)) == Retry(3)


def test_a_failure_does_not_touch_its_neighbours():
    x = torch.tensor([[0.2, 3.0, 0.0], [9.0, 0.0, 0.0], [0.3, 0.4, 0.0]])
    together = correct(x, Solver())
    alone = torch.cat([correct(row[None], Solver()) for row in x])
    assert torch.equal(together, alone)
    assert torch.equal(together[[0, 2]], Sphere().project(x[[0, 2]]))


@pytest.mark.parametrize("policy", ["ignore", 3, None])
def test_unknown_policies_are_refused(policy):
    with pytest.raises(ValueError, match="on_failure must be"):
        free.Corrector(Sphere(), tt.Stepwise(), 1, on_failure=policy)


@pytest.mark.parametrize("tries", [0, -1, 1.5])
def test_unbounded_or_empty_retries_are_refused(tries):
    with pytest.raises(ValueError, match="tries must be a whole number"):
        Retry(tries)


def test_data_for_other_samples_is_refused():
    ball = tt.as_constraint(lambda x, r: x, lambda x, r: row_norm(x), data=(torch.ones(8),))
    with pytest.raises(ValueError, match="data for 8 samples but was given 5 states"):
        correct(torch.ones(5, 3), ball)
    for data in (torch.ones(5), (torch.tensor(1.0),), (1.0,)):
        with pytest.raises(TypeError, match="a tuple of tensors with one row per sample"):
            tt.as_constraint(lambda x, r: x, data=data)


@pytest.mark.parametrize(
    ("project", "data"),
    [
        (lambda x, sigma: x, ()),
        (lambda x, a, sigma: x, (torch.ones(2),)),
        (lambda x, *, sigma: x, ()),
        (functools.partial(lambda x, a, sigma: x, a=1), ()),
    ],
)
def test_what_a_function_wants_beside_the_states_is_declared(project, data):
    with pytest.raises(TypeError, match=r"needs sigma besides the states.*needs=\('sigma',\).*sigma=…"):
        tt.as_constraint(project, data=data)
    assert tt.as_constraint(project, data=data, needs=("sigma",)).needs == ("sigma",)


@pytest.mark.parametrize(
    "project", [lambda x, scale=2.0: x, lambda x, *data: x, lambda x, **more: x, torch.nn.Identity(), torch.abs]
)
def test_functions_that_can_do_with_the_states_are_taken(project):
    assert tt.as_constraint(project).needs == ()
