"""A run that ends before its last step: closed as it would have been, with a record that says so."""

from __future__ import annotations

from time import sleep

import pytest
import torch

import trimtab as tt
from cases import Ball, Sphere
from trimtab.core.constraint import Improvement
from trimtab.core.record import Rollout
from trimtab.loop.replay import replay
from trimtab.prices import Thresholds
from trimtab.schedules import FixedThreshold, RandomTimes

PRICES = Thresholds(torch.linspace(0.9, 0.1, 12).double()[:, None] * torch.tensor([torch.inf, *[1.0] * 6]).double())


def stopped(closing, steps=5, schedule=None, **options):
    """Five of twelve steps, and what the loop ended with."""
    generator = torch.Generator().manual_seed(0)
    corrector = tt.Corrector(Sphere(), schedule or FixedThreshold(0.4, 4), 12, closing=closing, **options)
    x = torch.ones(6, 3, dtype=torch.float64)
    for t in range(steps):
        x = corrector(x + 0.3 * torch.randn(x.shape, generator=generator, dtype=x.dtype), t)
    return corrector, corrector.stop(x), x


@pytest.mark.parametrize("closing", ["paid", "free", "none"])
def test_the_record_is_of_the_steps_made(closing):
    corrector, final, before = stopped(closing, keep_states=True)
    run = corrector.rollout
    assert (run.n_steps, run.planned_steps) == (5, 12)
    assert "T=5 of 12" in repr(run)
    assert torch.equal(run.final, final)
    for name in ("defects", "residuals", "projected", "failed", "iterations"):
        assert getattr(run, name).shape == (5, 6), name
    assert torch.equal(run.states[-1], final)
    if closing == "none":
        assert torch.equal(final, before)
        assert not run.closing.any()
    else:
        assert (Sphere().defect(final) < 1e-12).all()
        assert torch.equal(run.closing, ~run.projected[-1])


def test_a_closing_is_counted_as_it_would_have_been_at_the_last_step():
    paid, apart = stopped("paid")[0].rollout, stopped("free")[0].rollout
    for run in (paid, apart):
        assert run.closing.any()
        assert torch.equal(run.paid, run.projected.sum(dim=0) + run.closing)
    assert torch.equal(paid.spent, paid.paid)
    assert (paid.spent <= 4).all()
    assert torch.equal(apart.spent, apart.projected.sum(dim=0))


@pytest.mark.parametrize("closing", ["paid", "free"])
def test_the_iterations_of_a_closing_are_counted_likewise(closing):
    class Counting(Sphere):
        improves = True

        def project(self, x):
            return tt.Projection(super().project(x), None, torch.full((len(x),), 3))

        def improve(self, x, state):
            y = (x + super().project(x)) / 2
            return Improvement(y, self.defect(y), self.defect(y) < 1e-3)

    corrector = tt.Corrector(Counting(), FixedThreshold(100.0, 4), 12, closing=closing, unit="iteration")
    corrector.stop(corrector(torch.full((6, 3), 2.0), 0))
    run = corrector.rollout
    assert run.paid.tolist() == [3] * 6
    assert run.spent.tolist() == [3 if closing == "paid" else 0] * 6


def test_the_steps_made_are_those_of_a_whole_run():
    early = stopped("free")[0].rollout
    generator = torch.Generator().manual_seed(0)
    corrector = tt.Corrector(Sphere(), FixedThreshold(0.4, 4), 12, closing="free")
    x = torch.ones(6, 3, dtype=torch.float64)
    for t in range(12):
        x = corrector(x + 0.3 * torch.randn(x.shape, generator=generator, dtype=x.dtype), t)
    assert corrector.rollout.planned_steps is None
    assert torch.equal(corrector.rollout.defects[:5], early.defects)
    assert torch.equal(corrector.rollout.projected[:5], early.projected)


def test_the_next_call_begins_a_new_run():
    corrector, final, _ = stopped("free")
    assert corrector.t == 0
    for t in range(12):
        final = corrector(final + 0.1, t)
    assert corrector.rollout.n_steps == 12


