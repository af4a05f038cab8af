"""The library's own commands: `advise`, `calibrate` and `compare` for a sampler that a function of yours makes."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimtab.cli.command import Command, UsageError

if TYPE_CHECKING:
    from trimtab.loop.rollout import Problem

__all__ = ["COMMANDS", "problem_from"]

FIRST_SEED = 1_000_000
"""Calibration and advice take seeds from here on; comparisons take them from 0 on."""


def problem_from(spec: str, seeds: range) -> Problem:
    """Return the problem that a factory makes.

    Args:
        spec: "package.module:factory". The factory takes no arguments, or `seeds`, (n,), and returns a sampler and a
            constraint, or a `Problem`.
        seeds: One for each sample.
    """
    import inspect

    from trimtab.core.noise import as_seeds
    from trimtab.loop.rollout import Problem

    module, _, name = spec.partition(":")
    if not module or not name:
        raise UsageError(f"--sampler must name a function, as in package.module:factory: got {spec!r}")
    if "" not in sys.path:
        sys.path.insert(0, "")  # as `python -m` does: the module may be in the folder where the command was typed
    factory = getattr(import_module(module), name)
    own = as_seeds(seeds)
    made: Any = factory(seeds=own) if "seeds" in inspect.signature(factory).parameters else factory()
    if isinstance(made, Problem):
        return Problem(made.sampler, made.constraint, own, made.distance)
    if not isinstance(made, tuple) or len(made) < 2:
        raise UsageError(f"{spec} must return (sampler, constraint) or a trimtab Problem: got {type(made).__name__}")
    return Problem(made[0], made[1], own)


def _add_source(parser: argparse.ArgumentParser, seeds: int) -> None:
    parser.add_argument("--sampler", metavar="MODULE:FACTORY", required=True, help="a function that makes the sampler")
    parser.add_argument("--seeds", metavar="N", type=int, default=seeds, help=f"number of rollouts (default {seeds})")


def _add_advise(parser: argparse.ArgumentParser) -> None:
    _add_source(parser, 64)
    parser.add_argument("--tolerance", metavar="X", type=float, help="the loss that is good enough: 0 full projection")
    parser.add_argument("--cost", default="seconds", help="what to save: seconds (the default) or projections")


def _advise(arguments: argparse.Namespace) -> int:
    from trimtab.advice.recommend import advise

    seeds = range(FIRST_SEED, FIRST_SEED + arguments.seeds)
    more = {} if arguments.tolerance is None else {"tolerance": arguments.tolerance}
    print(advise(problem_from(arguments.sampler, seeds), cost=arguments.cost, **more))
    return 0


def _add_calibrate(parser: argparse.ArgumentParser) -> None:
    _add_source(parser, 64)
    parser.add_argument("--method", help="dp, paper or planned; by default what `trimtab.calibrate` takes")
    parser.add_argument("--out", metavar="FILE", type=Path, required=True, help="the price file, .safetensors")


def _calibrate(arguments: argparse.Namespace) -> int:
    from trimtab.calibration.calibrate import calibrate

    if arguments.out.exists():
        raise UsageError(f"{arguments.out} exists: choose another name, or remove it")
    seeds = range(FIRST_SEED, FIRST_SEED + arguments.seeds)
    more = {} if arguments.method is None else {"method": arguments.method}
    price = calibrate(problem_from(arguments.sampler, seeds), **more)
    price.save(arguments.out)
    print(price)
    return 0


def _add_compare(parser: argparse.ArgumentParser) -> None:
    _add_source(parser, 16)
    parser.add_argument("--price", metavar="FILE", type=Path, action="append", default=[], help="a price to compare")
    parser.add_argument(
        "--budgets", metavar="B", type=float, nargs="+", default=[0.25], help="shares of the steps (default 0.25)"
    )


def _compare(arguments: argparse.Namespace) -> int:
    from trimtab.advice.compare import compare
    from trimtab.prices.price import load

    prices = {file.stem: load(file) for file in arguments.price}
    print(compare(problem_from(arguments.sampler, range(arguments.seeds)), prices, arguments.budgets))
    return 0


_EXAMPLE = "examples:\n  trimtab {} --sampler package.module:factory{}\n"

COMMANDS = {
    "advise": Command(
        "say which schedule to use for a sampler, and what it saves",
        "Measure a sampler and its projection, and recommend a schedule.",
        _EXAMPLE.format("advise", " --cost projections"),
        _add_advise,
        _advise,
    ),
    "calibrate": Command(
        "make a price file for a sampler",
        "Calibrate prices for a sampler and keep them in a file.",
        _EXAMPLE.format("calibrate", " --out price.safetensors"),
        _add_calibrate,
        _calibrate,
    ),
    "compare": Command(
        "compare schedules on a sampler",
        "Run prices beside plain schedules on the same seeds, and print a table.",
        _EXAMPLE.format("compare", " --price price.safetensors"),
        _add_compare,
        _compare,
    ),
}
"""The commands by name; those of the lab with the same names, which can do more, take their place."""
