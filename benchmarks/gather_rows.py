"""Projecting 16 of 64 samples by gathering their rows, against projecting the whole batch.

Two projections work sample by sample, IPOPT and the compiled search. Two are batched tensor operations, whose cost per
call hardly depends on the rows: the mass balance, and the same search in torch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal
from unittest.mock import patch

import torch
from torch import Tensor

from _compare import Timing, compare
from trimtab.core.constraint import Constraint, Projection
from trimtab.core.noise import Noise, as_seeds
from trimtab_lab.domains import domain
from trimtab_lab.domains.pdm.planner import shipped_map, start_goal_pairs
from trimtab_lab.obstacles import AvoidObstacles, Obstacles
from trimtab_lab.obstacles import batched as obstacles_batched

N, CHOSEN = 64, 16


def states_of(constraint: Constraint, x: Tensor) -> Tensor:
    answer = constraint.project(x)
    return answer.x if isinstance(answer, Projection) else answer


def gathered(constraint: Constraint, x: Tensor, rows: Tensor) -> Tensor:
    """Project the chosen rows, as the loop does."""
    return x.index_copy(0, rows, states_of(constraint.take(rows), x.index_select(0, rows)))


def reaction_fields() -> tuple[str, Constraint, Tensor]:
    problem = domain("reaction-flow").problem(range(N))
    noise = Noise(as_seeds(range(N)), torch.float32)
    x = problem.sampler.step(problem.sampler.start(noise), 0, noise)
    return "mass balance", problem.constraint, x


def trajectories(backend: Literal["batched", "ipopt"]) -> tuple[str, Constraint, Tensor]:
    circles = shipped_map()
    starts, goals = start_goal_pairs(range(N), circles)
    share = torch.linspace(0, 1, 64, dtype=starts.dtype)
    straight = starts[:, :, None] + (goals - starts)[:, :, None] * share
    x = straight + 0.05 * Noise(as_seeds(range(N)), starts.dtype).normal(0, (2, 64))
    return f"trajectories, {backend}", AvoidObstacles(Obstacles(circles), starts, goals, backend), x


CASES: tuple[Callable[[], tuple[str, Constraint, Tensor]], ...] = (
    reaction_fields,
    partial(trajectories, "batched"),
    partial(trajectories, "ipopt"),
)


def measured(case: Callable[[], tuple[str, Constraint, Tensor]], quick: bool) -> tuple[str, Timing, str]:
    name, constraint, x = case()
    chosen = torch.arange(0, N, N // CHOSEN)
    ways = {
        "ours": partial(gathered, constraint, x, chosen),
        "the full batch": partial(states_of, constraint, x),
    }
    slow = name.endswith("ipopt")
    timing = compare(ways, 3 if quick else 6 if slow else 21, number=1 if slow else 4)
    inputs = f"{CHOSEN} of {N} rows, states {tuple(x.shape[1:])} {str(x.dtype).removeprefix('torch.')}"
    return f"gather, project, scatter: {name}", timing, inputs


def run(quick: bool) -> list[dict[str, Any]]:
    rows = []
    with torch.no_grad():
        for case in CASES[:2] if quick else CASES:  # IPOPT takes too long for a quick run
            claim, timing, inputs = measured(case, quick)
            target = "" if case is reaction_fields else ">= 3"  # for what goes sample by sample
            rows.append(timing.row(claim, of="the full batch", over="ours", target=target, inputs=inputs))
        with patch.object(obstacles_batched, "compiled_search", lambda: None):
            claim, timing, inputs = measured(CASES[1], quick)
            rows.append(timing.row(f"{claim}, in torch", of="the full batch", over="ours", inputs=inputs))
    return rows
