"""How many functions and files of trimtab a call crosses: what a reader meets who steps through it in a debugger."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import trimtab as tt
from cases import Sphere, Walk

ROOT = Path(tt.__file__).parent

# Functions and files: what is crossed today, and up to 10% more. Lower them as layers go.
CEILINGS = {
    "a step of a Corrector": (46, 9),
    'calibrate(method="paper")': (162, 28),
    'calibrate(method="dp")': (257, 33),
    "advise": (324, 37),
}

PROBLEM = tt.Problem(Walk(), Sphere(), range(1000, 1032))


def a_step() -> Callable[[], object]:
    """Return a call of steps of one run, one after the other."""
    price = tt.calibrate(PROBLEM, method="paper")
    corrector = tt.Corrector(Sphere(), price.at(4), PROBLEM.n_steps)
    corrector(torch.ones(32, 3, dtype=torch.float64))
    return lambda: corrector(torch.full((32, 3), 2.0, dtype=torch.float64))


CALLS: dict[str, Callable[[], Callable[[], object]]] = {
    "a step of a Corrector": a_step,
    'calibrate(method="paper")': lambda: lambda: tt.calibrate(PROBLEM, method="paper"),
    'calibrate(method="dp")': lambda: lambda: tt.calibrate(PROBLEM, method="dp"),
    "advise": lambda: lambda: tt.advise(PROBLEM, cost="projections"),
}


def crossed(call: Callable[[], object]) -> set[tuple[str, str]]:
    """Return the file and the name of each function that a call enters; comprehensions are part of their function."""
    found = set()

    def trace(frame, event, argument):
        code = frame.f_code
        if code.co_filename.startswith(str(ROOT)) and (code.co_name == "<lambda>" or code.co_name[0] != "<"):
            found.add((Path(code.co_filename).relative_to(ROOT).as_posix(), code.co_qualname))

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return found


@pytest.mark.parametrize("name", CALLS)
def test_a_call_crosses_no_more_functions_and_files_than_its_ceiling(name, record_property):
    call = CALLS[name]()
    call()  # imports and caches
    found = crossed(call)
    files = Counter(file for file, _ in found)
    print(f"\n{name}: {len(found)} functions in {len(files)} files")
    for file, count in sorted(files.items()):
        print(f"{count:4}  {file}")
    record_property("functions", len(found))
    record_property("files", len(files))
    functions, most_files = CEILINGS[name]
    assert len(found) <= functions, f"{len(found)} functions: {sorted(found)}"
    assert len(files) <= most_files, f"{len(files)} files: {sorted(files)}"
