"""The options by which a command is told what to sample."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from trimtab.cli.command import UsageError

if TYPE_CHECKING:
    from trimtab.evaluation.domains import Domain
    from trimtab.evaluation.studies.usercode import Source

__all__ = ["add_seeds", "add_source", "asked_for", "check_absent"]


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
        "--config", metavar="FILE", type=Path, help="keyword arguments for the factory, a JSON or TOML file"
    )
    parser.add_argument("--name", metavar="NAME", help="what to call your sampler; its module's name if not given")
    parser.add_argument(
        "--check",
        action="store_true",
        help="first run whole rollouts alone and in a batch, to see that samples do not influence each other",
    )


def add_seeds(parser: argparse.ArgumentParser, flag: str, default: int, meaning: str) -> None:
    """Add an option for a number of seeds."""
    parser.add_argument(flag, metavar="N", type=int, default=default, help=f"{meaning}; {default} if not given")


def asked_for(
    arguments: argparse.Namespace, first: int, number: int, flag: str = "--seeds"
) -> tuple[Domain, Source, range]:
    """Make what the options name, and try one step of it on a few of its seeds.

    Args:
        arguments: With the options of `add_source`.
        first: From which on seeds are taken; where samples belong together, from the next whole group on.
        number: How many of them.
        flag: The option that says how many.
    """
    from trimtab.evaluation.studies.probe import probe
    from trimtab.evaluation.studies.usercode import Source, domain_from, read_settings
    from trimtab.evaluation.studies.whole_groups import whole_groups

    if arguments.name is not None and arguments.sampler is None:
        raise UsageError("--name is what to call a sampler of your own, and goes with --sampler: leave it out")
    if number < 1:
        raise ValueError(f"{flag} must be at least 1: got {number}")
    settings = {} if arguments.config is None else read_settings(arguments.config)
    if arguments.sampler is not None:
        source = Source.of_user(arguments.sampler, settings, arguments.name)
    else:
        source = Source.built_in(arguments.domain, settings)
    domain = domain_from(source)
    seeds = whole_groups(domain, first, number)
    probe(domain, range(seeds.start, seeds.start + 3), whole=arguments.check)
    if arguments.check:
        print("checked: samples do not influence each other", file=sys.stderr)
    return domain, source, seeds


def check_absent(path: Path, overwrite: bool) -> None:
    """A file that is there is replaced only on request, a folder never; and there must be a folder to put it into."""
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is a folder, or no ordinary file, and is not replaced: choose another name")
    if os.path.lexists(path) and not overwrite:  # a link that leads nowhere is somebody's too
        raise ValueError(f"{path} is there already: replace it with --overwrite, or choose another name")
    if not path.resolve().parent.is_dir():
        raise ValueError(f"{path}: the directory {path.resolve().parent} does not exist; make it first")
