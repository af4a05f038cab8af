from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import free
import trimtab as tt
from cases import Solver, Sphere
from trimtab.core.noise import Noise, as_seeds
from trimtab.integrations.flows import FlowSampler, with_target

F64 = {"dtype": torch.float64}
METHODS = ["euler", "heun2", "rk4"]


def swirl(x, t):
    """A velocity that depends on time and leaves the sphere."""
    return torch.stack([-x[:, 1], x[:, 0], 0.5 * torch.cos(3 * t) * x[:, 2]], dim=1) + 0.2 * x


def flow(method="euler", n_steps=20, **more):
    return FlowSampler(velocity=swirl, n_steps=n_steps, event=(3,), method=method, **F64 | more)


def noise(n=4, **more):
    return Noise(as_seeds(range(n)), **F64 | more)


def final(sampler, n=4):
    x = sampler.start(noise(n))
    for t in range(sampler.n_steps):
        x = sampler.step(x, t, noise(n))
    return x


# ------------------------------------------------------------------ solvers


@pytest.mark.parametrize(("method", "order"), [("euler", 1), ("heun2", 2), ("rk4", 4)])
def test_order_of_convergence(method, order):
    exact = final(flow("rk4", 640))
    coarse, fine = ((final(flow(method, n)) - exact).abs().max() for n in (10, 20))
    assert 0.6 * 2**order < coarse / fine < 1.6 * 2**order


def test_evaluations_are_counted():
    for method, stages in (("euler", 1), ("heun2", 2), ("rk4", 4)):
        asked = []
        sampler = FlowSampler(
            velocity=lambda x, t, asked=asked: (asked.append(t), swirl(x, t))[1], n_steps=5, event=(3,), method=method
        )
        free.rollout(sampler, Sphere(), tt.Stepwise(), range(2))
        assert len(asked) == 5 * stages


@pytest.mark.parametrize("method", METHODS)
def test_either_order_of_arguments(method):
    turned = FlowSampler(velocity=lambda t, x: swirl(x, t), n_steps=20, event=(3,), method=method, **F64)
    assert torch.equal(final(turned), final(flow(method)))
    assert (turned.arguments, flow().arguments) == ("tx", "xt")
    nameless = FlowSampler(
        velocity=lambda *a: swirl(a[1], a[0]), n_steps=20, event=(3,), arguments="tx", method=method, **F64
    )
    assert torch.equal(final(nameless), final(flow(method)))


def test_order_of_arguments_of_modules():
    class Model(torch.nn.Module):
        def forward(self, t, x, y=None):
            return x

    assert FlowSampler(velocity=Model(), n_steps=2, event=(3,)).arguments == "tx"
    with pytest.raises(ValueError, match=r"names \['a', 'b'\]; say arguments='xt'"):
        FlowSampler(velocity=lambda a, b: a, n_steps=2, event=(3,))


@pytest.mark.parametrize("method", METHODS)
def test_corrections_are_at_step_ends_only(method):
    """A stage that was projected would be seen by the model on the sphere."""
    seen = []

    def velocity(x, t):
        seen.append((float(t), x.norm(dim=1)))
        return swirl(x, t)

    sampler = FlowSampler(velocity=velocity, n_steps=8, event=(3,), method=method, **F64)
    free.rollout(sampler, Sphere(), tt.Stepwise(), range(4))
    stages = len(seen) // 8
    on_sphere = [bool(((norm - 1).abs() < 1e-9).all()) for _, norm in seen[stages:]]
    assert on_sphere == ([True] + [False] * (stages - 1)) * 7


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match="did you mean 'euler'"):
        flow("eulr")
    with pytest.raises(ValueError, match="n_steps must be"):
        flow(n_steps=0)
    with pytest.raises(ValueError, match="21 increasing numbers for 20 steps"):
        flow(times=torch.linspace(0, 1, 20))
    with pytest.raises(ValueError, match="unknown order of arguments"):
        flow(arguments="x,t")
    wrong = FlowSampler(velocity=lambda x, t: x * 1.0, n_steps=3, event=(3,), arguments="tx", **F64)
    with pytest.raises(ValueError, match=r"velocity\(t, x\); is arguments='tx' right"):
        wrong.step(torch.ones(2, 3), 0, noise())
    scalar = FlowSampler(velocity=lambda x, t: x.sum(), n_steps=3, event=(3,), **F64)
    with pytest.raises(ValueError, match="is arguments='xt' right"):
        scalar.step(torch.ones(2, 3), 0, noise())


# ------------------------------------------------------------------ the clean sample


