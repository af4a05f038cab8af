"""A quality of final samples named on the command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from trimtab.cli.command import UsageError

if TYPE_CHECKING:
    from torch import Tensor

    from trimtab.core.quality import Quality
    from trimtab.evaluation.domains.base import Domain

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
    from trimtab.core.checks import unknown
    from trimtab.core.quality import Quality
    from trimtab.evaluation.studies.usercode import load_function

    if spec is None:
        if higher_is_better:
            raise UsageError("--higher-is-better is said of a quality: name it with --quality, or leave this out")
        return None
    judge = domain.quality
    if ":" in spec:
        return Quality(load_function(spec, "a quality"), higher_is_better, spec.partition(":")[2])
    if judge is None:
        raise ValueError(
            f"{domain.name} has no qualities of its own; name a function of final states, package.module:function"
        )
    if spec not in (names := _names_of(judge, domain)):
        raise unknown(f"quality of {domain.name}", spec, names)
    return Quality(lambda final, problem: judge(final, problem.constraint), higher_is_better, spec)


def _names_of(judge: Callable[[Tensor, Any], dict[str, Tensor]], domain: Domain) -> list[str]:
    """The qualities that a domain judges by, as it calls them: those of a few states that nothing was done to."""
    from trimtab.core.rollout import noise_of

    problem = domain.problem(range(2))
    return list(judge(problem.sampler.start(noise_of(problem.sampler, problem.seeds)), problem.constraint))
