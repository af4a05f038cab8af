"""Sampling with a quarter of the projections, against a projection after every step.

Counting calls says what could be saved; the clock says what is. The more a step costs besides its projection, the less
a saved projection saves, so beside the ratio each row says what the counts and the measured seconds a call allow.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import Any, Literal

import torch
from torch import Tensor

import trimtab as tt
from _compare import median_interval, skipped
from trimtab.constraints.obstacles import AvoidObstacles, Obstacles
from trimtab.pdm import AnnealedLangevin, load_model, shipped_map, start_goal_pairs

Way = Literal["rebuilt", "once", "batched"]
NAMES: dict[Way, str] = {
    "rebuilt": "IPOPT, program rebuilt each call",
    "once": "IPOPT, program built once",
    "batched": "batched projection",
}


@dataclass(frozen=True, eq=False)
class Rebuilt:
    """The IPOPT projection as Projected Diffusion Models runs it: each call builds the program anew."""

    avoid: AvoidObstacles

    def project(self, x: Tensor) -> tt.Projection:
        """(n, C, W) to the same."""
        from trimtab.constraints.obstacles_ipopt import build_program, solve_one

        circles = tuple(map(tuple, self.avoid.obstacles.circles.tolist()))
        y, converged = x.clone(), torch.zeros(len(x), dtype=torch.bool)
        for i, path in enumerate(x[:, :2].double().numpy()):
            program = build_program(circles, (), path.shape[1], self.avoid.tolerance, options={})
            found, ok, _ = solve_one(program, path, path)
            y[i, :2] = torch.from_numpy(found)
            converged[i] = ok
        return tt.Projection(y, converged)

    def defect(self, x: Tensor) -> Tensor:
        """Of the trajectories."""
        return self.avoid.defect(x)

    def take(self, rows: Tensor) -> Rebuilt:
        """Of the samples `rows`."""
        return Rebuilt(self.avoid.take(rows))


def constraint_of(way: Way, n: int) -> tt.Constraint:
    starts, goals = start_goal_pairs(range(n), shipped_map())
    backend: Literal["batched", "ipopt"] = "ipopt" if way == "once" else "batched"
    avoid = AvoidObstacles(Obstacles(shipped_map()), starts, goals, backend)
    return Rebuilt(avoid) if way == "rebuilt" else avoid


def allowed(every: tt.Rollout, quarter: tt.Rollout) -> float:
    """The ratio that counts and measured seconds allow: the same steps, with a projection's seconds for each row."""
    step = every.seconds["update"] + every.seconds["defect"]
    a_row = every.seconds["projection"] / every.rows["projection"]
    return (step + a_row * every.rows["projection"]) / (step + a_row * quarter.rows["projection"])


def run(quick: bool) -> list[dict[str, Any]]:
    claim = "sampling with 25% of the projections"
    rows: list[dict[str, Any]] = []
    sizes: dict[Way, tuple[int, int, int]] = {"rebuilt": (1, 1, 3), "once": (4, 1, 3), "batched": (64, 2, 5)}
    for way, (n, inner, repeats) in sizes.items():
        try:
            constraint = constraint_of(way, n)
        except ImportError as error:
            rows.append(skipped(claim, NAMES[way], str(error)))
            continue
        starts, goals = start_goal_pairs(range(n), shipped_map())
        model = load_model()
        eligible = model.settings.levels - 2 if quick else 0
        sampler = AnnealedLangevin(model, starts, goals, shipped_map(), inner, eligible_from=eligible)
        ratios, limits = [], []
        for _ in range(1 if quick else repeats):
            runs, seconds = [], []
            for schedule in (tt.Stepwise(), tt.Periodic(0.25)):
                begin = perf_counter()
                runs.append(tt.rollout(sampler, constraint, schedule, range(n)))
                seconds.append(perf_counter() - begin)
            ratios.append(seconds[0] / seconds[1])
            limits.append(allowed(*runs))
        inputs = f"batch {n}, T = {sampler.n_steps}, 64 waypoints, {len(shipped_map())} circles, {NAMES[way]}"
        for found, name, target in (
            (median_interval(ratios), "stepwise", ">= 3.5" if way == "rebuilt" else ""),
            (median_interval([r / a for r, a in zip(ratios, limits, strict=True)]), "what the counts allow", ">= 0.9"),
        ):
            limit = f"; the counts allow {median_interval(limits).ratio:.2f}"
            rows.append(
                {
                    "claim": f"{claim}, {NAMES[way]}",
                    "against": name,
                    "ratio": found.ratio,
                    "low": found.low,
                    "high": found.high,
                    "target": target,
                    "inputs": inputs + limit,
                }
            )
    return rows
