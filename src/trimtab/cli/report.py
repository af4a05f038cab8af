"""`trimtab report`: tables, figures and page of a run again."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from trimtab.cli.command import Command
from trimtab.cli.running import progress

if TYPE_CHECKING:
    from trimtab.evaluation.studies.run_files import RunFiles

__all__ = ["COMMAND", "write_and_show"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("directory", metavar="DIR", type=Path, help="a run directory, made by `reproduce` or `compare`")


def run(arguments: argparse.Namespace) -> int:
    """Do it."""
    from trimtab.evaluation.studies.store import open_run

    with open_run(arguments.directory, progress) as files:
        write_and_show(files)
    return 0


def write_and_show(files: RunFiles) -> None:
    """Write the report of a run directory, and print its main tables."""
    from trimtab.evaluation.report import write_report

    written = write_report(files)
    for name in ("table1", "table2", "table3"):
        tables = [path for path in written if path.parent.name == "tables" and path.suffix == ".md"]
        of_paper = [path for path in tables if path.stem == name]
        for table in of_paper or [path for path in tables if path.stem.startswith(f"{name}-")]:
            print(table.read_text(encoding="utf-8"))
    print(f"{len(written)} files written; open {written[0]}")


COMMAND = Command(
    "write tables, figures and page of a run again",
    "Write summary, tables, figures and page of a run directory again, from its rows; nothing is run.",
    "example:\n  trimtab report runs/paper\n",
    add_arguments,
    run,
)
