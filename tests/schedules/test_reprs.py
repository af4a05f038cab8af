"""A schedule prints as one short line, however many samples it has a budget for."""

from __future__ import annotations

import pytest
import torch

import trimtab as tt
from trimtab.schedules import AccumulatedDefect, Fixed, FixedThreshold, Geometric, Periodic, RandomTimes

MANY = torch.arange(500) % 7


@pytest.mark.parametrize(
    "schedule",
    [
        Periodic(MANY),
        RandomTimes(MANY),
        Geometric(MANY),
        FixedThreshold(0.1, MANY),
        AccumulatedDefect(torch.rand(500), MANY),
        Fixed(torch.rand(20, 40) > 0.5),
        Fixed(range(100)),
    ],
    ids=lambda schedule: type(schedule).__name__,
)
def test_a_schedule_prints_as_one_short_line(schedule):
    words = repr(schedule)
    assert "\n" not in words
    assert len(words) < 160
    assert words.startswith(type(schedule).__name__ + "(")


def test_what_is_short_is_printed_whole():
    assert repr(Periodic(0.25)) == "Periodic(budget=0.25)"
    assert repr(Fixed([3, 7])) == "Fixed(mask=(3, 7))"
    assert repr(Fixed(torch.tensor([True, False]))) == "Fixed(mask=tensor([ True, False]))"
    assert repr(tt.Stepwise()) == "Stepwise()"
    assert repr(Periodic(MANY)) == "Periodic(budget=<(500,) of int64, 0 to 6>)"