def test_a_block_may_be_left_after_a_stop():
    with tt.Corrector(Ball(torch.ones(3)), tt.Periodic(4), 10, closing="free") as corrector:
        x = corrector(torch.full((3, 2), 2.0), 0)
        x = corrector.stop(x)
    assert corrector.rollout.n_steps == 1


def test_a_call_after_a_stop_is_none_of_the_same_block():
    with tt.Corrector(Ball(torch.ones(3)), tt.Periodic(4), 10) as corrector:
        x = corrector.stop(corrector(torch.full((3, 2), 2.0), 0))
        with pytest.raises(RuntimeError, match="this run was stopped at step 1 of 10"):
            corrector(x, 1)


def test_a_run_in_inference_mode_may_be_stopped_outside():
    with torch.inference_mode():
        corrector = tt.Corrector(Sphere(), tt.Periodic(4), 12)
        x = corrector(torch.full((3, 2), 2.0), 0)
    assert (Sphere().defect(corrector.stop(x)) < 1e-6).all()
    assert corrector.rollout.closing.all()


def test_a_file_holds_it(tmp_path):
    run = stopped("free")[0].rollout
    run.save(tmp_path / "run.safetensors")
    assert Rollout.load(tmp_path / "run.safetensors").planned_steps == 12


def test_the_time_of_the_closing_projection_is_part_of_the_run(tmp_path):
    slow = tt.as_constraint(lambda x: (sleep(0.02), Sphere().project(x))[1], Sphere().defect)
    corrector = tt.Corrector(slow, FixedThreshold(100.0, 4), 12)
    corrector.stop(corrector(torch.ones(6, 3), 0))
    assert corrector.rollout.seconds["projection"] > 0
    assert corrector.rollout.seconds["scheduling"] >= 0
    corrector.rollout.save(tmp_path / "run.safetensors")
    Rollout.load(tmp_path / "run.safetensors")


@pytest.mark.parametrize("closing", ["paid", "free", "none"])
@pytest.mark.parametrize("steps", [1, 5, 11])
@pytest.mark.parametrize("schedule", [tt.Periodic(0.5), RandomTimes(0.5), FixedThreshold(0.4, 4), PRICES.at(6)])
def test_the_schedule_that_ran_is_the_one_that_replays(schedule, steps, closing):
    run = stopped(closing, steps, schedule)[0].rollout
    assert torch.equal(replay(schedule, run), run.projected)


def test_a_run_that_is_stopped_does_not_end_with_nan():
    broken = tt.as_constraint(lambda x: x * torch.nan, Sphere().defect)
    for closing in ("paid", "free"):
        corrector = tt.Corrector(broken, tt.Periodic(1), 4, closing=closing, measure_defects=True)
        x = corrector(torch.ones(2, 3), 0)
        with pytest.raises((ValueError, RuntimeError), match="NaN or inf for 2 of 2"):
            corrector.stop(x)
        assert corrector.t == 1  # nothing was written down: the loop may go on, or stop elsewhere
    for closing in ("paid", "free", "none"):
        corrector = tt.Corrector(Sphere(), tt.Periodic(1), 4, closing=closing)
        x = corrector(torch.ones(2, 3), 0)
        with pytest.raises(ValueError, match="the loop stopped with NaN or inf for 2 of 2 samples at step 1 of 4"):
            corrector.stop(x * torch.nan)
        corrector.stop(x)
        assert corrector.rollout.n_steps == 1


def test_there_must_be_a_run_to_stop():
    corrector = tt.Corrector(Sphere(), tt.Stepwise(), 2)
    x = torch.ones(2, 3)
    with pytest.raises(RuntimeError, match="no run to stop"):
        corrector.stop(x)
    corrector(x)
    corrector(x)
    with pytest.raises(RuntimeError, match="no run to stop"):
        corrector.stop(x)
