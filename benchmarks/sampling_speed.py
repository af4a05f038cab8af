"""Sampling with a quarter of the projections, against a projection after every step.

The more a step costs besides its projection, the less a saved projection saves; each row shows the calls and their
seconds. Projections are made from noise level 6 of 10 on, as Projected Diffusion Models do.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import Any, Literal

import torch
from torch import Tensor

import trimtab as tt
from _compare import median_interval, row, skipped
from _pdm_projection import project_as_pdm
from trimtab_lab.domains.pdm.domain import AnnealedLangevin
from trimtab_lab.domains.pdm.model import load_model
from trimtab_lab.domains.pdm.planner import shipped_map, start_goal_pairs
from trimtab_lab.obstacles import AvoidObstacles, Obstacles

Way = Literal["rebuilt", "once", "batched"]
NAMES: dict[Way, str] = {
    "rebuilt": "IPOPT as PDM runs it",
    "once": "IPOPT built once",
    "batched": "batched projection",
}
# samples, Langevin steps per level, repeats
SIZES: dict[Way, tuple[int, int, int]] = {"rebuilt": (1, 2, 1), "once": (4, 4, 3), "batched": (64, 10, 3)}
FIRST_LEVEL = 6
CLAIM = "sampling with 25% of the projections"


@dataclass(frozen=True, eq=False)
class AsPDM(tt.Constraint):
    """The IPOPT projection of Projected Diffusion Models: each call builds the program again."""

    avoid: AvoidObstacles

    def project(self, x: Tensor) -> tt.Projection:
        """Project trajectories, (n, C, W)."""
        circles = tuple(map(tuple, self.avoid.obstacles.circles.tolist()))
        y, converged = x.clone(), torch.zeros(len(x), dtype=torch.bool)
        for i, path in enumerate(x[:, :2].double().numpy()):
            found, ok = project_as_pdm(circles, path)
            y[i, :2] = torch.from_numpy(found)
            converged[i] = ok
        return tt.Projection(y, converged)

    def defect(self, x: Tensor) -> Tensor:
        """Measure trajectories, (n, C, W) to (n,)."""
        return self.avoid.defect(x)

    def take(self, rows: Tensor) -> AsPDM:
        """Select samples."""
        return AsPDM(self.avoid.take(rows))


def problem(way: Way, seeds: range, inner: int) -> tuple[tt.core.rollout.Sampler, tt.Constraint]:
    starts, goals = start_goal_pairs(seeds, shipped_map())
    sampler = AnnealedLangevin(load_model(), starts, goals, shipped_map(), inner, eligible_from=FIRST_LEVEL)
    backend: Literal["batched", "ipopt"] = "ipopt" if way == "once" else "batched"
    avoid = AvoidObstacles(Obstacles(shipped_map()), starts, goals, backend)
    return sampler, AsPDM(avoid) if way == "rebuilt" else avoid


def timed(way: Way, inner: int, schedule: tt.Schedule, seeds: range) -> tuple[float, tt.Rollout]:
    sampler, constraint = problem(way, seeds, inner)
    begin = perf_counter()
    done = tt.rollout(sampler, constraint, schedule, seeds)
    return perf_counter() - begin, done


def row_of(way: Way, n: int, inner: int, repeats: int) -> dict[str, Any]:
    if way != "rebuilt":
        problem(way, range(n), 1)[1].project(torch.zeros(n, 4, 64))  # build what is built once
    ratios, notes = [], []
    for k in range(repeats):
        seeds = range(k * n, (k + 1) * n)
        every, quarter = (timed(way, inner, schedule, seeds) for schedule in (tt.Stepwise(), tt.Periodic(0.25)))
        ratios.append(every[0] / quarter[0])
        for name, (seconds, done) in (("stepwise", every), ("25%", quarter)):
            calls, spent = done.rows["projection"], done.seconds["projection"]
            failed = int(done.failed.sum() + done.closing_failed.sum())
            notes.append(f"{name} {seconds:.2g} s, {calls} calls of {spent / calls:.2g} s, {failed} failed")
    inputs = f"batch {n}, T = {done.n_steps}, 64 waypoints, {len(shipped_map())} circles; last run: " + "; ".join(
        notes[-2:]
    )
    target = ">= 3.5" if way == "rebuilt" else ""
    return row(f"{CLAIM}, {NAMES[way]}", "stepwise", median_interval(ratios), target, inputs)


def run(quick: bool) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for way, (n, inner, repeats) in SIZES.items():
        if quick and way == "rebuilt":  # a call takes seconds
            continue
        try:
            rows.append(row_of(way, 1, 1, 1) if quick else row_of(way, n, inner, repeats))
        except ImportError as error:
            rows.append(skipped(f"{CLAIM}, {NAMES[way]}", "stepwise", str(error)))
    return rows
