"""`trimtab calibrate`: from held-out rollouts of a sampler to a price file."""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from trimtab.cli.command import Command
from trimtab.cli.quality import add_quality, quality_from
from trimtab.cli.running import add_engine, engine_from, remove_batches, stopped
from trimtab.cli.source import add_seeds, add_source, asked_for, check_absent

if TYPE_CHECKING:
    from trimtab.prices.price import Price

__all__ = ["COMMAND", "parse_budget"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    add_source(parser)
    parser.add_argument("--out", metavar="FILE", type=Path, help="the price file; NAME.safetensors if not given")
    parser.add_argument(
        "--method",
        metavar="M",
        help="race (several, and the best is kept; the default), dp (the dynamic program; the default for path error), "
        "on-policy, paper, or planned (times fixed in advance)",
    )
    add_quality(parser)
    parser.add_argument(
        "--budget",
        metavar="B",
        default="1.0",
        help="the largest budget wanted: 0.25 is a share of the steps, 25 a number; every step if not given",
    )
    parser.add_argument(
        "--unit",
        metavar="U",
        default="projection",
        help="what a budget counts: projection (the default), or iteration where the constraint offers them singly",
    )
    parser.add_argument(
        "--objective",
        metavar="O",
        default="endpoint",
        help="what to lower without a quality: endpoint error (the default), path or state error",
    )
    add_seeds(parser, "--seeds", 64, "number of calibration rollouts")
    parser.add_argument("--overwrite", action="store_true", help="replace the file if it is there")
    add_engine(parser, "that are kept in FILE.work while it runs")


def run(arguments: argparse.Namespace) -> int:
    """Do it."""
    from trimtab.core.checks import unknown
    from trimtab.evaluation.studies.config import CALIBRATION_SEED
    from trimtab.prices.calibration import METHODS, calibrate
    from trimtab.prices.objective import OBJECTIVES

    if arguments.method is not None and arguments.method not in METHODS:
        raise unknown("method", arguments.method, METHODS)
    if arguments.objective not in OBJECTIVES:
        raise unknown("objective", arguments.objective, OBJECTIVES)
    budget = parse_budget(arguments.budget)
    domain, source, seeds = asked_for(arguments, CALIBRATION_SEED, arguments.seeds)
    out: Path = arguments.out or Path(f"{source.name}.safetensors")
    check_absent(out, arguments.overwrite)
    quality = quality_from(arguments.quality, arguments.higher_is_better, domain)
    work = out.with_name(f"{out.name}.work")
    engine = engine_from(arguments, work, source, seeds)
    try:
        price = calibrate(
            domain.problem(seeds),
            budget,
            arguments.method,
            objective=arguments.objective,
            quality=quality,
            unit=arguments.unit,
            distance=domain.distance,
            engine=engine,
            progress=lambda text: print(f"… {text}", file=sys.stderr),
        )
    except KeyboardInterrupt:
        if engine is None:
            raise
        return stopped(f"{work} keeps what was finished")
    price.save(out)
    if engine is not None:
        remove_batches(work)
        with suppress(OSError):  # something else is in it, or it is a link
            work.rmdir()
    print(f"{out}: {price.method} prices for {source.name}, T = {price.n_steps}, budgets up to {price.budget}")
    print(f"calibrated on seeds {seeds.start} to {seeds.stop - 1}; they cannot be used for evaluation")
    _show_expected(price)
    some = max(1, price.budget // 4)
    of = "iterations" if arguments.unit == "iteration" else "corrections"
    print(f"use it: trimtab.load({str(out)!r}).at({some}) is a schedule of {some} {of}")
    return 0


def parse_budget(text: str, what: str = "a budget") -> int | float:
    """A share of the steps if it has a point, a number of them if it has none.

    Example:
        >>> parse_budget("0.25"), parse_budget("25")
        (0.25, 25)
    """
    try:
        return float(text) if "." in text else int(text)
    except ValueError:
        raise ValueError(f"{what} is a share of the steps like 0.25, or a whole number: got {text!r}") from None


def _show_expected(price: Price) -> None:
    """What the dynamic program predicts, for a few budgets."""
    expected = price.notes.get("expected")
    if not expected or price.objective != "path" or not expected[0] > 0:
        return
    print("path error to expect beside uncorrected rollouts:")
    for share in (0.05, 0.1, 0.25, 0.5, 0.75):
        budget = round(share * price.n_steps)
        if 0 < budget <= price.budget:
            print(f"  B = {budget:4d} (B/T = {budget / price.n_steps:.2f}): {expected[budget] / expected[0]:.1%}")


COMMAND = Command(
    "estimate the price of a correction for a sampler",
    "Run a sampler on held-out seeds, estimate what a correction is worth at every step and budget, and write a "
    "price file that a schedule can be made of.",
    "examples:\n"
    "  trimtab calibrate --sampler package.module:factory --out price.safetensors\n"
    "  trimtab calibrate --sampler package.module:factory --quality package.module:length\n"
    "  trimtab calibrate --sampler package.module:factory --config settings.toml --method planned\n"
    "  trimtab calibrate --domain linkage --unit iteration --budget 80\n"
    "  trimtab calibrate --sampler package.module:factory --engine processes --resume\n",
    add_arguments,
    run,
)
