"""The command line. A command imports what it needs when it runs, so that help is quick."""

from __future__ import annotations

import argparse
import errno
import os
import sys
import sysconfig
import traceback
from collections.abc import Sequence
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import NoReturn

from trimtab._version import __version__
from trimtab.cli.command import BAD_INPUT, INTERRUPTED, Command, UsageError
from trimtab.cli.library import COMMANDS
from trimtab.core.checks import unknown

__all__ = ["commands", "main"]

LAB = ("reproduce", "report", "train", "domains", "bench")
"""Commands of the lab, for the message where it is not installed."""
_OF_LAB = "  trimtab reproduce --preset quick\n  trimtab report runs/quick\n"
_NO_LAB = f"\n{', '.join(LAB)}: the paper's evaluation, in the lab (pip install trimtab-lab)\n"


@cache
def commands() -> dict[str, Command]:
    """Return the commands by name: the library's own, and those of installed packages that offer some."""
    found: dict[str, Command] = dict(COMMANDS)
    for entry in entry_points(group="trimtab.commands"):
        found |= entry.load()
    return found


def _has_lab() -> bool:
    return LAB[0] in commands()


TRACEBACK = "TRIMTAB_TRACEBACK"
"""The environment variable that shows errors with their traceback."""


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (try `{self.prog} --help`)")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="trimtab",
        description="Decide when a constrained generative sampler should spend an expensive projection.",
        epilog="examples:\n  trimtab advise --sampler package.module:factory\n" + (_OF_LAB if _has_lab() else _NO_LAB),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"trimtab {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser)
    for name, command in commands().items():
        sub = subparsers.add_parser(
            name,
            help=command.help,
            description=command.description,
            epilog=command.examples,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.arguments(sub)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; return the exit code: 0, 2 for bad input, 130 if interrupted."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        first = next((word for word in words if not word.startswith("-")), None)
        if first in LAB and first not in commands():
            raise UsageError(f"`trimtab {first}` is part of the lab: pip install trimtab-lab")
        if first is not None and first not in commands():
            raise unknown("command", first, commands())
        arguments = _parser().parse_args(words)
        if arguments.command is None:
            _parser().print_help()
            return 0
        return commands()[arguments.command].run(arguments)
    except KeyboardInterrupt:
        print("\ntrimtab: stopped", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if os.environ.get(TRACEBACK):
            traceback.print_exc()
        print(f"trimtab: {_in_one_line(error)}", file=sys.stderr)
        return BAD_INPUT


_ROOM = "make room, then run the same command again (with --resume, if it has that option: finished work is kept)"
_IN_THE_WAY = "a file, or a link that leads nowhere, is where a folder was wanted: choose another name"
_TO_DO = {
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EFBIG: "raise the limit on the size of a file, then continue with --resume if there is that option",
    errno.ENAMETOOLONG: "choose a shorter one",
    errno.EEXIST: _IN_THE_WAY,
    errno.ENOTDIR: _IN_THE_WAY,
    errno.EACCES: "get permission, or choose another place",
    errno.EROFS: "choose a place that can be written to",
    errno.EMFILE: "close other files or raise the limit of open ones (ulimit -n), then run the same command again",
}
"""What to do about errors of the system, whose messages say only what happened."""


def _in_one_line(error: Exception) -> str:
    """Describe an error; for one in the user's code, or an unexpected one, also where it was raised."""
    words = " ".join(str(error).split())
    if isinstance(error, OSError) and error.errno in _TO_DO:
        return f"{words}; {_TO_DO[error.errno]}"
    frame = traceback.extract_tb(error.__traceback__)[-1]
    raised = f"{type(error).__name__}: {words} ({Path(frame.filename).name}, line {frame.lineno})"
    if _of_the_user(frame.filename):
        return f"{raised}, in code that is not trimtab's; set {TRACEBACK}=1 to see the traceback"
    known = isinstance(error, ValueError | TypeError | ImportError | OSError)
    if words and (known or type(error).__module__.startswith("trimtab.")):
        return words
    if isinstance(error, MemoryError) or "can't allocate memory" in words:
        return f"there is not enough memory for this ({words or 'MemoryError'}); take fewer seeds, steps or workers"
    return f"{raised}; this is unexpected: set {TRACEBACK}=1 to see the traceback"


def _of_the_user(filename: str) -> bool:
    """Return whether a file belongs neither to this package, nor to Python, nor to an installed package."""
    installed = [sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")]
    providers = {command.run.__module__.partition(".")[0] for command in commands().values()}
    ours = [Path(str(sys.modules[name].__file__)).parent for name in {"trimtab", *providers}]
    ours += map(Path, installed)
    path = Path(filename)
    return path.is_file() and not any(path.is_relative_to(folder) for folder in ours)


if __name__ == "__main__":
    raise SystemExit(main())
