"""What a command of `trimtab` is. A package adds some by an entry point in the group "trimtab.commands"."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["BAD_INPUT", "INTERRUPTED", "Command", "UsageError"]

BAD_INPUT = 2
INTERRUPTED = 130


class UsageError(ValueError):
    """The options cannot be used together, or have no meaning."""


@dataclass(frozen=True)
class Command:
    """One word after `trimtab`.

    Attributes:
        help: One line for the list of commands.
        description: What it does, above its options.
        examples: Below its options.
        arguments: Adds its options to a parser.
        run: Runs it and returns the exit code.
    """

    help: str
    description: str
    examples: str
    arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
