from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from study_runs import SWEPT, finished
from trimtab_lab.report import figures, write_report
from trimtab_lab.report.figures import write_figures
from trimtab_lab.report.page import examples
from trimtab_lab.report.study_tables import (
    FEW_DECIDE,
    TOO_WIDE,
    Cell,
    Table,
    all_tables,
    diagnostics,
    final_samples,
    write_tables,
)
from trimtab_lab.report.style import label_of, look_of
from trimtab_lab.studies.schedules import STUDY_SCHEDULES
from trimtab_lab.studies.store import RunFiles
from trimtab_lab.studies.summary import reported, write_summary

SHARED = Path(__file__).parents[4] / "shared" / "paper" / "reported.json"


@pytest.fixture
def run():
    write_summary(RunFiles(finished(SWEPT)))
    return finished(SWEPT)


@pytest.fixture
def summary(run):
    return json.loads((run / "summary.json").read_text())


def named(summary):
    return {table.name: table for table in all_tables(summary)}


def paper_like(summary, gain: float, se: float):
    """A summary in which every improvement at 0.25 is this."""
    for domain in summary["domains"].values():
        for metric in ("nepe", "endpoint"):
            domain["improvement"]["adaptive:paper"]["0.25"][metric] = {"mean": gain, "se": se, "n": 16}
    return summary


# ------------------------------------------------------------------ formats


def test_cells_read_as_in_the_paper():
    assert str(Cell(0.509, 0.0062)) == "0.509 ± 0.006"
    assert str(Cell(0.0088, 0.0005)) == "0.00880 ± 0.00050"
    assert str(Cell(-0.19, 0.07, "percent")) == "-19% ± 7%"
    assert str(Cell(-0.001, None, "percent")) == "0%"
    assert str(Cell(0.0, 0.0)) == "0.000 ± 0.000"
    assert str(Cell(None)) == "n/a"


def test_a_table_in_its_three_formats():
    rows = [["SO(3)", Cell(0.5, 0.01, bold=True), 3], ["a_b", Cell(None), 4]]
    table = Table("t", "100% of it", ["Domain", "NEPE", "N"], rows, ["A note."])
    assert table.markdown().splitlines()[2:6] == [
        "| Domain | NEPE | N |",
        "| --- | --- | --- |",
        "| SO(3) | **0.500 ± 0.010** | 3 |",
        "| a_b | n/a | 4 |",
    ]
    assert list(csv.reader(io.StringIO(table.csv()))) == [
        ["Domain", "NEPE", "NEPE SE", "N"],
        ["SO(3)", "0.5", "0.01", "3"],
        ["a_b", "", "", "4"],
    ]
    assert r"SO(3) & \textbf{0.500 $\pm$ 0.010} & 3 \\" in table.latex()
    assert r"a\_b" in table.latex()
    assert r"100\% of it" in table.latex()


def test_every_table_is_written_in_every_format(run, summary):
    written = write_tables(RunFiles(run), summary)
    assert len(written) == 3 * len(all_tables(summary))
    for path in written:
        assert path.stat().st_size > 0
    for table in all_tables(summary):
        assert {len(row) for row in table.rows} == {len(table.columns)}
        lines = list(csv.reader(io.StringIO(table.csv())))
        assert {len(line) for line in lines} == {len(lines[0])}


# ------------------------------------------------------------------ beside the paper


def test_the_papers_numbers_stand_beside_ours(summary):
    table = named(summary)["table1"]
    rows = {(row[0], row[1]): row for row in table.rows}
    assert set(rows) == {(name, source) for name in ("Terrain", "Terrain-Ridge") for source in ("here", "paper")}
    assert str(rows["Terrain-Ridge", "paper"][7]) == "45% ± 4%"
    here = summary["domains"]["terrain"]["schedules"]["periodic"]["0.25"]["nepe"]["mean"]
    assert rows["Terrain", "here"][5].mean == here


