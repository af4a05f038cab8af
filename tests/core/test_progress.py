"""A slow call shows a bar; its first guess is a fair one; a quick call shows nothing."""

from __future__ import annotations

import sys

import pytest

import trimtab as tt
from engine_cases import problem
from trimtab.core.progress import Progress
from trimtab.schedules import Periodic


@pytest.fixture
def tqdm():
    return pytest.importorskip("tqdm", reason="bars are drawn by tqdm: pip install tqdm")


@pytest.mark.parametrize("patience", [0.0, 600.0])
def test_a_slow_call_shows_a_bar_after_a_while(patience, tqdm, monkeypatch, capsys):
    monkeypatch.setattr("trimtab.core.progress._PATIENCE", patience)
    with Progress("calibrate") as told:
        told.expect(20)
        told("calibration batch")
        for _ in range(4):
            told.batch()
        assert (told.bar.n, told.bar.total) == (4, 20)
        if not patience:
            told.bar.refresh()
    shown = capsys.readouterr().err
    for part in ("trimtab.calibrate:", "4/20", "calibration batch"):
        assert (part in shown) == (not patience)


def test_without_tqdm_nothing_is_shown(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    monkeypatch.setattr("trimtab.core.progress._PATIENCE", 0.0)
    with Progress("calibrate") as told:
        told("calibration batch")
        told.batch(5)
    assert capsys.readouterr().err == ""


def test_a_quick_call_and_one_that_tells_its_caller_print_nothing(capsys):
    heard = []
    price = tt.calibrate(problem(), method="paper")
    tt.calibrate(problem(), method="paper", progress=heard.append)
    tt.compare(problem(first=3000), {"price": price}, [4])
    assert capsys.readouterr().err == ""
    assert any("this will take" in text for text in heard)


CALLS = {
    "dp": lambda: tt.calibrate(problem(), method="dp", objective="path"),
    "dp for endpoints": lambda: tt.calibrate(problem(), method="dp"),
    "planned": lambda: tt.calibrate(problem(), method="planned"),
    "paper": lambda: tt.calibrate(problem(), method="paper", objective="path"),
    "advise": lambda: tt.advise(problem(32), cost="projections", tolerance=0.2),
    "compare": lambda: tt.compare(problem(), {"three": Periodic(3)}, [2, 4, 6]),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_first_guess_of_how_many_batches_there_will_be_is_right_within_a_factor_of_two(name, monkeypatch):
    seen = []

    class Watched(Progress):
        def __init__(self, call, progress=None):
            super().__init__(call, progress or (lambda text: None))
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
