"""What advice says about the cost of one correction, on a mechanism whose solver iterates."""

import json

import pytest
import torch

import trimtab as tt
from constraint_cases import CASES, states
from trimtab.advice.recommend import WORTHWHILE
from trimtab.advice.trials import cheaper_constraint
from trimtab.constraints import NonlinearEquality
from trimtab_lab.domains import SYNTHETIC


class Bent:
    """A drifting walk near a parabola: one iteration is nearly a projection."""

    n_steps, dtype = 20, torch.float64

    def start(self, noise):
        return torch.zeros(len(noise.seeds), 2, dtype=torch.float64)

    def step(self, x, t, noise):
        return x + torch.tensor([0.05, 0.02]) + 0.05 * noise.normal(t, (2,))

    @classmethod
    def problem(cls, seeds):
        return tt.Problem(cls(), NonlinearEquality(lambda x: (x[1] - x[0] ** 2)[None]), seeds)


@pytest.fixture(scope="module")
def advice():
    problem = tt.domain("linkage", kappa=0.3, n_steps=12).problem(range(5000, 5064))
    return tt.advise(problem, objective="path", tolerance=0.2, cost="projections")


def test_cheaper_projections_and_iterations_are_candidates_beside_schedules(advice):
    m = advice.measured
    assert m.unit == "iterations"
    assert m.efforts[0].kind == "inexact"  # a single iteration is tried first
    assert {trial.kind for trial in m.trials} == {"periodic", "window", "adaptive"}
    for trial in m.efforts:  # what does is the last: whatever is tried later costs more
        assert m.goal.met(trial) == (trial is m.efforts[-1])


def test_cheaper_projections_that_will_do_are_scheduled_too(advice):
    m = advice.measured
    scheduled = {trial.how for trial in m.trials}
    for trial in m.efforts:
        assert trial.how not in scheduled or m.goal.lost(trial).mean <= m.goal.tolerance


@pytest.mark.parametrize(
    ("tolerance", "how", "kinds"),
    [
        (0.2, "2 iterations", {"periodic", "window"}),
        (0.6, "frozen Jacobian, 1 iteration", {"periodic", "window", "adaptive"}),
    ],
)
def test_a_few_iterations_are_scheduled_and_end_feasible(tolerance, how, kinds):
    advice = tt.advise(Bent.problem(range(64)), tolerance=tolerance, cost="projections")
    scheduled = [trial for trial in advice.measured.trials if trial.how == how]
    assert {trial.kind for trial in scheduled} == kinds
    few, fresh = int(how.split(" iteration")[0][-1]), Bent.problem(range(1000, 1016))
    for trial in scheduled:
        constraint = cheaper_constraint(fresh.constraint, how)
        run = tt.rollout(fresh.sampler, constraint, trial.schedule, fresh.seeds)
        corrected = run.iterations[:-1]
        assert int((corrected > 0).sum(dim=0).max()) <= trial.budget - 1
        assert int(corrected.max()) <= few
        assert bool(run.feasible.all())


def test_what_is_recommended_is_ready_to_use(advice):
    problem = tt.domain("linkage", kappa=0.3, n_steps=12).problem(range(8))
    constraint = advice.constraint.take(torch.arange(8))
    run = tt.rollout(problem.sampler, constraint, advice.schedule, problem.seeds)
    assert float(problem.constraint.defect(run.final).max()) < 1e-3  # every candidate ends feasible


def test_the_words_and_the_facts_show_both_costs(advice):
    assert "solver iterations instead of" in str(advice)
    facts = json.loads(json.dumps(advice.facts(), allow_nan=False))
    assert {trial["projection"] for trial in facts["efforts"]} >= {"frozen Jacobian, 1 iteration"}
    assert facts["batches"] == advice.measured.batches


@pytest.mark.parametrize("objective", ["endpoint", "path"])
@pytest.mark.parametrize("name", [*SYNTHETIC, "linkage"])
def test_the_headline_is_never_dominated_by_a_line_below_it(name, objective):
    problem = tt.domain(name, n_steps=10).problem(range(5000, 5032))
    advice = tt.advise(problem, objective=objective, tolerance=0.3, cost="projections")
    m, head = advice.measured, advice.trial
    rejected = {trial.name for trial in m.rejected}
    for trial in m.everything:
        # one projection at every step is preferred to the same at almost every step
        every_step = head.kind in ("inexact", "stepwise") and trial.how == head.how
        cost = trial.cost(m.unit) / (1 - WORTHWHILE) if every_step else trial.cost(m.unit)
        cheaper, nearer = cost - head.cost(m.unit), trial.loss.mean - head.loss.mean
        dominates = cheaper <= 0 and nearer <= 0 and min(cheaper, nearer) < 0
        assert not dominates or trial.name in rejected, trial.name


def test_nothing_is_said_of_a_projection_that_cannot_be_had_in_parts():
    problem = tt.domain("terrain", n_steps=16).problem(range(5000, 5032))
    advice = tt.advise(problem, objective="path", tolerance=0.3, cost="projections")
    assert advice.measured.efforts == ()
    assert advice.measured.unit == "projections"


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
