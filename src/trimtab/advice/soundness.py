"""Whether a projection can be relied on, and whether rollouts that begin a hair apart stay together."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from trimtab.core.applied import checked_projection
from trimtab.core.constraint import Constraint
from trimtab.core.groups import Groups
from trimtab.core.metrics import Distance
from trimtab.core.noise import Noise
from trimtab.core.problem import Problem
from trimtab.core.record import Rollout
from trimtab.core.rollout import Sampler, rollout, take_rows
from trimtab.core.schedule import Schedule, Watched
from trimtab.schedules import Periodic, Stepwise

__all__ = [
    "Stability",
    "divergence",
    "final_stability",
    "loop_divergence",
    "projection_stability",
    "recorded_stability",
]


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
    sampler: Sampler,
    constraint: Constraint,
    seeds: Tensor,
    stepwise: Rollout,
    samples: int = 4,
    groups: Groups | None = None,
) -> Stability:
    """Look at a stepwise rollout's projections, and nudge a few states before projecting them.

    Args:
        sampler: For these seeds.
        constraint: For these seeds.
        seeds: (n,).
        stepwise: The stepwise rollout of them.
        samples: How many samples are nudged, at four moments each.
        groups: Of the samples, whose projection wants whole ones.
    """
    rows = torch.arange(min(samples, len(seeds)))
    options: dict[str, Any] = {"keep_states": True, "measure_defects": True}
    if groups is not None:
        rows = (groups.of_row <= groups.of_row[rows].max()).nonzero().squeeze(1)
        options["groups"] = groups.take(rows)
    some = constraint.take(rows)
    T = sampler.n_steps
    run = rollout(take_rows(sampler, rows), some, Periodic(max(1, T // 4)), seeds[rows], **options)
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


def final_stability(constraint: Constraint | None, stepwise: Rollout, samples: int = 8) -> tuple[float, float]:
    """Amplification and `again` of a projection whose loop is not known, from the final states of a rollout.

    They are moved off at random, as far as the defects of the rollout are on average, and projected.

    Args:
        constraint: For all samples of the rollout; None for one that is not known either.
        stepwise: The rollout, projected at every step.
        samples: How many are tried, at the most.
    """
    off = float(stepwise.defects.double().mean())
    if constraint is None or not isinstance(stepwise.final, Tensor) or not off > 0:
        return math.nan, math.nan
    rows = torch.arange(min(samples, len(stepwise.final)))
    generator = torch.Generator().manual_seed(0)
    x = stepwise.final[rows.to(stepwise.final.device)]
    way = torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x)
    way = way * (off / _norm(way)).reshape(-1, *([1] * (x.ndim - 1)))
    return _nudged(constraint.take(rows), x + way, generator)


def loop_divergence(
    nudge: Callable[[Schedule, float], Rollout] | None, stepwise: Rollout, distance: Distance, size: float = 1e-6
) -> float:
    """By what factor a loop's rollouts grow apart that begin a hair apart, both projected at every step.

    How far apart they begin is known only as a share of the size of the initial states. So how far apart they end is
    taken as a share too, of how far final states of different samples are apart (of their size, if they are all alike).

    Args:
        nudge: Runs the loop with its initial states moved by that share; None where it cannot.
        stepwise: The loop's rollout, projected at every step.
        distance: Between states.
        size: Of the nudge.

    Returns:
        The median over samples; NaN where it cannot be told.
    """
    if nudge is None or not isinstance(stepwise.final, Tensor) or len(stepwise.final) < 2:
        return math.nan
    other = nudge(Watched(Stepwise()), size)
    if other.final.shape != stepwise.final.shape:
        raise ValueError(
            f"nudge(schedule, size) must run the loop that measures, {tuple(stepwise.final.shape)} final states: got "
            f"{tuple(other.final.shape)}"
        )
    apart = distance(stepwise.final, other.final).double()
    usual = float(distance(stepwise.final, stepwise.final.roll(1, dims=0)).double().median())
    usual = usual or float(stepwise.final.abs().double().mean())
    if bool((apart == 0).all()):
        raise ValueError("nudge(schedule, size) ended where the loop itself did: it must move the initial states")
    return float(apart.median()) / (size * usual) if usual > 0 else math.nan


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
