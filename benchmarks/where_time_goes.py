"""Where the time of a sampling step goes: update, defect, projection, scheduling; before and after each remedy.

Trajectories with a learned score: first with IPOPT after every step, then with the batched projection in torch, then
with the same compiled, then with a quarter of the projections; and the smallest of the synthetic domains, where nothing
costs much.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal
from unittest.mock import patch

import trimtab as tt
from _compare import median_interval, skipped
from trimtab.constraints.obstacles import AvoidObstacles, Obstacles
from trimtab.constraints.obstacles import batched as obstacles_batched
from trimtab.constraints.obstacles.batched import compiled_search
from trimtab.evaluation.domains.pdm import AnnealedLangevin, load_model, shipped_map, start_goal_pairs

KINDS = ("update", "defect", "projection", "scheduling")
N = 16


def trajectories(backend: Literal["batched", "ipopt"], schedule: tt.Schedule, inner: int) -> tt.Rollout:
    starts, goals = start_goal_pairs(range(N), shipped_map())
    sampler = AnnealedLangevin(load_model(), starts, goals, shipped_map(), inner, eligible_from=6)
    return tt.rollout(sampler, AvoidObstacles(Obstacles(shipped_map()), starts, goals, backend), schedule, range(N))


def in_torch(schedule: tt.Schedule, inner: int) -> tt.Rollout:
    with patch.object(obstacles_batched, "compiled_search", lambda: None):
        return trajectories("batched", schedule, inner)


def rotations(schedule: tt.Schedule, inner: int) -> tt.Rollout:
    problem = tt.domain("so3").problem(range(N))
    return tt.rollout(problem.sampler, problem.constraint, schedule, range(N))


WAYS: dict[str, Callable[[tt.Schedule, int], tt.Rollout]] = {
    "trajectories, IPOPT built once": partial(trajectories, "ipopt"),
    "trajectories, batched in torch": in_torch,
    "trajectories, batched and compiled": partial(trajectories, "batched"),
    "rotations": rotations,
}


def run(quick: bool) -> list[dict[str, Any]]:
    rows = []
    for way, sample in WAYS.items():
        if "compiled" in way and compiled_search() is None:
            rows.append(skipped(f"share of a step: {way}", "the whole step", "the compiled search was not built"))
            continue
        for name, schedule in {"stepwise": tt.Stepwise(), "25%": tt.Periodic(0.25)}.items():
            claim = f"projection's share of a step: {way}, {name}"
            try:
                runs = [sample(schedule, 1 if quick or "IPOPT" in way else 4) for _ in range(2 if quick else 4)][1:]
            except ImportError as error:
                rows.append(skipped(claim, "the whole step", str(error)))
                continue
            found = median_interval([100 * r.seconds["projection"] / sum(r.seconds.values()) for r in runs])
            steps = sum(r.n_steps for r in runs)
            times = {kind: 1e3 * sum(r.seconds[kind] for r in runs) / steps for kind in KINDS}
            rows.append(
                {
                    "claim": claim,
                    "against": "the whole step",
                    "ratio": found.ratio,
                    "low": found.low,
                    "high": found.high,
                    "unit": "%",
                    "target": "",
                    "inputs": f"batch {N}; a step: " + ", ".join(f"{kind} {ms:.3g} ms" for kind, ms in times.items()),
                }
            )
    return rows
