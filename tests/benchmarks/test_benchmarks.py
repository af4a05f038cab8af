"""Every benchmark runs on a tiny size, and the runner writes what it measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from _compare import Timing, compare, fitted_exponent, median_interval
from _runner import HERE, main, met, new_page, run_benchmark, table

BENCHMARKS = sorted(path for path in HERE.glob("*.py") if not path.stem.startswith("_"))
GOOD = """
def run(quick):
    points = [[1, 0.1], [10, 1.0]]
    numbers = {"ratio": 3.0, "low": 2.5, "high": 3.5}
    return [
        {"claim": "sorting", "against": "bubbles", **numbers, "target": ">= 2",
         "inputs": "size 1" if quick else "size 2", "series": [{"x": "n", "label": "ours", "points": points}]},
        {"claim": "sorting", "against": "quicksort", "skipped": "it is not installed"},
    ]
"""
PAGE = "# Speed\n<!-- bench:begin -->\nold\n<!-- bench:end -->\nafter\n"


@pytest.mark.release
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("path", BENCHMARKS, ids=lambda path: path.stem)
def test_every_benchmark_runs_on_a_tiny_size(path):
    rows = run_benchmark(path, quick=True)
    assert rows
    for row in rows:
        assert not row.get("skipped", "").startswith("error:"), row
        met(row)
    assert table(rows)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "good.py").write_text(GOOD)
    (tmp_path / "lacking.py").write_text("import a_package_that_nobody_has\n")
    return tmp_path


def test_rows_are_printed_written_and_renewed(folder, capsys):
    out, page = folder / "results.json", folder / "performance.md"
    page.write_text(PAGE)
    assert main(["--json", str(out), "--docs", str(page)], folder) == 0
    shown = capsys.readouterr().out
    assert "bubbles" in shown
    assert "a_package_that_nobody_has" in shown
    assert "| sorting | bubbles | 3 | 2.5 to 3.5 | >= 2 | yes | size 2 |" in page.read_text()
    assert page.read_text().endswith("<!-- bench:end -->\nafter\n")
    assert "<svg" in (folder / "cost-growth.svg").read_text()
    (folder / "good.py").write_text(GOOD.replace("sorting", "ordering"))
    main(["--json", str(out), "--only", "good"], folder)
    rows = json.loads(out.read_text())["rows"]
    assert [(row["benchmark"], row["claim"]) for row in rows] == [("good", "ordering")] * 2 + [("lacking", "lacking")]


def test_a_broken_benchmark_is_reported_and_the_others_run(folder, capsys):
    (folder / "broken.py").write_text("def run(quick):\n    raise RuntimeError('no such luck')\n")
    assert main(["--quick"], folder) == 1
    shown = capsys.readouterr().out
    assert "no such luck" in shown
    assert "bubbles" in shown


def test_mistakes_are_explained(folder):
    other, page = folder / "other.json", folder / "performance.md"
    other.write_text("[]")
    page.write_text(PAGE)
    for words, message in (
        (["--only", "goood"], "did you mean 'good'"),
        (["--only", "good", "--json", str(other)], "not a file of results"),
        (["--only", "good", "--docs", str(page)], "rows of lacking are missing"),
        (["--quick", "--docs", str(page)], "needs full results"),
    ):
        with pytest.raises(ValueError, match=message):
            main(words, folder)
    with pytest.raises(ValueError, match="needs one line"):
        new_page("no markers", [], {})
    assert page.read_text() == PAGE


@pytest.mark.parametrize(
    ("ratio", "target", "answer"), [(8, ">= 8", True), (7.9, "≥ 8", False), (1.06, "<= 1.05", False), (1, "", None)]
)
def test_targets(ratio, target, answer):
    assert met({"ratio": ratio, "target": target}) is answer


def test_paired_timing_and_its_interval():
    calls = []
    compare({"ours": lambda: calls.append("o"), "peer": lambda: calls.append("p")}, 4, warmup=1)
    assert calls == ["p", "o", "o", "p"] * 2 + ["p", "o"]  # both in turn, in reversed order each time
    row = Timing({"ours": [1.0, 2.0, 1.0], "peer": [3.0, 8.0, 5.0]}).row("c", of="peer", over="ours")
    assert (row["ratio"], row["low"], row["high"], row["against"]) == (4.0, 3.0, 5.0, "peer")
    # of 15 values the 4th and the 12th contain the median in 96.5 of 100 runs
    assert median_interval([float(i) for i in range(15)]) == (7.0, 3.0, 11.0)
    assert fitted_exponent([(1, 2.0), (10, 200.0), (100, 20000.0)]) == pytest.approx(2.0)
