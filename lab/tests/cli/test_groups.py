"""Samples that belong together, from the command line: compared, calibrated and advised on by whole groups."""

from __future__ import annotations

import json
import sys

import pyarrow.parquet
import pytest
import torch

import trimtab as tt
from pairs_on_a_lead import make, make_flock
from trimtab.cli.main import main
from trimtab.core.metrics import path_error

SAMPLER = ("--sampler", "pairs_on_a_lead:make")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr("trimtab_lab.report.figures.write_figures", lambda *_: [])  # they take most of the time
    return tmp_path


def test_a_comparison_keeps_groups_whole_and_budgets_apart(folder):
    budgets = ("--budgets", "0.25", "0.5")
    seeds = ("--seeds", "8", "--calibration-seeds", "16")
    assert main(["compare", *SAMPLER, *seeds, *budgets, "--engine", "serial", "--out", "run"]) == 0
    rows = pyarrow.parquet.read_table(folder / "run" / "rows" / "pairs_on_a_lead.parquet").to_pylist()
    spent = {(row["schedule"], row["budget"], row["seed"]): row["projections"] for row in rows}
    assert {key[0] for key in spent} >= {"periodic", "adaptive:dp", "planned", "terminal", "stepwise"}
    for (schedule, budget, seed), number in spent.items():
        assert number == spent[schedule, budget, seed ^ 1]
    alone = make(torch.arange(8)).rollout(tt.Periodic(5), closing="free", measure_defects=True)
    found = {row["seed"]: row["path_error"] for row in rows if (row["schedule"], row["budget"]) == ("periodic", 0.25)}
    assert [found[seed] for seed in range(8)] == pytest.approx(path_error(alone).tolist())


def test_calibration_and_advice_go_by_groups(capsys):
    assert main(["calibrate", *SAMPLER, "--seeds", "16", "--method", "dp", "--objective", "endpoint"]) == 0
    price = tt.load("pairs_on_a_lead.safetensors")
    run = make(torch.arange(100, 108)).rollout(price.at(5))
    assert torch.equal(run.spent[::2], run.spent[1::2])
    capsys.readouterr()
    assert main(["advise", *SAMPLER, "--seeds", "48", "--cost", "projections", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["recommended"]["schedule"] in ("adaptive", "window")


def test_groups_of_any_size_can_be_used_by_every_command(folder, capsys):
    threes = ("--sampler", "pairs_on_a_lead:make_threes")
    assert main(["calibrate", *threes, "--seeds", "15", "--method", "dp"]) == 0
    assert tt.load("pairs_on_a_lead.safetensors").seeds == tuple(range(1_000_002, 1_000_017))
    assert main(["advise", *threes, "--seeds", "48", "--cost", "projections"]) == 0
    seeds = ("--seeds", "33", "--calibration-seeds", "18", "--budgets", "0.25", "--engine", "serial", "--out", "run")
    rules = ("geometric", "random-ramp", "window")
    assert main(["compare", *threes, *seeds, "--schedules", *rules]) == 0
    rows = pyarrow.parquet.read_table(folder / "run" / "rows" / "pairs_on_a_lead.parquet").to_pylist()
    spent = {(row["schedule"], row["budget"], row["seed"]): row["projections"] for row in rows}
    assert {key[0] for key in spent} == {"terminal", "stepwise", "periodic", *rules}
    for (schedule, budget, seed), number in spent.items():
        assert number == spent[schedule, budget, seed // 3 * 3] <= max(1, round(20 * budget))
    capsys.readouterr()
    assert main(["report", "run"]) == 0


@pytest.mark.parametrize(("name", "what"), [("make_flock", "sampler steps"), ("make_alike", "constraint projects")])
def test_groups_that_reach_over_budgets_are_refused_before_anything_is_made(name, what, folder, capsys):
    assert main(["compare", "--sampler", f"pairs_on_a_lead:{name}", "--seeds", "8", "--calibration-seeds", "16"]) == 2
    said = capsys.readouterr().err
    assert f"the {what} the samples of a group differently" in said
    assert list(folder.iterdir()) == []


def test_groups_by_their_places_in_the_batch_can_be_compared(folder):
    seeds = ("--seeds", "8", "--calibration-seeds", "16", "--budgets", "0.25", "0.5", "--schedules", "periodic")
    words = ["compare", "--sampler", "pairs_on_a_lead:make_flock_by_rows", *seeds, "--engine", "serial", "--out", "run"]
    assert main(words) == 0
    rows = pyarrow.parquet.read_table(folder / "run" / "rows" / "pairs_on_a_lead.parquet").to_pylist()
    alone = make_flock(torch.arange(8)).rollout(tt.Periodic(5), measure_defects=True)
    found = {row["seed"]: row["path_error"] for row in rows if (row["schedule"], row["budget"]) == ("periodic", 0.25)}
    assert [found[seed] for seed in range(8)] == pytest.approx(path_error(alone).tolist())


@pytest.mark.parametrize(
    "words",
    [("calibrate", "--seeds"), ("compare", "--calibration-seeds"), ("compare", "--seeds"), ("advise", "--seeds")],
)
def test_seeds_that_cut_a_group_are_refused_before_anything_is_made(words, folder, capsys):
    assert main([words[0], *SAMPLER, words[1], "17"]) == 2
    assert "cut a group in two" in (said := capsys.readouterr().err)
    assert "such as 16 or 18" in said
    assert list(folder.iterdir()) == []


def test_groups_too_few_to_calibrate_on_are_refused_before_anything_is_made(folder, capsys):
    assert main(["compare", *SAMPLER, "--calibration-seeds", "6"]) == 2
    assert "6 calibration rollouts in 3 groups are too few: give --calibration-seeds" in capsys.readouterr().err
    assert list(folder.iterdir()) == []


def test_groups_without_seeds_are_refused(capsys):
    assert main(["calibrate", "--sampler", "pairs_on_a_lead:make_without_seeds"]) == 2
    assert "the factory must take seeds" in capsys.readouterr().err
