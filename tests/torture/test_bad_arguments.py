"""Every public function raises a clear error for arguments that cannot be meant.

A clear error is a ValueError, TypeError, RuntimeError or OSError with a message, before work is lost, whoever raises
it. An answer is none.
"""

from __future__ import annotations

import importlib
import random
import traceback
import warnings
from pathlib import Path
from typing import Any

import pytest

import trimtab as tt
from torture.calls import CALLS, optional_calls
from torture.scale import TIMES

ROWS = CALLS | optional_calls()
EXEMPT = {
    *("Projection", "Rollout", "StepView", "DecisionState", "Decisions", "Planned", "Price"),
    *("Learned", "PricedSchedule", "FewIterations", "correcting", "corrector_maker"),
    *("ProjectedSampler", "Correct", "FIXED", "Stepwise", "Terminal", "check_options", "__version__"),
    "NonlinearProgram",  # needs casadi; tests/constraints has its errors
}
"""Public names without a row: made by trimtab, without arguments, or a constant."""


def is_clear(error: BaseException) -> bool:
    """Return whether this error says what was wrong with an argument."""
    return isinstance(error, ValueError | TypeError | RuntimeError | OSError) and len(str(error)) >= 20


def verdict(call: Any, arguments: dict[str, Any]) -> str:
    """Return what is wrong with the reaction to bad arguments; empty if nothing is."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call(**arguments)
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(frame.filename).name}:{frame.lineno}"
        return "" if is_clear(error) else f"{arguments}: {type(error).__name__}: {str(error)[:100]} ({where})"
    return f"{arguments}: accepted"


@pytest.mark.parametrize("name", ROWS)
def test_a_bad_argument_is_a_clear_error(name):
    call, bad = ROWS[name]
    missing = NEED.get(name, {})
    cases = [{argument: value} for argument, values in bad.items() for value in values]
    r = random.Random(0)
    for _ in range(20 * (TIMES - 1)):  # several bad arguments at once
        some = r.sample(sorted(bad), r.randint(1, len(bad)))
        cases.append({argument: r.choice(bad[argument]) for argument in some})
    wrong = [found for case in cases if (found := verdict(call, missing | case))]
    assert not wrong, f"{len(wrong)} of {len(cases)} calls:\n" + "\n".join(wrong[:10])


NEED: dict[str, dict[str, Any]] = {
    "as_constraint": {"project": lambda x: x},
    "Fixed.at": {"steps": [0], "n_steps": 6},
    "Window": {"start": 1},
    "windows": {"budget": 2, "n_steps": 6},
    "AccumulatedDefect": {"value": 1.0},
}
"""Arguments that a call has no good value for by itself."""


def test_every_public_name_has_a_row():
    """A new public name needs a row in `calls.py`, or a place among the exempt ones."""
    modules = [
        tt,
        *(importlib.import_module(f"trimtab.{name}") for name in ("schedules", "constraints", "prices")),
    ]
    for name in importlib.import_module("trimtab.integrations").__all__:
        try:
            modules.append(importlib.import_module(f"trimtab.integrations.{name}"))
        except ImportError:
            continue
    public = {name for module in modules for name in module.__all__}
    named = {part for name in ROWS for part in name.split(".")}
    assert sorted(public - named - EXEMPT) == []
