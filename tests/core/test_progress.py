"""A slow call says how far it is, in lines or as a bar; its first guess is a fair one; a quick call says nothing."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import pytest

import trimtab as tt
from engine_cases import problem
from trimtab.core.progress import Meter, Progress
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
    assert lines[0] == "trimtab.calibrate: 3 of 20 batches, 0.33 batches/s, 0:51 left (calibration batch)"
    assert len(lines) == 5


def test_a_study_shows_lines_with_rate_and_time_left_where_there_is_no_terminal():
    clock, stream = Clock(), io.StringIO()
    meter = Meter("study", "tasks", 6, 2, stream=stream, every=5.0, clock=clock)
    for _ in range(4):
        clock.now += 2.0
        meter.advance("so3")
    meter.close()
    assert stream.getvalue().splitlines() == [
        "study: 6 tasks, 2 done already",
        "study: 5 of 6 tasks, 0.5 tasks/s, 0:02 left (so3)",
        "study: 6 of 6 tasks, 0.5 tasks/s, 0:00 left (so3)",
    ]


def test_a_terminal_shows_a_bar():
    pytest.importorskip("tqdm", reason="bars are drawn by tqdm: pip install tqdm")

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    stream = Terminal()
    meter = Meter("study", "tasks", 6, 2, stream=stream)
    meter.advance("so3")
    meter.bar.refresh()
    meter.close()
    assert "study" in stream.getvalue()
    assert "3/6" in stream.getvalue()
    assert "so3" in stream.getvalue()


def test_a_quick_call_and_one_that_tells_its_caller_print_nothing(capsys):
    heard = []
    price = tt.calibrate(problem(), method="paper")
    tt.calibrate(problem(), method="paper", progress=heard.append)
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


CELLS = (
    """
import trimtab as tt
from engine_cases import problem
from trimtab.core import progress

progress._PATIENCE = 1e-3
price = tt.calibrate(problem())
""",
    """
def wrong(samples):
    raise ZeroDivisionError("in the caller's own measure")

tt.calibrate(problem(), quality=wrong)
""",
)


def test_a_notebook_shows_a_bar(tmp_path):
    pytest.importorskip("tqdm", reason="bars are drawn by tqdm: pip install tqdm")
    nbclient = pytest.importorskip("nbclient", reason="notebooks are run with nbclient: pip install 'trimtab[site]'")
    from nbformat.v4 import new_code_cell, new_notebook
    from traitlets.config import Config

    notebook = new_notebook(cells=[new_code_cell(text.strip()) for text in CELLS])
    wire = {"transport": "ipc", "ip": f"{tmp_path}/kernel"} if os.name == "posix" else {}
    settings = Config({"KernelManager": wire})
    client = nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", allow_errors=True, force_raise_errors=False, config=settings
    )
    search = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, sys.path)])
    client.execute(env=os.environ | {"PYTHONPATH": search, "PYDEVD_DISABLE_FILE_VALIDATION": "1"})
    slow, failed = (cell.outputs for cell in notebook.cells)
    assert "trimtab.calibrate" in str(slow)
    assert failed[-1].ename == "ZeroDivisionError"
