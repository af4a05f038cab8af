"""What advice checks before it recommends: the projection, the rollout, and what single corrections do."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from trimtab.core.arrays import Form, Leaves, pick
from trimtab.core.bound_constraint import BoundConstraint, bind
from trimtab.core.constraint import Constraint
from trimtab.core.metrics import Distance, endpoint_distance, measured_distance
from trimtab.core.noise import Noise
from trimtab.core.record import Rollout
from trimtab.core.repeatable import RunBatch
from trimtab.core.statistics import Summary, bootstrap, rank_correlation
from trimtab.loop.rollout import Problem, Sampler, noise_of
from trimtab.schedules import Fixed, Periodic, Stepwise
from trimtab.schedules.measured import measured

__all__ = ["Effects", "Stability", "correction_effects"]

_NUDGE = 1e-6  # size of the change of the initial states, as a share of their size
_TRIED = 4  # samples whose projection is tried after a small change


@dataclass(frozen=True)
class Stability:
    """How reliable the projection and the rollout are."""

    failed: float  # share of the projections of a stepwise rollout that did not converge
    left_over: float  # share of the defect that a projection leaves
    # the largest factor by which a projection enlarges a small change of a state (1% of its distance to feasible);
    # about 1 for a well-behaved projection, NaN if not measured
    amplification: float = math.nan
    again: float = math.nan  # how far a second projection moves a state, as a share of the first; 0 for a projection
    # by what factor two fully projected rollouts that start a hair apart end farther apart
    divergence: float = math.nan

    @property
    def reliable(self) -> bool:
        """Return whether few projections fail, little defect is left, and a second projection moves nothing."""
        return self.failed <= 0.02 and self.left_over <= 0.05 and not self.again > 0.05

    @property
    def sound(self) -> bool:
        """Return whether projections are reliable and small changes stay small."""
        return self.reliable and not self.amplification > 10

    @property
    def chaotic(self) -> bool:
        """Return whether rollouts part however close they start, so that distances of final states say nothing."""
        return self.divergence > 1e3


def recorded_stability(stepwise: Rollout) -> Stability:
    """Return the share of failed projections and the share of the defect that is left, from a stepwise rollout."""
    total = float(stepwise.defects.sum())
    left = float(stepwise.residuals.sum()) / total if total > 0 else 0.0
    return Stability(float(stepwise.failed.double().mean()), left)


def problem_stability(problem: Problem, stepwise: Rollout) -> Stability:
    """Perturb the states of a few samples at up to four steps, and measure how far projections carry the change."""
    some, T = problem.take(torch.arange(min(_TRIED, len(problem)))), problem.n_steps
    record = some.rollout(Periodic(max(1, T // 4)), keep_states=True, measure_defects=True)
    uncorrected = [t for t in range(T - 1) if not bool(record.projected[t].any())]
    chosen = sorted({uncorrected[len(uncorrected) * (2 * k + 1) // 8] for k in range(4)}) if uncorrected else []
    generator = torch.Generator().manual_seed(0)
    found = []
    for t in chosen:
        known = {"t": t, "previous": pick(record.states, t)}
        context = {need: known[need] for need in some.constraint.needs}
        found.append(_perturbed(*bind(some.constraint, pick(record.states, t + 1), **context), generator))
    factor, again = (max((f[i] for f in found if not math.isnan(f[i])), default=math.nan) for i in range(2))
    return replace(recorded_stability(stepwise), amplification=factor, again=again)


def loop_stability(constraint: Constraint | None, stepwise: Rollout, samples: int = 8) -> Stability:
    """Move final states of a loop off the constraint, as far as its mean defect, and project them.

    Without a constraint, or with one that needs more than the states, only the record is used.
    """
    found = recorded_stability(stepwise)
    off = float(stepwise.defects.double().mean())
    if constraint is None or constraint.needs or not off > 0:
        return found
    rows = torch.arange(min(samples, stepwise.projected.shape[1]))
    generator = torch.Generator().manual_seed(0)
    bound, x = bind(constraint.take(rows), pick(stepwise.final, slice(len(rows))))
    factor, again = _perturbed(bound, _moved(x, off * _unit(_flat(x), generator)), generator)
    return replace(found, amplification=factor, again=again)


def problem_divergence(problem: Problem, stepwise: Rollout, distance: Distance) -> float:
    """Return the median factor by which the distance of a nudged rollout grows; NaN if nothing was moved."""
    moved = replace(problem, sampler=_Nudged(problem.sampler))
    run = moved.rollout(Stepwise(), closing=stepwise.closing_rule, measure_defects=False)
    apart = measured_distance(distance, stepwise.final, run.final).double().cpu()
    with torch.no_grad():
        x = problem.sampler.start(noise_of(problem.sampler, problem.seeds))
        start = _Nudged.hair(Form(x).leaves(x)).norm(dim=1).cpu()
    changed = start > 0
    return float((apart[changed] / start[changed]).median()) if bool(changed.any()) else math.nan


@dataclass(frozen=True, eq=False)
class _Nudged:
    """A sampler whose initial states are moved by a hair."""

    sampler: Sampler

    @property
    def n_steps(self) -> int:
        return self.sampler.n_steps

    @property
    def dtype(self) -> torch.dtype:
        return getattr(self.sampler, "dtype", torch.float64)

    def start(self, noise: Noise) -> Any:
        x = self.sampler.start(noise)
        form = Form(x)
        return form.state(_moved(form.leaves(x), self.hair(form.leaves(x))))

    def step(self, x: Any, t: int, noise: Noise) -> Any:
        return self.sampler.step(x, t, noise)

    @staticmethod
    def hair(leaves: Leaves) -> Tensor:
        """Return by how much the initial states are moved, (n, d)."""
        flat = _flat(leaves)
        return _NUDGE * flat.abs().mean() * _normal(flat, torch.Generator().manual_seed(1))


def _perturbed(bound: BoundConstraint, x: Leaves, generator: torch.Generator) -> tuple[float, float]:
    """Return how unsteady projections are: two numbers, the largest over the samples.

    The first is the factor by which a projection enlarges a small change of the state. The second is how far a second
    projection moves the state, as a share of the first one's move.
    """
    with torch.no_grad():
        there = _projected(bound, x)
        way = (_flat(there) - _flat(x)).norm(dim=1)
        change = _unit(_flat(x), generator) * (0.01 * way)[:, None]
        moved = (_flat(_projected(bound, _moved(x, change))) - _flat(there)).norm(dim=1) / change.norm(dim=1)
        again = (_flat(_projected(bound, there)) - _flat(there)).norm(dim=1) / way
    off = way > 1e-6 * (1 + _flat(x).norm(dim=1))  # a feasible state has nowhere to go
    return (float(moved[off].max()), float(again[off].max())) if bool(off.any()) else (math.nan, math.nan)


def _projected(bound: BoundConstraint, x: Leaves) -> Leaves:
    answer = bound.project(x)
    return answer.x


def _flat(x: Leaves) -> Tensor:
    """Return all floats of the states, (n, d) float64."""
    return torch.cat([leaf.double().reshape(len(leaf), -1) for leaf in x if leaf.is_floating_point()], dim=1)


def _moved(x: Leaves, step: Tensor) -> Leaves:
    """Add a step, (n, d), to all floats of the states."""
    floats = [leaf for leaf in x if leaf.is_floating_point()]
    parts = iter(torch.split(step, [leaf[0].numel() for leaf in floats], dim=1))
    return tuple(leaf + next(parts).reshape(leaf.shape).to(leaf) if leaf.is_floating_point() else leaf for leaf in x)


def _normal(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like)


def _unit(like: Tensor, generator: torch.Generator) -> Tensor:
    """Return random directions, (n, d), of length 1."""
    step = _normal(like, generator)
    unit: Tensor = step / step.norm(dim=1, keepdim=True)
    return unit


@dataclass(frozen=True, eq=False)
class Effects:
    """What one correction of each of n samples at a random step did, compared with the same samples left alone."""

    step: Tensor  # the step of each, (n,)
    defect: Tensor  # the defect at that step, (n,)
    value: Tensor  # how much the path error fell, (n,)
    endpoint: Tensor  # how much the distance to the stepwise rollout's final state fell, (n,)
    survival: Tensor  # the share of the first benefit that is left k steps later, k = 0, 1, …, (K,); NaN if unknown
    # the share left after one step, for corrections in the first, second and last third of the rollout
    one_step: tuple[float, float, float]

    @property
    def half_life(self) -> float:
        """Return the number of steps until half of a correction's benefit is gone; inf if that is not seen."""
        below = (self.survival <= 0.5).nonzero()
        if len(below) == 0:
            return math.inf
        k = int(below[0])
        high, low = float(self.survival[k - 1]), float(self.survival[k])
        return k - 1 + (high - 0.5) / (high - low)

    def alignment(self, worth: Tensor) -> Summary:
        """Return the rank correlation of the defect with a measured worth, (n,), bootstrapped over samples."""
        pairs = torch.stack([self.defect, worth], dim=1)
        return bootstrap(lambda sets: rank_correlation(sets[..., 0], sets[..., 1]), pairs)


