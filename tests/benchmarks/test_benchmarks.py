import argparse
import importlib
import json
import sys
from pathlib import Path

import pytest
import torch

from _page import growth_figure, renewed
from _runner import add_arguments, bench_command, find_benchmarks, met, run_benchmark, table
from trimtab.constraints.obstacles import AvoidObstacles, Obstacles

GOOD = """
from _shared import NUMBER
from dataclasses import dataclass

@dataclass
class Thing:
    x: "int"

def run(quick):
    size = 1 if quick else 2
    points = [[1, 0.1], [10, 1.0]]
    return [
        {"claim": "sorting", "against": "bubbles", "ratio": NUMBER, "low": 2.5, "high": 3.5, "target": ">= 2",
         "inputs": f"size {size}", "series": [{"x": "n", "label": "ours", "points": points}]},
        {"claim": "waiting", "against": "hand", "ratio": 1.2, "low": 1.1, "high": 1.3, "target": "<= 1.05"},
        {"claim": "sorting", "against": "quicksort", "skipped": "it is not installed"},
    ]
"""
LACKING = "import a_package_that_nobody_has\n\ndef run(quick):\n    return []\n"
BROKEN = "def run(quick):\n    raise RuntimeError('no such luck')\n"


@pytest.fixture
def benchmarks(tmp_path):
    directory = tmp_path / "benchmarks"
    directory.mkdir()
    (directory / "_shared.py").write_text("NUMBER = 3.0\n")
    (directory / "good.py").write_text(GOOD)
    (directory / "lacking.py").write_text(LACKING)
    return directory


def command(*arguments):
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return bench_command(parser.parse_args([str(a) for a in arguments]))


def test_all_benchmarks_run_and_are_told(benchmarks, tmp_path, capsys):
    out = tmp_path / "results.json"
    assert command("--dir", benchmarks, "--quick", "--json", out) == 0
    shown = capsys.readouterr().out
    assert "bubbles" in shown
    assert "skipped: sorting against quicksort: it is not installed" in shown
    assert "a_package_that_nobody_has" in shown
    assert "python: " in shown
    kept = json.loads(out.read_text())
    assert kept["quick"] is True
    assert [row["benchmark"] for row in kept["rows"]] == ["good", "good", "good", "lacking"]
    assert kept["rows"][0]["inputs"] == "size 1"
    assert "_shared" not in kept["rows"][0]["benchmark"]


def test_one_alone_renews_its_own_rows_of_the_file(benchmarks, tmp_path, capsys):
    out = tmp_path / "results.json"
    command("--dir", benchmarks, "--json", out)
    (benchmarks / "good.py").write_text(GOOD.replace("sorting", "ordering"))
    command("--dir", benchmarks, "--only", "good", "--json", out)
    rows = json.loads(out.read_text())["rows"]
    assert [row["benchmark"] for row in rows] == ["good", "good", "good", "lacking"]
    assert "size 2" in [row.get("inputs") for row in rows]
    assert {row["claim"] for row in rows} == {"ordering", "waiting", "lacking"}


def test_quick_and_full_results_are_not_mixed_in_a_file(benchmarks, tmp_path, capsys):
    out = tmp_path / "results.json"
    command("--dir", benchmarks, "--quick", "--json", out)
    command("--dir", benchmarks, "--only", "good", "--json", out)
    assert "measured with --quick; its rows are dropped" in capsys.readouterr().out
    assert [row["benchmark"] for row in json.loads(out.read_text())["rows"]] == ["good"] * 3


@pytest.mark.parametrize("text", ["", "[]", '{"rows": [{}]}', '{"rows": []}'])
def test_a_file_of_something_else_is_not_written_over(benchmarks, tmp_path, text):
    other = tmp_path / "other.json"
    other.write_text(text)
    with pytest.raises(ValueError, match="not a file of results"):
        command("--dir", benchmarks, "--only", "good", "--json", other)
    assert other.read_text() == text


