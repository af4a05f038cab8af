"""The statistics of every comparison: means with honest intervals, paired differences, ratios and verdicts.

Losses have heavy tails: one sample in a hundred may hold most of the sum, and a batch without it looks precise and is
wrong. So an interval is studentised and allows for one more sample beyond the most extreme one, and there is none if
one sample dominates. Repeated seeds are averaged and count once. The global random number generator is not used.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

__all__ = ["Signs", "Summary", "Verdict", "bootstrap", "count_signs", "effective_n", "paired"]
__all__ += ["rank_correlation", "ratio", "summarize", "tail_share", "verdict"]

Verdict = Literal["better", "worse", "same", "undecided"]

_RESAMPLES = 1000
_FEWEST = 8  # samples, below which no interval is shown
_BEYOND = 1.5  # the unseen sample is so many times as far from the median as the most extreme one
_LEAST_ERROR = 0.25  # of the standard error: a resample without the few that differ has next to none
_ENDS = torch.tensor([0.025, 0.975], dtype=torch.float64)


@dataclass(frozen=True)
class Summary:
    """An estimate with its 95% interval, and how much it depends on a few samples.

    Attributes:
        mean: The estimate, usually a mean.
        low: Lower end of the interval; NaN if the tail is not known.
        high: Upper end.
        median: Median of the samples.
        n: Number of independent samples (distinct seeds or clusters).
        top_share: Share of the total deviation from the median that the largest sample holds.
        effective_n: Number of equally large deviations with the same spread.
        reliable: Whether an interval may be shown.
    """

    mean: float
    low: float = math.nan
    high: float = math.nan
    median: float = math.nan
    n: int = 0
    top_share: float = math.nan
    effective_n: float = math.nan
    reliable: bool = False

    def __str__(self) -> str:
        """Return the mean with its interval, as in `0.300 (0.100 to 0.500)`."""
        if math.isnan(self.mean):
            return "n/a"
        if math.isnan(self.low) or math.isnan(self.high):
            return f"{self.mean:.3f} (interval not known)"
        return f"{self.mean:.3f} ({self.low:.3f} to {self.high:.3f})"

    def facts(self) -> dict[str, float | int | bool | None]:
        """Return the attributes for JSON, with None for NaN."""
        return {name: None if value != value else value for name, value in vars(self).items()}


class Signs(NamedTuple):
    """How many pairs are lower, higher and equal, and the two-sided p-value of a sign test."""

    lower: int
    higher: int
    ties: int
    p: float


def summarize(values: Any, clusters: Any = None) -> Summary:
    """Return the mean of samples with a 95% interval, or without one if a few samples decide it.

    Args:
        values: One number per sample, (n,); NaN is left out.
        clusters: Labels, (n,), such as seeds; samples of one label are averaged and count as one.

    Example:
        >>> import torch
        >>> print(summarize(torch.arange(16.0)))
        7.500 (4.175 to 10.828)
        >>> print(summarize([0.1] * 63 + [50.0]))
        0.880 (interval not known)
    """
    x = _clustered(_numbers(values), clusters)
    return _interval(x, float(x.mean()) if len(x) else math.nan, x)


def paired(a: Any, b: Any, clusters: Any = None) -> Summary:
    """Return the mean of `a - b` over paired samples, (n,) each; see `summarize`."""
    return summarize(_numbers(a) - _numbers(b), clusters)


def ratio(part: Any, whole: Any, clusters: Any = None) -> Summary:
    """Return mean(part) / mean(whole) of paired samples, such as a share of the terminal distance.

    The interval is that of the ratio: a sample that ends far away makes both means large. There is none if the tail of
    either is not known: where the whole has rare large samples, so may the part, even if none was drawn.

    Pairs with NaN are left out; without a mean of the whole above 0 the ratio is NaN.
    """
    pair = _clustered(torch.stack([_numbers(part), _numbers(whole)], dim=1), clusters)
    top, bottom = pair.unbind(dim=1)
    scale = float(bottom.mean()) if len(pair) else math.nan
    if not 0 < scale < math.inf:
        return Summary(math.nan, n=len(pair))
    here = float(top.mean()) / scale
    found = _interval((top - here * bottom) / scale, here, top / scale, whole=bottom)
    return replace(found, low=max(found.low, 0.0)) if found.reliable and bool((top >= 0).all()) else found


def verdict(difference: Summary, margin: float = 0.0) -> Verdict:
    """Judge a paired difference, lower being better: beyond the margin, within it, or undecided (no interval)."""
    if difference.high < -margin:
        return "better"
    if difference.low > margin:
        return "worse"
    return "same" if difference.low >= -margin and difference.high <= margin else "undecided"


def count_signs(a: Any, b: Any, clusters: Any = None) -> Signs:
    """Count in how many pairs `a` is lower and higher than `b`, (n,) each, with a sign test; no tail matters to it."""
    x = _clustered(_numbers(a) - _numbers(b), clusters)
    lower, higher = int((x < 0).sum()), int((x > 0).sum())
    n, k = lower + higher, min(lower, higher)
    p = 2 * sum(math.comb(n, i) for i in range(k + 1)) / 2**n if n else 1.0
    return Signs(lower, higher, len(x) - n, min(1.0, p))


def tail_share(values: Any, share: float = 0.01) -> float:
    """Return the share of the sum of non-negative values, (n,), that the largest `share` of them hold, at least one."""
    x = _clustered(_numbers(values))
    total = float(x.sum()) if len(x) else 0.0
    if not 0 < total < math.inf:
        return math.nan
    return float(x.topk(max(1, math.ceil(share * len(x) - 1e-9))).values.sum()) / total


def effective_n(values: Any) -> float:
    """Return (sum of values)² / sum of squares of non-negative values, (n,): n if all are equal, 1 if one holds all."""
    x = _clustered(_numbers(values))
    squares = float((x * x).sum())
    return float(x.sum()) ** 2 / squares if squares > 0 else float(len(x))


def bootstrap(statistic: Callable[[Tensor], Tensor], values: Tensor) -> Summary:
    """Return any statistic of samples with its percentile bootstrap interval.

    `statistic` maps many sets of samples, (r, n, …), to one number each, (r,); `values` are (n, …).
    """
    n, here = len(values), float(statistic(values[None])[0])
    spread = statistic(values[_resamples(n)]).double()
    spread = spread[~spread.isnan()]
    if len(spread) == 0:
        return Summary(here, n=n)
    low, high = spread.quantile(_ENDS).tolist()
    return Summary(here, low, high, n=n, reliable=True)


def rank_correlation(x: Tensor, y: Tensor) -> Tensor:
    """Return Spearman's rank correlation, (…, n) and (…, n) to (…,); ties share their rank, NaN if one is constant."""
    a, b = (ranks - ranks.mean(dim=-1, keepdim=True) for ranks in (_ranks(x), _ranks(y)))
    size = ((a * a).sum(dim=-1) * (b * b).sum(dim=-1)).sqrt()
    return torch.where(size > 0, (a * b).sum(dim=-1) / size, torch.nan)