def correction_effects(run: RunBatch, alone: Rollout, stepwise: Rollout, distance: Distance) -> Effects:
    """Correct every sample once at a random step, and compare with the terminal rollout."""
    T, n = alone.defects.shape
    T -= int(alone.closing_rule == "paid")  # the last step corrects all samples
    generator = torch.Generator().manual_seed(0)
    steps = torch.arange(alone.n_steps)
    # one stratum of the steps per sample, so that few samples cover all steps
    place = torch.randperm(n, generator=generator) + torch.rand(n, generator=generator)
    step = (place / n * T).long().clamp(max=T - 1)
    once = run(measured(Fixed((steps[:, None] == step).to(alone.projected.device))))
    gain = (alone.residuals - once.residuals).cpu().double()[:T]
    lag = step + steps[:T, None]  # (T, n): the step k after the correction
    left = torch.where(lag < T, gain.gather(0, lag.clamp(max=T - 1)), torch.nan)
    thirds = [_survival(left[:, step * 3 // T == third], 2)[1].item() for third in range(3)]
    to_go = [endpoint_distance(record, stepwise, distance).cpu().double() for record in (alone, once)]
    return Effects(
        step=step,
        defect=alone.defects.cpu().double()[step, torch.arange(n)],
        value=gain.sum(dim=0),
        endpoint=to_go[0] - to_go[1],
        survival=_survival(left, max(2, min(T // 2, 100))),
        one_step=(thirds[0], thirds[1], thirds[2]),
    )


def _survival(left: Tensor, lags: int) -> Tensor:
    """Return the mean benefit k steps later over the mean benefit at once, of samples that have both, (lags,)."""
    known = ~left[:lags].isnan()
    now = torch.where(known, left[:1], 0.0).sum(dim=1)
    later = torch.where(known, left[:lags], 0.0).sum(dim=1)
    return torch.where(now > 0, later / now, torch.nan)
