"""The command line. Each command is a function; what it needs is imported when it runs, so that help is quick."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from trimtab._version import __version__
from trimtab.cli import advise, calibrate, compare, train
from trimtab.core.errors import unknown
from trimtab.studies.errors import StudyError

if TYPE_CHECKING:
    from trimtab.studies.config import Study

__all__ = ["COMMANDS", "Command", "main", "run_and_report"]

BAD_INPUT = 2
INTERRUPTED = 130


class UsageError(ValueError):
    """What was typed cannot be meant."""


@dataclass(frozen=True)
class Command:
    """One word after `trimtab`.

    Attributes:
        help: One line for the list of commands.
        description: What it does, above its options.
        examples: Below its options.
        arguments: Adds its options to a parser.
        run: Does it; returns the exit code.
    """

    help: str
    description: str
    examples: str
    arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


# ------------------------------------------------------------------ reproduce


def _reproduce_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--preset",
        metavar="P",
        help="how much to run: tiny (seconds), quick (a minute; the default), paper (the full protocol), large",
    )
    parser.add_argument(
        "--only", metavar="DOMAIN", nargs="+", help="run these domains alone; `trimtab domains` lists them"
    )
    parser.add_argument("--out", metavar="DIR", type=Path, help="the run directory; runs/PRESET if not given")
    parser.add_argument("--seeds", metavar="N", type=int, help="evaluation seeds, instead of the preset's number")
    parser.add_argument(
        "--calibration-seeds", metavar="N", type=int, help="calibration seeds, instead of the preset's number"
    )
    pdm = parser.add_argument_group("the trajectory sampler, with --only pdm")
    pdm.add_argument("--checkpoint", metavar="FILE", help="weights of a public PDM checkpoint or of your own training")
    pdm.add_argument("--circles", metavar="FILE", help="a JSON list of obstacles, each [x, y, r]")
    pdm.add_argument(
        "--eligible-from", metavar="LEVEL", type=int, help="first noise level whose updates may be corrected; 0 is all"
    )
    pdm.add_argument("--inner-steps", metavar="L", type=int, help="Langevin updates a noise level")
    parser.add_argument(
        "--engine", metavar="E", default="local", help="local (processes; the default), ray (a cluster), serial"
    )
    parser.add_argument("--workers", metavar="N", type=int, help="processes to use; one a core if not given")
    again = parser.add_mutually_exclusive_group()
    again.add_argument("--resume", action="store_true", help="go on with the unfinished run in DIR")
    again.add_argument("--overwrite", action="store_true", help="remove the run in DIR and start again")


def _reproduce(arguments: argparse.Namespace) -> int:
    from trimtab.studies.config import Study, preset
    from trimtab.studies.store import read_run

    directory: Path = arguments.out or Path("runs") / (arguments.preset or "quick")
    if arguments.resume and arguments.preset is None and (directory / "run.json").is_file():
        study = Study.from_facts(read_run(directory)["config"])
    else:
        study = preset(arguments.preset or "quick")
    if arguments.only:
        study = study.only(_known_domains(arguments.only))
    study = _with_seeds(study, arguments.seeds, arguments.calibration_seeds)
    return run_and_report(directory, _with_pdm_settings(study, arguments), arguments, _write_and_show)


def _with_seeds(study: Study, seeds: int | None, calibration_seeds: int | None) -> Study:
    """The study with other numbers of seeds; None leaves the number as it is."""
    if seeds is not None:
        kept = max(0, min(study.example_seeds, seeds))
        study = replace(study, seeds=seeds, block=max(study.block, min(seeds, 32)), example_seeds=kept)
    return study if calibration_seeds is None else replace(study, calibration_seeds=calibration_seeds)


def _with_pdm_settings(study: Study, arguments: argparse.Namespace) -> Study:
    """The study with the trajectory sampler as the options have it."""
    names = ("checkpoint", "circles", "eligible_from", "inner_steps")
    settings = {name: value for name in names if (value := getattr(arguments, name)) is not None}
    if not settings:
        return study
    if "pdm" not in study.domains:
        given = ", ".join(f"--{name.replace('_', '-')}" for name in settings)
        raise UsageError(f"{given}: only the domain pdm has such settings, and it is not run; add --only pdm")
    from trimtab.studies.usercode import Source, version_of

    source = Source.built_in("pdm", settings)
    own = {"factory": source.factory, "settings": settings, "code": version_of(source)}
    return replace(study, samplers={**study.samplers, "pdm": own})


def run_and_report(directory: Path, study: Study, arguments: argparse.Namespace, report: Callable[[Path], None]) -> int:
    """Run what a study still lacks and report on it; engine, workers, resume and overwrite are as the options say."""
    from trimtab.studies.engine import ENGINES, run_study
    from trimtab.studies.rows import write_rows
    from trimtab.studies.store import Store

    if arguments.engine not in ENGINES:
        raise unknown("engine", arguments.engine, ENGINES)
    if arguments.workers is not None and arguments.workers < 1:
        raise UsageError(f"--workers must be at least 1: got {arguments.workers}")
    mode = "resume" if arguments.resume else "overwrite" if arguments.overwrite else "new"
    try:
        with Store(directory, study, mode) as store:  # type: ignore[arg-type]
            run_study(store, arguments.engine, arguments.workers, sys.stderr)
            write_rows(store)
            print("writing tables, figures and the page …", file=sys.stderr)
            report(directory)
    except KeyboardInterrupt:
        kept = len(list((directory / "work").glob("*.json")))
        print(
            f"\ntrimtab: stopped; {kept} finished tasks are kept. Go on with: "
            f"trimtab reproduce --out {shlex.quote(str(directory))} --resume",
            file=sys.stderr,
        )
        return INTERRUPTED
    return 0


def _known_domains(names: Sequence[str]) -> tuple[str, ...]:
    from trimtab.domains import DOMAINS

    for name in names:
        if name not in DOMAINS:
            raise unknown("domain", name, DOMAINS)
    return tuple(dict.fromkeys(names))


# ------------------------------------------------------------------ report


def _report_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", metavar="DIR", type=Path, help="a run directory, made by `reproduce` or `compare`")


def _report(arguments: argparse.Namespace) -> int:
    from trimtab.studies.store import read_run

    read_run(arguments.directory)
    _write_and_show(arguments.directory)
    return 0


def _write_and_show(directory: Path) -> None:
    from trimtab.report import write_report

    written = write_report(directory)
    for name in ("table1", "table2", "table3"):
        of_paper, others = directory / "tables" / f"{name}.md", sorted((directory / "tables").glob(f"{name}-*.md"))
        for table in [of_paper] if of_paper.is_file() else others:
            print(table.read_text(encoding="utf-8"))
    print(f"{len(written)} files written; open {written[0]}")


# ------------------------------------------------------------------ domains


def _domains_arguments(parser: argparse.ArgumentParser) -> None:
    del parser


def _domains(arguments: argparse.Namespace) -> int:
    del arguments
    from importlib.util import find_spec

    from trimtab.domains import DOMAINS, domain

    width = max(map(len, DOMAINS))
    for name, module in DOMAINS.items():
        if find_spec(module) is None:
            continue
        try:
            print(f"{name:{width}}  {domain(name).summary}")
        except (ImportError, OSError) as error:  # an extra or a model it needs is missing, and the error says which
            print(f"{name:{width}}  (not available: {error})")
    return 0


# ------------------------------------------------------------------ all of them

COMMANDS: dict[str, Command] = {
    "advise": Command(
        "should I bother? which schedule and budget for a sampler",
        "From a few rollouts of a sampler: is timing worth anything, which schedule and budget to take, what is lost "
        "and what is saved. Half of the rollouts calibrate, the other half measures.",
        "examples:\n"
        "  trimtab advise --sampler package.module:factory                      NEPE within 0.1\n"
        "  trimtab advise --sampler package.module:factory --tolerance 0.05 --plot advice.png\n"
        "  trimtab advise --sampler package.module:factory --seconds 0.5 --save price.safetensors\n"
        "  trimtab advise --domain so3 --cost projections\n",
        advise.add_arguments,
        advise.run,
    ),
    "calibrate": Command(
        "estimate the price of a correction for a sampler",
        "Run a sampler on held-out seeds, estimate what a correction is worth at every step and budget, and write a "
        "price file that a schedule can be made of.",
        "examples:\n"
        "  trimtab calibrate --sampler package.module:factory --out price.safetensors\n"
        "  trimtab calibrate --sampler package.module:factory --config settings.toml --method planned\n",
        calibrate.add_arguments,
        calibrate.run,
    ),
    "compare": Command(
        "compare schedules on a sampler: rows, tables, figures, page",
        "Run schedules x budgets x seeds on a sampler, paired by seed, and write the same rows, tables, figures and "
        "page as a study of the paper.",
        "examples:\n"
        "  trimtab compare --sampler package.module:factory\n"
        "  trimtab compare --sampler package.module:factory --budgets 0.1 0.2 0.3 --seeds 64 --out runs/mine\n",
        compare.add_arguments,
        compare.run,
    ),
    "reproduce": Command(
        "run the paper's controlled evaluation: rows, tables, figures, page",
        "Run schedules x budgets x seeds on the synthetic domains, paired by seed, and write rows, tables, figures and "
        "an interactive page to one directory. A run that was stopped, even killed, goes on with --resume.",
        "examples:\n"
        "  trimtab reproduce                                  a first look, in about a minute\n"
        "  trimtab reproduce --preset paper                   the paper's protocol, six domains\n"
        "  trimtab reproduce --preset paper --only so3 se3    two of them\n"
        "  trimtab reproduce --preset paper --resume          go on where it was stopped\n"
        "  trimtab reproduce --only pdm                       the learned trajectory sampler\n"
        "  trimtab reproduce --only pdm --checkpoint FILE --circles FILE --eligible-from 6\n"
        "  RAY_ADDRESS=auto trimtab reproduce --preset large --engine ray\n",
        _reproduce_arguments,
        _reproduce,
    ),
    "report": Command(
        "write tables, figures and page of a run again",
        "Write summary, tables, figures and page of a run directory again, from its rows; nothing is run.",
        "example:\n  trimtab report runs/paper\n",
        _report_arguments,
        _report,
    ),
    "train-pdm": Command(
        "make the trajectory model anew: plan data, train, validate, draw",
        "Make the trajectory model that ships with trimtab. Training that was stopped goes on where it was.",
        "examples:\n"
        "  trimtab train-pdm all --folder run         the shipped weights are run/model.safetensors\n"
        "  trimtab train-pdm validate --shipped       samples beside planned trajectories\n",
        train.add_arguments,
        train.run,
    ),
    "domains": Command(
        "list the domains",
        "List the domains that can be run, one sentence each.",
        "example:\n  trimtab domains\n",
        _domains_arguments,
        _domains,
    ),
}
"""By name; a new command is an entry here."""


class _Parser(argparse.ArgumentParser):
    """Errors are one line, like all others."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (try `{self.prog} --help`)")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="trimtab",
        description="Decide when a constrained generative sampler should spend an expensive projection.",
        epilog="examples:\n  trimtab reproduce --preset quick\n  trimtab report runs/quick\n"
        "  trimtab advise --sampler package.module:factory\n  trimtab report --help\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"trimtab {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser)
    for name, command in COMMANDS.items():
        sub = commands.add_parser(
            name,
            help=command.help,
            description=command.description,
            epilog=command.examples,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.arguments(sub)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; returns the exit code: 0, 2 for bad input, 130 if interrupted."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        first = next((word for word in words if not word.startswith("-")), None)
        if first is not None and first not in COMMANDS:
            raise unknown("command", first, COMMANDS)
        arguments = _parser().parse_args(words)
        if arguments.command is None:
            _parser().print_help()
            return 0
        return COMMANDS[arguments.command].run(arguments)
    except KeyboardInterrupt:
        print("\ntrimtab: stopped", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, ImportError, OSError, StudyError) as error:
        print(f"trimtab: {' '.join(str(error).split())}", file=sys.stderr)
        return BAD_INPUT


if __name__ == "__main__":
    raise SystemExit(main())
