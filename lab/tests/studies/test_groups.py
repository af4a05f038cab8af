"""A study of samples that are decided on together: groups are what is independent, in errors and in distributions."""

from __future__ import annotations

import math
import sys
from dataclasses import replace

import jsonschema
import numpy as np
import pytest

from study_runs import SMALL, finish
from trimtab_lab.report.study_tables import all_tables
from trimtab_lab.studies.rows import FIDELITY, Rows, read_rows
from trimtab_lab.studies.store import RunFiles
from trimtab_lab.studies.summary import summary_schema, write_summary
from trimtab_lab.studies.usercode import Source, record_of

SOURCE = Source.of_user("pairs_on_a_lead:make", {})
NAME, PAIRS = SOURCE.name, 6


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path])  # which loading a factory adds to
        study = replace(SMALL, domains=(NAME,), samplers={NAME: record_of(SOURCE)}, seeds=2 * PAIRS, block=8)
        return finish(tmp_path_factory.mktemp("groups") / "run", study, factories={NAME: SOURCE.factory})


def test_rows_say_which_samples_belong_together(run):
    rows = read_rows(run, NAME)
    assert np.array_equal(rows["group"], rows["seed"] // 2 * 2)


def test_means_and_errors_are_over_groups(run):
    rows = read_rows(run, NAME).where(schedule="periodic", budget=0.25)
    summary = write_summary(RunFiles(run))
    jsonschema.validate(summary, summary_schema())
    content = summary["domains"][NAME]
    assert content["groups"] == PAIRS
    means = rows["endpoint"].reshape(PAIRS, 2).mean(axis=1)
    found = content["schedules"]["periodic"]["0.25"]["endpoint"]
    assert found == {
        "mean": pytest.approx(means.mean()),
        "se": pytest.approx(means.std(ddof=1) / math.sqrt(PAIRS)),
        "n": PAIRS,
    }
    assert content["win_rate"]["adaptive:paper"]["endpoint"]["n"] == PAIRS * len(SMALL.budgets)
    tables = {table.name: table for table in all_tables(summary)}
    for name in ("table1", "table3", "diagnostics"):
        assert any(f"over {PAIRS} groups" in note for note in tables[name].notes)
    assert tables["diagnostics"].rows[0][-2] == 0  # no group is left out


def test_rows_of_a_group_are_not_compared_as_a_distribution(run):
    rows = read_rows(run, NAME)
    assert all(np.isnan(rows[name]).all() for name in FIDELITY)
    assert "distribution" not in write_summary(RunFiles(run))["domains"][NAME]


def test_what_is_degenerate_is_left_out_of_its_group():
    same = {"domain": "d", "kappa": math.nan, "schedule": "periodic", "budget": 0.05}
    columns = {name: np.array([value] * 6) for name, value in same.items()}
    nepe = np.array([0.2, math.nan, 0.4, math.nan, math.nan, 0.6])
    columns |= {"seed": np.arange(6), "group": np.array([0, 1, 0, 3, 3, 0]), "nepe": nepe}
    units = Rows(columns).units()
    assert units["group"].tolist() == [0, 1, 3] == units["seed"].tolist()
    assert units["nepe"].tolist() == pytest.approx([0.4, math.nan, math.nan], nan_ok=True)
    assert units.where(budget=0.05)["schedule"].tolist() == ["periodic"] * 3
    alone = Rows({name: column for name, column in columns.items() if name != "group"})
    assert alone.units() is alone
