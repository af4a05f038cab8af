"""Sampling with a quarter of the projections, against a projection after every step.

Counting calls says what could be saved; the clock says what is. The more a step costs besides its projection, the less
a saved projection saves, so beside the ratio each row says what the number of calls and the seconds per call allow.
Projections are made from noise level 6 of 10 on, as Projected Diffusion Models do.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from time import perf_counter
from typing import Any, Literal

import torch
from torch import Tensor

import trimtab as tt
from _compare import median_interval, row, skipped
from _pdm_projection import project_as_pdm
from trimtab.constraints.obstacles import AvoidObstacles, Obstacles
from trimtab.evaluation.domains.pdm import AnnealedLangevin, load_model, shipped_map, start_goal_pairs

Way = Literal["rebuilt", "once", "batched"]
NAMES: dict[Way, str] = {
    "rebuilt": "IPOPT as PDM runs it",
    "once": "IPOPT built once",
    "batched": "batched projection",
}
# samples, Langevin steps per level, repeats
SIZES: dict[Way, tuple[int, int, int]] = {"rebuilt": (1, 2, 3), "once": (4, 4, 3), "batched": (64, 10, 3)}
FIRST_LEVEL = 6
CLAIM = "sampling with 25% of the projections"


@dataclass(frozen=True, eq=False)
class AsPDM(tt.Constraint):
    """The IPOPT projection as Projected Diffusion Models runs it: each call builds the program anew."""

    avoid: AvoidObstacles

    def project(self, x: Tensor) -> tt.Projection:
        """(n, C, W) to the same."""
        circles = tuple(map(tuple, self.avoid.obstacles.circles.tolist()))
        y, converged = x.clone(), torch.zeros(len(x), dtype=torch.bool)
        for i, path in enumerate(x[:, :2].double().numpy()):
            found, ok = project_as_pdm(circles, path)
            y[i, :2] = torch.from_numpy(found)
            converged[i] = ok
        return tt.Projection(y, converged)

    def defect(self, x: Tensor) -> Tensor:
        """Of the trajectories."""
        return self.avoid.defect(x)

    def take(self, rows: Tensor) -> AsPDM:
        """Of the samples `rows`."""
        return AsPDM(self.avoid.take(rows))


def problem(way: Way, seeds: range, inner: int) -> tuple[tt.core.rollout.Sampler, tt.Constraint]:
    starts, goals = start_goal_pairs(seeds, shipped_map())
    sampler = AnnealedLangevin(load_model(), starts, goals, shipped_map(), inner, eligible_from=FIRST_LEVEL)
    backend: Literal["batched", "ipopt"] = "ipopt" if way == "once" else "batched"
    avoid = AvoidObstacles(Obstacles(shipped_map()), starts, goals, backend)
    return sampler, AsPDM(avoid) if way == "rebuilt" else avoid


@dataclass(frozen=True)
class Cost:
    """What one run took: seconds in all, in projections and in neither projections nor scheduling; and its calls."""

    seconds: float
    projection: float
    other: float
    calls: int
    failed: int


def timed(sampler: tt.core.rollout.Sampler, constraint: tt.Constraint, schedule: tt.Schedule, seeds: range) -> Cost:
    begin = perf_counter()
    done = tt.rollout(sampler, constraint, schedule, seeds)
    seconds = perf_counter() - begin
    projection, scheduling = done.seconds["projection"], done.seconds["scheduling"]
    failed = int(done.failed.sum() + done.closing_failed.sum())
    return Cost(seconds, projection, seconds - projection - scheduling, done.rows["projection"], failed)


def allowed(every: Cost, quarter: Cost) -> float:
    """The ratio that the numbers of calls and the seconds per call allow; what is no projection takes both the same."""
    other = (every.other + quarter.other) / 2
    return (other + every.projection) / (other + quarter.projection)


def rows_of(way: Way, n: int, inner: int, repeats: int) -> list[dict[str, Any]]:
    if way != "rebuilt":
        problem(way, range(n), 1)[1].project(torch.zeros(n, 4, 64))  # what is made once is made
    pairs = []
    for k in range(repeats):
        seeds = range(k * n, (k + 1) * n)
        sampler, constraint = problem(way, seeds, inner)
        every = timed(sampler, constraint, tt.Stepwise(), seeds)
        pairs.append((every, timed(sampler, constraint, tt.Periodic(0.25), seeds)))
    limit = median_interval([allowed(*pair) for pair in pairs]).ratio
    one, other = (_sum(costs) for costs in zip(*pairs, strict=True))
    inputs = (
        f"batch {n}, T = {sampler.n_steps}, 64 waypoints, {len(shipped_map())} circles; in {repeats} runs "
        f"{one.calls} calls of {one.projection / one.calls:.2g} s ({one.failed} failed) become {other.calls} of "
        f"{other.projection / other.calls:.2g} s ({other.failed} failed), beside {one.other / repeats:.2g} s per "
        f"run that stay; that allows {limit:.2f}"
    )
    speed = median_interval([every.seconds / quarter.seconds for every, quarter in pairs])
    reached = median_interval([every.seconds / quarter.seconds / allowed(every, quarter) for every, quarter in pairs])
    claim, target = f"{CLAIM}, {NAMES[way]}", ">= 3.5" if way == "rebuilt" else ""
    return [
        row(claim, "stepwise", speed, target, inputs),
        row(claim, "what the number of calls and the seconds per call allow", reached, ">= 0.9", inputs),
    ]


def _sum(costs: tuple[Cost, ...]) -> Cost:
    return Cost(*(sum(getattr(cost, field.name) for cost in costs) for field in fields(Cost)))


def run(quick: bool) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for way, (n, inner, repeats) in SIZES.items():
        if quick and way == "rebuilt":  # a call takes seconds
            continue
        try:
            rows += rows_of(way, 1, 1, 1) if quick else rows_of(way, n, inner, repeats)
        except ImportError as error:
            rows.append(skipped(f"{CLAIM}, {NAMES[way]}", "stepwise", str(error)))
    return rows
