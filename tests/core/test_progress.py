"""A slow call shows a bar; its first guess is a fair one; a quick call shows nothing."""

from __future__ import annotations

import io
import sys

import pytest

import trimtab as tt
from engine_cases import problem
from trimtab.core.progress import Progress, open_bar
from trimtab.schedules import Periodic


@pytest.fixture
def tqdm():
    return pytest.importorskip("tqdm", reason="bars are drawn by tqdm: pip install tqdm")


def test_a_slow_call_shows_a_bar_after_a_while(tqdm, monkeypatch, capsys):
    clock = iter([0.0, 1.0, 5.0])  # at the start and after the third and fourth batch
    monkeypatch.setattr("trimtab.core.progress.monotonic", lambda: next(clock))
    with Progress("calibrate") as told:
        told.expect(20)
        told("calibration batch")
        for _ in range(4):
            told.batch()
            assert (told.bar is not None) == (told.done == 4)
        assert (told.bar.n, told.bar.total) == (4, 20)
        told.bar.refresh()
    shown = capsys.readouterr().err
    assert "trimtab.calibrate:" in shown
    assert "4/20" in shown
    assert "calibration batch" in shown


def test_a_study_shows_a_bar(tqdm):
    stream = io.StringIO()
    bar = open_bar("study", "tasks", 6, 2, stream=stream)
    bar.update()
    bar.close()
    assert "study" in stream.getvalue()
    assert "3/6" in stream.getvalue()


def test_without_tqdm_nothing_is_shown(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    monkeypatch.setattr("trimtab.core.progress._PATIENCE", 0.0)
    with Progress("calibrate") as told:
        told.batch(5)
    assert open_bar("study", "tasks", 6) is None
    assert capsys.readouterr().err == ""


def test_a_quick_call_and_one_that_tells_its_caller_print_nothing(capsys):
    heard = []
    price = tt.calibrate(problem(), method="paper")
    tt.calibrate(problem(), method="paper", progress=heard.append)
    tt.compare(problem(first=3000), {"price": price}, [4])
    assert capsys.readouterr().err == ""
    assert heard


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