@pytest.mark.parametrize(
    ("gain", "se", "word"),
    [
        (0.9, 0.01, "same sign, larger here"),
        (0.1, 0.01, "same sign, smaller here"),
        (-0.5, 0.01, "opposite sign"),
        (0.42, 0.2, "agrees"),
        (0.1, 0.2, "undecided (the interval here holds 0)"),
        (0.42, None, "undecided (a few samples decide the mean here)"),
    ],
)
def test_a_verdict_says_whether_the_paper_s_improvement_comes_out(summary, gain, se, word):
    table = named(paper_like(summary, gain, se))["agreement"]
    verdicts = {(row[0], row[1]): row[4] for row in table.rows}
    assert verdicts["NEPE", "Terrain-Ridge"] == word
    # the paper has -6% ± 34% and 1% ± 32% there, with which everything would agree
    assert verdicts["endpoint", "Terrain"] == verdicts["endpoint", "Terrain-Ridge"] == TOO_WIDE
    assert set(verdicts) == {(m, d) for m in ("NEPE", "endpoint") for d in ("Terrain", "Terrain-Ridge")}


def test_an_interval_is_shown_and_one_that_cannot_be_known_is_undecided(summary):
    gain = summary["domains"]["terrain"]["improvement"]["adaptive:paper"]["0.25"]["nepe"]
    gain |= {"mean": 0.4, "low": 0.3, "high": 0.5}
    assert "40% (30 to 50)" in named(summary)["table1"].markdown()
    gain |= {"low": None, "high": None}
    assert "40% (undecided)" in named(summary)["table1"].markdown()
    assert [row[4] for row in named(summary)["agreement"].rows if row[:2] == ["NEPE", "Terrain"]] == [FEW_DECIDE]


def test_win_rates_over_other_budgets_are_not_compared(summary):
    notes = named(summary)["table3"].notes
    assert notes[-1] == "The paper's rates are over 21 budgets, these over 3: they cannot be compared."
    assert "33.3% is the highest rate possible" in notes[1]


def test_a_domain_with_settings_of_its_own_is_not_compared_with_the_papers(summary):
    summary["config"]["samplers"] = {"terrain": {"settings": {"kappa": 0.0}}, "terrain-ridge": {"settings": {}}}
    for table in (named(summary)[name] for name in ("table1", "table3")):
        sources = [row[:2] for row in table.rows]
        assert sources == [["Terrain", "here"], ["Terrain-Ridge", "here"], ["Terrain-Ridge", "paper"]]


def test_budgets_that_pay_for_the_closing_projection_are_not_compared_with_the_papers(run, summary, monkeypatch):
    monkeypatch.setattr("trimtab_lab.report.figures.FORMATS", {"svg": {"Date": None}})
    summary["config"]["closing"] = "paid"
    for table in (named(summary)[name] for name in ("table1", "table3")):
        assert [row[:2] for row in table.rows] == [["Terrain", "here"], ["Terrain-Ridge", "here"]]
        assert "paper's" not in " ".join(table.notes)
    summary["domains"]["pdm"] = summary["domains"]["terrain"]
    (table,) = [table for table in all_tables(summary) if table.name == "table2"]
    assert {row[1] for row in table.rows} == {"here"}
    assert "The paper" not in " ".join(table.notes)
    del summary["domains"]["pdm"]
    assert examples(RunFiles(run), summary)["domains"]["terrain"]["paper"] is None
    drawn = {path.name: path.read_text() for path in write_figures(RunFiles(run), summary)}
    assert "in the paper" not in drawn["nepe.svg"]


def test_domains_the_paper_does_not_have_stand_alone(summary):
    summary["domains"] = {"reaction-flow": summary["domains"]["terrain"] | {"label": "Reaction-Flow"}}
    for table in (named(summary)[name] for name in ("table1", "table3")):
        assert [row[:2] for row in table.rows] == [["Reaction-Flow", "here"]]
        assert "paper's" not in " ".join(table.notes)


