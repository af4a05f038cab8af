"""A slow call says how far it is, and its first guess is a fair one; a quick call says nothing."""

from __future__ import annotations

import pytest

import trimtab as tt
from engine_cases import problem
from trimtab.core.progress import Progress
from trimtab.schedules import Periodic


class Clock:
    """Time that passes when it is told to."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_lines_come_after_a_while_and_not_too_often(capsys):
    clock = Clock()
    told = Progress("calibrate", clock=clock)
    told.expect(20)
    told("calibration batch")
    for _ in range(20):
        clock.now += 3.0
        told.batch()
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "trimtab.calibrate: batch 3 of about 20, 0:09 so far, about 0:51 left (calibration batch)"
    assert len(lines) == 5


def test_a_quick_call_and_one_that_tells_its_caller_print_nothing(capsys):
    heard = []
    price = tt.calibrate(problem(), method="paper")
    tt.calibrate(problem(), method="paper", say=heard.append)
    tt.compare(problem(first=3000), {"price": price}, [4])
    assert capsys.readouterr().err == ""
    assert heard


CALLS = {
    "race": lambda: tt.calibrate(problem()),
    "race for path": lambda: tt.calibrate(problem(), method="race", objective="path"),
    "dp": lambda: tt.calibrate(problem(), method="dp", objective="path"),
    "dp for endpoints": lambda: tt.calibrate(problem(), method="dp"),
    "planned": lambda: tt.calibrate(problem(), method="planned"),
    "on-policy": lambda: tt.calibrate(problem(), method="on-policy", objective="path"),
    "paper": lambda: tt.calibrate(problem(), method="paper", objective="path"),
    "advise": lambda: tt.advise(problem(32), cost="projections", tolerance=0.2),
    "advise with a price": lambda: tt.advise(problem(32), cost="projections", price=tt.calibrate(problem(first=5000))),
    "compare": lambda: tt.compare(problem(), {"periodic": Periodic(3)}, [2, 4, 6]),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_first_guess_of_how_many_batches_there_will_be_is_right_within_a_factor_of_two(name, monkeypatch):
    seen = []

    class Watched(Progress):
        def __init__(self, call, say=None):
            super().__init__(call, say or (lambda text: None))
            self.first = 0
            seen.append(self)

        def batch(self, count=1):
            super().batch(count)
            if self.done >= 3 and not self.first:
                self.first = max(self.expected, self.done)

    monkeypatch.setattr("trimtab.core.progress.Progress", Watched)
    CALLS[name]()
    told = seen[-1]
    assert told.done > 0
    assert told.first / 2 <= told.done <= max(2 * told.first, 3)
