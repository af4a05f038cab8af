"""Run the benchmarks: each a file with one claim, each result a ratio measured in this run.

A benchmark is a Python file in `benchmarks/` with `run(quick: bool) -> list[dict]`. A row has

    claim, against      what is compared with what, in words
    ratio, low, high    the median ratio and its interval
    target              ">= 8" or "<= 1.05", or "" for a figure with no target
    inputs              sizes, dtypes, seconds of both sides
    skipped             instead of the numbers: why this comparison could not be made
    series              optional: [{"x": "n", "label": "...", "points": [[x, seconds], ...]}], drawn by `--docs`

Nothing here imports torch before a benchmark does.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
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

__all__ = ["add_arguments", "bench_command", "find_benchmarks", "met", "run_benchmark", "table"]

Row = dict[str, Any]

_PACKAGES = ("trimtab", "torch", "numpy", "roma", "casadi", "scipy", "diffusers")
_NUMBERS = ("ratio", "low", "high")
_THREADS = "torch threads"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `python benchmarks`."""
    parser.add_argument("--only", metavar="NAME", action="append", help="run this benchmark alone; may be repeated")
    parser.add_argument(
        "--json", metavar="FILE", type=Path, help="write results and versions to this file; with --only, into it"
    )
    parser.add_argument("--quick", action="store_true", help="small inputs and few rounds: to see that it runs")
    parser.add_argument("--dir", metavar="DIR", type=Path, help="where the benchmarks are (default: benchmarks/)")
    parser.add_argument("--list", action="store_true", help="name the benchmarks and stop")
    parser.add_argument(
        "--docs",
        metavar="FILE",
        type=Path,
        help="renew the table between the markers of this page (docs/performance.md) and the plots beside it",
    )


def bench_command(args: argparse.Namespace) -> int:
    """Run what was asked for, print a table, write the files; 1 if a benchmark broke, else 0 whatever the times."""
    found = find_benchmarks(args.dir)
    names = list(found)
    for name in args.only or ():
        if name not in found:
            raise unknown("benchmark", name, names)
    if args.list:
        print("\n".join(names))
        return 0
    if args.docs is not None and args.quick:
        raise ValueError(
            "--docs takes full results only: --quick is to see that a benchmark runs, its numbers mean little"
        )
    facts = versions()
    rows = _kept(args.json, facts, args.quick) if args.only and args.json is not None and args.json.is_file() else []
    if args.docs is not None:
        _check_missing([name for name in names if name not in (args.only or names)], rows)
    broken = False
    for name in args.only or names:
        print(f"{name} …", end=" ", flush=True)
        begin = perf_counter()
        try:
            new = run_benchmark(found[name], quick=args.quick)
        except ImportError as error:
            new = [{"benchmark": name, "claim": name, "against": "", "skipped": str(error)}]
        except Exception as error:
            broken = True
            new = [{"benchmark": name, "claim": name, "against": "", "skipped": f"broke: {error!r}"}]
        print(f"{perf_counter() - begin:.0f} s", flush=True)
        rows = [row for row in rows if row["benchmark"] != name] + new
        facts = versions()  # by now torch may have been imported
        if args.json is not None:  # after each, so that what was measured outlives an interruption
            rows.sort(key=lambda row: names.index(row["benchmark"]) if row["benchmark"] in names else len(names))
            write_text(args.json, json.dumps({"quick": args.quick, "versions": facts, "rows": rows}, indent=1) + "\n")
    if args.docs is not None:
        from _page import renew_page

        renew_page(args.docs, rows, facts)
    print("\n" + table(rows))  # after the files: a reader who closes the pipe must not lose them
    print("\n" + "\n".join(f"{key}: {value}" for key, value in facts.items()))
    return int(broken)


def _check_missing(others: list[str], rows: list[Row]) -> None:
    """The page has the rows of all benchmarks: refuse to renew it with some, lest the others be lost."""
    missing = [name for name in others if name not in {row["benchmark"] for row in rows}]
    if missing:
        raise ValueError(
            f"--docs renews the whole table, and there would be no rows of {', '.join(missing)}: give --json FILE with "
            "results of them by these very versions, or leave --only out"
        )


def find_benchmarks(directory: Path | None = None) -> dict[str, Path]:
    """Benchmark files by name: those of `directory`, else of `benchmarks/` here, above, or beside the source."""
    if directory is None:
        here = Path.cwd()
        places = [place / "benchmarks" for place in (here, *here.parents, Path(__file__).parents[1])]
        directory = next((place for place in places if place.is_dir()), None)
        if directory is None:
            raise ValueError(
                "no benchmarks/ directory here, above, or beside the source; benchmarks are not part of the installed "
                "package: run this in a checkout, or give --dir"
            )
    if not directory.is_dir():
        raise ValueError(f"{directory}: no such directory; --dir takes the directory of the benchmark files")
    found = {path.stem: path for path in sorted(directory.glob("*.py")) if not path.stem.startswith("_")}
    if not found:
        raise ValueError(f"{directory}: no benchmark files (*.py with a function run(quick)) in it")
    return found


