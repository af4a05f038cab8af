"""A quality of final samples named on the command line."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trimtab.core.quality import Quality
    from trimtab.domains.base import Domain

__all__ = ["add_quality", "quality_from"]


def add_quality(parser: argparse.ArgumentParser) -> None:
    """The options that name one."""
    parser.add_argument(
        "--quality",
        metavar="Q",
        help="go by a quality of the final samples: package.module:function, or the name of one of the domain's own; "
        "lower is better",
    )
    parser.add_argument("--higher-is-better", action="store_true", help="of the quality, more is better")


def quality_from(spec: str | None, higher_is_better: bool, domain: Domain) -> Quality | None:
    """The quality that was asked for: "package.module:function", or the name of one of the domain's own.

    Args:
        spec: As typed; None for none.
        higher_is_better: Whether more is better.
        domain: What is sampled.
    """
    from trimtab.core.quality import Quality
    from trimtab.studies.usercode import load_factory

    if spec is None:
        return None
    judge = domain.quality
    if ":" not in spec:
        if judge is None:
            raise ValueError(
                f"{domain.name} has no qualities of its own; name a function of final states, package.module:function"
            )
        return Quality(lambda final, problem: judge(final, problem.constraint), higher_is_better, spec)
    return Quality(load_factory(spec), higher_is_better, spec.partition(":")[2])
