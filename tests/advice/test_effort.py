"""What advice says about the cost of one correction, on a mechanism whose solver iterates."""

import json

import pytest
import torch

import trimtab as tt
from trimtab.advice.diagnosis import Interval
from trimtab.advice.effort import Effort, effort_words
from trimtab.constraints import NonlinearEquality


@pytest.fixture(scope="module")
def advice():
    problem = tt.domain("linkage", kappa=0.3, n_steps=24).problem(range(5000, 5032))
    return tt.advise(problem, objective="path", tolerance=0.2, cost="projections")


def test_cheaper_projections_come_before_less_of_them(advice):
    efforts = advice.measured.efforts
    assert [effort.cheaper for effort in efforts] == sorted((effort.cheaper for effort in efforts), reverse=True)
    assert {effort.how for effort in efforts} >= {"a frozen Jacobian", "one iteration at every step"}


def test_a_looser_tolerance_takes_fewer_iterations_and_loses_little(advice):
    looser = next(effort for effort in advice.measured.efforts if "tolerance" in effort.how)
    assert looser.iterations < 1
    assert looser.loss.mean < 0.1


def test_iterations_by_price_cost_what_they_may(advice):
    shares = [effort.iterations for effort in advice.measured.efforts if "by price" in effort.how]
    assert len(shares) == 2
    assert shares[0] < shares[1] < 0.6


def test_the_words_and_the_facts_tell_of_it(advice):
    assert "Make it cheaper" in str(advice)
    assert "Do less of it" in str(advice)
    facts = json.loads(json.dumps(advice.facts(), allow_nan=False))
    assert len(facts["efforts"]) == len(advice.measured.efforts)


def test_nothing_is_said_of_a_projection_that_cannot_be_had_in_parts():
    problem = tt.domain("terrain", n_steps=16).problem(range(5000, 5016))
    advice = tt.advise(problem, objective="path", tolerance=0.3, cost="projections")
    assert advice.measured.efforts == ()
    assert "effort" not in {finding.name for finding in advice.findings}


def test_the_words_name_what_there_is():
    one = Effort("half a look", False, Interval(0.1, 0.0, 0.2), 0.5, 0.4)
    words = effort_words((one,), 3.0)
    assert "Make it cheaper" not in words
    assert "half a look (50% of the iterations, 40% of the time)" in words
    assert effort_words((), 3.0) == ""


def test_cheaper_equations_still_hold_to_their_tolerance():
    circle = NonlinearEquality(lambda x: (x @ x - 1)[None])
    x = torch.randn(16, 3, dtype=torch.float64, generator=torch.manual_seed(0))
    for constraint in circle.cheaper().values():
        answer = constraint.project(x)
        assert float(circle.defect(answer.x).max()) <= 1e-4
