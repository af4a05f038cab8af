"""What a record says about cost, feasibility and landing; and loops that call a corrector in unusual ways."""

from __future__ import annotations

import asyncio

import pytest
import torch

import trimtab as tt
from cases import Solver, Sphere, Walk
from trimtab.core.bound_constraint import Retry
from trimtab.core.record import InfeasibleWarning


class Failing(Sphere):
    """Fails for samples with a positive first coordinate, and leaves them half-way."""

    def project(self, x):
        failed = x[:, 0] > 0
        y = torch.where(failed[:, None], 0.5 * (x + super().project(x)), super().project(x))
        return tt.Projection(y, ~failed)


@pytest.mark.parametrize("closing", ["paid", "free"])
@pytest.mark.parametrize("policy", ["keep", "revert", "retry"])
def test_infeasible_samples_are_never_returned_in_silence(closing, policy):
    with pytest.warns(InfeasibleWarning, match=r"of 8 final samples are not feasible"):
        run = tt.rollout(Walk(), Failing(), tt.Periodic(3), range(8), closing=closing, on_failure=policy)
    bad = Sphere().defect(run.final) > 1e-9
    assert bool(bad.any())
    assert torch.equal(run.feasible, ~bad)
    assert f"{int(bad.sum())} NOT FEASIBLE" in repr(run)
    assert set(bad.nonzero().squeeze(1).tolist()) <= set(run.redraw.tolist())


@pytest.mark.filterwarnings("error")
def test_a_run_that_ends_feasible_warns_of_nothing():
    run = tt.rollout(Walk(), Sphere(), tt.Periodic(3), range(8))
    assert bool(run.feasible.all())
    assert "FEASIBLE" not in repr(run)


def test_the_landing_is_the_defect_of_the_last_proposal():
    run = tt.rollout(Walk(), Sphere(), tt.Periodic(3), range(8), measure_defects=True)
    assert torch.equal(run.landing, run.defects[-1])


def test_everything_that_was_paid_for_counts():
    residual = tt.as_constraint(Sphere().project)  # each defect is a projection
    run = tt.rollout(Walk(), residual, tt.Periodic(3), range(4), measure_defects=True)
    assert int(run.paid.sum()) == run.rows["projection"]
    assert "15 projections per sample" in repr(run)
    retried = tt.rollout(Walk(), Solver(0.5), tt.Stepwise(), range(8), on_failure=Retry(2))
    assert int(retried.paid.sum()) == retried.rows["projection"]


def test_a_rollout_can_be_drawn(tmp_path):
    run = tt.rollout(Walk(), Sphere(), tt.Periodic(3), range(8), measure_defects=True)
    run.plot(tmp_path / "run.png")
    assert (tmp_path / "run.png").stat().st_size > 1000


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("first", ["torch.compile", "Corrector"])
def test_a_corrector_works_inside_a_compiled_loop(first):
    if first == "torch.compile":
        torch.compile(torch.neg, backend="eager")
    corrector = tt.Corrector(Sphere(), tt.schedules.FixedThreshold(0.1, 3), 5)

    def loop(x):
        for t in range(5):
            x = corrector(x * 1.1 + 0.1, t)
        return x

    x = torch.ones(4, 3)
    plain = loop(x)
    compiled = torch.compile(loop, backend="eager")(x)
    torch.testing.assert_close(compiled, plain)


def test_two_asyncio_tasks_cannot_share_a_run():
    corrector = tt.Corrector(Sphere(), tt.Stepwise(), 3)

    async def sample():
        x = torch.ones(2, 3)
        for _ in range(3):
            x = corrector(x)
            await asyncio.sleep(0)

    async def both():
        return await asyncio.gather(sample(), sample(), return_exceptions=True)

    results = asyncio.run(both())
    assert any("started by another thread or asyncio task" in str(error) for error in results)


def test_a_price_without_its_budget_gets_a_hint():
    price = tt.prices.Thresholds(torch.full((3, 2), torch.inf))
    with pytest.raises(TypeError, match=r"price\.at\(0\.25\)"):
        tt.Corrector(Sphere(), price, 3)
    with pytest.raises(TypeError, match=r"Corrector\.__init__\(\)"):
        tt.Corrector(Sphere(), 0.25)


def test_prices_of_another_problem_are_refused():
    price = tt.calibrate(tt.Problem(Walk(), Sphere(), range(100, 116)), 1.0, "paper", objective="path")
    tt.rollout(Walk(), Sphere(), price.at(0.5), range(4))
    with pytest.raises(ValueError, match=r"made for states of shape \(3,\), and these have \(4,\)"):
        tt.rollout(Walk(event=(4,)), Sphere(), price.at(0.5), range(4))
    far = tt.as_constraint(Sphere().project, lambda x: 1e4 * Sphere().defect(x))
    with pytest.raises(ValueError, match="made for defects of about"):
        tt.rollout(Walk(), far, price.at(0.5), range(8))
