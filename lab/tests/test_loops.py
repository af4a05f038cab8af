"""A loop that is not ours, driven as a sampler."""

from __future__ import annotations

import gc
import threading
import time

import numpy as np
import pytest
import torch

import free
import trimtab as tt
from trimtab.core.noise import Noise
from trimtab_lab.loops import LoopSampler

T = 12
DOMAIN = tt.domain("so3", n_steps=T)
CONSTRAINT = DOMAIN.problem(range(1)).constraint


def loop(correct, seeds):
    """The sampler of a domain, written as somebody else's loop."""
    sampler, noise = DOMAIN.problem(seeds).sampler, Noise(seeds, torch.float64)
    x = sampler.start(noise)
    for t in range(T):
        x = correct(sampler.step(x, t, noise), t)
    return x


def waiting():
    """Loops that wait, after those that are about to end had time for it."""
    for _ in range(100):
        left = [thread for thread in threading.enumerate() if thread.name == "trimtab loop"]
        if not left:
            break
        time.sleep(0.01)
    return left


@pytest.mark.parametrize("schedule", [tt.Terminal(), tt.Periodic(3), tt.Stepwise()], ids=str)
def test_a_loop_is_the_sampler_it_could_have_been(schedule):
    seeds = range(5)
    theirs = free.rollout(LoopSampler(loop, T), CONSTRAINT, schedule, seeds)
    ours = free.rollout(DOMAIN.problem(seeds).sampler, CONSTRAINT, schedule, seeds)
    for name in ("final", "defects", "residuals", "projected"):
        assert torch.equal(getattr(theirs, name), getattr(ours, name)), name
    assert not waiting()


def test_it_can_be_calibrated_and_advised_on():
    price = free.calibrate(tt.Problem(LoopSampler(loop, T), CONSTRAINT, range(100, 116)), budget=0.5, objective="path")
    ours = free.calibrate(
        tt.Problem(DOMAIN.problem(range(100, 116)).sampler, CONSTRAINT, range(100, 116)), budget=0.5, objective="path"
    )
    assert torch.equal(price.table, ours.table)


def test_states_of_any_kind():
    ball = tt.as_constraint(
        lambda s: {"x": np.clip(s["x"], -1, 1), "age": s["age"]}, lambda s: (np.abs(s["x"]) - 1).clip(min=0).max(axis=1)
    )

    def walking(correct, seeds):
        state = {"x": np.zeros((len(seeds), 2)), "age": np.zeros(len(seeds))}
        for t in range(T):
            state = correct({"x": state["x"] + 0.3 * seeds.numpy()[:, None], "age": state["age"] + 1}, t)

    run = tt.rollout(LoopSampler(walking, T), ball, tt.Periodic(3), range(3))
    assert run.final["x"].tolist() == [[0, 0], [1, 1], [1, 1]]
    assert run.final["age"].tolist() == [T] * 3


def test_runs_may_be_interleaved():
    sampler, seeds = LoopSampler(loop, T), torch.arange(3)
    first, second = Noise(seeds, torch.float64), Noise(seeds + 7, torch.float64)
    x, y = sampler.start(first), sampler.start(second)
    for t in range(T):
        x, y = sampler.step(x, t, first), sampler.step(y, t, second)
    expected = [free.rollout(LoopSampler(loop, T), everything(), tt.Terminal(), s).final for s in (seeds, seeds + 7)]
    assert torch.equal(x, expected[0])
    assert torch.equal(y, expected[1])


def everything():
    return tt.as_constraint(lambda x: x, lambda x: torch.zeros(len(x), dtype=x.dtype))


def test_what_comes_after_the_last_step_is_done_once():
    ended = []

    def decoding(correct, seeds):
        loop(correct, seeds)
        ended.append(len(seeds))

    sampler = LoopSampler(decoding, T)
    for _ in range(3):
        free.rollout(sampler, CONSTRAINT, tt.Stepwise(), range(2))
    assert ended == [2]


@pytest.mark.parametrize("n_steps", [T - 1, T + 1])
def test_a_wrong_number_of_steps_is_explained(n_steps):
    complaint = "more than n_steps = 11 times" if n_steps < T else "ended after 12 of n_steps = 13 calls"
    with pytest.raises(ValueError, match=complaint):
        free.rollout(LoopSampler(loop, n_steps), CONSTRAINT, tt.Terminal(), range(2))


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda correct: correct(torch.zeros(2, 3, 3), 4), "for step 4, but step 0 of 12 is next"),
        (lambda correct: correct([1.0]), "a tuple, list, dict or dataclass of those: got float"),
        (lambda correct: 1 / 0, "division by zero"),
    ],
)
def test_errors_of_the_loop_come_out_where_it_was_called(call, complaint):
    with pytest.raises((ValueError, TypeError, ZeroDivisionError), match=complaint):
        free.rollout(LoopSampler(lambda correct, seeds: call(correct), T), CONSTRAINT, tt.Terminal(), range(2))
    assert not waiting()


def test_a_run_that_is_given_up_leaves_no_thread_behind():
    def fails(x):
        raise OSError("the solver's licence has run out")

    with pytest.raises(OSError, match="licence"):
        free.rollout(LoopSampler(loop, T), tt.as_constraint(fails, CONSTRAINT.defect), tt.Stepwise(), range(2))
    gc.collect()
    assert not waiting()


def test_a_run_that_is_over_was_not_begun_or_is_begun_again_is_told_apart():
    sampler, noise = LoopSampler(loop, T + 1), Noise(torch.arange(2), torch.float64)
    with pytest.raises(RuntimeError, match="it was not started, or is over; call start"):
        sampler.step(None, 0, noise)
    for _ in range(3):
        x = sampler.start(noise)
    assert len([thread for thread in threading.enumerate() if thread.name == "trimtab loop"]) == 1
    for t in range(T):
        x = sampler.step(x, t, noise)
    with pytest.raises(ValueError, match="ended after 12 of n_steps = 13 calls"):
        sampler.step(x, T, noise)
    with pytest.raises(RuntimeError, match="is over"):  # and does not wait for an answer that never comes
        sampler.step(x, T, noise)
    assert not waiting()


def test_steps_out_of_order_are_refused():
    sampler, noise = LoopSampler(loop, T), Noise(torch.arange(2), torch.float64)
    x = sampler.step(sampler.start(noise), 0, noise)
    with pytest.raises(ValueError, match="step 1 of 12 is next, got 2"):
        sampler.step(x, 2, noise)
    assert not waiting()
