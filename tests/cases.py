"""The cases every law is stated over: samplers, constraints and schedules."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

import free
import trimtab as tt
from trimtab.core.noise import Noise
from trimtab.schedules import (
    AboveNoise,
    AccumulatedDefect,
    Geometric,
    RandomRamp,
    Trigger,
    UntilBelow,
    Window,
)


@dataclass(frozen=True)
class Walk:
    """A random walk with a pull to the origin, in any shape and dtype."""

    n_steps: int = 12
    event: tuple[int, ...] = (3,)
    dtype: torch.dtype = torch.float64

    def start(self, noise: Noise) -> Tensor:
        return noise.start(self.event)

    def step(self, x: Tensor, t: int, noise: Noise) -> Tensor:
        return x - 0.1 * x.sin() + 0.3 * noise.normal(t, self.event)


def rowwise(values: Tensor, x: Tensor) -> Tensor:
    return values.reshape(-1, *([1] * (x.ndim - 1)))


def row_norm(x: Tensor) -> Tensor:
    # summed column by column, in an order that does not depend on the batch: bit-identical alone and in a batch
    total = torch.zeros_like(x.flatten(1)[:, 0])
    for column in x.flatten(1).unbind(1):
        total = total + column * column
    return total.sqrt()


@dataclass(frozen=True, eq=False)
class Sphere(tt.Constraint):
    """The unit sphere."""

    def project(self, x: Tensor) -> Tensor:
        return x / rowwise(row_norm(x), x)

    def defect(self, x: Tensor) -> Tensor:
        return (row_norm(x) - 1).abs()

    def take(self, rows: Tensor) -> Sphere:
        return self


@dataclass(frozen=True, eq=False)
class Ball(tt.Constraint):
    """A ball for each sample, with a radius of its own."""

    radius: Tensor

    def project(self, x: Tensor) -> Tensor:
        return x * rowwise((self.radius.to(x.dtype) / row_norm(x).clamp(min=1e-30)).clamp(max=1), x)

    def defect(self, x: Tensor) -> Tensor:
        return (row_norm(x) - self.radius.to(x.dtype)).clamp(min=0)

    def take(self, rows: Tensor) -> Ball:
        return Ball(self.radius[rows])


def radii(seeds: Tensor) -> Tensor:
    return 0.5 + (seeds % 7) / 7


CONSTRAINTS = {
    "sphere": lambda seeds: Sphere(),
    "ball": lambda seeds: Ball(radii(seeds)),
    "residual": lambda seeds: tt.as_constraint(Sphere().project),
    "solver": lambda seeds: Solver(),
}


@dataclass(frozen=True, eq=False)
class Solver(tt.Constraint):
    """The sphere by a solver that counts its iterations and fails on states with a large first coordinate."""

    limit: float = 1.5

    def project(self, x: Tensor) -> tt.Projection:
        failed = x.flatten(1)[:, 0].abs() > self.limit
        half_way = 0.5 * (x + Sphere().project(x))
        y = torch.where(rowwise(failed, x), half_way, Sphere().project(x))
        return tt.Projection(y, ~failed, torch.where(failed, 50, 3), Sphere().defect(y))

    def defect(self, x: Tensor) -> Tensor:
        return Sphere().defect(x)

    def take(self, rows: Tensor) -> Solver:
        return self


CALIBRATION_SEEDS = range(1000, 1016)


def adaptive(sampler: Walk, budget: float) -> tt.prices.Adaptive:
    return tt.prices.Adaptive(
        free.calibrate(tt.Problem(sampler, Sphere(), CALIBRATION_SEEDS), budget, method="paper", objective="path")
    )


SCHEDULES = {
    "terminal": lambda sampler: tt.Terminal(),
    "stepwise": lambda sampler: tt.Stepwise(),
    "periodic": lambda sampler: tt.Periodic(0.25),
    "periodic-5": lambda sampler: tt.Periodic(5),
    "adaptive": lambda sampler: adaptive(sampler, 0.4),
    "threshold": lambda sampler: tt.schedules.FixedThreshold(0.2, 4),
    "random": lambda sampler: tt.schedules.RandomTimes(0.5, seed=3),
    "fixed": lambda sampler: tt.schedules.Fixed(torch.arange(sampler.n_steps) % 3 == 0),
    "window": lambda sampler: Window(0.25, 0.75),
    "geometric": lambda sampler: Geometric(4),
    "ramp": lambda sampler: RandomRamp(0.5, seed=2),
    "accumulated": lambda sampler: AccumulatedDefect(0.5, 6),
    "trigger": lambda sampler: Trigger(0.1, gap=3),
    "until-below": lambda sampler: UntilBelow(0.1),
    "above-noise": lambda sampler: AboveNoise(torch.full((sampler.n_steps,), 0.2)),
    "function": lambda sampler: lambda view: view.defect > view.defects.mean(dim=0),
}


def correct(x, constraint=None, schedule=None, n_steps=1, **options):
    """What a corrector makes of one batch of proposals, by default on the sphere after every step."""
    return free.Corrector(constraint or Sphere(), schedule or tt.Stepwise(), n_steps, **options)(x)


def allowance(together: Tensor, apart: Tensor) -> float:
    """How far apart a network's samples may be that ought to be the same, from how far apart its bare ones are.

    A network's kernels depend on the batch size and on the processor, so that no number written here would hold
    everywhere. The bare sampler's own states, (n, …), in one batch and in several, show what rounding does on this
    machine; 50 times that, since corrections on the way change how rounding grows, and at least 50 roundings of the
    largest number, in case the bare ones happen to agree.
    """
    least = torch.finfo(together.dtype).eps * float(together.abs().max())
    return 50 * max(float((together - apart).abs().max()), least)