def test_an_interrupted_run_keeps_what_it_measured(benchmarks, tmp_path):
    out = tmp_path / "results.json"
    (benchmarks / "stopped.py").write_text("def run(quick):\n    raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        command("--dir", benchmarks, "--json", out)
    assert [row["benchmark"] for row in json.loads(out.read_text())["rows"]] == ["good", "good", "good", "lacking"]


def test_a_broken_benchmark_is_told_and_the_others_run(benchmarks, capsys):
    (benchmarks / "broken.py").write_text(BROKEN)
    assert command("--dir", benchmarks) == 1
    shown = capsys.readouterr().out
    assert "no such luck" in shown
    assert "bubbles" in shown


def test_the_module_and_the_path_are_left_as_they_were(benchmarks):
    before, modules = list(sys.path), set(sys.modules)
    run_benchmark(benchmarks / "good.py", quick=True)
    assert sys.path == before
    assert not {name for name in set(sys.modules) - modules if "good" in name}


def test_names_and_directories_that_do_not_exist_are_explained(benchmarks, tmp_path):
    with pytest.raises(ValueError, match="did you mean 'good'"):
        command("--dir", benchmarks, "--only", "goood")
    with pytest.raises(ValueError, match="no such directory"):
        find_benchmarks(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="no benchmark files"):
        find_benchmarks(tmp_path / "empty")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\n", "needs a function run"),
        ("def run(quick):\n    return [{'claim': 'c'}]\n", "at least claim and against"),
        ("def run(quick):\n    return [{'claim': 'c', 'against': 'a', 'ratio': 1.0}]\n", "no number for low, high"),
        (
            "def run(quick):\n"
            "    return [{'claim': 'c', 'against': 'a', 'ratio': 1, 'low': 1, 'high': 1, 'target': 'fast'}]\n",
            "a target is",
        ),
    ],
)
def test_a_file_that_is_no_benchmark_is_explained(tmp_path, text, message):
    (tmp_path / "odd.py").write_text(text)
    with pytest.raises(ValueError, match=message):
        run_benchmark(tmp_path / "odd.py", quick=True)


@pytest.mark.parametrize(
    ("ratio", "target", "answer"),
    [
        (8, ">= 8", True),
        (7.9, "≥ 8", False),
        (1.05, "<= 1.05", True),
        (1.06, "≤ 1.05", False),
        (9, 8.0, True),
        (1, "", None),
        (1, None, None),
    ],
)
def test_targets_are_read_both_ways(ratio, target, answer):
    assert met({"ratio": ratio, "target": target}) is answer


def test_the_page_gets_the_table_and_the_plots(benchmarks, tmp_path):
    page = tmp_path / "performance.md"
    page.write_text("# Speed\n<!-- bench:begin -->\nold\n<!-- bench:end -->\nafter\n")
    command("--dir", benchmarks, "--docs", page)
    text = page.read_text()
    assert "old" not in text
    assert "| sorting | bubbles | 3 | 2.5 to 3.5 | >= 2 | yes | size 2 |" in text
    assert text.endswith("<!-- bench:end -->\nafter\n")
    drawing = (tmp_path / "cost-growth.svg").read_text()
    assert "<svg" in drawing
    assert "http" not in drawing.replace("http://www.w3.org", "").replace("http://purl.org", "").replace(
        "http://creativecommons.org", ""
    ).replace("https://matplotlib.org", "")
    assert drawing == growth_figure([{"x": "n", "label": "ours", "points": [[1, 0.1], [10, 1.0]]}])


