"""The example scripts, run as a reader would run them."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from trimtab.cli.main import main

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.release
SCRIPTS = sorted(p for p in (ROOT / "examples").glob("*.py") if "__main__" in p.read_text())
NEEDS = {
    "diffusers_pipeline": "diffusers",
    "flow_on_sphere": "flow_matching",
    "planner_ipopt": "casadi",
    "ray_workers": "ray",
}


def run(script: Path, cwd: Path) -> str:
    needed = NEEDS.get(script.stem)
    if needed and importlib.util.find_spec(needed) is None:
        pytest.skip(f"{script.name} needs {needed}")
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "lab"), os.environ.get("PYTHONPATH", "")])
    code = f"from runpy import run_path; script = {str(script)!r}; print({SMOKE.get(script.stem)})"
    done = subprocess.run(
        [sys.executable, "-c", code] if script.stem in SMOKE else [sys.executable, str(script)],
        cwd=cwd,  # examples must not depend on where they are started
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_there_are_examples():
    assert {
        "wrap_ddpm_loop",
        "diffusers_pipeline",
        "flow_on_sphere",
        "steering",
        "network_cache",
        "train_informed",
    } <= {p.stem for p in SCRIPTS}


SMOKE = {"train_informed": "run_path(script)['measured'](range(11, 12), first=5, more=5)"}
"""Examples that train for minutes, and how to run a little of them."""


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda p: p.stem)
def test_an_example_runs_and_its_numbers_make_sense(script, tmp_path):
    out = run(script, tmp_path)
    assert out.strip()
    assert not list(tmp_path.iterdir())  # nothing is left lying about
    for table in re.split(r"^schedule .*$", out, flags=re.MULTILINE)[1:]:
        errors = {
            row.split()[0]: float(found[1]) for row in table.splitlines() if (found := re.search(r"(\S+) ±", row))
        }
        if "terminal" in errors:
            assert errors["adaptive"] < errors["terminal"]
            assert errors["stepwise"] == 0


@pytest.mark.parametrize("name", ["my_sampler", "my_loop"])
def test_a_factory_works_in_a_folder_of_the_users(name, tmp_path, monkeypatch):
    """As its text says: copied anywhere, named by the file alone."""
    source = ROOT / "examples" / f"{name}.py"
    assert f"--sampler {name}:make" in source.read_text()
    shutil.copy(source, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    words = ("--sampler", f"{name}:make", "--seeds", "16", "--method", "paper", "--out", "price.st")
    try:
        assert main(["calibrate", *words]) == 0
    finally:
        sys.modules.pop(name, None)
    assert (tmp_path / "price.st").stat().st_size > 0


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda p: p.stem)
def test_an_example_says_what_it_shows_and_how_to_run_it(script):
    text = ast.get_docstring(ast.parse(script.read_text()))
    assert text
    assert f"python examples/{script.name}" in text