def with_flows(summary):
    """The summary with the same numbers for a second kind of dynamics."""
    for name in ("terrain", "terrain-ridge"):
        summary["domains"][f"{name}-ramp"] = summary["domains"][name] | {
            "label": f"{summary['domains'][name]['label']} ramp"
        }
    return summary


def test_several_dynamics_stand_in_one_group_with_the_papers_numbers_once(summary):
    tables = named(with_flows(summary))
    for table in (tables["table1"], tables["table3"]):
        groups = [(name, source) for name in ("Terrain", "Terrain-Ridge") for source in ("Langevin", "ramp", "paper")]
        assert [(row[0], row[1]) for row in table.rows] == groups


def test_several_dynamics_are_compared_with_the_paper_by_the_ramp(summary):
    table = named(with_flows(paper_like(summary, 0.42, 0.2)))["agreement"]
    assert table.columns[3:6] == ["here, ramp", "verdict", "Langevin, a counter-example"]
    assert "4 comparisons: agrees 2; undecided (the paper's interval is too wide) 2." in table.notes


@pytest.mark.skipif(not SHARED.is_file(), reason="the paper's figures are not beside this checkout")
def test_the_papers_numbers_are_the_papers():
    ours, theirs = reported(), json.loads(SHARED.read_text())
    names = {"SO(3)": "so3", "SE(3)": "se3", "Terrain": "terrain"}
    names |= {"SO(3)-Impulse": "so3-impulse", "SE(3)-Lever": "se3-lever", "Terrain-Ridge": "terrain-ridge"}
    assert {names[name]: value for name, value in theirs["synthetic_at_0.25"].items()} == {
        name: value for name, value in ours["table1"].items() if name != "pdm"
    }
    for name, value in theirs["win_rates"].items():
        expected = value | {"median_improvement": value["median_nepe_improvement"]}
        del expected["median_nepe_improvement"]
        assert ours["win_rates"][names[name]] == expected


# ------------------------------------------------------------------ budgets spent


def test_budgets_are_said_to_be_spent_exactly(summary):
    assert any("spent its budget exactly, rounded to whole corrections. The" in n for n in diagnostics(summary).notes)


# ------------------------------------------------------------------ final samples


def test_final_samples_are_told_apart_by_their_p_value_and_the_notes_say_what_would_have_been_seen(summary):
    content = next(iter(summary["domains"].values()))
    content["distribution"]["periodic"]["0.25"] |= {"p": 0.01, "shift": 0.25, "n": 12}
    content["distribution"]["adaptive:paper"]["0.25"] |= {"p": 0.4, "shift": 0.25, "n": 12}
    (table,) = final_samples(summary)
    mine = {row[1]: row[-1] for row in table.rows if row[0] == content["label"]}
    assert (mine["periodic"], mine["adaptive (paper)"]) == ("yes", "not detected")
    assert mine["stepwise"] == "same method, other seeds"
    (note,) = [note for note in table.notes if note.startswith(f"{content['label']}:")]
    assert "periodic" in note
    assert "with 12 samples a shift of 0.25 of their spread would have been detected" in note
    for key in ("periodic", "adaptive:paper"):
        content["distribution"][key]["0.25"]["shift"] = None
    assert "12 samples are too few to detect any shift" in "".join(final_samples(summary)[0].notes)
    content["distribution"]["periodic"]["0.25"]["p"] = 0.4
    for told in content["distribution"].values():
        for one in told.values():
            one["p"] = 0.4
    assert "no schedule's final samples differ detectably" in "".join(final_samples(summary)[0].notes)
    for domain in summary["domains"].values():
        del domain["distribution"]
    assert final_samples(summary) == []


# ------------------------------------------------------------------ schedules nobody has heard of


