"""What `constraint.cheaper()` offers still projects, and costs less."""

from __future__ import annotations

import pytest
import torch

from constraint_cases import CASES, states
from trimtab.constraints import NonlinearEquality


def test_cheaper_equations_still_hold_to_their_tolerance():
    circle = NonlinearEquality(lambda x: (x @ x - 1)[None])
    x = torch.randn(16, 3, dtype=torch.float64, generator=torch.manual_seed(0))
    for constraint in circle.cheaper().values():
        if not constraint.is_projection:  # it stops early
            continue
        answer = constraint.project(x)
        assert float(circle.defect(answer.x).max()) <= 1e-4


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name].make().cheaper()])
def test_a_cheaper_projection_takes_no_more_iterations_and_ends_nearly_feasible(name):
    case = CASES[name]
    x, constraint = states(case), case.make()
    whole = constraint.project(x)
    for other in constraint.cheaper().values():
        if not other.is_projection:  # it stops early
            continue
        answer = other.project(x)
        assert answer.iterations.sum() <= whole.iterations.sum() or "frozen" in str(other)
        assert constraint.defect(answer.x).max() <= 0.1 * constraint.defect(x).max()
