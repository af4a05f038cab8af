from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest
import torch

import trimtab as tt
from slow_ball import Slow, asleep, rows_of_zeros, scaled_unless_9, shrunk
from trimtab.constraints import Ball, TimeLimit


@pytest.fixture(scope="module")
def limited():
    """A limit of a second, whose processes all tests share."""
    limit = TimeLimit(Slow(), seconds=1.0)
    yield limit
    limit.end()


@pytest.mark.parametrize("first", [9.0, 8.0, 7.0], ids=["never returns", "raises", "dies"])
def test_a_sample_that_fails_fails_alone(limited, first):
    x = torch.tensor([[0.0, 2.0], [first, 0.0], [3.0, 4.0], [first, 1.0]])
    answer = limited.project(x)
    assert answer.converged.tolist() == [True, False, True, False]
    torch.testing.assert_close(answer.x[[0, 2]], Ball().project(x[[0, 2]]))
    assert torch.equal(answer.x[[1, 3]], x[[1, 3]])
    alone = limited.project(x[1:2])
    assert alone.converged.tolist() == [False]
    assert torch.equal(alone.x, x[1:2])


def test_the_policy_of_the_corrector_decides_about_failed_samples(limited):
    corrector = tt.Corrector(limited, tt.schedules.Fixed.at([0], 2), 2, closing="none", on_failure="revert")
    x = torch.tensor([[9.0, 0.0], [0.0, 2.0]])
    corrected = corrector(x)
    torch.testing.assert_close(corrected, torch.tensor([[9.0, 0.0], [0.0, 1.0]]))
    corrector(x)
    assert corrector.rollout.failed[0].tolist() == [True, False]


def test_context_follows_the_samples():
    limited = TimeLimit(tt.as_constraint(scaled_unless_9, rows_of_zeros, needs=("sigma",)), seconds=1.0)
    x = torch.tensor([[3.0, 4.0], [9.0, 0.0], [0.0, 5.0]])
    answer = limited.project(x, sigma=torch.tensor([1.0, 1.0, 2.0]))
    assert answer.converged.tolist() == [True, False, True]
    torch.testing.assert_close(answer.x, torch.tensor([[0.6, 0.8], [9.0, 0.0], [0.0, 2.0]]))
    limited.end()


def test_states_of_any_kind_can_fail():
    limited = TimeLimit(tt.as_constraint(asleep, rows_of_zeros), seconds=0.1, workers=4)
    kinds = {
        "a tree": {"p": torch.ones(2, 2), "q": torch.ones(2, 1)},
        "numpy": np.ones((2, 2)),
        "with a gradient": 2 * torch.ones(1, 2, requires_grad=True),
    }
    if find_spec("jax") is not None:
        import jax.numpy as jnp

        kinds["jax"] = jnp.ones((1, 2))
    for x in kinds.values():
        answer = limited.project(x)
        assert answer.x is x
        assert answer.converged.tolist() == [False] * len(answer.converged)
    limited.end()


def test_states_with_a_gradient_are_projected_without_it():
    limited = TimeLimit(Ball(), seconds=60.0)
    answer = limited.project(torch.tensor([[3.0, 4.0]], requires_grad=True) * 2)
    torch.testing.assert_close(answer.x, torch.tensor([[0.6, 0.8]]))
    limited.end()


def test_constraints_that_cannot_be_sent_and_limits_that_make_no_sense_are_errors():
    with pytest.raises(TypeError, match="cannot be sent to another process"):
        TimeLimit(tt.as_constraint(lambda x: x, lambda x: x.norm(dim=1)), 1.0)
    for seconds in (0, -1.0, "x", float("nan")):
        with pytest.raises((TypeError, ValueError), match="seconds"):
            TimeLimit(Ball(1.0), seconds)
    with pytest.raises(TypeError, match="Constraint"):
        TimeLimit(3, 1.0)


def test_defects_that_are_projections_are_limited_and_counted():
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