def test_one_benchmark_alone_renews_the_page_only_beside_the_results_of_the_others(benchmarks, tmp_path):
    page, out = tmp_path / "performance.md", tmp_path / "results.json"
    page.write_text("<!-- bench:begin -->\nold\n<!-- bench:end -->\n")
    for options in ([], ["--json", out]):
        with pytest.raises(ValueError, match="there would be no rows of lacking: give --json"):
            command("--dir", benchmarks, "--only", "good", "--docs", page, *options)
        assert "old" in page.read_text()
    assert not out.exists()
    command("--dir", benchmarks, "--json", out)
    command("--dir", benchmarks, "--only", "good", "--docs", page, "--json", out)
    assert "| sorting | bubbles |" in page.read_text()
    assert "- skipped: lacking" in page.read_text()


def test_quick_numbers_do_not_get_onto_the_page(benchmarks, tmp_path):
    page = tmp_path / "performance.md"
    page.write_text("<!-- bench:begin -->\nold\n<!-- bench:end -->\n")
    with pytest.raises(ValueError, match="full results only"):
        command("--dir", benchmarks, "--quick", "--docs", page)
    assert "old" in page.read_text()


@pytest.mark.parametrize("text", ["no markers", "<!-- bench:end -->\n<!-- bench:begin -->"])
def test_a_page_without_markers_is_left_alone(text):
    with pytest.raises(ValueError, match="needs one line"):
        renewed(text, [], {})


def test_a_table_of_nothing_has_its_head():
    assert table([]).split() == ["claim", "against", "ratio", "interval", "target", "met"]


def test_paired_timing_and_its_interval(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import _compare

    calls = []
    timing = _compare.compare({"ours": lambda: calls.append("o"), "peer": lambda: calls.append("p")}, 4, warmup=1)
    assert calls == ["p", "o", "o", "p"] * 2 + ["p", "o"]  # both in turn, the order turned round each time
    assert {name: len(times) for name, times in timing.seconds.items()} == {"ours": 4, "peer": 4}
    fixed = _compare.Timing({"ours": [1.0, 2.0, 1.0], "peer": [3.0, 8.0, 5.0]})
    row = fixed.row("c", of="peer", over="ours")
    assert (row["ratio"], row["low"], row["high"], row["against"]) == (4.0, 3.0, 5.0, "peer")
    # of 15 values the 4th and the 12th hold the median in 96.5 of 100 runs
    found = _compare.median_interval([float(i) for i in range(15)])
    assert (found.ratio, found.low, found.high) == (7.0, 3.0, 11.0)
    assert _compare.fitted_exponent([(1, 2.0), (10, 200.0), (100, 20000.0)]) == pytest.approx(2.0)


BENCHMARKS = find_benchmarks(Path(__file__).parents[2] / "benchmarks")


@pytest.mark.parametrize("name", list(BENCHMARKS))
def test_every_benchmark_can_be_imported_and_says_what_it_claims(monkeypatch, name):
    monkeypatch.syspath_prepend(str(BENCHMARKS[name].parent))
    module = importlib.import_module(name)
    assert callable(module.run)
    assert module.__doc__


def test_the_projection_as_pdm_makes_it_finds_what_ours_finds(monkeypatch):
    pytest.importorskip("casadi")
    monkeypatch.syspath_prepend(str(BENCHMARKS["gather_rows"].parent))
    from _pdm_projection import project_as_pdm

    circles = torch.tensor([[0.0, 0.0, 0.3], [0.5, 0.4, 0.2]], dtype=torch.float64)
    line = torch.linspace(-0.9, 0.9, 12, dtype=torch.float64)
    x = torch.stack([line, 0.1 + 0.05 * torch.sin(9 * line)])[None]
    avoid = AvoidObstacles(Obstacles(circles), x[:, :, 0], x[:, :, -1])
    path, ok = project_as_pdm([tuple(circle) for circle in circles.tolist()], x[0].numpy())
    theirs = torch.from_numpy(path)[None]
    assert ok
    assert avoid.violation(theirs) <= 1e-3
    ours = avoid.project(x).x
    assert float((ours - x).norm()) <= 1.02 * float((theirs - x).norm())
    assert float((theirs - x).norm()) <= 1.02 * float((ours - x).norm())
