"""Whether a projection can be relied on, and whether rollouts that begin a hair apart stay together."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from trimtab.core.arrays import Form, Leaves, map_leaves, pick, rowwise
from trimtab.core.bound_constraint import BoundConstraint, bind
from trimtab.core.constraint import Constraint
from trimtab.core.metrics import Distance, measured_distance
from trimtab.core.noise import Noise
from trimtab.core.problem import Problem
from trimtab.core.record import Rollout
from trimtab.core.repeatable import as_record
from trimtab.core.rollout import Sampler, noise_of
from trimtab.core.runner import RunBatch
from trimtab.core.schedule import Schedule, Watched
from trimtab.schedules import Periodic, Stepwise

__all__ = [
    "Stability",
    "divergence",
    "final_stability",
    "first_samples",
    "loop_divergence",
    "nudged",
    "projection_stability",
    "recorded_stability",
]

_TRIED = 4  # samples that are nudged before they are projected


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


def first_samples(problem: Problem) -> Problem:
    """The same problem for its first few samples, in whole groups: what a projection does is tried on those."""
    rows = torch.arange(min(_TRIED, len(problem)))
    if problem.groups is not None:
        of_row = problem.groups.of_row
        rows = (of_row <= of_row[rows].max()).nonzero().squeeze(1)
    return problem.take(rows)


def projection_stability(some: Problem, run: RunBatch, stepwise: Rollout) -> Stability:
    """Look at a stepwise rollout's projections, and nudge a few states before projecting them.

    Args:
        some: A few samples, which are nudged at four moments each.
        run: Runs them, and keeps states and defects.
        stepwise: The stepwise rollout of all samples.
    """
    T = some.n_steps
    record = run(Periodic(max(1, T // 4)))
    assert record.states is not None
    left = [t for t in range(T - 1) if not bool(record.projected[t].any())]  # states as a schedule would find them
    chosen = sorted({left[len(left) * (2 * k + 1) // 8] for k in range(4)}) if left else []
    generator = torch.Generator().manual_seed(0)
    found = []
    for t in chosen:
        known = {"t": t, "previous": pick(record.states, t)}
        told = {need: known[need] for need in some.constraint.needs}  # a rollout tells no more than those
        found.append(_nudged(*bind(some.constraint, pick(record.states, t + 1), **told), generator))
    factor, again = (max((f[i] for f in found if not math.isnan(f[i])), default=math.nan) for i in range(2))
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
        constraint: For all samples of the rollout; None for one that is not known either. What needs to know more than
            the states cannot be tried.
        stepwise: The rollout, projected at every step.
        samples: How many are tried, at the most.
    """
    off = float(stepwise.defects.double().mean())
    if constraint is None or constraint.needs or not off > 0:
        return math.nan, math.nan
    rows = torch.arange(min(samples, stepwise.projected.shape[1]))
    generator = torch.Generator().manual_seed(0)
    applied, x = bind(constraint.take(rows), pick(stepwise.final, slice(len(rows))))
    return _nudged(applied, _sum(x, _way(x, off, generator)), generator)


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
    if nudge is None or stepwise.projected.shape[1] < 2:
        return math.nan
    final = stepwise.final
    what = "nudge(schedule, size) must return the record of its run, corrector.rollout"
    other = as_record(nudge(Watched(Stepwise()), size), what)
    ours, theirs = ([tuple(shape) for shape in Form(state).shapes] for state in (final, other.final))
    if ours != theirs:
        raise ValueError(
            f"nudge(schedule, size) must run the loop that measures, with final states of shape {ours}: got {theirs}"
        )
    apart = measured_distance(distance, final, other.final).double()
    usual = float(distance(final, map_leaves(lambda leaf: leaf.roll(1, dims=0), final)).double().median())
    usual = usual or _mean_size(Form(final).leaves(final))
    if bool((apart == 0).all()):
        raise ValueError("nudge(schedule, size) ended where the loop itself did: it must move the initial states")
    return float(apart.median()) / (size * usual) if usual > 0 else math.nan


