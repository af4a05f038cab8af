"""The closed linkage: its postures, its equations, its solver, and what a batch may change."""

from __future__ import annotations

import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import trimtab as tt
from trimtab.core.noise import Noise, as_seeds
from trimtab_lab.domains import domain
from trimtab_lab.domains.linkage import Bars, joint_distance, joint_places

SEEDS = range(8)
loops = st.builds(
    lambda count, share: Bars(count, share * count), st.integers(3, 9), st.floats(0.1, 0.9, allow_subnormal=False)
)


def run(schedule, seeds=SEEDS, **settings):
    return domain("linkage", **settings).problem(seeds).rollout(schedule, measure_defects=True, keep_states=True)


@given(loops)
def test_the_named_postures_close_the_loop(bars):
    for posture in (bars.arch, bars.wave, -bars.arch):
        assert bars.gap(posture).norm() <= 1e-12
        places = joint_places(posture[None])[0]
        assert torch.allclose(places.diff(dim=0).norm(dim=1), torch.ones(bars.count, dtype=torch.float64))
        assert torch.allclose(places[-1], torch.tensor([bars.frame, 0.0], dtype=torch.float64), atol=1e-12)


@given(loops, st.integers(0, 1000))
def test_the_defect_is_the_gap_between_the_last_bar_and_its_pin(bars, seed):
    made = domain("linkage", bars=bars.count, frame=bars.frame)
    joints = torch.randn(4, bars.count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    pin = torch.tensor([bars.frame, 0.0], dtype=torch.float64)
    gaps = (joint_places(joints)[:, -1] - pin).norm(dim=1)
    assert torch.allclose(made.problem(range(4)).constraint.defect(joints), gaps, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("schedule", [tt.Terminal(), tt.Stepwise(), tt.Periodic(0.25)], ids=repr)
def test_a_rollout_starts_and_ends_closed_and_opens_between(schedule):
    constraint = domain("linkage").problem(SEEDS).constraint
    record = run(schedule)
    assert record.n_steps == 100
    assert (constraint.defect(record.states[0]) <= 1e-8).all()
    assert (constraint.defect(record.final) <= 1e-8).all()
    assert not record.failed.any()
    assert (record.defects > 1e-3).double().mean() > 0.9


def test_a_projection_is_its_gauss_newton_steps_to_the_end():
    problem = domain("linkage").problem(SEEDS)
    x = run(tt.Terminal()).states[50]
    whole = problem.constraint.project(x)
    y, carried, steps = x, None, 0
    done = torch.zeros(len(x), dtype=torch.bool)
    while not done.all():
        y, defect, done, carried, _ = problem.constraint.improve(y, carried)
        steps += 1
    assert 2 <= steps <= 10
    assert (defect <= 1e-8).all()
    assert steps == int(whole.iterations.max())
    torch.testing.assert_close(y, whole.x, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kappa", [0.0, 0.4, 1.0])
def test_without_drift_and_noise_the_pull_is_a_share_of_a_gauss_newton_step(kappa):
    problem = domain("linkage", kappa=kappa, drift=0.0, noise_start=1e-300, noise_end=1e-300, bursts=0).problem(SEEDS)
    noise = Noise(as_seeds(SEEDS))
    x = problem.sampler.start(noise) + 0.1 * noise.normal(0, (6,), stream=9)
    step = problem.constraint.improve(x, None).x - x
    assert torch.allclose(problem.sampler.step(x, 0, noise) - x, kappa * step, rtol=1e-9, atol=1e-14)


def test_the_drift_opens_a_closed_loop_to_second_order_only():
    gaps = []
    for drift in (0.02, 0.01):
        settings = {"kappa": 0.0, "noise_start": 1e-300, "noise_end": 1e-300, "bursts": 0, "tolerance": 1e-13}
        problem = domain("linkage", drift=drift, **settings).problem(SEEDS)
        noise = Noise(as_seeds(SEEDS))
        moved = problem.sampler.step(problem.sampler.start(noise), 0, noise)
        gaps.append(problem.constraint.defect(moved))
    assert torch.allclose(gaps[0] / gaps[1], torch.full((8,), 4.0, dtype=torch.float64), rtol=0.1)


def test_loops_end_in_one_arch_or_the_other():
    final = run(tt.Stepwise(), range(64), n_steps=200).final
    arch = Bars().arch
    to_each = torch.stack([joint_distance(final, side.expand(64, 6)) for side in (arch, -arch)])
    assert (to_each.min(dim=0).values < 0.5).double().mean() > 0.9
    assert 8 <= (to_each[0] < to_each[1]).sum() <= 56


def test_bursts_are_kicks_at_times_of_each_samples_own():
    kicked, calm = run(tt.Stepwise()).defects, run(tt.Stepwise(), bursts=0).defects
    assert kicked.max(dim=0).values.mean() > 2 * calm.max(dim=0).values.mean()
    assert len(set(kicked.argmax(dim=0).tolist())) > 4


@pytest.mark.parametrize("schedule", [tt.Terminal(), tt.Stepwise(), tt.Periodic(0.25)], ids=repr)
def test_a_sample_alone_is_the_sample_in_a_batch_to_rounding(schedule):
    whole = run(schedule)
    for rows in ([5], [3, 1]):
        part = run(schedule, rows)
        # the solver stops at 1e-8 of a bar: that is how far rounding may move a sample
        assert torch.allclose(part.final, whole.final[rows], rtol=0, atol=1e-6)
        assert torch.allclose(part.defects, whole.defects[:, rows], rtol=0, atol=1e-6)


def test_settings_make_the_same_domain_again():
    made = domain("linkage", bars=5, frame=2.5, bursts=2, kappa=0.1, n_steps=9, tolerance=1e-5)
    again = domain("linkage", **json.loads(json.dumps(dict(made.settings))))
    assert again.settings == made.settings
    assert torch.equal(*(each.problem(SEEDS).rollout(tt.Periodic(3)).final for each in (made, again)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bars": 2}, "bars must be at least 3, or the loop cannot move: got 2"),
        ({"bars": 4.0}, "whole number"),
        ({"frame": 6.0}, r"in \(0, 6\), the reach of 6 bars: got 6.0"),
        ({"frame": math.nan}, "frame"),
        ({"tolerance": 0.0}, "above 0"),
        ({"strength": -1.0}, "strength must be a number of at least 0"),
        ({"frames": 1}, "did you mean 'frame'"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises((TypeError, ValueError), match=message):
        domain("linkage", **settings)
