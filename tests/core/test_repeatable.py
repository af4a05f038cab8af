"""A run that does not repeat itself is found out, and the reason named."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

import free
import trimtab as tt
from cases import Sphere
from trimtab.core.repeatable import check_repeatable

T = 6


def runner(draw, n=lambda: 4):
    def run(schedule):
        corrector = free.Corrector(Sphere(), schedule, T)
        x = torch.ones(n(), 3, dtype=torch.float64)
        for t in range(T):
            x = corrector(x + 0.1 * draw(x), t)
        return corrector.rollout

    return run


def seeded(schedule):
    generator = torch.Generator().manual_seed(5)
    return runner(lambda x: torch.randn(x.shape, generator=generator, dtype=x.dtype))(schedule)


def seeded_globally(schedule):
    torch.manual_seed(5)
    return runner(torch.randn_like)(schedule)


@pytest.mark.parametrize("run", [seeded, seeded_globally])
@pytest.mark.parametrize("schedule", [tt.Terminal(), tt.Periodic(2)], ids=str)
def test_a_repeatable_run_is_returned(run, schedule):
    with torch.random.fork_rng():
        record = check_repeatable(run, schedule)
    assert torch.equal(record.final, seeded(schedule).final)


GLOBAL = {
    "torch": torch.randn_like,
    "numpy": lambda x: torch.from_numpy(np.random.randn(*x.shape)),
    "random": lambda x: x * random.random(),
}


@pytest.mark.parametrize("name", GLOBAL)
def test_the_global_generator_is_named(name):
    with torch.random.fork_rng(), pytest.raises(ValueError, match="from step 0 on") as told:
        check_repeatable(runner(GLOBAL[name]), tt.Terminal())
    assert f"The global generator of {name} was drawn from" in str(told.value)
    assert str(told.value).count("global generator") == 1


def test_a_generator_that_goes_on_is_told_of():
    generator = torch.Generator().manual_seed(0)
    run = runner(lambda x: torch.randn(x.shape, generator=generator, dtype=x.dtype))
    with pytest.raises(ValueError, match=r"4 of 4 samples.*No global generator.*made outside run"):
        check_repeatable(run, tt.Terminal())


def test_another_batch_is_told_of():
    sizes = iter([4, 5])
    with pytest.raises(ValueError, match=r"made \(6, 4\) and then \(6, 5\)"):
        check_repeatable(runner(torch.zeros_like, lambda: next(sizes)), tt.Terminal())


def test_rounding_is_no_difference():
    nudges = iter([0.0] * T + [1e-12] * T)
    check_repeatable(runner(lambda x: torch.full_like(x, next(nudges))), tt.Terminal())
    nudges = iter([0.0] * T + [1e-5] * T)
    with pytest.raises(ValueError, match="not repeatable"):
        check_repeatable(runner(lambda x: torch.full_like(x, next(nudges))), tt.Terminal())


def test_a_tree_of_arrays_is_looked_at_as_a_whole():
    """What the defect does not show, the final states do."""
    ages = iter([1.0, 2.0])
    place = tt.as_constraint(lambda s: s, lambda s: s["x"].norm(dim=1))

    def run(schedule):
        corrector = tt.Corrector(place, schedule, 1)
        corrector({"x": torch.ones(2, 3), "age": torch.full((2,), next(ages))})
        return corrector.rollout

    with pytest.raises(ValueError, match=r"2 of 2 samples.*sample 0, in its final state"):
        check_repeatable(run, tt.Periodic(1))


@pytest.mark.parametrize("answer", [torch.zeros(3), np.zeros(3), None])
def test_what_is_no_record_is_told_of(answer):
    with pytest.raises(TypeError, match=f"corrector.rollout: got {type(answer).__name__}"):
        check_repeatable(lambda schedule: answer, tt.Terminal())
