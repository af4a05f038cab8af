"""A study whose budgets count iterations: rows, summary, tables, figure and page say so, and no budget is exceeded."""

import re
from dataclasses import replace

import numpy as np
import pytest

import trimtab as tt
from browsed import Browsed
from study_runs import SMALL, finished
from trimtab.cli.main import main
from trimtab_lab.report.page import examples, page_html
from trimtab_lab.report.study_tables import all_tables
from trimtab_lab.studies.config import ITERATED, Study
from trimtab_lab.studies.rows import read_rows
from trimtab_lab.studies.store import RunFiles
from trimtab_lab.studies.summary import summarise
from trimtab_lab.studies.tasks import study_tasks
from trimtab_lab.studies.usercode import Source, record_of

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


def test_rows_count_the_iterations_of_the_closing_projection_as_they_count_that(run):
    rows = read_rows(run, "linkage").where(schedule="terminal")
    assert (rows["projections"] == 1).all()
    problem = tt.domain("linkage", n_steps=16).problem(rows["seed"].tolist())
    alone = problem.rollout(tt.Terminal(), closing="free", measure_defects=True)
    assert rows["iterations"].tolist() == alone.all_iterations.tolist()
    assert (rows["iterations"] > 0).all()


def test_rows_count_iterations_as_shares_of_full_projection(run):
    rows = read_rows(run, "linkage")
    assert rows.values("unit") == ["iteration"]
    assert set(rows.values("schedule")) == set(ITERATED)
    full = rows.where(schedule="stepwise")
    np.testing.assert_allclose(full["achieved_budget"].mean(), 1.0, atol=0.02)  # blocks of two and one seeds
    for key in ("periodic", "inexact"):
        some = rows.where(schedule=key, budget=0.3)
        assert (some["achieved_budget"] <= 0.3 + 0.5 / full["iterations"].min()).all()
        assert (some["achieved_budget"] > 0.2).all()
        assert (some["iterations"] < full["iterations"]).all()
    assert rows.where(schedule="inexact", budget=0.3)["nepe"].mean() < rows.where(schedule="terminal")["nepe"].mean()


def test_tables_and_page_say_what_budgets_count(run):
    summary = summarise(RunFiles(run))
    assert summary["config"]["unit"] == "iteration"
    words = "".join(table.markdown() for table in all_tables(summary))
    assert "share of full iterations = 0.30" in words
    assert "B/T" not in words
    assert '"unit":"iteration"' in page_html(summary, {})


def test_examples_say_how_much_each_step_was_corrected(run):
    files = RunFiles(run)
    kept = examples(files, summarise(files))["domains"]["linkage"]["examples"]
    shown = {key: kept[key]["0.30"][0] for key in ("periodic", "inexact")}
    rows = read_rows(run, "linkage")
    for key, example in shown.items():
        corrected, residuals = set(example["projected"]), example["residuals"]
        assert len(example["iterations"]) == len(corrected)
        row = rows.where(schedule=key, budget=0.3, seed=example["seed"])
        assert sum(example["iterations"]) <= row["iterations"][0]
        for t, (defect, left) in enumerate(zip(example["defects"], residuals, strict=True)):
            assert left == defect or t in corrected
    assert len(set(shown["inexact"]["iterations"])) > 1  # not every step that is touched is corrected alike
    assert any(shown["inexact"]["residuals"][t] > 1e-3 for t in shown["inexact"]["projected"])


def test_the_page_draws_more_iterations_higher(run, browser, tmp_path):
    files = RunFiles(run)
    summary = summarise(files)
    told = examples(files, summary)
    report = tmp_path / "report.html"
    report.write_text(page_html(summary, told), encoding="utf-8")
    seen = Browsed(browser.new_page())
    seen.open(report)
    seen.pick("schedule", "inexact")
    assert seen.text("budget-of").endswith("iterations")
    shown = told["domains"]["linkage"]["examples"]["inexact"]["0.30"][0]
    marks = re.findall(r"v-([0-9.]+)", seen.page.locator("#trace .rug.chosen").get_attribute("d"))
    heights = [float(mark) for mark in marks]
    assert len(heights) == len(shown["projected"])
    most = heights[np.argmax(shown["iterations"])]
    assert most == max(heights) > min(heights)
    seen.page.locator("#trace .handle").press("Home")
    while int(seen.page.locator("#trace .handle").get_attribute("aria-valuenow")) < shown["projected"][0]:
        seen.page.locator("#trace .handle").press("ArrowRight")
    assert f"{shown['iterations'][0]} iteration" in seen.page.locator("#trace .handle").get_attribute("aria-valuetext")
    assert not seen.complaints


def test_only_schedules_that_spend_a_unit_are_run_in_it():
    with pytest.raises(ValueError, match="adaptive:paper does not spend iterations"):
        study_tasks(replace(SMALL, unit="iteration"))
    with pytest.raises(ValueError, match="inexact does not spend projections"):
        study_tasks(replace(SMALL, schedules=ITERATED))
    with pytest.raises(ValueError, match="the unit of a study must be"):
        replace(SMALL, unit="seconds")
    assert Study.from_facts(ITERATIONS.facts()) == ITERATIONS


def test_a_domain_whose_projection_does_not_iterate_is_refused(tmp_path, capsys):
    options = ["--preset", "tiny", "--unit", "iteration", "--only", "terrain", "--engine", "serial"]
    assert main(["reproduce", *options, "--out", str(tmp_path / "run")]) != 0
    assert "offers improve" in capsys.readouterr().err
