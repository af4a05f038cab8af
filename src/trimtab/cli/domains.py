"""`trimtab domains`: the domains that can be run."""

from __future__ import annotations

import argparse

from trimtab.cli.command import Command

__all__ = ["COMMAND"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """It has none."""
    del parser


def run(arguments: argparse.Namespace) -> int:
    """Do it."""
    del arguments
    from importlib.util import find_spec

    from trimtab.evaluation.domains import DOMAINS, domain

    width = max(map(len, DOMAINS))
    for name, module in DOMAINS.items():
        if find_spec(module) is None:
            continue
        try:
            print(f"{name:{width}}  {domain(name).summary}")
        except (ImportError, OSError) as error:  # an extra or a model it needs is missing, and the error says which
            print(f"{name:{width}}  (not available: {error})")
    return 0


COMMAND = Command(
    "list the domains",
    "List the domains that can be run, one sentence each.",
    "example:\n  trimtab domains\n",
    add_arguments,
    run,
)