def run_benchmark(path: Path, *, quick: bool) -> list[Row]:
    """Import one file, run it and check its rows; each is given the benchmark's name.

    Files of the directory (`_compare.py`) can be imported by the benchmark while it runs.
    """
    spec = spec_from_file_location(f"trimtab_benchmark_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.path.insert(0, str(path.parent))
    sys.modules[module.__name__] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
        run = getattr(module, "run", None)
        if not callable(run):
            raise ValueError(f"{path}: a benchmark needs a function run(quick: bool) that returns its rows")
        return [{"benchmark": path.stem} | _checked(row, path) for row in run(quick)]
    finally:
        sys.path.remove(str(path.parent))
        del sys.modules[module.__name__]


def _checked(row: Any, path: Path) -> Row:
    if not isinstance(row, dict) or not {"claim", "against"} <= set(row):
        raise ValueError(f"{path}: a row is a dict with at least claim and against: got {row!r}")
    if "skipped" not in row:
        wrong = [key for key in _NUMBERS if not isinstance(row.get(key), int | float)]
        if wrong:
            raise ValueError(f"{path}: row {row['claim']!r} has no number for {', '.join(wrong)}")
        met(row)  # refuses a target that cannot be read
    return row


def met(row: Row) -> bool | None:
    """Whether the row's ratio reaches its target; None for a row without one.

    Example:
        >>> met({"ratio": 9.1, "target": ">= 8"}), met({"ratio": 1.2, "target": "<= 1.05"}), met({"ratio": 1.0})
        (True, False, None)
    """
    target = _target(row)
    if target is None or "skipped" in row:
        return None
    sign, number = target
    return bool(row["ratio"] <= number if sign in ("<=", "≤") else row["ratio"] >= number)


def _target(row: Row) -> tuple[str, float] | None:
    """The sign and the number of a row's target; None for a row without one."""
    target = row.get("target") or ""
    if not target:
        return None
    found = re.fullmatch(r"\s*(>=|<=|≥|≤)?\s*([0-9.]+)\s*", str(target))
    if found is None:
        raise ValueError(f"a target is '>= number' or '<= number': got {target!r}")
    return found[1] or "", float(found[2])


def table(rows: Iterable[Row], *, markdown: bool = False) -> str:
    """The results as a table; comparisons that were not made follow as lines."""
    head = ["claim", "against", "ratio", "interval", "target", "met", "inputs"]
    body, missing = [], []
    for row in rows:
        if "skipped" in row:
            against = f" against {row['against']}" if row["against"] else ""
            missing.append(f"skipped: {row['claim']}{against}: {row['skipped']}")
            continue
        answer = {True: "yes", False: "no", None: ""}[met(row)]
        ratio, low, high = _numbers(row)
        unit = f" {row['unit']}" if row.get("unit") else ""
        cells = [row["claim"], row["against"], ratio + unit, f"{low} to {high}", str(row.get("target") or "")]
        body.append([*cells, answer, str(row.get("inputs") or "")])
    if markdown:
        lines = ["| " + " | ".join(cells) + " |" for cells in [head, ["---"] * len(head), *body]]
        return "\n".join(lines + ([""] if missing else []) + [f"- {line}" for line in missing])
    shown = [cells[:-1] for cells in [head, *body]]  # the inputs get a line of their own
    widths = [max(len(cells[i]) for cells in shown) for i in range(len(head) - 1)]
    lines = []
    for cells, whole in zip(shown, [head, *body], strict=True):
        lines.append("  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip())
        if whole is not head and whole[-1]:
            lines.append(f"    {whole[-1]}")
    return "\n".join(lines + missing)


def _kept(path: Path, facts: dict[str, str], quick: bool) -> list[Row]:
    """The results in a file, if they were measured with the same versions and in the same way."""
    try:
        earlier = json.loads(path.read_text(encoding="utf-8"))
        rows: list[Row] = earlier["rows"]
        known = all("benchmark" in row for row in rows) and {"versions", "quick"} <= set(earlier)
    except (ValueError, KeyError, TypeError):
        known = False
    if not known:
        raise ValueError(f"{path}: not a file of results; give --json another name, or remove it")
    ours, theirs = ({k: v for k, v in versions.items() if k != _THREADS} for versions in (facts, earlier["versions"]))
    if ours != theirs or earlier["quick"] != quick:
        why = "other versions" if ours != theirs else "--quick" if earlier["quick"] else "full inputs"
        print(f"{path}: measured with {why}; its rows are dropped")
        return []
    return rows


def versions() -> dict[str, str]:
    """What the numbers depend on: packages, Python, processor, threads."""
    facts = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            facts[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    facts["processor"] = _processor()
    facts["cores"] = str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count())
    if "torch" in sys.modules:
        facts[_THREADS] = str(sys.modules["torch"].get_num_threads())
    return facts


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        names = re.findall(r"^model name\s*:\s*(.+)$", info.read_text(), flags=re.MULTILINE)
        if names:
            return str(names[0])
    return platform.processor() or platform.machine()


def _numbers(row: Row) -> list[str]:
    """The ratio and its interval; with three decimals where the ratio is so near its target that fewer hide the answer.

    Example:
        >>> _numbers({"ratio": 1.0213, "low": 1.018, "high": 1.03, "target": "<= 1.02"})
        ['1.021', '1.018', '1.030']
    """
    target = _target(row)
    near = target is not None and abs(row["ratio"] - target[1]) <= 0.05 * target[1] < 1
    return [f"{row[key]:.3f}" if near else _number(row[key]) for key in _NUMBERS]


def _number(value: float) -> str:
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 10 else f"{value:.1f}"


def write_text(path: Path, text: str) -> None:
    """Write a whole file in one step."""
    temporary = path.with_name(f".{path.name}.tmp")  # no torch for a listing
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)
