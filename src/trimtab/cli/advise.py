"""`trimtab advise`: should I bother, and if so, how?"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from trimtab.cli.calibrate import parse_budget
from trimtab.cli.command import Command
from trimtab.cli.quality import add_quality, quality_from
from trimtab.cli.running import add_engine, engine_from, stopped
from trimtab.cli.source import add_seeds, add_source, asked_for, check_absent

if TYPE_CHECKING:
    from trimtab.advice.result import Advice

__all__ = ["COMMAND"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    add_source(parser)
    parser.add_argument(
        "--tolerance",
        metavar="X",
        type=float,
        help="the share of full projection's gain that may be lost; 0.1 unless there is a time limit",
    )
    add_quality(parser)
    parser.add_argument("--objective", metavar="O", default="endpoint", help="without a quality: endpoint, or path")
    parser.add_argument(
        "--window",
        metavar="W",
        help="what you do today: project at every step from this one on; 0.5 is a share of the steps, 30 a step",
    )
    parser.add_argument(
        "--look",
        metavar="C",
        type=float,
        default=0.0,
        help="what a look at the defect costs, in projections; 0 if none",
    )
    parser.add_argument("--seconds", metavar="S", type=float, help="a time limit for one sample")
    parser.add_argument(
        "--cost",
        metavar="C",
        default="seconds",
        help="what to save: seconds as measured here (the default), or projections",
    )
    add_seeds(parser, "--seeds", 64, "number of rollouts, half to calibrate and half to measure")
    parser.add_argument("--price", metavar="FILE", type=Path, help="judge this price file instead of a new one")
    parser.add_argument("--plot", metavar="FILE", type=Path, help="draw the advice: a .png, .svg or .pdf file")
    parser.add_argument("--save", metavar="FILE", type=Path, help="keep the recommended schedule's price file")
    parser.add_argument("--overwrite", action="store_true", help="replace files that are there")
    parser.add_argument("--out", metavar="DIR", type=Path, help="keep finished batches here, to go on with --resume")
    add_engine(parser, "that are kept in DIR")
    parser.add_argument("--json", action="store_true", help="print all numbers as JSON instead of words")


FIRST_SEED = 2_000_000
"""Seeds for advice count from here: apart from those of studies and of `trimtab calibrate`."""


def run(arguments: argparse.Namespace) -> int:
    """Do it."""
    from trimtab.advice.recommend import advise
    from trimtab.prices.price import load
    from trimtab.schedules.style import format_of

    for path in (arguments.plot, arguments.save):
        if path is not None:
            check_absent(path, arguments.overwrite)
    if arguments.plot is not None:
        format_of(arguments.plot)
    price = None if arguments.price is None else load(arguments.price)
    window = None if arguments.window is None else parse_budget(arguments.window, "--window")
    if arguments.out is not None and arguments.engine is None and not arguments.resume:
        arguments.engine = "serial"
    domain, source, seeds = asked_for(arguments, FIRST_SEED, arguments.seeds)
    quality = quality_from(arguments.quality, arguments.higher_is_better, domain)
    engine = engine_from(arguments, arguments.out, source, seeds)
    try:
        advice = advise(
            domain.problem(seeds),
            quality=quality,
            objective=arguments.objective,
            tolerance=arguments.tolerance,
            seconds=arguments.seconds,
            cost=arguments.cost,
            distance=domain.distance,
            price=price,
            window=window,
            look=arguments.look,
            engine=engine,
            progress=lambda text: print(f"… {text}", file=sys.stderr),
        )
    except KeyboardInterrupt:
        if arguments.out is None:
            raise
        return stopped(f"{arguments.out} keeps what was finished")
    _write(advice, arguments)
    return 0


def _write(advice: Advice, arguments: argparse.Namespace) -> None:
    """Print it, and write the files that were asked for."""
    print(json.dumps(advice.facts(), indent=1, allow_nan=False) if arguments.json else advice)
    if arguments.save is not None:
        if advice.price is None:
            print(f"nothing saved: {advice.kind} correction needs no prices", file=sys.stderr)
        else:
            advice.price.save(arguments.save)
            print(f"saved {arguments.save}", file=sys.stderr)
    if arguments.plot is not None:
        advice.plot(arguments.plot)
        print(f"drawn {arguments.plot}", file=sys.stderr)


COMMAND = Command(
    "should I bother? which schedule and budget for a sampler",
    "From a few rollouts of a sampler: is timing worth anything, which schedule and budget to take, what is lost "
    "and what is saved. Half of the rollouts calibrate, the other half measures.",
    "examples:\n"
    "  trimtab advise --sampler package.module:factory                      lose no more than a tenth\n"
    "  trimtab advise --sampler package.module:factory --quality package.module:length --window 0.5\n"
    "  trimtab advise --sampler package.module:factory --tolerance 0.05 --plot advice.png\n"
    "  trimtab advise --sampler package.module:factory --seconds 0.5 --save price.safetensors\n"
    "  trimtab advise --sampler package.module:factory --engine processes --out advice --resume\n"
    "  trimtab advise --domain so3 --cost projections\n",
    add_arguments,
    run,
)
