"""A moment is for reading: nothing a schedule does to it changes the run, and schedules do not disturb each other."""

from __future__ import annotations

import threading

import pytest
import torch

import trimtab as tt
from cases import Sphere, Walk
from trimtab.prices import Adaptive, Thresholds
from trimtab.prices.sample_scale import SampleScale

T, B = 12, 5


def prices(level: float, prior: float) -> Thresholds:
    table = torch.full((T, B + 1), level, dtype=torch.float64)
    table[:, 0] = torch.inf
    typical = torch.linspace(0.5, 2.0, (T + 1) * T, dtype=torch.float64).reshape(T + 1, T)
    return Thresholds(table, sample_scale=SampleScale(typical, prior))


def run(schedule) -> tt.Rollout:
    return tt.rollout(Walk(T), Sphere(), schedule, range(9))


def test_writing_into_a_moment_changes_nothing():
    def vandal(view):
        for name in ("defect", "budget_left", "spent", "last", "since", "defects", "projected", "seeds", "spendable"):
            getattr(view, name).zero_()
        return torch.ones(len(view), dtype=torch.bool)

    assert torch.equal(run(vandal).final, run(tt.Stepwise()).final)
    assert (run(vandal).spent == T).all()


@pytest.mark.parametrize("when", ["before", "after", "twice", "sometimes"])
def test_two_priced_schedules_in_one_function_do_not_disturb_each_other(when):
    decides, other = Adaptive(prices(1.2, 3.0)), Adaptive(prices(0.7, 10.0))

    def composed(view):
        if when in ("before", "twice"):
            other.decide(view)
        if when == "twice":
            decides.decide(view)
        if when == "sometimes" and view.t % 3 == 1:
            other.decide(view)
        chosen = decides.decide(view)
        if when == "after":
            other.decide(view)
        return chosen

    assert torch.equal(run(composed).projected, run(decides).projected)


def test_a_schedule_that_is_asked_now_and_then_sees_the_same_scale():
    """Its running sum is a function of the record, not of how often it was asked."""
    asked = Adaptive(prices(0.9, 3.0))
    seen = []

    def late(view):
        if view.t == T - 2:
            seen.append(torch.as_tensor(asked.price.sample_scale.now(view)))
        return torch.zeros(len(view), dtype=torch.bool)

    def always(view):
        scale = torch.as_tensor(asked.price.sample_scale.now(view))
        if view.t == T - 2:
            seen.append(scale)
        return torch.zeros(len(view), dtype=torch.bool)

    run(late), run(always)
    assert torch.equal(*seen)


def test_a_schedule_inside_another_keeps_its_own_budget():
    inner = Adaptive(prices(0.0, 3.0), 3)

    def outer(view):
        assert (view.budget_left + view.spent == T).all()
        return torch.as_tensor(inner.decide(view))

    assert (run(outer).spent <= 4).all()  # three, and the closing projection


def test_a_run_belongs_to_the_thread_that_began_it():
    corrector = tt.Corrector(Sphere(), tt.Periodic(3), T)
    x = torch.ones(4, 3)
    corrector(x, 0)
    raised: list[BaseException] = []

    def intrude():
        for intrusion in (lambda: corrector(x, 1), lambda: corrector.begin(x), lambda: corrector.stop(x)):
            try:
                intrusion()
            except RuntimeError as error:
                raised.append(error)

    thread = threading.Thread(target=intrude)
    thread.start()
    thread.join()
    assert len(raised) == 3
    assert all("started by another thread" in str(error) for error in raised)
    for t in range(1, T):
        corrector(x, t)
    assert corrector.rollout.n_steps == T


def test_threads_that_share_a_corrector_are_refused_or_whole():
    for _ in range(100):
        corrector = tt.Corrector(Sphere(), tt.Periodic(3), 6)
        refused, done = [], []

        def loop(corrector=corrector, refused=refused, done=done):
            x = torch.ones(4, 3)
            try:
                for _ in range(6):
                    x = corrector(x + 1.0)
                done.append(x)
            except RuntimeError as error:
                refused.append(error)

        threads = [threading.Thread(target=loop) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(done) + len(refused) == 3
        assert all((x.norm(dim=1) - 1).abs().max() < 1e-6 for x in done)
