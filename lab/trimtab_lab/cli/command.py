"""The options that several commands share."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from trimtab.cli.command import BAD_INPUT, INTERRUPTED, Command, UsageError
from trimtab.core.checks import unknown

if TYPE_CHECKING:
    from trimtab.core.quality import Quality
    from trimtab.loop.runner import BatchRunner
    from trimtab_lab.domains import Domain
    from trimtab_lab.studies.config import Study
    from trimtab_lab.studies.store import RunFiles
    from trimtab_lab.studies.usercode import Source

__all__ = ["BAD_INPUT", "INTERRUPTED", "Command", "UsageError"]

MOST_SEEDS = 1_000_000


def count(text: str) -> int:
    """Parse a number of seeds or workers."""
    if not text.isdecimal() or len(text) > 12 or not 1 <= int(text) <= MOST_SEEDS:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 to {MOST_SEEDS}: got {text}")
    return int(text)


def path(text: str) -> Path:
    """Parse the path of a file or folder, which must be valid UTF-8, since files will contain it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"expected a name in UTF-8: got {text.encode(errors='replace')!r}") from None
    return Path(text)


def progress(line: str) -> None:
    """Print a line about the progress to stderr."""
    print(f"… {line}", file=sys.stderr)


def stopped(kept: str, again: str = " the same command and --resume") -> int:
    """Say what a stopped command has kept and how to continue it; return the exit code."""
    print(f"\ntrimtab: stopped; {kept}. Continue with{again}", file=sys.stderr)
    return INTERRUPTED


def check_absent(file: Path, overwrite: bool) -> None:
    """Check that a file can be written: not there unless it may be replaced, and in a folder that exists."""
    if file.exists() and not file.is_file():
        raise ValueError(f"{file} is a folder, or no ordinary file, and is not replaced: choose another name")
    if os.path.lexists(file) and not overwrite:
        raise ValueError(f"{file} is there already: replace it with --overwrite, or choose another name")
    if not file.resolve().parent.is_dir():
        raise ValueError(f"{file}: the directory {file.resolve().parent} does not exist; make it first")


# ------------------------------------------------------------------ what to sample


def add_source(parser: argparse.ArgumentParser) -> None:
    """Add --sampler, --domain, --config, --name and --check."""
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--sampler",
        metavar="MODULE:FACTORY",
        help="your own: a function that returns a sampler and a constraint, as package.module:factory",
    )
    what.add_argument("--domain", metavar="NAME", help="a built-in domain; `trimtab domains` lists them")
    parser.add_argument(
        "--config", metavar="FILE", type=path, help="keyword arguments for the factory, a JSON or TOML file"
    )
    parser.add_argument("--name", metavar="NAME", help="the name of your sampler; by default its module's name")
    parser.add_argument(
        "--check",
        action="store_true",
        help="first run whole rollouts alone and in a batch, to see that samples do not influence each other",
    )


def add_seeds(parser: argparse.ArgumentParser, flag: str, default: int, meaning: str) -> None:
    """Add an option for a number of seeds."""
    parser.add_argument(flag, metavar="N", type=count, default=default, help=f"{meaning} (default {default})")


def source_from(arguments: argparse.Namespace, first: int, number: int) -> tuple[Domain, Source, range]:
    """Make the domain that the options name, and try one step of it on a few of its seeds.

    Args:
        arguments: With the options of `add_source`.
        first: Where its seeds start.
        number: How many seeds.
    """
    from trimtab_lab.studies.probe import probe
    from trimtab_lab.studies.usercode import Source, domain_from, read_settings

    if arguments.name is not None and arguments.sampler is None:
        raise UsageError("--name is the name of a sampler of your own, and needs --sampler: leave it out")
    settings = {} if arguments.config is None else read_settings(arguments.config)
    if arguments.sampler is not None:
        source = Source.of_user(arguments.sampler, settings, arguments.name)
    else:
        source = Source.built_in(arguments.domain, settings)
    domain = domain_from(source)
    seeds = range(first, first + number)
    probe(domain, range(seeds.start, seeds.start + 3), whole=arguments.check)
    if arguments.check:
        print("checked: samples do not influence each other", file=sys.stderr)
    return domain, source, seeds


def add_quality(parser: argparse.ArgumentParser) -> None:
    """Add --quality and --higher-is-better."""
    parser.add_argument(
        "--quality",
        metavar="Q",
        help="judge final samples by a quality: package.module:function, or the name of one of the domain's; "
        "lower is better",
    )
    parser.add_argument("--higher-is-better", action="store_true", help="a higher quality is better")


def quality_from(spec: str | None, higher_is_better: bool, domain: Domain) -> Quality | None:
    """Return the quality that --quality names, if any."""
    from trimtab.core.quality import Quality
    from trimtab.loop.rollout import noise_of
    from trimtab_lab.studies.usercode import load_function

    if spec is None:
        if higher_is_better:
            raise UsageError("--higher-is-better needs --quality: name a quality, or leave it out")
        return None
    if ":" in spec:
        return Quality(load_function(spec, "a quality"), higher_is_better, spec.partition(":")[2])
    judge = domain.quality
    if judge is None:
        raise ValueError(
            f"{domain.name} defines no qualities; name a function of final states, package.module:function"
        )
    problem = domain.problem(range(2))
    names = list(judge(problem.sampler.start(noise_of(problem.sampler, problem.seeds)), problem.constraint))
    if spec not in names:
        raise unknown(f"quality of {domain.name}", spec, names)
    return Quality(lambda final, problem: judge(final, problem.constraint), higher_is_better, spec)


