"""The laws of the core, each stated once over every constraint, schedule and dtype."""

from __future__ import annotations

import pytest
import torch

import free
import trimtab as tt
from cases import CONSTRAINTS, SCHEDULES, Solver, Sphere, Walk
from trimtab.core.budget import corrections
from trimtab.core.noise import Noise
from trimtab.loop.replay import replay

SEEDS = torch.tensor([5, 0, 17, 3, 8])
every_constraint = pytest.mark.parametrize("constraint", CONSTRAINTS)
every_schedule = pytest.mark.parametrize("schedule", SCHEDULES)
every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


def run(constraint, schedule, seeds=SEEDS, sampler=None, **options):
    sampler = sampler or Walk()
    schedule = SCHEDULES[schedule](sampler) if isinstance(schedule, str) else schedule
    return free.rollout(sampler, CONSTRAINTS[constraint](seeds), schedule, seeds, **options)


def assert_same(a: tt.Rollout, b: tt.Rollout) -> None:
    for name in ("final", "defects", "residuals", "projected", "closing", "failed", "iterations"):
        assert torch.equal(getattr(a, name), getattr(b, name)), name


@every_constraint
@every_schedule
@every_dtype
def test_rollout_ends_feasible_and_keeps_its_budget(constraint, schedule, dtype):
    sampler = Walk(dtype=dtype)
    chosen = SCHEDULES[schedule](sampler)
    record = run(constraint, chosen, sampler=sampler)
    assert record.final.dtype == dtype
    tolerance = 1e-6 if dtype == torch.float32 else 1e-12
    solved = ~(record.closing_failed | record.failed[-1])
    assert (CONSTRAINTS[constraint](SEEDS).defect(record.final)[solved] <= tolerance).all()
    limit = corrections(getattr(chosen, "budget", 1.0), sampler.n_steps)
    assert (record.spent <= limit).all()
    assert torch.equal(record.closing, ~record.projected[-1])
    assert (record.residuals[~record.projected] == record.defects[~record.projected]).all()


@every_constraint
@every_schedule
def test_replaying_the_mask_gives_the_same_rollout(constraint, schedule):
    record = run(constraint, schedule)
    assert_same(record, run(constraint, tt.schedules.Fixed(record.projected)))


@every_constraint
@every_schedule
def test_decisions_are_those_of_the_schedule_asked_for(constraint, schedule):
    chosen = SCHEDULES[schedule](Walk())
    record = run(constraint, chosen)
    assert torch.equal(replay(chosen, record), record.projected)


@every_constraint
@every_schedule
@every_dtype
def test_a_sample_does_not_depend_on_its_batch(constraint, schedule, dtype):
    sampler = Walk(dtype=dtype)
    chosen = SCHEDULES[schedule](sampler)
    if schedule == "fixed":
        chosen = SCHEDULES["periodic-5"](sampler)
    whole = run(constraint, chosen, sampler=sampler)
    shuffled = torch.tensor([3, 0, 4, 1, 2])
    parts = [torch.tensor([i]) for i in range(5)] + [shuffled, torch.tensor([1, 4])]
    for rows in parts:
        part = run(constraint, chosen, SEEDS[rows], sampler)
        assert torch.equal(part.final, whole.final[rows])
        assert torch.equal(part.defects, whole.defects[:, rows])
        assert torch.equal(part.projected, whole.projected[:, rows])


@every_constraint
@every_schedule
def test_a_loop_of_ones_own_gives_the_same_rollout(constraint, schedule):
    sampler, noise = Walk(), Noise(SEEDS)
    chosen = SCHEDULES[schedule](sampler)
    corrector = free.Corrector(CONSTRAINTS[constraint](SEEDS), chosen, sampler.n_steps, seeds=SEEDS)
    for _ in range(2):  # it resets itself
        x = sampler.start(noise)
        for t in range(sampler.n_steps):
            x = corrector(sampler.step(x, t, noise), t)
        record = run(constraint, chosen)
        assert torch.equal(x, record.final)
        assert_same(corrector.rollout, record)


def test_a_row_that_was_not_chosen_cannot_fail():
    x = torch.tensor([[3.0, 0.0], [0.0, 3.0]])  # the solver fails on the first
    corrector = tt.Corrector(Solver(), lambda view: torch.tensor([False, True]), 1, closing="none", on_failure="raise")
    torch.testing.assert_close(corrector(x), torch.tensor([[3.0, 0.0], [0.0, 1.0]]))
    assert corrector.rollout.iterations.tolist() == [[0, 3]]


@every_constraint
@pytest.mark.parametrize("fill", [torch.inf, -torch.inf])
def test_extreme_tables_are_terminal_and_stepwise(constraint, fill):
    sampler = Walk()
    table = torch.full((sampler.n_steps, sampler.n_steps + 1), fill, dtype=torch.float64)
    table[:, 0] = torch.inf
    reference = tt.Terminal() if fill > 0 else tt.Stepwise()
    assert_same(run(constraint, tt.prices.Adaptive(tt.prices.Thresholds(table))), run(constraint, reference))


@every_constraint
@pytest.mark.parametrize("name", ["periodic", "adaptive", "random"])
@pytest.mark.parametrize(("budget", "reference"), [(0, tt.Terminal()), (12, tt.Stepwise())])
def test_extreme_budgets_are_terminal_and_stepwise(constraint, name, budget, reference):
    table = free.calibrate(tt.Problem(Walk(), Sphere(), range(100, 108)), 1.0, method="paper", objective="path")
    schedule = {
        "periodic": tt.Periodic(budget),
        "adaptive": tt.prices.Adaptive(table, budget),
        "random": tt.schedules.RandomTimes(budget),
    }[name]
    assert_same(run(constraint, schedule), run(constraint, reference))


@every_schedule
def test_noise_is_the_same_under_every_schedule(schedule):
    class Recorder(Walk):
        def step(self, x, t, noise):
            seen.append(noise.normal(t, self.event))
            return super().step(x, t, noise)

    seen = []
    run("sphere", SCHEDULES[schedule](Walk()), sampler=Recorder())
    expected = [Noise(SEEDS).normal(t, (3,)) for t in range(12)]
    assert all(torch.equal(a, b) for a, b in zip(seen, expected, strict=True))


@every_schedule
def test_the_global_generators_are_never_touched(schedule):
    import random

    import numpy as np

    before = torch.get_rng_state(), random.getstate(), repr(np.random.get_state())
    run("ball", schedule)
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1:] == (random.getstate(), repr(np.random.get_state()))


@every_constraint
@every_schedule
def test_a_record_survives_its_file(constraint, schedule, tmp_path):
    record = run(constraint, schedule, keep_states=True)
    record.save(tmp_path / "run.safetensors")
    again = tt.Rollout.load(tmp_path / "run.safetensors")
    assert_same(record, again)
    assert torch.equal(record.states, again.states)
    assert (record.seconds, record.calls, record.rows) == (again.seconds, again.calls, again.rows)
    assert torch.equal(record.seeds, again.seeds)
