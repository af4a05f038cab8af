"""`trimtab advise`, which schedule and budget to use, and `trimtab calibrate`, which writes a price file."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from trimtab_lab.cli.command import (
    Command,
    add_engine,
    add_quality,
    add_seeds,
    add_source,
    check_absent,
    engine_from,
    path,
    progress,
    quality_from,
    remove_batches,
    source_from,
    stopped,
)

if TYPE_CHECKING:
    from trimtab.prices.price import Price

__all__ = ["ADVISE", "CALIBRATE", "FIRST_SEED", "parse_budget"]

FIRST_SEED = 2_000_000
"""The first seed of advice: apart from those of studies and of `trimtab calibrate`."""


def parse_budget(text: str, what: str = "a budget") -> int | float:
    """Parse a fraction of the steps if it has a point, a number of them if it has none.

    Example:
        >>> parse_budget("0.25"), parse_budget("25")
        (0.25, 25)
    """
    try:
        return float(text) if "." in text else int(text)
    except ValueError:
        raise ValueError(f"{what} must be a fraction of the steps like 0.25, or a whole number: got {text!r}") from None


def _add_advise(parser: argparse.ArgumentParser) -> None:
    add_source(parser)
    parser.add_argument(
        "--tolerance",
        metavar="X",
        type=float,
        help="what may be lost, as a share of what full projection changes in a typical sample (default 0.1)",
    )
    add_quality(parser)
    parser.add_argument("--objective", metavar="O", default="endpoint", help="without a quality: endpoint, or path")
    parser.add_argument("--seconds", metavar="S", type=float, help="a time limit for one sample")
    parser.add_argument(
        "--cost",
        metavar="C",
        default="seconds",
        help="what to save: seconds as measured here (the default), or projections",
    )
    add_seeds(parser, "--seeds", 64, "number of rollouts: a quarter calibrates, the others choose and measure")
    parser.add_argument("--price", metavar="FILE", type=path, help="judge this price file instead of a new one")
    parser.add_argument("--plot", metavar="FILE", type=path, help="draw the advice: a .png, .svg or .pdf file")
    parser.add_argument("--save", metavar="FILE", type=path, help="keep the recommended schedule's price file")
    parser.add_argument("--overwrite", action="store_true", help="replace files that are there")
    parser.add_argument("--out", metavar="DIR", type=path, help="keep finished batches here, to continue with --resume")
    add_engine(parser, "that are kept in DIR")
    parser.add_argument("--json", action="store_true", help="print all numbers as JSON instead of words")


def _advise(arguments: argparse.Namespace) -> int:
    from trimtab.advice.figure import format_of
    from trimtab.advice.recommend import advise
    from trimtab.prices.price import load

    for file in (arguments.plot, arguments.save):
        if file is not None:
            check_absent(file, arguments.overwrite)
    if arguments.plot is not None:
        format_of(arguments.plot)
    price = None if arguments.price is None else load(arguments.price)
    if arguments.out is not None and arguments.engine is None and not arguments.resume:
        arguments.engine = "serial"
    domain, source, seeds = source_from(arguments, FIRST_SEED, arguments.seeds)
    quality = quality_from(arguments.quality, arguments.higher_is_better, domain)
    try:
        with engine_from(arguments, arguments.out, source) as engine:
            advice = advise(
                domain.problem(seeds),
                quality=quality,
                objective=arguments.objective,
                tolerance=arguments.tolerance,
                seconds=arguments.seconds,
                cost=arguments.cost,
                distance=domain.distance,
                price=price,
                engine=engine,
                progress=progress,
            )
    except KeyboardInterrupt:
        if arguments.out is None:
            raise
        return stopped(f"{arguments.out} keeps what was finished")
    print(json.dumps(advice.facts(), indent=1, allow_nan=False) if arguments.json else advice)
    if arguments.save is not None and advice.price is None:
        print(f"nothing saved: {advice.trial.name} needs no prices", file=sys.stderr)
    elif arguments.save is not None and advice.price is not None:
        advice.price.save(arguments.save)
        print(f"saved {arguments.save}", file=sys.stderr)
    if arguments.plot is not None:
        advice.plot(arguments.plot)
        print(f"drawn {arguments.plot}", file=sys.stderr)
    return 0


def _add_calibrate(parser: argparse.ArgumentParser) -> None:
    add_source(parser)
    parser.add_argument("--out", metavar="FILE", type=path, help="the price file (default NAME.safetensors)")
    parser.add_argument(
        "--method",
        metavar="M",
        help="dp (the dynamic program, or even spacing if that does better; the default), paper, or planned (steps "
        "fixed in advance)",
    )
    parser.add_argument(
        "--budget",
        metavar="B",
        default="1.0",
        help="the largest budget wanted: 0.25 is a fraction of the steps, 25 a number (default every step)",
    )
    parser.add_argument(
        "--objective",
        metavar="O",
        default="endpoint",
        help="what to lower: endpoint error (the default), path or state error",
    )
    add_seeds(parser, "--seeds", 64, "number of calibration rollouts")
    parser.add_argument("--overwrite", action="store_true", help="replace the file if it is there")
    add_engine(parser, "that are kept in FILE.work while it runs")


def _calibrate(arguments: argparse.Namespace) -> int:
    from trimtab.calibration.calibrate import METHODS, calibrate
    from trimtab.core.checks import unknown
    from trimtab.prices.objective import OBJECTIVES
    from trimtab_lab.studies.config import CALIBRATION_SEED

    if arguments.method is not None and arguments.method not in METHODS:
        raise unknown("method", arguments.method, METHODS)
    if arguments.objective not in OBJECTIVES:
        raise unknown("objective", arguments.objective, OBJECTIVES)
    budget = parse_budget(arguments.budget)
    domain, source, seeds = source_from(arguments, CALIBRATION_SEED, arguments.seeds)
    out: Path = arguments.out or Path(f"{source.name}.safetensors")
    check_absent(out, arguments.overwrite)
    work = out.with_name(f"{out.name}.work")
    try:
        with engine_from(arguments, work, source) as engine:
            price = calibrate(
                domain.problem(seeds),
                budget,
                arguments.method,
                objective=arguments.objective,
                distance=domain.distance,
                engine=engine,
                progress=progress,
            )
    except KeyboardInterrupt:
        if arguments.engine is None and not arguments.resume:
            raise
        return stopped(f"{work} keeps what was finished")
    price.save(out)
    if engine is not None:
        remove_batches(work)
        with suppress(OSError):  # it holds something else, or is a link
            work.rmdir()
    print(f"{out}: {price.method} prices for {source.name}, T = {price.n_steps}, budgets up to {price.budget}")
    print(f"calibrated on seeds {seeds.start} to {seeds.stop - 1}; they cannot be used for evaluation")
    _show_expected(price)
    some = max(1, price.budget // 4)
    print(f"use it: trimtab.load({str(out)!r}).at({some}) is a schedule of {some} corrections")
    return 0


def _show_expected(price: Price) -> None:
    """Print what the dynamic program predicts, for a few budgets."""
    expected = price.notes.get("expected")
    if not expected or price.objective != "path" or not expected[0] > 0:
        return
    print("expected path error, relative to uncorrected rollouts:")
    for share in (0.05, 0.1, 0.25, 0.5, 0.75):
        budget = round(share * price.n_steps)
        if 0 < budget <= price.budget:
            print(f"  B = {budget:4d} (B/T = {budget / price.n_steps:.2f}): {expected[budget] / expected[0]:.1%}")


ADVISE = Command(
    "should I bother? which schedule and budget for a sampler",
    "From a few rollouts of a sampler: is timing worth anything, which schedule and budget to take, what is lost "
    "and what is saved. A quarter of the rollouts calibrates, the others choose and measure.",
    "examples:\n"
    "  trimtab advise --sampler package.module:factory                      lose no more than a tenth\n"
    "  trimtab advise --sampler package.module:factory --quality package.module:length\n"
    "  trimtab advise --sampler package.module:factory --tolerance 0.05 --plot advice.png\n"
    "  trimtab advise --sampler package.module:factory --seconds 0.5 --save price.safetensors\n"
    "  trimtab advise --sampler package.module:factory --engine processes --out advice --resume\n"
    "  trimtab advise --domain so3 --cost projections\n",
    _add_advise,
    _advise,
)

CALIBRATE = Command(
    "estimate the price of a correction for a sampler",
    "Run a sampler on held-out seeds, estimate what a correction is worth at every step and budget, and write a "
    "price file from which schedules are made.",
    "examples:\n"
    "  trimtab calibrate --sampler package.module:factory --out price.safetensors\n"
    "  trimtab calibrate --sampler package.module:factory --config settings.toml --method planned\n"
    "  trimtab calibrate --sampler package.module:factory --engine processes --resume\n",
    _add_calibrate,
    _calibrate,
)
