"""Constraints that use worker processes: copies of them have their own, and a process that dies fails alone."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest
import torch

from constraint_cases import numbers, outside_disc
from slow_ball import Slow, doubled_unless_7
from trimtab.constraints import NonlinearProgram, TimeLimit
from trimtab.constraints.processes import WorkerDiedError, Workers


def limited():
    return TimeLimit(Slow(), 60.0), torch.tensor([[3.0, 4.0], [0.0, 2.0]])


def program():
    pytest.importorskip("casadi")
    return NonlinearProgram(outside_disc, numbers(2, 2, seed=3), workers=2), numbers(2, 3)


@pytest.mark.parametrize("made", [limited, program])
def test_a_constraint_that_has_worked_is_copied_and_answers_the_same(made):
    constraint, x = made()
    answer = constraint.project(x)
    copy = pickle.loads(pickle.dumps(constraint))
    torch.testing.assert_close(copy.project(x).x, answer.x)


def test_inside_of_a_worker_process_no_others_are_started():
    constraint, x = program()
    answer = TimeLimit(constraint, 60.0).project(x)
    torch.testing.assert_close(answer.x, constraint.project(x).x)


def test_a_process_that_dies_or_takes_too_long_fails_its_task_alone():
    workers = Workers()
    answers = workers.run(doubled_unless_7, [(number,) for number in (1, 2, 7, 3)], 2, None)
    assert [answers[i] for i in (0, 1, 3)] == [2, 4, 6]
    assert isinstance(answers[2], WorkerDiedError)
    assert workers.run(doubled_unless_7, [(4,), (5,)], 2, None) == [8, 10]
    [late] = workers.run(doubled_unless_7, [(7,)], 1, 0.2)
    assert isinstance(late, TimeoutError)
    [wrong] = workers.run(doubled_unless_7, [(None,)], 1, 5.0)
    assert isinstance(wrong, TypeError)
    workers.close()


def test_a_sample_whose_process_died_is_failed_alone(monkeypatch):
    constraint, x = program()
    whole = constraint.project(x)
    plain = Workers.run
    monkeypatch.setattr(Workers, "run", lambda *given: [plain(*given)[0], WorkerDiedError()])
    answer = constraint.project(x)
    assert answer.converged.tolist() == [bool(whole.converged[0]), False]
    assert torch.equal(answer.x[0], whole.x[0])
    assert answer.x.isfinite().all()


def test_a_script_without_a_guard_gets_an_error_that_says_what_to_do(tmp_path):
    script = tmp_path / "unguarded.py"
    script.write_text(
        "import torch\nfrom trimtab.constraints import Ball, TimeLimit\n"
        "TimeLimit(Ball(1.0), 60.0).project(torch.ones(2, 3))\n"
    )
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert ended.returncode != 0
    assert "RuntimeError: the worker process ended as it started" in ended.stderr
    assert "__main__" in ended.stderr.splitlines()[-1]
