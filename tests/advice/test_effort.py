"""What advice says about the cost of one correction, on a mechanism whose solver iterates."""

import json
from dataclasses import dataclass

import pytest
import torch

import trimtab as tt
from constraint_cases import CASES, Case, N, states
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
    assert "Do it less often" in str(advice)
    facts = json.loads(json.dumps(advice.facts(), allow_nan=False))
    assert len(facts["efforts"]) == len(advice.measured.efforts)


def test_nothing_is_said_of_a_projection_that_cannot_be_had_in_parts():
    problem = tt.domain("terrain", n_steps=16).problem(range(5000, 5016))
    advice = tt.advise(problem, objective="path", tolerance=0.3, cost="projections")
    assert advice.measured.efforts == ()
    assert "effort" not in {finding.name for finding in advice.findings}


def test_the_words_name_what_there_is():
    one = Effort("half a look", False, Interval(0.1, 0.0, 0.2), 0.5, 0.4)
    words = effort_words((one,), 3.0, "periodic times lose nothing")
    assert "Make it cheaper: its constraint offers no cheaper projection." in words
    assert words.endswith("Do it less often: periodic times lose nothing.")
    assert "half a look (50% of the iterations, 40% of the time)" in words
    assert effort_words((), 3.0) == ""


def test_cheaper_equations_still_hold_to_their_tolerance():
    circle = NonlinearEquality(lambda x: (x @ x - 1)[None])
    x = torch.randn(16, 3, dtype=torch.float64, generator=torch.manual_seed(0))
    for constraint in circle.cheaper().values():
        answer = constraint.project(x)
        assert float(circle.defect(answer.x).max()) <= 1e-4


@dataclass(frozen=True)
class Wander:
    """From one state per seed, a normal step of its own at every step: leaves whatever set there is."""

    case: Case
    size: float
    n_steps: int = 6

    def start(self, noise):
        return states(self.case, scale=0.5)[noise.seeds % N]

    def step(self, x, t, noise):
        return x + self.size * noise.normal(t, x.shape[1:])


@pytest.mark.parametrize(
    "name", ["many half-spaces", "inequalities", "trajectories, circles", "equations", "mass balance"]
)
def test_the_three_ways_are_told_in_order_for_every_kind_of_solver(name):
    case = CASES[name]
    everyone = torch.arange(32) % N
    problem = tt.Problem(
        Wander(case, 1.0 if "half" in name else 0.1),
        case.make().take(everyone),
        torch.arange(7 * N * 9, 7 * N * 9 + 32),
    )
    words = " ".join(str(tt.advise(problem, objective="path", tolerance=0.5, cost="projections")).split())
    places = [words.find(part) for part in ("Make it cheaper: ", "Do less of it: ", "Do it less often: ")]
    assert -1 < places[0] < places[1] < places[2]


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name].make().cheaper()])
def test_a_cheaper_projection_takes_no_more_iterations_and_ends_nearly_feasible(name):
    case = CASES[name]
    x, constraint = states(case), case.make()
    whole = constraint.project(x)
    for other in constraint.cheaper().values():
        answer = other.project(x)
        assert answer.iterations.sum() <= whole.iterations.sum() or "frozen" in str(other)
        assert constraint.defect(answer.x).max() <= 0.1 * constraint.defect(x).max()
