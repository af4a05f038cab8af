"""Measurements that tell whether the timing of corrections is worth anything: what `advise` looks at.

Each is a small experiment on paired rollouts. The most telling one gives every sample a single correction at a random
step and compares it with the same sample, same noise, left alone: that shows what a correction is worth, how long it
lasts, and whether the height of the defect tells.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from trimtab.core.metrics import Distance, endpoint_distance
from trimtab.core.record import Rollout
from trimtab.core.runner import RunBatch, ahead
from trimtab.core.schedule import Watched
from trimtab.schedules import Fixed

__all__ = [
    "Effects",
    "Interval",
    "bootstrap",
    "correction_effects",
    "mean",
    "rank_correlation",
    "ratio_interval",
]

_RESAMPLES = 1000
_LEAST_ERROR = 0.25  # of the samples' own standard error; see `ratio_interval`
_ENDS = torch.tensor([0.025, 0.975], dtype=torch.float64)

Statistic = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95% interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        """As advice words it."""
        return f"{self.mean:.3f} ({self.low:.3f} to {self.high:.3f})"

    def facts(self) -> dict[str, float | None]:
        """As JSON, which has no NaN."""
        return {name: None if math.isnan(value) else value for name, value in vars(self).items()}


def bootstrap(statistic: Statistic, values: Tensor, resamples: int = _RESAMPLES) -> Interval:
    """A statistic of samples with its percentile bootstrap interval.

    Args:
        statistic: Of many sets of samples at once, (r, n, …) to (r,).
        values: One entry a sample, (n, …).
        resamples: How many; always the same ones.
    """
    spread = statistic(values[_again(len(values), resamples)]).double()
    spread = spread[~spread.isnan()]
    here = float(statistic(values[None])[0])
    if len(spread) == 0:
        return Interval(here, math.nan, math.nan)
    low, high = spread.quantile(_ENDS).tolist()
    return Interval(here, low, high)


def ratio_interval(part: Tensor, whole: Tensor, resamples: int = _RESAMPLES) -> Interval:
    """The ratio of two means of the same samples, with its studentised bootstrap interval.

    Losses are skewed: a few samples that lose much are most of the mean, and a batch that happens to hold none of them
    shows a low mean and a small spread at once. Percentiles of resampled ratios do not know that and end too low. Here
    every resample is measured in its own standard error, so that the upper end lies farther out where the sample is
    skewed. What no sample shows cannot be in the interval: where all agree, it is a point.

    Args:
        part: (n,); pairs with NaN are left out.
        whole: (n,), paired with it; its mean is above 0, and resamples whose is not are left out.
        resamples: How many; always the same ones.

    Returns:
        The ratio; its ends are NaN where one sample or none is known. Where no part is below 0, nor is the lower end.

    Example:
        >>> import torch
        >>> print(ratio_interval(torch.tensor([0.0, 0.0, 1.0, 0.2]), torch.ones(4)))
        0.300 (0.000 to 1.500)
    """
    known = ~(part.isnan() | whole.isnan())
    part, whole = part[known].double().cpu(), whole[known].double().cpu()
    if len(part) == 0:
        return Interval(math.nan, math.nan, math.nan)
    (here,), (error,) = (found.tolist() for found in _ratio_and_error(part[None], whole[None]))
    if math.isnan(here) or math.isnan(error):
        return Interval(here, math.nan, math.nan)
    again = _again(len(part), resamples)
    ratios, errors = _ratio_and_error(part[again], whole[again])
    # a resample that lacks the few that differ has next to no error of its own, and would send the interval to infinity
    away = (ratios - here) / errors.clamp(min=_LEAST_ERROR * error)
    away = away[away.isfinite()]
    if len(away) == 0:  # all samples agree
        return Interval(here, here, here)
    below, above = away.quantile(_ENDS).tolist()
    low, high = here - error * max(above, 0.0), here - error * min(below, 0.0)
    return Interval(here, max(low, 0.0) if bool((part >= 0).all()) else low, high)


def mean(values: Tensor) -> Tensor:
    """Of the values that are not NaN, (r, n) to (r,)."""
    return values.nanmean(dim=1)


def _again(n: int, resamples: int) -> Tensor:
    """Which samples are drawn in each resample, (r, n)."""
    return torch.randint(n, (resamples, n), generator=torch.Generator().manual_seed(0))


def _ratio_and_error(part: Tensor, whole: Tensor) -> tuple[Tensor, Tensor]:
    """Ratios of means and their standard errors to first order, (r, n) twice to (r,); NaN where the whole is none."""
    n, of = part.shape[1], whole.mean(dim=1)
    of = torch.where(of > 0, of, torch.nan)
    ratio = part.mean(dim=1) / of
    if n == 1:
        return ratio, torch.full_like(ratio, torch.nan)
    return ratio, (part - ratio[:, None] * whole).std(dim=1) / (of * math.sqrt(n))


def rank_correlation(x: Tensor, y: Tensor) -> Tensor:
    """Spearman's rank correlation, (…, n) and (…, n) to (…,), ties sharing their mean rank; NaN if either is constant.

    Example:
        >>> import torch
        >>> rank_correlation(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([10.0, 100.0, 1000.0]))
        tensor(1., dtype=torch.float64)
    """
    a, b = (ranks - ranks.mean(dim=-1, keepdim=True) for ranks in (_ranks(x), _ranks(y)))
    size = ((a * a).sum(dim=-1) * (b * b).sum(dim=-1)).sqrt()
    return torch.where(size > 0, (a * b).sum(dim=-1) / size, torch.nan)


def _ranks(x: Tensor) -> Tensor:
    x = x.double().contiguous()
    ordered = x.sort(dim=-1).values
    return (torch.searchsorted(ordered, x) + torch.searchsorted(ordered, x, right=True)).double() / 2


# ------------------------------------------------------------------ what one correction does


@dataclass(frozen=True, eq=False)
class Effects:
    """What single corrections at random steps did, m of them.

    Attributes:
        step: When, (m,).
        defect: Seen at that moment, (m,).
        value: By how much the path error fell, (m,).
        endpoint: By how much the distance to the stepwise rollout's final state fell, (m,).
        survival: The share of the first benefit that is left k steps later, for k = 0, 1, …, (K,); NaN where unknown.
        one_step: The share left after one step for corrections in the first, second and last third of the rollout.
        sample: Which sample each was made on, (m,).
    """

    step: Tensor
    defect: Tensor
    value: Tensor
    endpoint: Tensor
    survival: Tensor
    one_step: tuple[float, float, float]
    sample: Tensor

    @property
    def half_life(self) -> float:
        """Steps until half of a correction's benefit is gone; inf if that is not seen."""
        below = (self.survival <= 0.5).nonzero()
        if len(below) == 0:
            return math.inf
        k = int(below[0])
        high, low = float(self.survival[k - 1]), float(self.survival[k])
        return k - 1 + (high - 0.5) / (high - low)

    def alignment(self, worth: Tensor) -> Interval:
        """How the defect ranks with a measured worth (m,) of correcting, with its interval over samples."""
        n = int(self.sample.max()) + 1
        pairs = torch.stack([self.defect, worth], dim=1).reshape(-1, n, 2).transpose(0, 1)  # (n, rounds, 2)
        return bootstrap(lambda sets: rank_correlation(sets[..., 0].flatten(1), sets[..., 1].flatten(1)), pairs)