def _interval(x: Tensor, here: float, shown: Tensor, whole: Tensor | None = None) -> Summary:
    """Return the interval of mean(x), (n,), moved to `here`.

    The median is that of `shown`, (n,). If `whole`, (n,), is given, its tail must be known as well.
    """
    n = len(x)
    if n == 0 or not math.isfinite(here):
        return Summary(here, n=n)
    away = [(one - one.median()).abs() for one in ([x] if whole is None else [x, whole])]
    share = max(float(one.max() / one.sum()) if float(one.sum()) > 0 else 0.0 for one in away)
    effective = min(effective_n(one) for one in away)
    known = n >= _FEWEST and share <= 2 * math.log(n) / n and effective >= _FEWEST / 2
    found = Summary(here, median=float(shown.median()), n=n, top_share=share, effective_n=effective, reliable=known)
    if not known:
        return found
    centre, moved = x.median(), here - float(x.mean())
    unseen = [centre + _BEYOND * (end - centre) for end in (x.min(), x.max())]
    (low, high), (lower, _), (_, higher) = (_studentised(s) for s in (x, *(torch.cat([x, u[None]]) for u in unseen)))
    return replace(found, low=moved + min(low, lower), high=moved + max(high, higher))


def _studentised(x: Tensor) -> tuple[float, float]:
    """Return the studentised bootstrap interval of the mean of x, (n,)."""
    n, mean = len(x), float(x.mean())
    error = float(x.std()) / math.sqrt(n)
    if error <= 1e-12 * abs(mean) or error == 0:
        return mean, mean
    again = x[_resamples(n)]
    away = (again.mean(dim=1) - mean) / (again.std(dim=1) / math.sqrt(n)).clamp(min=_LEAST_ERROR * error)
    below, above = away.quantile(_ENDS).tolist()
    return mean - error * max(above, 0.0), mean - error * min(below, 0.0)


def _numbers(values: Any) -> Tensor:
    return torch.as_tensor(values).detach().cpu().double()


def _clustered(x: Tensor, clusters: Any = None) -> Tensor:
    """Return the samples without NaN, (n,) or (n, k), as means over each cluster if there are labels."""
    known = ~(x.isnan() if x.ndim == 1 else x.isnan().any(dim=1))
    if clusters is None:
        return x[known]
    labels = torch.as_tensor(clusters).detach().cpu()
    if labels.shape != x.shape[:1]:
        raise ValueError(f"clusters must be one label per sample, shape ({len(x)},): got {tuple(labels.shape)}")
    names, which = torch.unique(labels[known], return_inverse=True)
    sums = x.new_zeros(len(names), *x.shape[1:]).index_add_(0, which, x[known])
    counts = which.bincount(minlength=len(names)).double()
    means: Tensor = sums / (counts if x.ndim == 1 else counts[:, None])
    return means


def _resamples(n: int) -> Tensor:
    """Return which samples each resample draws, (r, n); always the same ones."""
    return torch.randint(n, (_RESAMPLES, n), generator=torch.Generator().manual_seed(0))


def _ranks(x: Tensor) -> Tensor:
    x = x.double().contiguous()
    ordered = x.sort(dim=-1).values
    return (torch.searchsorted(ordered, x) + torch.searchsorted(ordered, x, right=True)).double() / 2