def test_any_schedule_gets_its_tables_and_its_look(summary):
    for domain in summary["domains"].values():
        for part in ("schedules", "win_rate", "improvement"):
            domain[part]["adaptive:dp"] = domain[part]["adaptive:paper"]
    names = [table.name for table in all_tables(summary)]
    assert names[:5] == ["agreement", "table1", "table3", "table1-adaptive-dp", "table3-adaptive-dp"]
    known = ["terminal", "stepwise", "periodic", "adaptive:paper", "adaptive:dp", "planned", "hindsight"]
    assert len({look_of(key).colour for key in known}) == len(known)
    assert look_of("never heard of") == look_of("never heard of")


@pytest.mark.parametrize("place", [0, -1])
def test_a_schedule_that_one_domain_alone_was_run_with_is_reported_there(place, run, summary, monkeypatch):
    monkeypatch.setattr("trimtab_lab.report.figures.FORMATS", {"svg": {"Date": None}})
    assert len(summary["domains"]) > 1
    cheap = list(summary["domains"].values())[place]
    for part in ("schedules", "win_rate", "improvement"):
        cheap[part]["hindsight"] = cheap[part]["adaptive:paper"]
    tables = {table.name: table for table in all_tables(summary)}
    for name in ("table1-hindsight", "table3-hindsight"):
        assert [row[0] for row in tables[name].rows] == [cheap["label"]]
    beside = {row[0]: str(row[-4]) for row in tables["diagnostics"].rows}
    assert [label for label, gain in beside.items() if gain != "n/a"] == [cheap["label"]]
    drawn = {path.name: path.read_text() for path in write_figures(RunFiles(run), summary)}
    assert look_of("hindsight").colour.lower() in drawn["nepe.svg"]
    assert "<!-- hindsight -->" in drawn["nepe.svg"]  # in the legend


def test_a_domain_whose_sweep_is_degenerate_is_left_out_of_its_figure(run, summary, monkeypatch):
    monkeypatch.setattr("trimtab_lab.report.figures.FORMATS", {"svg": {"Date": None}})
    for cell in next(iter(summary["kappa"].values())).values():
        cell["improvement"]["adaptive:paper"]["nepe"] = {"mean": None, "se": None, "n": 0}
    assert "where-it-helps.svg" in [path.name for path in write_figures(RunFiles(run), summary)]


@pytest.mark.parametrize("key", STUDY_SCHEDULES)
def test_a_schedule_is_headed_by_the_name_it_is_typed_by(key):
    kind, colon, method = key.partition(":")
    assert label_of(key) == (f"{kind} ({method})" if colon else key)


def test_figures_are_drawn_for_what_there_is(run, summary, monkeypatch):
    look_keys = ("terminal", "stepwise", "periodic", "adaptive:paper", "adaptive:dp", "hindsight")
    monkeypatch.setattr("trimtab_lab.report.figures.FORMATS", {"svg": {"Date": None}})
    for domain in summary["domains"].values():
        domain["schedules"]["hindsight"] = domain["schedules"]["adaptive:paper"]
        domain["schedules"]["periodic"]["0.25"]["nepe"] = {"mean": None, "se": None, "n": 0}
    drawn = {path.name: path.read_text() for path in write_figures(RunFiles(run), summary)}
    assert set(drawn) == {"nepe.svg", "endpoint.svg", "title.svg", "regime.svg", "where-it-helps.svg"}
    colours = {name: {key for key in look_keys if look_of(key).colour.lower() in svg} for name, svg in drawn.items()}
    assert colours["nepe.svg"] == {"terminal", "stepwise", "periodic", "adaptive:paper", "hindsight"}
    assert "in the paper" in drawn["nepe.svg"]
    assert colours["regime.svg"] >= {"terminal", "periodic", "adaptive:paper"}


def test_a_study_of_the_baselines_alone_is_drawn_with_periodic(monkeypatch):
    monkeypatch.setattr("trimtab_lab.report.figures.FORMATS", {"svg": {"Date": None}})
    plain = replace(SWEPT, schedules=("terminal", "stepwise", "periodic"), kappas=(), kappa_domains=())
    drawn = [path.name for path in write_report(RunFiles(finished(plain))) if path.suffix == ".svg"]
    assert drawn == ["nepe.svg", "endpoint.svg", "title.svg", "regime.svg"]


