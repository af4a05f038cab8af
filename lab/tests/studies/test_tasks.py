from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

import free
import trimtab as tt
from trimtab.core import metrics
from trimtab_lab.domains import domain
from trimtab_lab.metrics import achieved_budget
from trimtab_lab.studies.config import StudyError
from trimtab_lab.studies.tasks import Task
from trimtab_lab.studies.usercode import Source, version_of
from trimtab_lab.studies.work import run_task, verify

SEEDS = range(3)
REFERENCE = Task("rollout", "so3", "stepwise", (1.0,), 0, 3)
PERIODIC = Task("rollout", "so3", "periodic", (0.25,), 0, 3, examples=2)
CALIBRATION = Task("calibrate", "so3", "adaptive:paper", (1.0,), 1_000_000, 1_000_004)


@pytest.fixture(scope="module")
def reference():
    return run_task(REFERENCE, {})


@pytest.fixture(scope="module")
def direct():
    """The same rollouts by hand."""
    problem = domain("so3").problem(SEEDS)
    return {
        name: free.rollout(problem.sampler, problem.constraint, schedule, SEEDS, keep_states=True)
        for name, schedule in {"stepwise": tt.Stepwise(), "periodic": tt.Periodic(0.25)}.items()
    }


def test_rows_are_the_metrics_of_the_rollouts(reference, direct):
    rows = run_task(PERIODIC, {"reference": reference.shared}).rows
    run, stepwise, distance = direct["periodic"], direct["stepwise"], domain("so3").distance
    expected = {
        "path_error": metrics.path_error(run),
        "endpoint": metrics.endpoint_distance(run, stepwise, distance),
        "achieved_budget": achieved_budget(run),
        "concentration": metrics.top_mass(run.defects),
    }
    assert [row["seed"] for row in rows] == list(SEEDS)
    for name, values in expected.items():
        got = torch.tensor([row[name] for row in rows], dtype=torch.float64)
        torch.testing.assert_close(got, values, rtol=1e-12, atol=1e-14)
    assert all(row["projections"] == 25 and not row["closing"] for row in rows)


def test_the_reference_is_at_no_distance_from_itself(reference):
    assert all(row["endpoint"] < 1e-7 for row in reference.rows)


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [(torch.inf, "to full projection is infinite for 1 of 3 samples"), (torch.nan, "got NaN for")],
)
def test_a_distance_that_no_mean_can_be_taken_of_is_refused_before_rows_are_kept(
    bad, complaint, reference, monkeypatch
):
    def distance(a, b):
        return torch.where(torch.arange(len(a)) == 1, bad, (a - b).flatten(1).norm(dim=1))

    monkeypatch.setattr("trimtab_lab.studies.work.domain_of", lambda task: replace(domain("so3"), distance=distance))
    with pytest.raises(ValueError, match=complaint):
        run_task(PERIODIC, {"reference": reference.shared})


def test_a_task_is_a_pure_function(reference):
    first, second = (run_task(PERIODIC, {"reference": reference.shared}) for _ in range(2))
    assert first.rows == second.rows
    assert first.code == second.code


def test_a_block_of_seeds_gives_the_rows_its_seeds_give_alone(reference):
    whole = run_task(PERIODIC, {"reference": reference.shared}).rows
    one = replace(PERIODIC, first=1, stop=2, examples=0)
    alone = run_task(one, {"reference": run_task(one.needs["reference"], {}).shared}).rows
    assert alone[0].keys() == whole[1].keys()
    for name, value in alone[0].items():
        assert value == (pytest.approx(whole[1][name], rel=1e-12) if isinstance(value, float) else whole[1][name])


def test_an_adaptive_task_uses_the_shared_prices_and_spends_its_budget(reference):
    prices = run_task(CALIBRATION, {}).shared
    task = replace(PERIODIC, schedule="adaptive:paper", budgets=(0.1,))
    assert set(task.needs) == {"reference", "thresholds"}
    rows = run_task(task, {"reference": reference.shared, "thresholds": prices}).rows
    assert [row["achieved_budget"] for row in rows] == [0.1] * 3


def test_calibration_seeds_cannot_be_evaluated_on():
    prices = run_task(replace(CALIBRATION, first=0, stop=4), {}).shared
    with pytest.raises(ValueError, match="used to calibrate"):
        run_task(replace(PERIODIC, schedule="adaptive:paper"), {"thresholds": prices, "reference": b""})


def test_a_schedule_that_is_not_the_one_asked_for_is_found_out(direct):
    verify(PERIODIC, tt.Periodic(0.25), direct["periodic"], torch.full((3,), 25))
    with pytest.raises(StudyError, match="not those of the schedule asked for"):
        verify(PERIODIC, tt.Terminal(), direct["periodic"], torch.full((3,), 25))
    with pytest.raises(StudyError, match="30 corrections to be spent: got 25"):
        verify(PERIODIC, tt.Periodic(0.25), direct["periodic"], torch.tensor([25, 30, 25]))


def test_kappa_reaches_the_domain_and_the_rows():
    rows = run_task(replace(REFERENCE, kappa=0.75), {}).rows
    assert {row["kappa"] for row in rows} == {0.75}


# ------------------------------------------------------------------ budgets side by side


@pytest.mark.parametrize("key", ["periodic", "adaptive:dp", "planned", "hindsight"])
def test_budgets_run_side_by_side_give_the_rows_they_give_alone(key, reference):
    inputs = {"reference": reference.shared}
    calibration = replace(CALIBRATION, schedule=key)
    if key in ("adaptive:dp", "planned"):
        inputs["thresholds"] = run_task(calibration, {}).shared
    together = replace(PERIODIC, schedule=key, budgets=(0.1, 0.5, 0.9))
    alone = [replace(together, budgets=(budget,)) for budget in together.budgets]
    whole = run_task(together, inputs)
    parts = [run_task(task, inputs) for task in alone]
    for one, other in zip(whole.rows, [row for part in parts for row in part.rows], strict=True):
        numbers = [name for name, value in one.items() if isinstance(value, float)]
        assert [one[name] for name in numbers] == pytest.approx([other[name] for name in numbers], rel=1e-6, abs=1e-9)
        assert {**one, **dict.fromkeys(numbers)} == {**other, **dict.fromkeys(numbers)}
    assert set(whole.traces) == set(together.budgets)
    assert len({task.name for task in (together, *alone)}) == 4


def test_a_network_s_budgets_side_by_side_agree_to_rounding():
    source = Source.built_in("pdm", {"inner_steps": 1})
    facts = {"factory": source.factory, "settings": {"inner_steps": 1}, "code": version_of(source)}
    together = Task("rollout", "pdm", "periodic", (0.2, 0.5), 0, 2, origin=json.dumps(facts))
    inputs = {"reference": run_task(together.needs["reference"], {}).shared}
    whole = run_task(together, inputs).rows
    apart = [row for b in together.budgets for row in run_task(replace(together, budgets=(b,)), inputs).rows]
    for one, other in zip(whole, apart, strict=True):
        assert one["budget"] == other["budget"]
        assert one["path_error"] == pytest.approx(other["path_error"], rel=1e-4)
        assert one["quality_length"] == pytest.approx(other["quality_length"], rel=1e-3)
