from __future__ import annotations

import pytest
import torch

import trimtab as tt
from cases import Ball, Sphere, Walk, radii
from trimtab.core.bound_constraint import ProjectionError
from trimtab.integrations.flows import FlowSampler
from trimtab.integrations.independence import check_independence, check_rows

X = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("n", [2, 3, 8])
def test_independent_samples_pass(n):
    assert check_independence(lambda x: x.sin(), X[:n]) == 0
    assert check_independence(Walk(), range(n)) == 0


@pytest.mark.parametrize(
    "coupled",
    [
        lambda x: x - x.mean(dim=0),
        lambda x: x / x.norm(),
        lambda x: x.sort(dim=0).values,
        lambda x: x + 1e-2 * len(x),
        lambda x: torch.randn(x.shape, generator=torch.Generator().manual_seed(len(x))),
    ],
    ids=["centred", "normalised", "sorted", "batch size", "noise for the batch"],
)
def test_coupled_samples_are_found(coupled):
    with pytest.raises(ValueError, match=r"alone than in the batch.* Samples influence each other"):
        check_independence(coupled, X)


def test_batch_norm_in_training_mode_is_found():
    model = torch.nn.BatchNorm1d(3)
    with pytest.raises(ValueError, match=r"cannot run sample 0 of 8 alone: .*\(call \.eval\(\)\)"):
        check_independence(model, X)
    assert check_independence(model.eval(), X) == 0


def test_a_sampler_with_data_for_each_sample_is_followed():
    class Goals(Walk):
        goals = torch.arange(8.0)[:, None]

        def step(self, x, t, noise):
            return x + 0.1 * (self.goals.to(x.dtype) - x)

        def take(self, rows):
            part = Goals()
            object.__setattr__(part, "goals", self.goals[rows])
            return part

    assert check_independence(Goals(), range(8)) == 0


def test_an_adaptive_step_size_for_the_whole_batch_is_found():
    pytest.importorskip("torchdiffeq", reason="needs the flows extra")

    def velocity(t, x):
        return torch.cos(20 * t) * x**2

    more = {"velocity": velocity, "n_steps": 2, "event": (3,), "dtype": torch.float64}
    with pytest.raises(ValueError, match="one adaptive step size for all"):
        check_independence(FlowSampler(method="dopri5", **more), range(8))
    assert check_independence(FlowSampler(method="dopri5", **more), range(8), tolerance=1e-2) > 0
    assert check_independence(FlowSampler(method="rk4", **more), range(8)) == 0


def test_bad_batches_are_refused():
    with pytest.raises(ValueError, match="at least 2 samples"):
        check_independence(lambda x: x, X[:1])
    with pytest.raises(ValueError, match="a sampler and seeds, or a function"):
        check_independence(lambda x: x, range(3))


# ------------------------------------------------------------------ rows of a constraint


def test_constraints_that_select_rows_pass():
    assert check_rows(Sphere(), X) < 1e-6
    assert check_rows(Ball(radii(torch.arange(8))), X) < 1e-6


def test_constraints_that_forget_their_rows_are_found():
    class Forgetful(Ball):
        def take(self, rows):
            return self

    with pytest.raises(ValueError, match="Forgetful cannot run sample 0 of 8 alone"):
        check_rows(Forgetful(radii(torch.arange(8))), X)

    class Wrong(Ball):
        def take(self, rows):
            return Ball(self.radius[rows * 0 + 1])

    with pytest.raises(ValueError, match="Wrong gives another result for sample 0 of 8"):
        check_rows(Wrong(radii(torch.arange(8))), X)
    batchwise = tt.as_constraint(lambda x: x / x.norm(), lambda x: (x.norm(dim=1) - 1).abs())
    with pytest.raises(ValueError, match="nothing may be normalised over the batch"):
        check_rows(batchwise, X)


def test_constraints_that_keep_something_of_their_first_batch_are_found():
    class Spoiled(Ball):
        first = None

        def project(self, x):
            self.first = x.mean() if self.first is None else self.first
            return super().project(x) + self.first

        def take(self, rows):
            some = Spoiled(self.radius[rows])
            some.first = self.first
            return some

    with pytest.raises(ValueError, match="nothing may be kept of the first batch"):
        check_rows(Spoiled(radii(torch.arange(8))), X)


def test_a_constraint_that_fails_for_all_says_why_itself():
    class Broken(Ball):
        def project(self, x):
            raise KeyError("no such radius")

    with pytest.raises(KeyError, match="no such radius"):
        check_rows(Broken(radii(torch.arange(8))), X)


@pytest.mark.parametrize("row", range(5))
def test_a_batch_that_is_not_finite_is_refused_wherever_it_is_not(row):
    x = torch.ones(5, 3)
    x[row, 1] = torch.nan
    with pytest.raises(ValueError, match="the batch has NaN or inf in it"):
        check_independence(lambda x: 2 * x, x, samples=2)


def test_what_comes_out_not_finite_is_not_said_to_be_coupled():
    x = torch.randn(4, 2, generator=torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match="gives NaN or inf for some of the 4 samples"):
        check_independence(lambda x: x / 0, x)
    sphere = tt.as_constraint(lambda x: x / x.norm(dim=1, keepdim=True), lambda x: (x.norm(dim=1) - 1).abs())
    with pytest.raises(ProjectionError, match="project returned NaN or inf for 4 of 4"):
        check_rows(sphere, torch.zeros(4, 2))
    with pytest.raises(ValueError, match="Samples influence each other"):  # a standard deviation of one is NaN
        check_independence(lambda x: x / x.std(dim=0), x)
