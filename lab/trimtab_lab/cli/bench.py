"""`trimtab bench`: rules of correction at equal work, system by system."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from trimtab.core.checks import unknown
from trimtab_lab.cli.command import Command, UsageError, path, progress, stopped

__all__ = ["COMMAND"]


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--size", choices=("smoke", "whole"), default="smoke", help="smoke (the default): two minutes; whole: hours"
    )
    parser.add_argument("--out", metavar="DIR", type=path, help="where results are kept (default runs/bench-SIZE)")
    parser.add_argument("--systems", metavar="NAME", nargs="+", help="run only these systems")
    parser.add_argument("--rules", metavar="NAME", nargs="+", help="run only these rules")
    parser.add_argument("--report", action="store_true", help="run nothing: tables and page of the cells in DIR")
    parser.add_argument(
        "--add",
        metavar="MODULE",
        action="append",
        default=[],
        help="import a module of your own whose SYSTEMS or RULES, lists of values, are run as well",
    )


def _run(arguments: argparse.Namespace) -> int:
    from trimtab.core.files import write_atomically
    from trimtab_lab.bench.page import page_html, rank_lines
    from trimtab_lab.bench.rules import RULES
    from trimtab_lab.bench.run import BUDGETS, cells_of, read_cells, run_cells
    from trimtab_lab.bench.system import systems
    from trimtab_lab.bench.table import results

    known, rules = systems(arguments.size), dict(RULES)
    for module in arguments.add:
        more = _imported(module)
        known |= {system.name: system for system in getattr(more, "SYSTEMS", ())}
        rules |= {rule.name: rule for rule in getattr(more, "RULES", ())}
    for what, asked, there in (("system", arguments.systems, known), ("rule", arguments.rules, rules)):
        for name in asked or ():
            if name not in there:
                raise unknown(what, name, there)
    chosen = [known[name] for name in arguments.systems or known]
    folder: Path = arguments.out or Path("runs") / f"bench-{arguments.size}"
    cells = cells_of(chosen, [rules[name] for name in arguments.rules or rules], BUDGETS[arguments.size])
    if arguments.report and not any((folder / "cells").glob("*.json")):
        raise UsageError(f"{folder} holds no cells of a benchmark: leave out --report to run some")
    for system in chosen:
        if system.missing:
            progress(f"{system.name} is left out: it {system.missing}")
    try:
        facts = list(read_cells(folder / "cells") if arguments.report else run_cells(cells, folder / "cells", progress))
    except KeyboardInterrupt:
        return stopped(f"finished cells are in {folder / 'cells'}", " the same command")
    budgets = BUDGETS[arguments.size]
    lines = rank_lines(results(facts), budgets, f"trimtab bench --size {arguments.size}")
    about = {system.name: system.about for system in chosen}
    write_atomically(folder / "bench.json", f"{json.dumps(facts)}\n".encode())
    write_atomically(folder / "ranks.md", ("\n".join(lines) + "\n").encode())
    write_atomically(folder / "index.html", page_html(facts, about, budgets).encode())
    print("\n".join(lines))
    print(f"\nthe page: {folder / 'index.html'}")
    return 0


def _imported(module: str) -> object:
    """Import a module of the user's from where the command runs."""
    import sys
    from importlib import import_module

    if "" not in sys.path:
        sys.path.insert(0, "")
    return import_module(module)


COMMAND = Command(
    "rules of correction at equal work, system by system",
    "Run the benchmark: every rule on every system at shares of the work of full projection, on one processor with "
    "frozen seeds. A stopped run continues where it was; results are a JSON file, a table of ranks and a page.",
    "examples:\n  trimtab bench\n  trimtab bench --size whole --systems linkage grid\n  trimtab bench --add mine",
    _add_arguments,
    _run,
)
