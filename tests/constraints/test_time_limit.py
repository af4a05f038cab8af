from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest
import torch

import trimtab as tt
from slow_ball import Slow, asleep, rows_of_zeros, shrunk
from trimtab.constraints import Ball, TimeLimit


def test_a_projection_that_never_returns_raises_or_dies_is_a_failure_and_the_next_one_works():
    limited = TimeLimit(Slow(), seconds=0.5)
    good = torch.tensor([[3.0, 4.0]])
    for first in (9.0, 8.0, 7.0):
        bad = torch.tensor([[first, 0.0], [0.0, 2.0]])
        answer = limited.project(bad)
        assert answer.converged.tolist() == [False, False]
        assert torch.equal(answer.x, bad)
        slow = TimeLimit(limited.constraint, 60.0, limited._workshop)  # the limit itself is not what is tested here
        assert torch.equal(slow.project(good).x, Ball(1.0).project(good))
    limited.end()


def test_the_policy_of_the_corrector_decides_what_becomes_of_it():
    limited = TimeLimit(Slow(), seconds=0.5)
    corrector = tt.Corrector(limited, tt.schedules.Fixed.at([0], 2), 2, closing="none", on_failure="revert")
    x = torch.tensor([[9.0, 0.0], [0.0, 2.0]])
    assert torch.equal(corrector(x), x)
    corrector(x)
    assert corrector.rollout.failed[0].tolist() == [True, True]
    limited.end()


def test_states_of_any_kind_fail_where_it_takes_too_long():
    limited = TimeLimit(tt.as_constraint(asleep, rows_of_zeros), seconds=0.2)
    kinds = {
        "a tree": {"p": torch.ones(5, 2), "q": torch.ones(5, 1)},
        "numpy": np.ones((5, 2)),
        "with a gradient": 2 * torch.ones(5, 2, requires_grad=True),
    }
    if find_spec("jax") is not None:
        import jax.numpy as jnp

        kinds["jax"] = jnp.ones((5, 2))
    for x in kinds.values():
        answer = limited.project(x)
        assert answer.x is x
        assert answer.converged.tolist() == [False] * 5
    limited.end()


def test_states_with_a_gradient_are_projected_without_it():
    limited = TimeLimit(Ball(), seconds=60.0)
    answer = limited.project(torch.tensor([[3.0, 4.0]], requires_grad=True) * 2)
    torch.testing.assert_close(answer.x, torch.tensor([[0.6, 0.8]]))
    limited.end()


def test_what_cannot_be_sent_and_limits_that_are_none_are_refused():
    with pytest.raises(TypeError, match="cannot be sent to another process"):
        TimeLimit(tt.as_constraint(lambda x: x, lambda x: x.norm(dim=1)), 1.0)
    for seconds in (0, -1.0, "x", float("nan")):
        with pytest.raises((TypeError, ValueError), match="seconds"):
            TimeLimit(Ball(1.0), seconds)
    with pytest.raises(TypeError, match="Constraint"):
        TimeLimit(3, 1.0)


def test_looks_that_are_projections_are_limited_and_counted():
    plain = tt.as_constraint(shrunk)
    x = torch.tensor([[3.0, 4.0], [0.0, 0.5]])
    records = []
    for constraint in (plain, TimeLimit(plain, 60.0)):
        corrector = tt.Corrector(constraint, tt.schedules.Fixed.at([0], 2), 2, closing="none")
        corrector(corrector(x))
        records.append(corrector.rollout)
        assert torch.equal(constraint.defect(x), plain.defect(x))
    assert records[0].calls == records[1].calls
    with pytest.raises(RuntimeError, match=r"a defect could not be measured within 0\.5 s"):
        TimeLimit(plain, 0.5).defect(torch.tensor([[9.0, 0.0]]))