def _nudged(applied: BoundConstraint, x: Leaves, generator: torch.Generator) -> tuple[float, float]:
    """By what factor a small change of a state comes out of the projection, and how far a second projection moves."""
    with torch.no_grad():
        there = _projected(applied, x)
        way = _norm(_difference(there, x))
        nudge = _way(x, 0.01 * way, generator)
        moved = _norm(_difference(_projected(applied, _sum(x, nudge)), there)) / _norm(nudge)
        again = _norm(_difference(_projected(applied, there), there)) / way
    off = way > 1e-6 * (1 + _norm(x))  # a feasible state has no way to go, and nothing to say
    return (float(moved[off].max()), float(again[off].max())) if bool(off.any()) else (math.nan, math.nan)


def _projected(applied: BoundConstraint, x: Leaves) -> Leaves:
    answer = applied.project(x)
    applied.check_answers(answer)
    return answer.x


def nudged(problem: Problem, size: float = 1e-6) -> Problem:
    """The same problem with its initial states moved by a hair, `size` times their own size."""
    return replace(problem, sampler=_Nudged(problem.sampler, size))


def divergence(moved: Problem, run: RunBatch, stepwise: Rollout, distance: Distance) -> float:
    """By what factor two rollouts a hair apart at the start are apart at the end, both projected at every step.

    Args:
        moved: What `nudged` made of a problem.
        run: Runs it.
        stepwise: The problem's own rollout, projected at every step.
        distance: Between states.

    Returns:
        The median over samples; NaN where nothing was moved.
    """
    other = run(Stepwise())
    apart = measured_distance(distance, stepwise.final, other.final).double()
    assert isinstance(moved.sampler, _Nudged)
    began = moved.sampler.began_apart(moved.seeds)
    if not bool((began > 0).any()):
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

    def began_apart(self, seeds: Tensor) -> Tensor:
        """How far apart the initial states are, (n,); begun once more if that was done elsewhere, or earlier."""
        if "apart" not in self.began:
            with torch.no_grad():
                self.start(noise_of(self, seeds))
        return self.began["apart"]

    def start(self, noise: Noise) -> Any:
        x = self.sampler.start(noise)
        form = Form(x)
        leaves = form.leaves(x)
        generator = torch.Generator().manual_seed(1)
        sizes = [self.size * float(leaf.abs().double().mean()) for leaf in leaves]
        way = tuple(size * part for size, part in zip(sizes, _random(leaves, generator), strict=True))
        self.began["apart"] = _norm(way).double().cpu()
        return form.state(_sum(leaves, way))

    def step(self, x: Any, t: int, noise: Noise) -> Any:
        return self.sampler.step(x, t, noise)


# ------------------------------------------------------------------ states as vectors


def _random(x: Leaves, generator: torch.Generator) -> Leaves:
    """Normal numbers for all floats of the states; what is not a float stays where it is."""
    return tuple(
        torch.randn(leaf.shape, generator=generator, dtype=torch.float64).to(leaf)
        if leaf.is_floating_point()
        else torch.zeros_like(leaf)
        for leaf in x
    )


def _way(x: Leaves, length: float | Tensor, generator: torch.Generator) -> Leaves:
    """A way in a random direction from each state, as long as asked for."""
    way = _random(x, generator)
    scale = length / _norm(way)
    return tuple(part * rowwise(scale, part).to(part.dtype) if part.is_floating_point() else part for part in way)


def _sum(a: Leaves, b: Leaves) -> Leaves:
    return tuple(one + other if one.is_floating_point() else one for one, other in zip(a, b, strict=True))


def _difference(a: Leaves, b: Leaves) -> Leaves:
    return tuple(one.double() - other.double() for one, other in zip(a, b, strict=True))


def _norm(x: Leaves) -> Tensor:
    """Of each state, (n,), over all of its arrays."""
    parts = [torch.linalg.vector_norm(leaf.double().reshape(len(leaf), -1), dim=1) for leaf in x]
    norm: Tensor = torch.linalg.vector_norm(torch.stack(parts), dim=0)
    return norm


def _mean_size(x: Leaves) -> float:
    return float(torch.cat([leaf.abs().double().flatten() for leaf in x]).mean())
