"""Samples of several rows that share a decision, a budget and a projection call."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

import trimtab as tt
from cases import Ball, Sphere, Walk
from constraint_cases import numbers, torus
from trimtab.constraints import FewIterations, NonlinearEquality, Together
from trimtab.schedules import FixedThreshold

K = 3


@dataclass(frozen=True)
class Repeated(Walk):
    """K identical copies of each sample of a walk."""

    def start(self, noise):
        return super().start(noise)[:, None].expand(-1, K, -1)

    def step(self, x, t, noise):
        return super().step(x[:, 0], t, noise)[:, None].expand(-1, K, -1)


@pytest.mark.parametrize(("reduce", "scale"), [("sum", K), ("largest", 1)])
@pytest.mark.parametrize("closing", ["paid", "free", "none"])
def test_identical_rows_decide_as_one_alone(reduce, scale, closing):
    options = {"closing": closing, "measure_defects": True}
    alone = tt.rollout(Walk(), Sphere(), FixedThreshold(0.2, 4), range(8), **options)
    together = tt.rollout(
        Repeated(), Together(Sphere(), K, reduce), FixedThreshold(0.2 * scale, 4), range(8), **options
    )
    assert len(alone.projected.T.unique(dim=0)) > 1
    assert torch.equal(together.projected, alone.projected)
    assert torch.equal(together.spent, alone.spent)
    torch.testing.assert_close(together.final, alone.final[:, None].expand(-1, K, -1))
    torch.testing.assert_close(together.defects, scale * alone.defects)


@pytest.mark.parametrize("reduce", ["sum", "largest"])
def test_a_sample_is_projected_whole_or_not_at_all(reduce):
    ball = Together(Ball(torch.linspace(0.5, 1.0, 8 * K)), K, reduce)
    run = tt.rollout(Walk(event=(K, 3)), ball, FixedThreshold(1.0, 4), range(8), keep_states=True)
    for projected, x in zip(run.projected, run.states[1:], strict=True):
        rows = ball.constraint.defect(x.flatten(0, 1)).reshape(8, K)
        assert (rows[projected] <= 1e-12).all()
    assert run.projected[:-1].any()
    assert not run.projected[:-1].all()
    assert (run.spent <= 4).all()
    assert (ball.defect(run.final) <= 1e-12).all()


class OneFails(tt.Constraint):
    """Fails for states whose first number is negative; reports iterations and residuals."""

    def project(self, x):
        counted = torch.arange(1, len(x) + 1)
        return tt.Projection(x / 2, x[:, 0] >= 0, counted, x[:, 0].abs() / 2)

    def defect(self, x):
        return x[:, 0].abs()


def test_outcomes_are_those_of_all_rows():
    x = torch.tensor([[[1.0], [3.0]], [[2.0], [-4.0]]])
    for reduce, residual in (("sum", [2.0, 3.0]), ("largest", [1.5, 2.0])):
        answer = Together(OneFails(), 2, reduce).project(x)
        assert torch.equal(answer.x, x / 2)
        assert answer.converged.tolist() == [True, False]
        assert answer.iterations.tolist() == [2, 4]
        assert answer.residual.tolist() == residual


def test_a_failed_row_reverts_its_sample():
    corrector = tt.Corrector(Together(OneFails(), 2), tt.Stepwise(), 1, on_failure="revert")
    y = corrector(torch.tensor([[[1.0], [3.0]], [[2.0], [-4.0]]]), 0)
    assert y.flatten().tolist() == [0.5, 1.5, 2.0, -4.0]
    assert corrector.rollout.failed[0].tolist() == [False, True]


def test_iterations_are_those_of_the_rows():
    one, pairs = NonlinearEquality(torus), Together(NonlinearEquality(torus), 2)
    x = numbers(10, 3)
    few, together = FewIterations(one, 2).project(x), FewIterations(pairs, 2).project(x.reshape(5, 2, 3))
    torch.testing.assert_close(together.x, few.x.reshape(5, 2, 3))
    assert torch.equal(together.iterations, few.iterations.reshape(5, 2).amax(dim=1))
    assert list(pairs.cheaper()) == list(one.cheaper())
    for name, cheap in pairs.cheaper().items():
        torch.testing.assert_close(
            cheap.project(x.reshape(5, 2, 3)).x, one.cheaper()[name].project(x).x.reshape(5, 2, 3)
        )


class Pulled(tt.Constraint):
    """Measures the distance from `previous` in units of `sigma`, plus an offset."""

    needs = ("previous", "sigma", "offset", "t")

    def project(self, x, previous, sigma, offset, t):
        return previous

    def defect(self, x, previous, sigma, offset, t):
        return (x - previous).norm(dim=1) / sigma + offset + t


def test_context_is_shared_per_sample_or_per_row():
    pairs = Together(Pulled(), 2)
    x, before = numbers(4, 2, 3), numbers(4, 2, 3, seed=1)
    sigma, offset = torch.arange(1.0, 5.0).double(), numbers(4, 2, seed=2).abs()
    found = pairs.defect(x, previous=before, sigma=sigma, offset=offset, t=2)
    expected = ((x - before).norm(dim=2) / sigma[:, None] + offset + 2).sum(dim=1)
    torch.testing.assert_close(found, expected)
    assert pairs.needs == Pulled.needs


class Shrink(tt.Constraint):
    """Halves both arrays of a state."""

    def project(self, x):
        return {"a": x["a"] / 2, "b": x["b"] / 2}

    def defect(self, x):
        return torch.as_tensor(x["a"]).abs() + torch.as_tensor(x["b"]).abs().sum(dim=1)


def test_states_may_be_trees_of_arrays():
    x = {"a": np.ones((4, 2)), "b": np.ones((4, 2, 3))}
    pairs = Together(Shrink(), 2)
    assert pairs.defect(x).tolist() == [8.0] * 4
    y = tt.Corrector(pairs, tt.Stepwise(), 1)(x, 0)
    assert (y["a"] == 0.5).all()
    assert y["b"].shape == (4, 2, 3)


@pytest.mark.parametrize("wrong", [{"k": 0}, {"constraint": 3}, {"reduce": "mean"}])
def test_settings_that_mean_nothing_raise(wrong):
    with pytest.raises((TypeError, ValueError)):
        Together(**{"constraint": Sphere(), "k": 2} | wrong)


def test_samples_of_another_size_raise():
    with pytest.raises(ValueError, match=r"samples of 2 rows, shape \(n, 2, \*event\): got \(4, 3\)"):
        Together(Sphere(), 2).defect(torch.zeros(4, 3))