@pytest.mark.parametrize(
    ("domains", "shown"),
    [
        (("so3-ramp", "terrain-ridge-ramp", "terrain-dome"), ("terrain-ridge-ramp", "terrain-dome")),
        (("so3-impulse-flow", "so3-flow"), ("so3-impulse-flow", "so3-flow")),
        (("so3-flow",), (None, "so3-flow")),
    ],
)
def test_the_regime_figure_shows_concentrated_and_even_defects_of_any_dynamics(domains, shown):
    study = SWEPT.only(domains)
    assert (figures._first(study, figures._VOLATILE), figures._first(study, figures._SMOOTH)) == shown


def test_every_kind_of_dynamics_has_a_frontier_of_its_own(run, summary, monkeypatch):
    monkeypatch.setattr("trimtab_lab.report.figures.FORMATS", {"svg": {"Date": None}})
    monkeypatch.setattr("trimtab_lab.report.figures.read_about", lambda files, names: {name: {} for name in names})
    with_flows(summary)
    summary["config"]["domains"] = list(summary["domains"])
    summary["config"]["example_seeds"] = 0
    drawn = {path.name: path.read_text() for path in write_figures(RunFiles(run), summary)}
    assert {"nepe.svg", "nepe-ramp.svg", "endpoint.svg", "endpoint-ramp.svg"} <= set(drawn)
    assert "Terrain-Ridge ramp" in drawn["nepe-ramp.svg"]
    assert "Terrain-Ridge ramp" not in drawn["nepe.svg"]


def test_the_tails_stand_below_their_own_headings(summary):
    table = named(summary)["tails"]
    at = {name: list(table.columns).index(f"{name}, mean") for name in ("NEPE", "endpoint")}
    first = next(iter(summary["domains"].values()))["tails"]["periodic"]
    assert table.rows[0][at["NEPE"]].mean == first["nepe"]["mean"]
    assert table.rows[0][at["endpoint"]].mean == first["endpoint"]["mean"]


@pytest.mark.parametrize(("fixed", "word"), [(0.2, "timing wins here"), (0.6, "looking at the state adds")])
def test_what_fixed_times_gain_is_said_beside_the_paper_s_rule(summary, fixed, word):
    content = json.loads(json.dumps(summary["domains"]["terrain"]))
    like = content["schedules"]["adaptive:paper"]
    levels = {"periodic": 0.8, "adaptive:paper": 0.15, "first": fixed, "window": 0.9, "planned": 0.7}
    for key, mean in levels.items():
        content["schedules"][key] = {b: {**m, "nepe": {"mean": mean, "se": 0.01, "n": 8}} for b, m in like.items()}
    summary["domains"]["pdm"] = content
    (table,) = [table for table in all_tables(summary) if table.name == "table2"]
    assert word in " ".join(table.notes)
    assert "first" in " ".join(table.notes)


def test_figure_1_shows_the_example_that_leaves_the_ground_farthest_without_leaving_the_map():
    far = torch.tensor([[0.1, 0.4, 0.9]])
    paths = torch.zeros(2, 3, 3)
    paths[1, 2, 0] = 5.0  # the last one leaves the map
    trace = SimpleNamespace(defects=far, path=paths)
    study = replace(SWEPT, schedules=("terminal", "stepwise", "periodic", "adaptive:paper"))
    kept = {("terminal", 0.0): trace, ("stepwise", 1.0): trace, ("adaptive:paper", 0.25): trace}
    facts = {"terrain-ridge": {"label": "Ridge", "surface": {"x": [-1.0, 1.0], "y": [-1.0, 1.0], "z": []}}}
    assert figures._drifted(study, facts, {"terrain-ridge": kept})[3] == 1
    assert figures._drifted(study, facts, {"terrain-ridge": {("terminal", 0.0): trace}}) is None
