"""What advice says about ways of correcting, on mechanisms whose solver iterates."""

from __future__ import annotations

import json

import pytest
import torch

import trimtab as tt
from trimtab.advice.recommend import WORTHWHILE
from trimtab.advice.trials import WHOLE, Evaluation
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
    return tt.advise(Bent.problem(range(64)), tolerance=0.2, cost="projections")


def test_every_way_is_tried_at_every_step_beside_the_simple_rules_and_prices(advice):
    m = advice.measured
    assert m.unit == "iterations"
    cheaper = set(Bent.problem([0]).constraint.cheaper())
    assert {t.way for t in m.trials if t.times == "stepwise"} == {"1 iteration", "2 iterations"} | cheaper
    assert {"periodic", "window", "first", "adaptive"} <= {t.times for t in m.trials if t.way == WHOLE}


def test_a_way_is_scheduled_only_if_it_may_do_at_every_step(advice):
    every = {trial.way: trial for trial in advice.measured.trials if trial.times == "stepwise"}
    scheduled = {trial.way for trial in advice.measured.trials if trial.times != "stepwise"} - {WHOLE}
    assert scheduled
    assert all(every[way].loss.mean <= 0.5 * 0.2 for way in scheduled)


def test_what_is_recommended_is_ready_to_use_and_ends_feasible(advice):
    for trial in advice.measured.trials:
        run = Bent.problem(range(1000, 1008)).rollout(trial.schedule)
        assert bool(run.feasible.all())
        corrections = (run.projected.sum(dim=0) + run.closing).double()
        assert float(corrections.mean()) <= trial.budget
    assert advice.schedule is advice.trial.schedule


def test_functions_get_the_candidates_and_the_advice_that_their_problem_gets(advice):
    parts = [Bent.problem(range(*ends)).rollout for ends in ((0, 16), (16, 40), (40, 64))]
    options = {"tolerance": 0.2, "cost": "projections", "constraint": Bent.problem([0]).constraint}
    other = tt.advise(*parts[:2], fresh=parts[2], **options)
    assert [trial.name for trial in other.measured.trials] == [trial.name for trial in advice.measured.trials]
    assert (other.trial.name, other.verdict, other.loss) == (advice.trial.name, advice.verdict, advice.loss)


def test_the_words_and_the_facts_show_both_costs(advice):
    assert "solver iterations instead of" in str(advice)
    facts = json.loads(json.dumps(advice.facts(), allow_nan=False))
    assert {trial["way"] for trial in facts["trials"]} >= {"1 iteration", "2 iterations", WHOLE}
    assert facts["batches"] == advice.measured.batches


@pytest.mark.parametrize("objective", ["endpoint", "path"])
@pytest.mark.parametrize("name", [*SYNTHETIC, "linkage"])
def test_no_line_that_meets_the_tolerance_is_cheaper_than_the_headline(name, objective):
    problem = tt.domain(name, n_steps=10).problem(range(5000, 5032))
    advice = tt.advise(problem, objective=objective, tolerance=0.3, cost="projections")
    m, head = advice.measured, advice.trial
    rejected = {trial.name for trial in m.rejected}
    assert (head is m.stepwise) == (advice.verdict != "no better")
    for trial in m.everything if advice.verdict == "no better" else ():
        if trial.meets and trial.name not in rejected:
            saved = 1 - trial.cost(m.unit) / head.cost(m.unit)
            assert saved <= (WORTHWHILE if head.times == "stepwise" else 0), trial.name


def test_a_clock_that_gets_slower_does_not_choose(monkeypatch):
    """The machine slows down all the time: whatever is timed later looks dearer."""
    reads = []

    def seconds(self, run, schedule):
        reads.append(1)
        return (1 + 0.3 * len(reads)) * float((run.projected.sum(dim=0) + run.closing).double().mean())

    monkeypatch.setattr(Evaluation, "seconds", seconds)
    problem = tt.domain("terrain", n_steps=12).problem(range(64))
    advice = tt.advise(problem, objective="path", tolerance=0.6)
    m = advice.measured
    timed = sorted((trial for trial in m.everything if trial.meets), key=lambda trial: trial.projections)
    assert advice.verdict == "no better"
    assert advice.trial.projections == timed[0].projections


def test_nothing_is_said_of_a_projection_that_cannot_be_had_in_parts():
    problem = tt.domain("terrain", n_steps=16).problem(range(5000, 5032))
    advice = tt.advise(problem, objective="path", tolerance=0.3, cost="projections")
    assert {trial.way for trial in advice.measured.everything} == {WHOLE}
    assert advice.measured.unit == "projections"
