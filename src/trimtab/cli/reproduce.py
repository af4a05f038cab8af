"""`trimtab reproduce`: the paper's controlled evaluation."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from trimtab.cli.command import Command, UsageError
from trimtab.cli.report import write_and_show
from trimtab.cli.running import add_running, run_and_report
from trimtab.core.checks import unknown

if TYPE_CHECKING:
    from trimtab.evaluation.studies.config import Study

__all__ = ["COMMAND"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
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
    parser.add_argument(
        "--unit",
        choices=("projection", "iteration"),
        help="what budgets count: whole projections (the default), or iterations of the solver, as shares of those "
        "that full projection takes; the domain is then linkage unless --only names others whose projection iterates",
    )
    pdm = parser.add_argument_group("the trajectory sampler, with --only pdm")
    pdm.add_argument("--checkpoint", metavar="FILE", help="weights of a public PDM checkpoint or of your own training")
    pdm.add_argument("--circles", metavar="FILE", help="a JSON list of obstacles, each [x, y, r]")
    pdm.add_argument(
        "--eligible-from",
        metavar="LEVEL",
        type=int,
        help="first noise level whose updates may be corrected (default 6, as in PDM's code; 0 is all)",
    )
    pdm.add_argument(
        "--defect",
        metavar="SCORE",
        help="what schedules look at: segment-depth (the default), waypoint-depth, colliding-segments or residual",
    )
    pdm.add_argument("--inner-steps", metavar="L", type=int, help="Langevin updates per noise level")
    add_running(parser)


def run(arguments: argparse.Namespace) -> int:
    """Do it."""
    from trimtab.evaluation.studies.config import preset
    from trimtab.evaluation.studies.store import RUN, study_of

    directory: Path = arguments.out or Path("runs") / (arguments.preset or "quick")
    if arguments.resume and arguments.preset is None and (directory / RUN).is_file():
        study = study_of(directory)
        _check_code(directory, study)
    else:
        study = preset(arguments.preset or "quick")
    if arguments.unit == "iteration" and study.unit == "projection":
        study = study.in_iterations().only(("linkage",))
    if arguments.only:
        study = study.only(_known_domains(arguments.only))
    study = _with_seeds(study, arguments.seeds, arguments.calibration_seeds)
    return run_and_report(directory, _with_pdm_settings(study, arguments), arguments, write_and_show)


def _check_code(directory: Path, study: Study) -> None:
    """A run of the user's own sampler goes on only where that is named: what a file says is never run."""
    from trimtab.evaluation.domains import DOMAINS

    for name in study.domains:
        if name not in DOMAINS:
            spec = study.samplers.get(name, {}).get("factory", "package.module:factory")
            raise UsageError(
                f"{directory} is a run of {name}, a sampler that is not built in (its record says {spec!r}); no code "
                "is run because a file names it. Go on with `trimtab compare --sampler … --resume` and the options it "
                "was begun with"
            )


def _with_seeds(study: Study, seeds: int | None, calibration_seeds: int | None) -> Study:
    """The study with other numbers of seeds; None leaves the number as it is."""
    if seeds is not None:
        kept = max(0, min(study.example_seeds, seeds))
        study = replace(study, seeds=seeds, block=max(study.block, min(seeds, 32)), example_seeds=kept)
    return study if calibration_seeds is None else replace(study, calibration_seeds=calibration_seeds)


def _with_pdm_settings(study: Study, arguments: argparse.Namespace) -> Study:
    """The study with the trajectory sampler as the options have it."""
    names = ("checkpoint", "circles", "eligible_from", "inner_steps", "defect")
    settings = {name: value for name in names if (value := getattr(arguments, name)) is not None}
    if not settings:
        return study
    if "pdm" not in study.domains:
        given = ", ".join(f"--{name.replace('_', '-')}" for name in settings)
        raise UsageError(f"{given}: only the domain pdm has such settings, and it is not run; add --only pdm")
    from trimtab.evaluation.studies.usercode import Source, record_of

    source = Source.built_in("pdm", settings)
    return replace(study, samplers={**study.samplers, "pdm": record_of(source)})


def _known_domains(names: Sequence[str]) -> tuple[str, ...]:
    from trimtab.evaluation.domains import DOMAINS

    for name in names:
        if name not in DOMAINS:
            raise unknown("domain", name, DOMAINS)
    return tuple(dict.fromkeys(names))


COMMAND = Command(
    "run the paper's controlled evaluation: rows, tables, figures, page",
    "Run schedules x budgets x seeds on the synthetic domains, paired by seed, and write rows, tables, figures and "
    "an interactive page to one directory. A run that was stopped, even killed, goes on with --resume.",
    "examples:\n"
    "  trimtab reproduce                                  a first look, in about a minute\n"
    "  trimtab reproduce --preset paper                   the paper's protocol: six domains, four dynamics each\n"
    "  trimtab reproduce --preset paper --only so3 se3    two of them\n"
    "  trimtab reproduce --preset paper --resume          go on where it was stopped\n"
    "  trimtab reproduce --unit iteration                 budgets of solver iterations, on a closed linkage\n"
    "  trimtab reproduce --only pdm                       the learned trajectory sampler\n"
    "  trimtab reproduce --only pdm --checkpoint FILE --circles FILE --eligible-from 0\n"
    "  RAY_ADDRESS=auto trimtab reproduce --preset large --engine ray\n",
    add_arguments,
    run,
)
