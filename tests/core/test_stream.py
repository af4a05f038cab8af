"""A loop with no known end: never more than the rate and the burst allow, and otherwise as a corrector."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import free
import trimtab as tt
from cases import Ball, Sphere
from trimtab.core.stream import Stream


def walk(stream, steps, n=4, seed=0):
    """Corrections of each step, (steps, n)."""
    generator = torch.Generator().manual_seed(seed)
    x, seen = torch.zeros(n, 3, dtype=torch.float64), []
    for _ in range(steps):
        x = stream(0.9 * x + torch.randn(x.shape, generator=generator, dtype=x.dtype))
        seen.append(stream.projected)
    return torch.stack(seen)


@settings(max_examples=25)
@given(st.floats(0.02, 1.0), st.floats(1.0, 6.0), st.floats(0.0, 2.0), st.integers(0, 99))
def test_never_more_than_the_rate_and_the_burst(rate, burst, threshold, seed):
    stream = Stream(Sphere(), lambda view: view.defect >= threshold, rate, burst)
    projected = walk(stream, 60, seed=seed)
    done = torch.cat([torch.zeros(1, 4), projected.double().cumsum(dim=0)])
    for k in range(1, 61):  # in any stretch of k steps
        assert (done[k:] - done[:-k]).max() <= burst + rate * k + 1e-6
    assert torch.equal(stream.spent, projected.sum(dim=0))
    assert (stream.tokens <= burst).all()
    assert (stream.tokens >= -1e-6).all()


@pytest.mark.parametrize("rate", [0.1, 0.25, 1 / 3, 1.0])
def test_what_is_always_wanted_comes_at_the_rate(rate):
    projected = walk(Stream(Sphere(), lambda view: torch.ones_like(view.defect, dtype=torch.bool), rate), 301)
    assert projected.sum(dim=0).tolist() == [int(300 * rate + 1e-6) + 1] * 4
    assert projected[:: round(1 / rate)].all()


def test_every_sample_has_its_own_bucket_and_is_told_of_it():
    told = []

    def by_row(view):
        told.append(view.context)
        return torch.tensor([True, False])

    stream = Stream(Sphere(), by_row, rate=0.5, burst=2)
    x = torch.ones(2, 3, dtype=torch.float64)
    for _ in range(4):
        stream(x)
    assert [c["tokens"].tolist() for c in told] == [[2, 2], [1.5, 2], [1, 2], [0.5, 2]]
    assert [c["since"].tolist() for c in told] == [[1, 1], [1, 2], [1, 3], [1, 4]]
    assert stream.spent.tolist() == [3, 0]


def test_corrections_are_those_of_a_corrector():
    """With all the tokens it wants, a stream does what a corrector without a closing projection does."""
    constraint, schedule = Ball(torch.tensor([0.5, 1.0, 1.5, 2.0])), tt.schedules.FixedThreshold(0.3, 1.0)
    corrector = free.Corrector(constraint, schedule, 40, closing="none")
    stream = Stream(constraint, lambda view: view.defect >= 0.3, rate=1.0)
    generator = torch.Generator().manual_seed(1)
    x = y = torch.zeros(4, 3, dtype=torch.float64)
    for t in range(40):
        noise = torch.randn(x.shape, generator=generator, dtype=x.dtype)
        x, y = corrector(x + noise, t), stream(y + noise)
        assert torch.equal(x, y)


def test_a_filter_on_the_state_before():
    """A control barrier: the next state may be at most so much nearer to the wall than the one before."""
    limit = tt.as_constraint(
        lambda x, previous: torch.maximum(x, 0.8 * previous),
        lambda x, previous: (0.8 * previous - x).clamp(min=0).amax(dim=1),
        needs=("previous",),
    )
    stream = Stream(limit, lambda view: view.defect > 0, rate=1.0)
    x = torch.ones(3, 1, dtype=torch.float64)
    stream.begin(x)
    for k in range(1, 6):
        x = stream(x - 0.5)
        torch.testing.assert_close(x, torch.full_like(x, 0.8**k))
        assert stream.projected.tolist() == [True] * 3
    stream.begin(x)
    with pytest.raises(RuntimeError, match="not been called yet"):
        stream.projected  # noqa: B018


@pytest.mark.parametrize("needs", [(), ("previous",)])
@pytest.mark.parametrize("where", ["project", "defect", "decide", "on_step"])
def test_a_step_that_failed_can_be_made_again(where, needs):
    fails = set()

    def check(name):
        if name in fails:
            raise OSError(name)

    def project(x, **known):
        check("project")
        return x.clamp(-1, 1)

    def defect(x, **known):
        check("defect")
        return (x.abs() - 1).clamp(min=0).amax(dim=1)

    def decide(view):
        check("decide")
        return view.defect > 0

    stream, other = (
        Stream(tt.as_constraint(project, defect, needs=needs), decide, 0.5, on_step=lambda t, numbers: check("on_step"))
        for _ in range(2)
    )
    x = y = torch.zeros(3, 2)
    stream.begin(x)
    other.begin(y)
    for k in range(6):
        if k % 2:
            fails.add(where)
            with pytest.raises(OSError, match=where):
                stream(x + 0.7)
            fails.clear()
        x, y = stream(x + 0.7), other(y + 0.7)
        assert torch.equal(x, y)
        assert torch.equal(stream.tokens, other.tokens)
    assert (stream.steps, stream.spent.tolist()) == (6, other.spent.tolist())


def test_groups_share_a_bucket():
    stream = Stream(Sphere(), lambda view: view.defect > 0, rate=0.25, groups=[0, 0, 1, 1])
    projected = walk(stream, 20)
    assert torch.equal(projected[:, 0], projected[:, 1])
    assert torch.equal(projected[:, 2], projected[:, 3])
    assert stream.spent.shape == (2,)
    assert torch.equal(stream.spent, projected[:, [0, 2]].sum(dim=0))


def test_numpy_states():
    ball = tt.as_constraint(lambda x: np.clip(x, -1, 1), lambda x: (np.abs(x) - 1).clip(min=0).max(axis=1))
    stream = Stream(ball, lambda view: view.defect > 0, rate=1.0)
    x = stream(np.full((2, 3), 5.0))
    assert isinstance(x, np.ndarray)
    assert x.max() == 1


def test_beginning_anew_fills_the_buckets():
    numbers = []
    stream = Stream(Sphere(), lambda view: view.defect >= 0, rate=0.1, on_step=lambda t, seen: numbers.append(t))
    first = walk(stream, 5)
    stream.begin(torch.zeros(4, 3, dtype=torch.float64))
    assert torch.equal(walk(stream, 5), first)
    assert numbers == [0, 1, 2, 3, 4] * 2


TOLD: list[int] = []


def tell(t, numbers):
    TOLD.append(t)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda stream: pickle.loads(pickle.dumps(stream))])
def test_a_copy_goes_on_by_itself_and_tells_of_its_own_steps(duplicate):
    TOLD.clear()
    stream = Stream(Sphere(), tt.Stepwise(), rate=0.5, on_step=tell)
    walk(stream, 3)
    other = duplicate(stream)
    walk(other, 2)
    assert TOLD == [0, 1, 2, 3, 4]
    assert (stream.steps, other.steps) == (3, 5)
    walk(stream, 2)
    assert TOLD[5:] == [3, 4]
    assert torch.equal(stream.spent, other.spent)


def test_what_cannot_be_told_is_refused_at_once():
    with pytest.raises(TypeError, match=r"on_step must be a function, called as on_step\(t, numbers\)"):
        Stream(Sphere(), tt.Stepwise(), rate=0.5, on_step=3)


@pytest.mark.parametrize("bad", [{"rate": 0}, {"rate": 1.5}, {"rate": 0.1, "burst": 0.5}, {"rate": "often"}])
def test_impossible_rates_are_refused(bad):
    with pytest.raises((TypeError, ValueError), match=r"rate, .* must be|burst, .* must be"):
        Stream(Sphere(), lambda view: view.defect > 0, **bad)


def test_rates_may_be_numbers_of_numpy():
    stream = Stream(Sphere(), tt.Stepwise(), rate=np.float32(0.25), burst=np.int64(2))
    assert (stream.rate, stream.burst) == (0.25, 2.0)


def test_a_step_of_a_run_is_not_to_be_had():
    timed = tt.as_constraint(lambda x, t: x, lambda x, t: x[:, 0] * 0, needs=("t",))
    with pytest.raises(ValueError, match="a stream has no runs"):
        Stream(timed, lambda view: view.defect > 0, rate=0.1)
    with pytest.raises(RuntimeError, match="not been called"):
        Stream(Sphere(), lambda view: view.defect > 0, rate=0.1).spent  # noqa: B018


@pytest.mark.parametrize(
    "schedule",
    [tt.Periodic(0.1), tt.Periodic(3), tt.Terminal(), tt.schedules.RandomTimes(0.1), tt.schedules.Fixed([3, 7])],
    ids=repr,
)
def test_schedules_that_go_by_the_steps_of_a_run_are_refused(schedule):
    with pytest.raises(ValueError, match=r"needs a run of known length.*FixedThreshold.*Stepwise\(\)"):
        Stream(Sphere(), schedule, rate=0.1)


def test_as_often_as_the_rate_allows():
    stream = Stream(Sphere(), tt.Stepwise(), rate=0.25, burst=1)
    assert walk(stream, 13).sum(dim=0).tolist() == [4] * 4
    assert repr(stream) == "Stream(Stepwise(), rate=0.25, burst=1, 13 steps so far)"
