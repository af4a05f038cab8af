"""What commands that run rollouts share: where to run them, how to go on with them, and what to say of it."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from trimtab.cli.command import INTERRUPTED, UsageError
from trimtab.core.checks import unknown

if TYPE_CHECKING:
    from trimtab.core.runner import Engine
    from trimtab.evaluation.studies.config import Study
    from trimtab.evaluation.studies.run_files import RunFiles
    from trimtab.evaluation.studies.usercode import Source

__all__ = ["add_engine", "add_running", "engine_from", "progress", "remove_batches", "run_and_report", "stopped"]


def add_running(parser: argparse.ArgumentParser) -> None:
    """Add --engine, --workers, --resume, --overwrite and --mix-machines."""
    parser.add_argument(
        "--engine", metavar="E", default="processes", help="processes (the default), ray (a cluster), serial"
    )
    parser.add_argument("--workers", metavar="N", type=int, help="processes to use; one per core if not given")
    again = parser.add_mutually_exclusive_group()
    again.add_argument(
        "--resume",
        action="store_true",
        help="go on with the unfinished run in DIR; damaged or edited results are set aside and made again",
    )
    again.add_argument("--overwrite", action="store_true", help="remove what the run in DIR wrote and start again")
    parser.add_argument(
        "--mix-machines",
        action="store_true",
        help="also keep results of machines whose arithmetic may differ in the last bits; run.json says so",
    )


def add_engine(parser: argparse.ArgumentParser, kept: str) -> None:
    """Add --engine, --workers and --resume to a command that runs batches of rollouts; `kept` says where they are."""
    parser.add_argument(
        "--engine",
        metavar="E",
        help="run batches side by side: processes, ray (a cluster), or serial; in this process, with all its threads, "
        "if not given",
    )
    parser.add_argument("--workers", metavar="N", type=int, help="batches to run at once; one per core if not given")
    parser.add_argument(
        "--resume", action="store_true", help=f"go on where the same command was stopped, with the batches {kept}"
    )


def engine_from(arguments: argparse.Namespace, keep: Path | None, source: Source, seeds: range) -> Engine | None:
    """The engine that the options of `add_engine` ask for, whose workers import the user's code by its name.

    Args:
        arguments: With those options, and --overwrite.
        keep: The folder for finished batches.
        source: The code, as this command line names it.
        seeds: Of all samples.
    """
    from trimtab.core.batch_cache import is_cache_file
    from trimtab.core.pools import check_engine
    from trimtab.core.runner import Engine
    from trimtab.evaluation.studies.usercode import ProblemOf

    if arguments.engine is None:
        if arguments.workers is not None:
            raise UsageError("--workers goes with --engine processes or --engine ray")
        if not arguments.resume:
            return None
    engine = arguments.engine or "serial"
    check_engine(engine, arguments.workers)
    if arguments.resume and keep is None:
        raise UsageError("--resume needs the folder of the batches that were kept: --out DIR")
    if keep is not None and os.path.lexists(keep) and not keep.is_dir():
        this = "a file" if keep.exists() else "a link that leads nowhere"
        raise UsageError(f"{keep}: finished batches are kept in a folder, and this is {this}; choose another name")
    if keep is not None and keep.exists() and not arguments.resume:
        if not arguments.overwrite and any(is_cache_file(path.name) for path in keep.iterdir()):
            raise UsageError(f"{keep} holds batches of an earlier run: go on with --resume, or --overwrite them")
        remove_batches(keep)
    return Engine(engine, arguments.workers, keep, ProblemOf(source, seeds))


def remove_batches(folder: Path) -> None:
    """Remove what an engine kept in a folder."""
    from trimtab.core.batch_cache import is_cache_file

    for path in folder.iterdir():
        if is_cache_file(path.name):
            path.unlink()


def progress(line: str) -> None:
    """Tell the person at the terminal, apart from the results."""
    print(f"trimtab: {line}", file=sys.stderr)


def run_and_report(
    directory: Path,
    study: Study,
    arguments: argparse.Namespace,
    report: Callable[[RunFiles], None],
    factories: Mapping[str, str] | None = None,
) -> int:
    """Run what a study still lacks and report on it; engine, workers, resume and overwrite are as the options progress.

    Args:
        directory: Of the run.
        study: What is run.
        arguments: With the options of `add_running`.
        report: Writes the report of a finished run.
        factories: The user's own code by domain, as this command line names it.
    """
    from trimtab.evaluation.studies.engine import ENGINES, check_runnable, run_study
    from trimtab.evaluation.studies.rows import write_rows
    from trimtab.evaluation.studies.store import Store

    if arguments.engine not in ENGINES:
        raise unknown("engine", arguments.engine, ENGINES)
    if arguments.workers is not None and arguments.workers < 1:
        raise UsageError(f"--workers must be at least 1: got {arguments.workers}")
    check_runnable(study, factories)
    mode = "resume" if arguments.resume else "overwrite" if arguments.overwrite else "new"
    try:
        with Store(directory, study, mode, mix_machines=arguments.mix_machines, progress=progress) as store:  # type: ignore[arg-type]
            run_study(store, arguments.engine, arguments.workers, sys.stderr, factories)
            write_rows(store)
            print("writing tables, figures and the page …", file=sys.stderr)
            report(store.files)
    except KeyboardInterrupt:
        kept = len(list((directory / "work").glob("*.json")))
        return stopped(f"{kept} finished tasks are kept", _again(arguments.command, directory))
    return 0


def _again(command: str, directory: Path) -> str:
    """The words that go on with a run: `reproduce` finds its study in the directory, others have to be told again."""
    if command == "reproduce":
        return f": trimtab reproduce --out {shlex.quote(str(directory))} --resume"
    return " the same command and --resume"


def stopped(kept: str, again: str = " the same command and --resume") -> int:
    """Tell whoever stopped a command what is kept and how to go on; returns the exit code."""
    print(f"\ntrimtab: stopped; {kept}. Go on with{again}", file=sys.stderr)
    return INTERRUPTED
