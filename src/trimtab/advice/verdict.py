"""One rule for every comparison: is the dearer of two ways better, no better within the tolerance, or undecided?"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

from trimtab.core.statistics import Summary, summarize

__all__ = ["Judgement", "Verdict", "judge"]

Verdict = Literal["better", "no better", "undecided"]

_POWER = 3.3  # standard errors between a mean and a limit at which the interval leaves the limit out 4 times in 5
_ALIKE = 24  # pairs without a difference: with fewer, a loss in one sample of ten goes unseen too often
_MOST = 10**6  # seeds, beyond which no number is said


@dataclass(frozen=True)
class Judgement:
    """Whether the dearer of two ways is better than the cheaper one, over seeds that both were run on.

    Attributes:
        verdict: "no better" if the whole 95% interval of the loss is within the tolerance, "better" if it is above 0,
            else "undecided".
        loss: What the cheaper way loses, in the unit of the measure, lower measures being better.
        seeds: How many seeds would about decide; those there were if it is decided.
    """

    verdict: Verdict
    loss: Summary
    seeds: int

    @property
    def words(self) -> str:
        """Return the verdict for reports."""
        if self.verdict == "no better":
            return "no better within the tolerance"
        if self.verdict == "better":
            return "better"
        return f"undecided ({seeds_in_words(self.seeds)} would decide)"


def judge(cheaper: Tensor, dearer: Tensor, tolerance: float, tail: Tensor | None = None) -> Judgement:
    """Judge two ways by the measures of the same samples, (n,) each, lower being better; NaN is left out.

    There is no interval if that of the mean of `tail`, (n,), is not known. It is what terminal projection loses: where
    rare samples lose much, a cheaper way may lose as much in one that was not drawn.

    Example:
        >>> import torch
        >>> dear = torch.arange(32.0)
        >>> noise = 2 * torch.sin(torch.arange(32.0))
        >>> [judge(dear + loss + noise, dear, 0.7).verdict for loss in (0.0, 0.4, 2.0)]
        ['no better', 'undecided', 'better']
    """
    lost = (cheaper - dearer).double()
    lost = lost[~lost.isnan()]
    found = summarize(lost)
    if tail is not None and not (whole := summarize(tail)).reliable:
        found = replace(found, low=math.nan, high=math.nan, top_share=whole.top_share, reliable=False)
    if found.high <= tolerance and (tolerance == 0 or len(lost) >= _ALIKE or bool((lost != 0).any())):
        return Judgement("no better", found, len(lost))
    if found.low > 0:
        return Judgement("better", found, len(lost))
    return Judgement("undecided", found, _seeds_to_decide(lost, tolerance))


def _seeds_to_decide(lost: Tensor, tolerance: float) -> int:
    """Return about how many seeds would decide: the interval must get off 0, or below the tolerance."""
    n = len(lost)
    if n < 2:
        return _MOST + 1
    if not bool((lost != 0).any()):
        return _ALIKE
    mean, spread = float(lost.mean()), float(lost.std())
    gap = max(mean, tolerance - mean)
    needed = (_POWER * spread / gap) ** 2 if gap > 0 else math.inf
    if needed > _MOST:
        return _MOST + 1
    return two_digits(max(needed, 2 * n))


def two_digits(count: float) -> int:
    """Round up to two digits.

    Example:
        >>> two_digits(1234), two_digits(96)
        (1300, 96)
    """
    size: int = 10 ** max(math.floor(math.log10(max(count, 1))) - 1, 0)
    return math.ceil(count / size) * size


def seeds_in_words(seeds: int) -> str:
    """Return about how many seeds, in words."""
    return f"over {_MOST:,} seeds" if seeds > _MOST else f"about {seeds:,} seeds"