# ------------------------------------------------------------------ where to run


def add_engine(parser: argparse.ArgumentParser, kept: str) -> None:
    """Add --engine, --workers and --resume to a command that runs batches; `kept` says where they are."""
    parser.add_argument(
        "--engine",
        metavar="E",
        help="run batches side by side: processes, ray (a cluster), or serial; by default in this process, with all "
        "its threads",
    )
    parser.add_argument("--workers", metavar="N", type=count, help="batches to run at once (default one per core)")
    parser.add_argument(
        "--resume", action="store_true", help=f"continue where the same command was stopped, with the batches {kept}"
    )


@contextmanager
def engine_from(arguments: argparse.Namespace, keep: Path | None, source: Source) -> Iterator[BatchRunner | None]:
    """Open the engine that the options ask for; what it keeps is known by the code and settings of the source.

    Args:
        arguments: With the options of `add_engine`, and --overwrite.
        keep: The folder for finished batches.
        source: The code that this command line names.
    """
    from trimtab.loop.runner import BatchRunner
    from trimtab_lab.studies.engine import ENGINES, open_executor
    from trimtab_lab.studies.usercode import record_of

    if arguments.engine is None:
        if arguments.workers is not None:
            raise UsageError("--workers needs --engine processes or --engine ray")
        if not arguments.resume:
            yield None
            return
    engine = arguments.engine or "serial"
    if engine not in ENGINES:
        raise unknown("engine", engine, ENGINES)
    if arguments.resume and keep is None:
        raise UsageError("--resume needs the folder of the batches that were kept: --out DIR")
    if keep is not None and os.path.lexists(keep) and not keep.is_dir():
        this = "a file" if keep.exists() else "a link that leads nowhere"
        raise UsageError(f"{keep}: finished batches are kept in a folder, and this is {this}; choose another name")
    if keep is not None and keep.exists() and not arguments.resume:
        if not arguments.overwrite and any(is_kept_batch(file.name) for file in keep.iterdir()):
            raise UsageError(f"{keep} holds batches of an earlier run: continue with --resume, or --overwrite them")
        remove_batches(keep)
    key = None if keep is None else f"{source.name} {json.dumps(record_of(source), sort_keys=True)}"
    with ExitStack() as stack:
        executor = None
        if engine != "serial":
            executor = stack.enter_context(open_executor(engine, arguments.workers))[0]
        yield stack.enter_context(BatchRunner(executor, keep, key))


def is_kept_batch(name: str) -> bool:
    """Return whether a file has the name of a kept batch.

    Example:
        >>> is_kept_batch(f"{'0' * 32}.json"), is_kept_batch("my-notes.json")
        (True, False)
    """
    return re.fullmatch(r"[0-9a-f]{32}\.(json|safetensors)", name) is not None


def remove_batches(folder: Path) -> None:
    """Remove the batches that an engine kept in a folder."""
    for file in folder.iterdir():
        if is_kept_batch(file.name):
            file.unlink()


def add_running(parser: argparse.ArgumentParser) -> None:
    """Add --out, --engine, --workers, --resume and --overwrite to a command that runs a study."""
    parser.add_argument(
        "--engine", metavar="E", default="processes", help="processes (the default), ray (a cluster), serial"
    )
    parser.add_argument("--workers", metavar="N", type=count, help="processes to use (default one per core)")
    again = parser.add_mutually_exclusive_group()
    again.add_argument(
        "--resume",
        action="store_true",
        help="continue the unfinished run in DIR; damaged results are made again",
    )
    again.add_argument("--overwrite", action="store_true", help="remove what the run in DIR wrote and start again")


def run_and_report(
    directory: Path,
    study: Study,
    arguments: argparse.Namespace,
    report: Callable[[RunFiles], None],
    factories: Mapping[str, str] | None = None,
) -> int:
    """Run the unfinished tasks of a study and report on it.

    Args:
        directory: The run directory.
        study: What is run.
        arguments: With the options of `add_running`.
        report: Writes the report of a finished run.
        factories: The user's code by domain, as this command line names it.
    """
    from trimtab_lab.studies.engine import ENGINES, check_runnable, run_study
    from trimtab_lab.studies.rows import write_rows
    from trimtab_lab.studies.store import Store

    if arguments.engine not in ENGINES:
        raise unknown("engine", arguments.engine, ENGINES)
    check_runnable(study, factories)
    mode = "resume" if arguments.resume else "overwrite" if arguments.overwrite else "new"
    try:
        with Store(directory, study, mode, progress) as store:  # type: ignore[arg-type]
            run_study(store, arguments.engine, arguments.workers, sys.stderr, factories)
            write_rows(store)
            progress("writing tables, figures and the page")
            report(store.files)
    except KeyboardInterrupt:
        kept = f"{len(list((directory / 'work').glob('*.json')))} finished tasks are kept"
        if arguments.command == "reproduce":  # finds its study in the directory
            return stopped(kept, f": trimtab reproduce --out {shlex.quote(str(directory))} --resume")
        return stopped(kept)
    return 0
