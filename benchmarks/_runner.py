"""Run the benchmarks, print their rows, and write them to a file and to the page.

A benchmark is a file of this folder with `run(quick: bool) -> list[dict]`. A row (`_compare.row`) has

    claim, against      what is compared with what
    ratio, low, high    the median ratio and its interval
    target              ">= 8" or "<= 1.05", or "" for a number without a target
    inputs              sizes, dtypes, seconds of both sides
    skipped             instead of the numbers: why this comparison could not be made
    series              optional: [{"x": "n", "label": "...", "points": [[x, seconds], ...]}], drawn by `--docs`
"""

from __future__ import annotations

import argparse
import importlib.metadata
import io
import json
import math
import os
import platform
import re
import sys
from collections.abc import Iterable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from time import perf_counter
from typing import Any

from trimtab.core.checks import unknown

__all__ = ["main", "met", "new_page", "run_benchmark", "table"]

Row = dict[str, Any]
HERE = Path(__file__).parent
PAGE = HERE.parent / "docs/results/performance.md"
BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"


def main(words: list[str], directory: Path = HERE) -> int:
    """Run what was asked for; return 1 if a benchmark raised an error, whatever the times are."""
    parser = argparse.ArgumentParser(prog="python benchmarks", description="Run the benchmarks and print ratios.")
    parser.add_argument("--only", metavar="NAME", action="append", help="run this one; may be repeated")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write rows to this file; with --only, replace some")
    parser.add_argument("--quick", action="store_true", help="small inputs and few rounds, to see that it runs")
    parser.add_argument("--docs", metavar="PAGE", type=Path, help="write table and plots into this page")
    parser.add_argument("--write", action="store_const", dest="docs", const=PAGE, help="write them into the docs' page")
    args = parser.parse_args(words)
    found = {path.stem: path for path in sorted(directory.glob("*.py")) if not path.stem.startswith("_")}
    for name in args.only or ():
        if name not in found:
            raise unknown("benchmark", name, found)
    if args.docs is not None and args.quick:
        raise ValueError("--docs needs full results: the numbers of --quick mean little")
    rows = _kept_rows(args.json, args.quick) if args.only and args.json is not None and args.json.is_file() else []
    missing = [
        name for name in found if name not in (args.only or found) and name not in {r["benchmark"] for r in rows}
    ]
    if args.docs is not None and missing:
        raise ValueError(f"--docs writes the whole table: rows of {', '.join(missing)} are missing; give --json FILE")
    for name in args.only or found:
        print(f"{name} …", end=" ", flush=True)
        begin, worked = perf_counter(), _processor_seconds()
        new = run_benchmark(found[name], quick=args.quick)
        print(f"{perf_counter() - begin:.0f} s, {_processor_seconds() - worked:.0f} s of processors", flush=True)
        rows = [one for one in rows if one["benchmark"] != name] + new
        rows.sort(key=lambda one: one["benchmark"])
        if args.json is not None:  # after each, so that an interruption loses nothing
            _write(args.json, json.dumps({"quick": args.quick, "versions": versions(), "rows": rows}, indent=1) + "\n")
    if args.docs is not None:
        _write(args.docs, new_page(args.docs.read_text(encoding="utf-8"), rows, versions()))
        if series := [one for each in rows for one in each.get("series", ())]:
            images = args.docs.parents[1] / "images"
            _write((images if images.is_dir() else args.docs.parent) / "cost-growth.svg", growth_figure(series))
    print("\n" + table(rows))
    print("\n" + "\n".join(f"{key}: {value}" for key, value in versions().items()))
    return int(any(one.get("skipped", "").startswith("error:") for one in rows))


def run_benchmark(path: Path, *, quick: bool) -> list[Row]:
    """Import one file, run it and return its rows, with the benchmark's name; an error becomes a row."""
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None  # noqa: PT018
    module = module_from_spec(spec)
    sys.path.insert(0, str(path.parent))
    sys.modules[path.stem] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
        rows: list[Row] = module.run(quick)
    except ImportError as error:
        rows = [{"claim": path.stem, "against": "", "skipped": str(error)}]
    except Exception as error:
        rows = [{"claim": path.stem, "against": "", "skipped": f"error: {error!r}"}]
    finally:
        sys.path.remove(str(path.parent))
        del sys.modules[path.stem]
    return [{"benchmark": path.stem} | one for one in rows]


def _processor_seconds() -> float:
    """Return the processor time of this process and of those that it has started and that have ended."""
    return sum(os.times()[:4])


