"""Constraints that work in processes of their own: what is copied of them is what they are, and not the processes."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest
import torch

from constraint_cases import numbers, outside_disc
from obstacle_cases import MAPS, proposals
from slow_ball import Slow, doubled_unless_7
from trimtab.constraints import NonlinearProgram, TimeLimit
from trimtab.constraints.ipopt import Workers
from trimtab.constraints.obstacles import AvoidObstacles
from trimtab.core.identity import full_fingerprint


def limited():
    return TimeLimit(Slow(), 60.0), torch.tensor([[3.0, 4.0], [0.0, 2.0]])


def program():
    pytest.importorskip("casadi")
    return NonlinearProgram(outside_disc, numbers(2, 2, seed=3), workers=2), numbers(2, 3)


def paths():
    pytest.importorskip("casadi")
    x, plain = proposals(MAPS["circles"], 2, 0.03, seed=23, waypoints=16)
    return AvoidObstacles(plain.obstacles, plain.start, plain.goal, backend="ipopt", workers=2), x


@pytest.mark.parametrize("made", [limited, program, paths])
def test_a_constraint_that_has_worked_is_copied_and_is_still_what_it_was(made):
    constraint, x = made()
    before = full_fingerprint(constraint)
    answer = constraint.project(x)
    assert full_fingerprint(constraint) == before
    copy = pickle.loads(pickle.dumps(constraint))
    assert full_fingerprint(copy) == before
    assert torch.equal(copy.project(x).x, answer.x)


def test_processes_within_the_process_of_a_time_limit_are_refused():
    constraint, x = program()
    with pytest.raises(TypeError, match=r"NonlinearProgram starts processes of its own.*workers to 1"):
        TimeLimit(constraint, 60.0).project(x)


def test_a_process_that_dies_fails_its_own_samples_and_the_next_call_has_new_ones():
    workers = Workers()
    answers = workers.run(doubled_unless_7, [(number,) for number in (1, 2, 3, 7)], 2)
    assert answers == [2, 4, 6, None]
    assert workers.run(doubled_unless_7, [(4,), (5,)], 2) == [8, 10]
    with pytest.raises(RuntimeError, match="no worker process could be started or all died"):
        workers.run(doubled_unless_7, [(7,), (7,)], 2)
    workers.close()


@pytest.mark.parametrize("made", [program, paths])
def test_a_sample_whose_process_died_is_failed_alone(made, monkeypatch):
    constraint, x = made()
    whole = constraint.project(x)
    plain = Workers.run
    monkeypatch.setattr(Workers, "run", lambda *given: [plain(*given)[0], None])
    answer = constraint.project(x)
    assert answer.converged.tolist() == [bool(whole.converged[0]), False]
    assert torch.equal(answer.x[0], whole.x[0])
    assert answer.x.isfinite().all()


def test_a_script_without_a_guard_is_told_what_to_do(tmp_path):
    script = tmp_path / "unguarded.py"
    script.write_text(
        "import torch\nfrom trimtab.constraints import Ball, TimeLimit\n"
        "TimeLimit(Ball(1.0), 60.0).project(torch.ones(2, 3))\n"
    )
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert ended.returncode != 0
    assert "RuntimeError: the process that projections run in ended as it began" in ended.stderr
    assert "__main__" in ended.stderr.splitlines()[-1]
