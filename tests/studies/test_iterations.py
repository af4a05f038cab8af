"""A study whose budgets count iterations: rows, summary, tables, figure and page say so, and no budget is exceeded."""

from dataclasses import replace

import numpy as np
import pytest

from study_runs import SMALL, finished
from trimtab.cli.main import main
from trimtab.report.page import page_html
from trimtab.report.study_tables import all_tables
from trimtab.studies.config import ITERATED, Study
from trimtab.studies.rows import read_rows
from trimtab.studies.run_files import RunFiles
from trimtab.studies.summary import summarise
from trimtab.studies.tasks import study_tasks
from trimtab.studies.usercode import Source, record_of

ITERATIONS = replace(
    SMALL.in_iterations(),
    domains=("linkage",),
    budgets=(0.0, 0.3, 1.0),
    table_budget=0.3,
    calibration_seeds=8,
    samplers={"linkage": record_of(Source.built_in("linkage", {"n_steps": 16}))},
)


@pytest.fixture(scope="module")
def run():
    return finished(ITERATIONS)


def test_rows_count_iterations_as_shares_of_full_projection(run):
    rows = read_rows(run, "linkage")
    assert rows.values("unit") == ["iteration"]
    assert set(rows.values("schedule")) == set(ITERATED)
    full = rows.where(schedule="stepwise")
    np.testing.assert_allclose(full["achieved_budget"].mean(), 1.0, atol=0.02)  # blocks of two and one seeds
    for key in ("periodic", "inexact", "repeat", "raced"):
        some = rows.where(schedule=key, budget=0.3)
        assert (some["achieved_budget"] <= 0.3 + 0.5 / full["iterations"].min()).all()
        assert (some["achieved_budget"] > 0.2).all()
        assert (some["iterations"] < full["iterations"]).all()
    inexact, repeat = (rows.where(schedule=key, budget=0.3)["nepe"].mean() for key in ("inexact", "repeat"))
    assert repeat < inexact < rows.where(schedule="terminal")["nepe"].mean()


def test_tables_and_page_say_what_budgets_count(run):
    summary = summarise(RunFiles(run))
    assert summary["config"]["unit"] == "iteration"
    words = "".join(table.markdown() for table in all_tables(summary))
    assert "share of full iterations = 0.30" in words
    assert "B/T" not in words
    assert '"unit":"iteration"' in page_html(summary, {})


def test_only_schedules_that_spend_a_unit_are_run_in_it():
    with pytest.raises(ValueError, match="adaptive:paper does not spend iterations"):
        study_tasks(replace(SMALL, unit="iteration"))
    with pytest.raises(ValueError, match="inexact does not spend projections"):
        study_tasks(replace(SMALL, schedules=ITERATED))
    with pytest.raises(ValueError, match="the unit of a study is"):
        replace(SMALL, unit="seconds")
    assert Study.from_facts(ITERATIONS.facts()) == ITERATIONS


def test_a_domain_whose_projection_does_not_iterate_is_refused(tmp_path, capsys):
    options = ["--preset", "tiny", "--unit", "iteration", "--only", "terrain", "--engine", "serial"]
    assert main(["reproduce", *options, "--out", str(tmp_path / "run")]) != 0
    assert "offers improve" in capsys.readouterr().err