def _kept_rows(path: Path, quick: bool) -> list[Row]:
    """Return the rows of a file of results, if it has full or quick results as asked for."""
    try:
        earlier = json.loads(path.read_text(encoding="utf-8"))
        rows: list[Row] = [one for one in earlier["rows"] if one["benchmark"]]
        return rows if earlier["quick"] == quick else []
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a file of results; give --json another name, or remove it") from error


def met(one: Row) -> bool | None:
    """Return whether the row's ratio reaches its target; None without a target.

    Example:
        >>> met({"ratio": 9.1, "target": ">= 8"}), met({"ratio": 1.2, "target": "<= 1.05"}), met({"ratio": 1.0})
        (True, False, None)
    """
    target = one.get("target") or ""
    if not target or "skipped" in one:
        return None
    sign, number = target.split()
    return bool(one["ratio"] <= float(number) if sign in ("<=", "≤") else one["ratio"] >= float(number))


def table(rows: Iterable[Row], *, markdown: bool = False) -> str:
    """Return the results as a table, followed by the comparisons that were skipped."""
    head = ["claim", "against", "ratio", "interval", "target", "met", "inputs"]
    body, missing = [], []
    for one in rows:
        if "skipped" in one:
            missing.append(f"skipped: {one['claim']} against {one['against'] or 'nothing'}: {one['skipped']}")
            continue
        ratio, low, high = (_number(one[key]) for key in ("ratio", "low", "high"))
        unit = f" {one['unit']}" if one.get("unit") else ""
        answer = {True: "yes", False: "no", None: ""}[met(one)]
        cells = [one["claim"], one["against"], ratio + unit, f"{low} to {high}", one.get("target", "")]
        body.append([*cells, answer, one.get("inputs", "")])
    if markdown:
        lines = ["| " + " | ".join(cells) + " |" for cells in [head, ["---"] * len(head), *body]]
        return "\n".join(lines + ([""] if missing else []) + [f"- {line}" for line in missing])
    widths = [max(len(cells[i]) for cells in [head, *body]) for i in range(len(head) - 1)]
    lines = []
    for cells in [head, *body]:
        lines.append("  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=False)).rstrip())
        lines += [f"    {cells[-1]}"] if cells is not head and cells[-1] else []
    return "\n".join(lines + missing)


def _number(value: float) -> str:
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 10 else f"{value:.1f}"


def new_page(text: str, rows: list[Row], facts: dict[str, str]) -> str:
    """Return the page's text with a new table between its markers."""
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(END) < text.index(BEGIN):
        raise ValueError(f"the page needs one line {BEGIN} and after it one line {END}, to put the table between")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    measured = ", ".join(f"{key} {value}" for key, value in facts.items())
    return f"{before}{BEGIN}\n{table(rows, markdown=True)}\n\nMeasured with {measured}.\n{END}{after}"


def growth_figure(series: list[dict[str, Any]]) -> str:
    """Draw one logarithmic panel for each quantity on the x axis, with a line of slope one; return the SVG."""
    import matplotlib
    from matplotlib.figure import Figure

    panels = list(dict.fromkeys((one["x"], one.get("y", "seconds")) for one in series))
    columns = min(len(panels), 3)
    lines = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(4.2 * columns, 3.4 * lines), layout="constrained")
    for i, (x_name, y_name) in enumerate(panels):
        axes = figure.add_subplot(lines, columns, i + 1)
        here = [one for one in series if (one["x"], one.get("y", "seconds")) == (x_name, y_name)]
        for one in here:
            axes.loglog(*zip(*one["points"], strict=True), "o-", markersize=4, label=one["label"])
        (x0, _), (x1, y1) = here[0]["points"][0], here[0]["points"][-1]
        axes.loglog([x0, x1], [y1 * x0 / x1, y1], "--", color="0.6", linewidth=1, label="linear")
        axes.set(xlabel=x_name, ylabel=y_name)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    out = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "trimtab", "svg.fonttype": "path"}):
        figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()


def versions() -> dict[str, str]:
    """Return what the numbers depend on: packages, Python, processor, threads."""
    facts = {"python": platform.python_version()}
    for package in ("trimtab", "torch", "numpy", "roma", "casadi", "scipy", "diffusers"):
        try:
            facts[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    info = Path("/proc/cpuinfo")
    names = re.findall(r"^model name\s*:\s*(.+)$", info.read_text(), flags=re.MULTILINE) if info.is_file() else []
    facts["processor"] = names[0] if names else platform.machine()
    facts["cores"] = str(os.cpu_count())
    if "torch" in sys.modules:
        facts["torch threads"] = str(sys.modules["torch"].get_num_threads())
    return facts


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)
