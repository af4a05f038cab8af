"""A study whose budgets count the closing projection: every schedule costs the same, all told."""

from dataclasses import replace

import pytest

from browsed import Browsed
from study_runs import SMALL, finished
from trimtab_lab.cli.compare import SCHEDULES, table_of
from trimtab_lab.report.page import examples, page_html
from trimtab_lab.report.study_tables import all_tables
from trimtab_lab.studies.config import Study
from trimtab_lab.studies.rows import read_rows
from trimtab_lab.studies.schedules import STUDY_SCHEDULES
from trimtab_lab.studies.store import RunFiles
from trimtab_lab.studies.summary import summarise
from trimtab_lab.studies.tasks import study_tasks
from trimtab_lab.studies.usercode import Source, record_of

PAYING = [key for key, entry in STUDY_SCHEDULES.items() if "paid" in entry.closings]
PAID = replace(
    SMALL,
    schedules=tuple(PAYING),
    budgets=(0.0, 0.05, 0.3, 1.0),
    table_budget=0.3,
    calibration_seeds=8,
    samplers={"so3": record_of(Source.built_in("so3", {"n_steps": 20}))},
    closing="paid",
)


@pytest.fixture(scope="module")
def run():
    return finished(PAID)


def test_every_rollout_costs_its_budget_the_closing_projection_included(run):
    rows = read_rows(run, "so3")
    assert set(rows.values("schedule")) == set(PAYING)
    assert not rows["closing"].any()  # none is made apart
    for key in PAYING:
        for budget, count in ((0.05, 1), (0.3, 6)):
            if STUDY_SCHEDULES[key].only_budget is None:
                some = rows.where(schedule=key, budget=budget)["projections"]
                if key == "trimtab":  # every 16 samples share
                    assert some.sum() == count * len(some)
                    continue
                assert (some <= count).all(), key
                assert (some == count).all(), key
    assert (rows.where(schedule="terminal")["projections"] == 1).all()
    assert (rows.where(schedule="stepwise")["projections"] == 20).all()


def test_with_nothing_but_the_closing_projection_all_are_terminal(run):
    rows = read_rows(run, "so3")
    terminal = rows.where(schedule="terminal")["endpoint"].tolist()
    for key in ("periodic", "window", "adaptive:dp", "planned"):
        assert rows.where(schedule=key, budget=0.05)["endpoint"].tolist() == terminal


def test_words_and_page_say_that_it_is_counted(run, browser, tmp_path):
    summary = summarise(RunFiles(run))
    words = "".join(table.markdown() for table in all_tables(summary))
    assert "The closing projection is included." in words
    assert "closing projection is not included" not in words
    report = tmp_path / "report.html"
    report.write_text(page_html(summary, examples(RunFiles(run), summary)), encoding="utf-8")
    seen = Browsed(browser.new_page())
    seen.open(report)
    assert seen.page.input_value("#metric") == "endpoint"  # final samples come first
    assert not seen.complaints
    shown = table_of(summary)
    assert shown.index("distance of final samples") < shown.index("NEPE")
    assert "terminal: " in shown


def test_what_cannot_count_it_is_refused():
    for key in STUDY_SCHEDULES.keys() - set(PAYING):
        with pytest.raises(ValueError, match="does not count the closing projection"):
            study_tasks(replace(PAID, schedules=(*PAID.schedules, key)))
    with pytest.raises(ValueError, match="'paid' or 'free'"):
        replace(PAID, closing="none")


def test_the_command_compares_what_can_be_compared_at_equal_cost():
    assert set(SCHEDULES) <= set(PAYING)
    assert Study.from_facts(PAID.facts()) == PAID
