"""Measurements that tell whether the timing of corrections is worth anything: what `advise` looks at.

Each is a small experiment on paired rollouts. The most telling one gives every sample a single correction at a random
step and compares it with the same sample, same noise, left alone: that shows what a correction is worth, how long it
lasts, and whether the height of the defect tells.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from trimtab.core.applied import checked_projection
from trimtab.core.constraint import Constraint
from trimtab.core.engine import RunBatch, ahead
from trimtab.core.metrics import Distance, endpoint_distance, euclidean
from trimtab.core.noise import Noise
from trimtab.core.problem import Problem
from trimtab.core.record import Rollout
from trimtab.core.rollout import Sampler, rollout, take_rows
from trimtab.core.schedule import Watched
from trimtab.schedules import Fixed, Periodic, Stepwise

__all__ = [
    "Effects",
    "Interval",
    "Stability",
    "bootstrap",
    "correction_effects",
    "divergence",
    "euclidean",
    "mean",
    "projection_stability",
    "rank_correlation",
    "recorded_stability",
]

_RESAMPLES = 1000

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
    generator = torch.Generator().manual_seed(0)
    again = torch.randint(len(values), (resamples, len(values)), generator=generator)
    spread = statistic(values[again]).double()
    spread = spread[~spread.isnan()]
    here = float(statistic(values[None])[0])
    if len(spread) == 0:
        return Interval(here, math.nan, math.nan)
    low, high = spread.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return Interval(here, low, high)


def mean(values: Tensor) -> Tensor:
    """Of the values that are not NaN, (r, n) to (r,)."""
    return values.nanmean(dim=1)


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
    """Give every sample one correction at a random step, `rounds` times over, and compare with `alone`.

    Args:
        run: Runs the batch of `alone` under a schedule.
        alone: The terminal rollout.
        stepwise: The stepwise rollout, paired with it.
        distance: The domain's rho.
        rounds: How many rollouts of the batch.
    """
    T, n = alone.defects.shape
    T -= int(alone.closing_rule == "paid")  # the last step corrects all, and has nothing to tell
    generator = torch.Generator().manual_seed(0)
    everyone, steps = torch.arange(n), torch.arange(alone.n_steps)
    far = endpoint_distance(alone, stepwise, distance).cpu().double()
    when, values, endpoints, gains = [], [], [], []
    for _ in range(rounds):
        # one stratum of the steps for each sample, so that few samples still cover all times
        place = torch.randperm(n, generator=generator) + torch.rand(n, generator=generator)
        when.append((place / n * T).long().clamp(max=T - 1))
    schedules = [Watched(Fixed((steps[:, None] == at).to(alone.projected.device))) for at in when]
    ahead(run, schedules)
    for schedule in schedules:
        once = run(schedule)
        gain = (alone.residuals - once.residuals).cpu().double()[:T]
        values.append(gain.sum(dim=0))
        endpoints.append(far - endpoint_distance(once, stepwise, distance).cpu().double())
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


# ------------------------------------------------------------------ is the projection sound


@dataclass(frozen=True)
class Stability:
    """How far a projection can be relied on.

    Attributes:
        failed: The share of projections of a stepwise rollout that did not converge.
        left_over: The share of the defect that a projection leaves.
        amplification: The largest factor by which a small change of a state (1% of its way to feasible) came out of
            the projection; at most about 1 for a well-behaved one, NaN where it could not be measured.
        again: How far projecting a second time moves a state, as a share of the first way; 0 for a projection.
        divergence: By what factor two rollouts a hair apart at the start are apart at the end, both fully projected.
    """

    failed: float
    left_over: float
    amplification: float
    again: float = math.nan
    divergence: float = math.nan

    @property
    def sound(self) -> bool:
        """Whether nothing speaks against it."""
        steady = not self.amplification > 10 and not self.again > 0.05
        return self.failed <= 0.02 and self.left_over <= 0.05 and steady

    @property
    def chaotic(self) -> bool:
        """Whether final states say nothing about each other, because rollouts part however close they begin."""
        return self.divergence > 1e3


def projection_stability(
    sampler: Sampler, constraint: Constraint, seeds: Tensor, stepwise: Rollout, samples: int = 4
) -> Stability:
    """Look at a stepwise rollout's projections, and nudge a few states before projecting them.

    Args:
        sampler: For these seeds.
        constraint: For these seeds.
        seeds: (n,).
        stepwise: The stepwise rollout of them.
        samples: How many samples are nudged, at four moments each.
    """
    rows = torch.arange(min(samples, len(seeds)))
    some = constraint.take(rows)
    T = sampler.n_steps
    run = rollout(
        take_rows(sampler, rows), some, Periodic(max(1, T // 4)), seeds[rows], keep_states=True, measure_defects=True
    )
    assert run.states is not None
    before = [t for t in range(T - 1) if not bool(run.projected[t].any())]  # states as a schedule would find them
    chosen = sorted({before[len(before) * (2 * k + 1) // 8] for k in range(4)}) if before else []
    generator = torch.Generator().manual_seed(0)
    nudged = [_nudged(some, run.states[t + 1], generator) for t in chosen]
    factor, again = (max((f[i] for f in nudged if not math.isnan(f[i])), default=math.nan) for i in range(2))
    return recorded_stability(stepwise, factor, again)


def recorded_stability(stepwise: Rollout, amplification: float = math.nan, again: float = math.nan) -> Stability:
    """What the record of a stepwise rollout shows by itself, where no state can be nudged."""
    total = float(stepwise.defects.sum())
    return Stability(
        failed=float(stepwise.failed.double().mean()),
        left_over=float(stepwise.residuals.sum()) / total if total > 0 else 0.0,
        amplification=amplification,
        again=again,
    )


def _nudged(constraint: Constraint, x: Tensor, generator: torch.Generator) -> tuple[float, float]:
    """By what factor a small change of a state comes out of the projection, and how far a second projection moves."""
    with torch.no_grad():
        there = checked_projection(constraint, x).x
        way = _norm(there - x)
        nudge = torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x)
        nudge = nudge * (0.01 * way / _norm(nudge)).reshape(-1, *([1] * (x.ndim - 1)))
        moved = _norm(checked_projection(constraint, x + nudge).x - there) / _norm(nudge)
        again = _norm(checked_projection(constraint, there).x - there) / way
    off = way > 1e-6 * (1 + _norm(x))  # a feasible state has no way to go, and nothing to say
    return (float(moved[off].max()), float(again[off].max())) if bool(off.any()) else (math.nan, math.nan)


def divergence(problem: Problem, stepwise: Rollout, distance: Distance, size: float = 1e-6) -> float:
    """By what factor two rollouts a hair apart at the start are apart at the end, both projected at every step.

    Args:
        problem: What is sampled.
        stepwise: Its rollout, projected at every step.
        distance: Between states.
        size: Of the nudge, relative to the size of the initial states.

    Returns:
        The median over samples; NaN for states that are not one tensor.
    """
    if not isinstance(stepwise.final, Tensor):
        return math.nan
    nudged = _Nudged(problem.sampler, size)
    other = replace(problem, sampler=nudged).rollout(Stepwise(), closing=stepwise.closing_rule, measure_defects=False)
    apart = distance(stepwise.final, other.final).double()
    began = nudged.began.get("apart")
    if began is None or not bool((began > 0).any()):
        return math.nan
    return float((apart.cpu()[began > 0] / began[began > 0]).median())


@dataclass(frozen=True, eq=False)
class _Nudged:
    """A sampler whose initial states are moved by a hair."""

    sampler: Sampler
    size: float
    began: dict[str, Tensor] = field(default_factory=dict)

    @property
    def n_steps(self) -> int:
        return self.sampler.n_steps

    @property
    def dtype(self) -> torch.dtype:
        return getattr(self.sampler, "dtype", torch.float64)

    def start(self, noise: Noise) -> Tensor:
        x: Tensor = self.sampler.start(noise)
        way = self.size * torch.randn(x.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(x)
        self.began["apart"] = _norm(way * x.abs().mean()).double().cpu()
        return x + way * x.abs().mean()

    def step(self, x: Tensor, t: int, noise: Noise) -> Tensor:
        step: Tensor = self.sampler.step(x, t, noise)
        return step


def _norm(x: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(x.flatten(1), dim=1)
    return norm
