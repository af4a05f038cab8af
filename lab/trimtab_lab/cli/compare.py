"""`trimtab compare`: schedules × budgets × seeds on a sampler of the user, as a study."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimtab_lab.cli.command import Command, add_running, add_seeds, add_source, path, run_and_report, source_from

if TYPE_CHECKING:
    from trimtab_lab.domains import Domain
    from trimtab_lab.studies.config import Study
    from trimtab_lab.studies.store import RunFiles
    from trimtab_lab.studies.usercode import Source

__all__ = ["COMMAND", "table_of"]

BUDGETS = (0.0, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0)
SCHEDULES = ("terminal", "stepwise", "periodic", "window", "adaptive:dp", "planned", "adaptive:paper")


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_source(parser)
    parser.add_argument("--out", metavar="DIR", type=path, help="the run directory (default runs/NAME)")
    parser.add_argument(
        "--budgets",
        metavar="B",
        type=float,
        nargs="+",
        default=list(BUDGETS),
        help=f"fractions of the steps (default {' '.join(f'{b:g}' for b in BUDGETS)}; 0 and 1 are always run)",
    )
    parser.add_argument(
        "--schedules",
        metavar="KEY",
        nargs="+",
        default=list(SCHEDULES),
        help=f"{', '.join(SCHEDULES)} (all of them by default; the first three are always run); "
        "also geometric, random-ramp, adaptive:on-policy",
    )
    add_seeds(parser, "--seeds", 16, "number of evaluation rollouts")
    add_seeds(parser, "--calibration-seeds", 64, "number of calibration rollouts")
    add_running(parser)


def _run(arguments: argparse.Namespace) -> int:
    from trimtab_lab.studies.config import CALIBRATION_SEED
    from trimtab_lab.studies.schedules import study_schedule

    for key in arguments.schedules:
        study_schedule(key)
    for budget in arguments.budgets:
        if not 0 <= budget <= 1 or round(budget, 2) != budget:
            raise ValueError(f"--budgets must be fractions of T from 0 to 1 with at most two digits: got {budget:g}")
    domain, source, calibration = source_from(arguments, CALIBRATION_SEED, arguments.calibration_seeds)
    study = _study(arguments, domain, source, calibration)
    directory: Path = arguments.out or Path("runs") / source.name
    factories = {source.name: source.factory} if source.factory else None
    return run_and_report(directory, study, arguments, _show, factories)


def _study(arguments: argparse.Namespace, domain: Domain, source: Source, calibration: range) -> Study:
    from trimtab.calibration.collect import FEWEST
    from trimtab_lab.studies.config import Study
    from trimtab_lab.studies.usercode import record_of

    if len(calibration) < FEWEST:
        raise ValueError(
            f"{len(calibration)} calibration rollouts are too few: give --calibration-seeds of at least {FEWEST}, "
            "better 64"
        )
    budgets = tuple(sorted({0.0, 1.0, *arguments.budgets}))
    between = [budget for budget in budgets if 0 < budget < 1] or [1.0]
    return Study(
        "compare",
        domains=(source.name,),
        schedules=tuple(dict.fromkeys([*SCHEDULES[:3], *arguments.schedules])),
        budgets=budgets,
        seeds=arguments.seeds,
        calibration_seeds=arguments.calibration_seeds,
        table_budget=min(between, key=lambda budget: abs(budget - 0.25)),
        example_seeds=min(2, arguments.seeds),
        kappa_domains=(),
        samplers={source.name: record_of(source)},
        closing="paid",
    )


def _show(files: RunFiles) -> None:
    """Write the report of a run directory, and print its two main tables."""
    from trimtab_lab.report import write_report

    written = write_report(files)
    print(table_of(files.read_json("summary.json")))
    print(f"{len(written)} files written; open {written[0]}")


MEASURES = {
    "endpoint": "distance of final samples to those of full projection",
    "nepe": "path error, NEPE (0 is stepwise, 1 is terminal)",
}


def table_of(summary: dict[str, Any]) -> str:
    """Return final samples and path error of every schedule at every budget, as plain text."""
    from trimtab_lab.report.style import label_of

    lines = []
    for name, content in summary["domains"].items():
        schedules = {key: by for key, by in content["schedules"].items() if key not in ("terminal", "stepwise")}
        budgets = [budget for budget in next(iter(schedules.values())) if float(budget) not in (0.0, 1.0)]
        width = max(20, *(len(label_of(key)) + 2 for key in schedules))
        for measure, words in MEASURES.items():
            lines += [f"{name}: {words}, mean ± standard error, closing projection included", ""]
            lines.append("  B/T " + "".join(f"{label_of(key):>{width}}" for key in schedules))
            for budget in budgets:
                cells = [by[budget][measure] for by in schedules.values()]
                lines.append(f"  {budget}" + "".join(f"{_cell(cell):>{width}}" for cell in cells))
            if measure == "endpoint":
                lines.append(f"  terminal: {_cell(content['schedules']['terminal']['0.00'][measure])}")
            lines.append("")
        if content["degenerate"]:
            lines.append(f"{content['degenerate']} rollouts are degenerate (timing makes no difference) and left out")
        if content["failures"]:
            lines.append(f"{content['failures']} projections failed")
    return "\n".join(lines)


def _cell(value: dict[str, Any]) -> str:
    if value["mean"] is None:
        return "n/a"
    return f"{value['mean']:.3g}" + ("" if value["se"] is None else f" ± {value['se']:.2g}")


COMMAND = Command(
    "compare schedules on a sampler: rows, tables, figures, page",
    "Run schedules x budgets x seeds on a sampler, paired by seed, and write the same rows, tables, figures and "
    "page as a study of the paper.",
    "examples:\n"
    "  trimtab compare --sampler package.module:factory\n"
    "  trimtab compare --sampler package.module:factory --budgets 0.1 0.2 0.3 --seeds 64 --out runs/mine\n",
    _add_arguments,
    _run,
)
