"""`trimtab reproduce`, the paper's controlled evaluation; `trimtab report` and `trimtab domains`."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from trimtab.core.checks import unknown
from trimtab_lab.cli.command import Command, UsageError, add_running, count, path, run_and_report

if TYPE_CHECKING:
    from trimtab_lab.studies.config import Study
    from trimtab_lab.studies.store import RunFiles

__all__ = ["DOMAINS", "REPORT", "REPRODUCE"]

_PDM = ("checkpoint", "circles", "eligible_from", "inner_steps", "defect")


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--preset",
        metavar="P",
        help="how much to run: main (every table and figure in a few minutes; the default), tiny (seconds), quick (a "
        "minute), paper (the full protocol on all dynamics), large",
    )
    parser.add_argument(
        "--only", metavar="DOMAIN", nargs="+", help="run only these domains; `trimtab domains` lists them"
    )
    parser.add_argument("--out", metavar="DIR", type=path, help="the run directory (default runs/PRESET)")
    parser.add_argument("--seeds", metavar="N", type=count, help="evaluation seeds, instead of the preset's number")
    parser.add_argument(
        "--calibration-seeds", metavar="N", type=count, help="calibration seeds, instead of the preset's number"
    )
    pdm = parser.add_argument_group("the trajectory sampler, with --only pdm")
    pdm.add_argument("--checkpoint", metavar="FILE", help="weights of a public PDM checkpoint or of your own training")
    pdm.add_argument("--circles", metavar="FILE", help="a JSON list of obstacles, each [x, y, r]")
    pdm.add_argument(
        "--eligible-from",
        metavar="LEVEL",
        type=int,
        help="first noise level whose updates may be corrected (default 0, all, as in the paper; PDM's code has 6)",
    )
    pdm.add_argument(
        "--defect",
        metavar="SCORE",
        help="what schedules look at: segment-depth (the default), waypoint-depth, colliding-segments or residual",
    )
    pdm.add_argument("--inner-steps", metavar="L", type=int, help="Langevin updates per noise level")
    add_running(parser)


def _run(arguments: argparse.Namespace) -> int:
    from trimtab_lab.domains import DOMAINS
    from trimtab_lab.studies.config import preset
    from trimtab_lab.studies.store import RUN, study_of
    from trimtab_lab.studies.usercode import Source, record_of

    directory: Path = arguments.out or Path("runs") / (arguments.preset or "main")
    if arguments.resume and arguments.preset is None and (directory / RUN).is_file():
        study = study_of(directory)
        _check_built_in(directory, study)
    else:
        study = preset(arguments.preset or "main")
    for name in arguments.only or ():
        if name not in DOMAINS:
            raise unknown("domain", name, DOMAINS)
    if arguments.only:
        study = study.only(tuple(arguments.only))
    if (seeds := arguments.seeds) is not None:
        kept, block = min(study.example_seeds, seeds), max(study.block, min(seeds, 32))
        study = replace(study, seeds=seeds, block=block, example_seeds=kept, exceptions={})
    if arguments.calibration_seeds is not None:
        study = replace(study, calibration_seeds=arguments.calibration_seeds)
    if settings := {name: value for name in _PDM if (value := getattr(arguments, name)) is not None}:
        if "pdm" not in study.domains:
            given = ", ".join(f"--{name.replace('_', '-')}" for name in settings)
            raise UsageError(f"{given}: only the domain pdm has such settings, and it is not run; add --only pdm")
        study = replace(study, samplers={**study.samplers, "pdm": record_of(Source.built_in("pdm", settings))})
    return run_and_report(directory, study, arguments, write_and_show)


def _check_built_in(directory: Path, study: Study) -> None:
    """Raise for a run of the user's own sampler: no code is run because a file names it."""
    from trimtab_lab.domains import DOMAINS

    for name in study.domains:
        if name not in DOMAINS:
            spec = study.samplers.get(name, {}).get("factory", "package.module:factory")
            raise UsageError(
                f"{directory} is a run of {name}, a sampler that is not built in (its record says {spec!r}); no code "
                "is run because a file names it. Continue with `trimtab compare --sampler … --resume` and the options "
                "it was started with"
            )


def write_and_show(files: RunFiles) -> None:
    """Write the report of a run directory, and print its main tables."""
    from trimtab_lab.report import write_report

    written = write_report(files)
    tables = {file.stem: file for file in written if file.parent.name == "tables" and file.suffix == ".md"}
    for name in ("agreement", "table1", "table2", "table3"):
        others = [stem for stem in tables if stem.startswith(f"{name}-")]
        for stem in [name] if name in tables else others:
            print(tables[stem].read_text(encoding="utf-8"))
    print(f"{len(written)} files written; open {written[0]}")


def _report(arguments: argparse.Namespace) -> int:
    from trimtab_lab.studies.store import open_run

    with open_run(arguments.directory) as files:
        write_and_show(files)
    return 0


def _domains(arguments: argparse.Namespace) -> int:
    from importlib.util import find_spec

    from trimtab_lab.domains import DOMAINS, domain

    width = max(map(len, DOMAINS))
    for name, module in DOMAINS.items():
        if find_spec(module) is None:
            continue
        try:
            print(f"{name:{width}}  {domain(name).summary}")
        except (ImportError, OSError) as error:  # an extra or a model is missing, and the error says which
            print(f"{name:{width}}  (not available: {error})")
    return 0


REPRODUCE = Command(
    "run the paper's controlled evaluation: rows, tables, figures, page",
    "Run schedules x budgets x seeds on the paper's domains, paired by seed, and write rows, tables, figures and an "
    "interactive page to one directory. A run that was stopped, even killed, continues with --resume.",
    "examples:\n"
    "  trimtab reproduce                                  every table and figure, in a few minutes\n"
    "  trimtab reproduce --preset paper                   the paper's protocol: six domains, four dynamics each\n"
    "  trimtab reproduce --preset paper --only so3 se3    two of them\n"
    "  trimtab reproduce --preset paper --resume          continue where it was stopped\n"
    "  trimtab reproduce --only pdm                       the learned trajectory sampler\n"
    "  trimtab reproduce --only pdm --checkpoint FILE --circles FILE --eligible-from 6\n"
    "  RAY_ADDRESS=auto trimtab reproduce --preset large --engine ray\n",
    _add_arguments,
    _run,
)

REPORT = Command(
    "write tables, figures and page of a run again",
    "Write summary, tables, figures and page of a run directory again, from its rows; nothing is run.",
    "example:\n  trimtab report runs/paper\n",
    lambda parser: parser.add_argument(  # type: ignore[arg-type]
        "directory", metavar="DIR", type=path, help="a run directory, made by `reproduce` or `compare`"
    ),
    _report,
)

DOMAINS = Command(
    "list the domains",
    "List the domains that can be run, one sentence each.",
    "example:\n  trimtab domains\n",
    lambda parser: None,
    _domains,
)