def correction_effects(
    run: RunBatch, alone: Rollout, stepwise: Rollout, distance: Distance, rounds: int = 4
) -> Effects:
    """Give every sample, or group, one correction at a random step, `rounds` times over, and compare with `alone`.

    Args:
        run: Runs the batch of `alone` under a schedule.
        alone: The terminal rollout.
        stepwise: The stepwise rollout, paired with it.
        distance: The domain's rho.
        rounds: How many rollouts of the batch.
    """
    groups, alone, stepwise = alone.groups, alone.grouped(), stepwise.grouped()

    def to_go(run: Rollout) -> Tensor:
        apart = endpoint_distance(run, stepwise, distance).cpu().double()
        return apart if groups is None else groups.together(apart)

    T, n = alone.defects.shape
    T -= int(alone.closing_rule == "paid")  # the last step corrects all, and has nothing to tell
    generator = torch.Generator().manual_seed(0)
    everyone, steps = torch.arange(n), torch.arange(alone.n_steps)
    far = to_go(alone)
    when, values, endpoints, gains = [], [], [], []
    for _ in range(rounds):
        # one stratum of the steps for each sample, so that few samples still cover all times
        place = torch.randperm(n, generator=generator) + torch.rand(n, generator=generator)
        when.append((place / n * T).long().clamp(max=T - 1))
    schedules = [Watched(Fixed((steps[:, None] == at).to(alone.projected.device))) for at in when]
    ahead(run, schedules)
    for schedule in schedules:
        once = run(schedule).grouped()
        gain = (alone.residuals - once.residuals).cpu().double()[:T]
        values.append(gain.sum(dim=0))
        endpoints.append(far - to_go(once))
        gains.append(gain)
    step, sample = torch.cat(when), everyone.repeat(rounds)
    after = torch.cat(gains, dim=1)
    lag = step + steps[:T, None]  # (T, m): the step k after the correction
    left = torch.where(lag < T, after.gather(0, lag.clamp(max=T - 1)), torch.nan)
    return Effects(
        step=step,
        defect=alone.defects.cpu().double()[step, sample],
        value=torch.cat(values),
        endpoint=torch.cat(endpoints),
        survival=_survival(left, max(2, min(T // 2, 100))),
        one_step=tuple(_survival(left[:, step * 3 // T == third], 2)[1].item() for third in range(3)),  # type: ignore[arg-type]
        sample=sample,
    )


def _survival(left: Tensor, lags: int) -> Tensor:
    """The mean benefit k steps on over the mean benefit at once, of the samples that have both, (lags,)."""
    known = ~left[:lags].isnan()
    now = torch.where(known, left[:1], 0.0).sum(dim=1)
    later = torch.where(known, left[:lags], 0.0).sum(dim=1)
    return torch.where(now > 0, later / now, torch.nan)
