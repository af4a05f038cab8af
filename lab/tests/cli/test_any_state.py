"""A sampler of one's own keeps its states as it likes, and its constraint may ask for the step: the same numbers."""

from __future__ import annotations

import json
import sys

import pytest

from trimtab.cli.main import main
from trimtab_lab.studies.rows import read_rows

BEFORE = """
from dataclasses import dataclass
import torch
import trimtab as tt

def start(noise):
    return noise.start((2,))

def step(x, t, noise):
    return 1.05 * x + 0.1 * noise.normal(t, (2,))

def project(x):
    return x / x.norm(dim=1, keepdim=True).clamp(min=1)

def defect(x):
    return (x.norm(dim=1) - 1).clamp(min=0)

@dataclass
class Body:
    place: torch.Tensor

class Walk:
    n_steps = 8
    def start(self, noise):
        return wrapped(start(noise))
    def step(self, x, t, noise):
        return wrapped(step(bare(x), t, noise))

class Needy(tt.Constraint):
    needs = {needs}
    def project(self, x, t, previous):
        assert previous.shape == x.shape and t in range(8)
        return project(x)
    def defect(self, x, t, previous):
        assert previous.shape == x.shape and t in range(8)
        return defect(x)

def make():
    return Walk(), constraint
"""

PLAIN = "constraint = tt.as_constraint(lambda x: wrapped(project(bare(x))), lambda x: defect(bare(x)))"
KINDS = {
    "tensor": f"wrapped = bare = lambda x: x\n{PLAIN}",
    "numpy": f"wrapped, bare = torch.Tensor.numpy, torch.from_numpy\n{PLAIN}",
    "tuple": f"wrapped, bare = lambda x: (x[:, :1], x[:, 1:]), lambda x: torch.cat(x, dim=1)\n{PLAIN}",
    "dataclass": f"wrapped, bare = Body, lambda x: x.place\n{PLAIN}",
    "needs t and previous": "wrapped = bare = lambda x: x\nconstraint = Needy()",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("walk_with_")]:
        sys.modules.pop(name)


def written(folder, kind: str, needs: str = '("t", "previous")') -> str:
    """The name of a module whose `make` makes the sampler with states of a kind."""
    name = f"walk_with_{kind.replace(' ', '_')}_{len(needs)}"
    (folder / f"{name}.py").write_text(f"{BEFORE.format(needs=needs)}\n{KINDS[kind]}\n")
    return name


def test_every_command_gives_the_same_numbers_for_states_of_any_kind(folder, monkeypatch, capsys):
    monkeypatch.setattr("trimtab_lab.report.figures.write_figures", lambda *_: [])
    few = ["--schedules", "adaptive:dp", "--budgets", "0.5", "--calibration-seeds", "16", "--engine", "serial"]
    found = {}
    for kind in KINDS:
        name = written(folder, kind)
        common = ["--sampler", f"{name}:make", "--seeds", "16"]
        assert main(["calibrate", *common, "--method", "paper"]) == 0, kind
        capsys.readouterr()
        assert main(["advise", *common, "--cost", "projections", "--json"]) == 0, kind
        advice = json.loads(capsys.readouterr().out)
        assert main(["compare", *common, *few]) == 0, kind
        rows = read_rows(folder / "runs" / name, name)
        tried = [(trial["schedule"], trial["budget"]) for trial in advice["trials"]]
        found[kind] = (
            advice["recommended"],
            tried,
            [trial["measured"]["endpoint"] for trial in advice["trials"]],
            rows["endpoint"],
        )
    recommended, tried, endpoints, column = found["tensor"]
    for kind, other in found.items():
        assert other[:2] == (recommended, tried), kind
        assert other[2] == pytest.approx(endpoints, rel=1e-9), kind  # the parts of a tree are added up in another order
        assert other[3] == pytest.approx(column, rel=1e-9, abs=1e-12), kind


def test_a_constraint_that_needs_what_a_sampler_cannot_tell_is_refused(folder, capsys):
    name = written(folder, "needs t and previous", needs='("sigma",)')
    assert main(["calibrate", "--sampler", f"{name}:make", "--seeds", "8"]) == 2
    error = capsys.readouterr().err
    assert "needs sigma" in error
    assert "only t and previous" in error


@pytest.mark.parametrize("error", ["RuntimeError", "ValueError", "KeyError"])
def test_a_projection_that_raises_is_one_line_that_says_where(folder, capsys, error):
    name = f"walk_with_{error}"
    usual = (folder / f"{written(folder, 'tensor')}.py").read_text()
    (folder / f"{name}.py").write_text(
        usual
        + f"""
def late(x):
    late.calls += 1
    if late.calls > 8:
        raise {error}("the solver gave up")
    return project(x)
late.calls = 0
def make_late():
    return Walk(), tt.as_constraint(late, defect)
"""
    )
    assert main(["calibrate", "--sampler", f"{name}:make_late", "--seeds", "16"]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert f"{error}: " in said
    assert "the solver gave up" in said
    assert f"({name}.py, line " in said
    assert "not foreseen" not in said