def test_without_corrections_the_clean_target_is_the_plain_flow():
    sampler, constraint, samples = with_target(flow(), Sphere(), "clean")
    run = free.rollout(sampler, constraint, tt.Terminal(), range(4))
    torch.testing.assert_close(samples(run.final), Sphere().project(final(flow())), rtol=0, atol=1e-12)


@settings(max_examples=20)
@given(st.integers(1, 12), st.integers(0, 4095))
def test_the_clean_target_is_the_loop_by_hand(n_steps, bits):
    mask = torch.tensor([bool(bits >> t & 1) for t in range(n_steps)])
    sampler, constraint, samples = with_target(flow(n_steps=n_steps), Sphere(), "clean")
    run = free.rollout(sampler, constraint, tt.schedules.Fixed(mask), range(3))

    x = noise(3).start((3,))
    for k in range(n_steps):
        t = torch.tensor(k / n_steps, **F64)
        v = swirl(x, t)
        if mask[k] or k == n_steps - 1:
            v = (Sphere().project(x + (1 - t) * v) - x) / (1 - t)
        x = x + v / n_steps
    torch.testing.assert_close(samples(run.final), x, rtol=0, atol=1e-12)
    assert (Sphere().defect(samples(run.final)) < 1e-12).all()


def test_the_clean_target_passes_outcomes_and_residual_defects_on():
    sampler, constraint, _ = with_target(flow(), Solver(), "clean")
    run = free.rollout(sampler, constraint, tt.Stepwise(), range(16))
    assert set(run.iterations.unique().tolist()) <= {3, 50}
    _, residual, _ = with_target(flow(), tt.as_constraint(Sphere().project), "clean")
    assert residual.defect_is_projection
    prices = free.calibrate(tt.Problem(sampler, constraint, range(100, 116)), 0.25, method="paper", objective="path")
    adaptive = free.rollout(sampler, constraint, tt.prices.Adaptive(prices), range(16))
    assert (adaptive.spent <= 5).all()


def test_the_clean_target_tells_its_constraint_what_it_needs():
    def knows(x, t, previous):
        assert isinstance(t, int)
        assert previous.shape == x.shape
        return x

    told = tt.as_constraint(
        lambda x, t, previous: Sphere().project(knows(x, t, previous)),
        lambda x, t, previous: Sphere().defect(knows(x, t, previous)),
        needs=("t", "previous"),
        is_projection=False,
    )
    sampler, constraint, _ = with_target(flow(), told, "clean")
    assert not constraint.is_projection
    _, plain, _ = with_target(flow(), Sphere(), "clean")
    finals = [tt.rollout(sampler, one, tt.Stepwise(), range(4)).final for one in (constraint, plain)]
    assert torch.equal(*finals)


def test_clean_targets_that_make_no_sense_are_refused():
    assert with_target(flow("rk4"), Sphere())[2](torch.ones(2)).tolist() == [1, 1]
    with pytest.raises(ValueError, match="method='euler'"):
        with_target(flow("heun2"), Sphere(), "clean")
    with pytest.raises(ValueError, match="end at 1"):
        with_target(flow(times=torch.linspace(0, 0.9, 21)), Sphere(), "clean")
    with pytest.raises(ValueError, match="target must be one of"):
        with_target(flow(), Sphere(), "x1")


# ------------------------------------------------------------------ torchdiffeq


def ode(method="dopri5", **more):
    pytest.importorskip("torchdiffeq", reason="needs the flows extra")
    return FlowSampler(velocity=swirl, n_steps=10, event=(3,), method=method, **F64 | more)


def test_segments_reach_the_same_end():
    torch.testing.assert_close(final(ode(rtol=1e-9, atol=1e-9)), final(flow("rk4", 640)), rtol=0, atol=1e-7)
    torch.testing.assert_close(final(ode("midpoint")), final(ode("midpoint")), rtol=0, atol=0)


def test_a_sample_meets_its_tolerance_whatever_its_batch_mates_are():
    """One fast sample among a thousand still ones must not drown in the mean."""

    def velocity(t, x):
        return 30 * torch.cos(60 * t) * x

    x = torch.full((1000, 1), 1e-6, **F64)
    x[0] = 1.0
    sampler = FlowSampler(velocity=velocity, method="dopri5", n_steps=1, event=(1,), rtol=1e-6, atol=1e-6, **F64)
    end = sampler.step(x, 0, noise())[0]
    exact = torch.exp(torch.sin(torch.tensor(60.0, **F64)) / 2)
    assert (end - exact).abs() < 1e-4
