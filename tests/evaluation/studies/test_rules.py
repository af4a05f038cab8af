from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import free
import pairs_on_a_lead
from trimtab.evaluation.domains import domain
from trimtab.evaluation.studies.rules import RULES, Rule, best_windows, find_rule
from trimtab.evaluation.studies.schedules import STUDY_SCHEDULES
from trimtab.evaluation.studies.tasks import Task
from trimtab.evaluation.studies.work import run_task
from trimtab.schedules import Fixed, Window

PROBLEM = domain("so3", n_steps=20).problem
REFERENCE = Task("rollout", "so3", "stepwise", (1.0,), 0, 3)
FIXED_TIMES = ("window", "best-window", "geometric", "random-ramp")


@pytest.fixture(scope="module", params=RULES)
def rule(request):
    return find_rule(request.param, PROBLEM, range(1000, 1016), "free")


def spent(rule, budgets, seeds):
    problem = PROBLEM(seeds)
    return free.rollout(problem.sampler, problem.constraint, rule.at(budgets), seeds, measure_defects=True).spent


def test_more_is_spent_at_lower_values_and_never_more_than_the_budget(rule):
    assert (rule.values.diff() <= 0).all()
    for count in (1, 5, 10, 15):
        assert int(spent(rule, torch.full((16,), count), range(16)).max()) <= count


def test_what_is_spent_on_other_seeds_is_near_the_budget_where_the_rule_can_spend_it(rule):
    few, more = (float(spent(rule, torch.full((16,), count), range(16)).double().mean()) for count in (2, 8))
    assert 0.5 < few <= 2
    assert few + 1 < more <= 8


def test_values_between_are_between_and_samples_have_their_own(rule):
    budgets = torch.tensor([2, 5, 10] * 2)
    together = spent(rule, budgets, range(6))
    alone = torch.cat([spent(rule, budgets[i : i + 1], [i]) for i in range(6)])
    assert torch.equal(together, alone)


def test_saved_and_loaded_it_decides_as_before(rule, tmp_path):
    rule.save(tmp_path / "rule.safetensors")
    again = Rule.load(tmp_path / "rule.safetensors")
    budgets = torch.full((4,), 5)
    assert torch.equal(spent(rule, budgets, range(4)), spent(again, budgets, range(4)))


@pytest.mark.parametrize("key", [*FIXED_TIMES, *RULES])
def test_a_study_runs_it_by_name(key):
    inputs = {"reference": run_task(REFERENCE, {}).shared}
    if STUDY_SCHEDULES[key].calibration is not None:
        task = Task("calibrate", "so3", key, (1.0,), 1_000_000, 1_000_004)
        inputs["thresholds"] = run_task(task, {}).shared
    rows = run_task(replace(REFERENCE, schedule=key, budgets=(0.1, 0.5)), inputs).rows
    assert len(rows) == 6
    assert all(row["achieved_budget"] <= row["budget"] for row in rows)
    if key in FIXED_TIMES:
        assert all(row["achieved_budget"] == row["budget"] for row in rows)


def test_the_best_window_is_a_stretch_for_every_budget_where_it_lowers_path_error_most():
    plan = best_windows(PROBLEM, range(1000, 1016), "free")
    gaps = [row.nonzero().squeeze(1).diff().tolist() for row in plan.masks]
    assert [sum(gap) for gap in gaps] == [max(0, b - 1) for b in range(21)]
    problem = PROBLEM(range(1000, 1016))

    def error(schedule):
        return float(free.rollout(problem.sampler, problem.constraint, schedule, range(1000, 1016)).residuals.sum())

    tried = [error(Window(start, start + 5)) for start in (round(i * 15 / 7) for i in range(8))]
    assert error(Fixed(plan.masks[5][:, None].expand(-1, 16))) == pytest.approx(min(tried))
    assert min(tried) < max(tried)


def test_the_best_window_refuses_the_seeds_it_was_found_on():
    plan = best_windows(PROBLEM, range(1000, 1004), "free")
    with pytest.raises(ValueError, match="used to calibrate"):
        PROBLEM(range(1002, 1006)).rollout(plan.at(5), closing="free")


# ------------------------------------------------------------------ samples that are decided on together


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("closing", ["paid", "free"])
def test_groups_have_values_of_their_own_and_spend_together(name, closing):
    rule = find_rule(name, pairs_on_a_lead.make_threes, range(3000, 3048), closing)
    problem = pairs_on_a_lead.make_threes(torch.arange(24))
    run = problem.rollout(rule.at(torch.full((8,), 6)), closing=closing, measure_defects=True)
    assert torch.equal(run.spent, run.spent[::3].repeat_interleave(3))
    least = 0 if name == "until-below" else 2  # these walks begin in the middle, below any value
    assert least <= float(run.spent.double().mean()) <= 6


def test_the_best_window_of_groups_is_found_on_whole_ones():
    plan = best_windows(pairs_on_a_lead.make_threes, range(3000, 3048), "paid")
    assert plan.seeds == tuple(range(3000, 3015))
    assert pairs_on_a_lead.make_threes(torch.arange(6)).rollout(plan.at(5)).spent.tolist() == [5] * 6


@pytest.mark.parametrize("closing", ["free", "paid"])
@pytest.mark.parametrize("n_steps", [1, 2, 3])
def test_few_steps_are_enough(n_steps, closing):
    problem = domain("so3", n_steps=n_steps).problem
    plan = best_windows(problem, range(1000, 1004), closing)
    assert plan.masks.sum(dim=1).tolist() == list(range(n_steps + 1))
    for name in RULES:
        rule = find_rule(name, problem, range(1000, 1004), closing)
        run = problem(range(n_steps)).rollout(rule.at(torch.arange(1, n_steps + 1)), closing=closing)
        assert (run.spent <= torch.arange(1, n_steps + 1)).all()
