from __future__ import annotations

from dataclasses import replace

import pytest

from trimtab_lab.domains import DOMAINS, FLOWS, dynamics_of
from trimtab_lab.studies.config import CALIBRATION_SEED, PRESETS, Study, preset
from trimtab_lab.studies.schedules import STUDY_SCHEDULES, study_schedule
from trimtab_lab.studies.tasks import schedules_of, study_tasks


def test_the_paper_preset_is_the_papers_protocol():
    study = preset("paper")
    assert study.budgets == tuple(round(0.05 * i, 2) for i in range(21))
    assert study.seeds * len(study.budgets) == 336
    assert study.domains[:6] == ("so3", "se3", "terrain", "so3-impulse", "se3-lever", "terrain-ridge")
    assert study.domains[6:] == FLOWS  # and the same six as flows, to which the paper's figures are compared too
    assert study.table_budget == 0.25


def test_the_main_preset_has_every_dynamics_and_the_paper_s_own_example():
    study = preset("main")
    kinds = {dynamics_of(name) for name in study.domains}
    assert kinds == {"ramp", "replica", "langevin", "flow", "sphere", None}
    assert study.seeds >= 256
    assert study.calibration_seeds == 64
    for name in study.domains:
        full = dynamics_of(name) in ("ramp", "replica")
        assert (study.budgets_of(name) == study.budgets) == full
        assert {"terminal", "stepwise", "periodic", "adaptive:paper"} <= set(study.schedules_of(name))
    assert study.budgets_of("so3-flow") == (0.0, 0.25, 1.0)
    assert study.only(("so3-ramp",)).exceptions == {}


@pytest.mark.parametrize("study", PRESETS.values(), ids=PRESETS)
def test_presets_name_things_that_exist_and_keep_calibration_apart(study: Study):
    assert set(study.domains) | set(study.kappa_domains) <= set(DOMAINS)
    assert set(study.schedules) <= set(STUDY_SCHEDULES)
    assert study.seeds <= CALIBRATION_SEED
    assert study.kappa_seeds <= CALIBRATION_SEED
    assert Study.from_facts(study.facts()) == study


@pytest.mark.parametrize("study", PRESETS.values(), ids=PRESETS)
def test_tasks_cover_every_rollout_once_and_need_only_each_other(study: Study):
    tasks = study_tasks(study)
    names = {task.name for task in tasks}
    assert len(names) == len(tasks)
    assert all(need.name in names for task in tasks for need in task.needs.values())
    rollouts = [
        (task.domain, task.schedule, budget, seed)
        for task in tasks
        if task.kind == "rollout" and task.kappa is None
        for budget in task.budgets
        for seed in task.seeds
    ]
    assert len(set(rollouts)) == len(rollouts)
    wanted = 0
    for name in study.domains:
        keys = schedules_of(study, name)
        on_grid = sum(STUDY_SCHEDULES[key].only_budget is None for key in keys)
        inside = sum(0 < budget < 1 for budget in study.budgets_of(name))  # the ends are terminal and stepwise rollouts
        wanted += study.seeds_of(name, study.seeds).blocks[-1] * (on_grid * inside + len(keys) - on_grid)
    assert len(rollouts) == wanted


def test_some_domains_alone_keep_their_order_and_their_sweep():
    study = preset("paper").only(("terrain", "so3"))
    assert study.domains == study.kappa_domains == ("so3", "terrain")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"budgets": (0.25, 0.0)}, "ascending"),
        ({"budgets": (0.0, 0.25, 1.5)}, r"budgets of a study must be a number from 0 to 1"),
        ({"budgets": (0.0, 1.0)}, "not one of"),
        ({"seeds": 0}, "at least 1"),
        ({"domains": ()}, "needs domains"),
        ({"example_seeds": 99}, "first block"),
        ({"schedules": ("terminal", "stepwise")}, "periodic"),
    ],
)
def test_a_study_that_could_not_be_summarised_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        replace(preset("quick"), **change)


def test_unknown_names_suggest_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'paper'"):
        preset("papre")
    with pytest.raises(ValueError, match="did you mean 'periodic'"):
        study_schedule("perodic")
    with pytest.raises(ValueError, match="unknown settings"):
        Study.from_facts({"preset": "x", "colour": "red"})


@pytest.mark.parametrize(
    "facts",
    [
        {"seeds": 2.5},
        {"seeds": True},
        {"block": "8"},
        {"domains": "so3"},
        {"domains": ["a/b"]},
        {"kappas": [2.0]},
        {"kappa_domains": None},
        {"budgets": [0.0, "x"]},
        {"samplers": [1]},
        {"exceptions": {"so3": {"seeds": 99}}},
        {"exceptions": {"so3": {"schedules": ["hindsights"]}}},
        {"example_seeds": 99},
    ],
)
def test_a_study_that_a_file_spells_wrongly_is_refused(facts):
    with pytest.raises((TypeError, ValueError), match=next(iter(facts)).removesuffix("s")):
        Study.from_facts(preset("tiny").facts() | facts)
