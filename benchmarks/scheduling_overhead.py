"""The cost of scheduling itself, against the same rule written by hand with nothing checked or recorded.

No target: these numbers are measured and no design is explained by them.
"""

from __future__ import annotations

from functools import partial
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

import trimtab as tt
from _compare import compare

N, T, BUDGET = 64, 100, 25


def onto_sphere(x: Tensor) -> Tensor:
    return x / x.norm(dim=1, keepdim=True)


def off_sphere(x: Tensor) -> Tensor:
    return (x.norm(dim=1) - 1).abs()


SPHERE = tt.as_constraint(onto_sphere, off_sphere)


def update(x: Tensor, noise: Tensor, seconds: float) -> Tensor:
    """Make a step that keeps the processor busy for a given time."""
    until = perf_counter() + seconds
    x = x + 0.1 * noise
    while perf_counter() < until:
        pass
    return x


def ours(schedule: Any, noise: Tensor, seconds: float) -> tt.Rollout:
    corrector, x = tt.Corrector(schedule=schedule, constraint=SPHERE, n_steps=len(noise)), torch.ones(N, 3)
    for t, step in enumerate(noise):
        x = corrector(update(x, step, seconds), t)
    return corrector.rollout


def by_hand(prices: Tensor, noise: Tensor, seconds: float) -> Tensor:
    x, left = torch.ones(N, 3), torch.full((N,), prices.shape[1] - 1)
    with torch.no_grad():
        for t, step in enumerate(noise):
            x = update(x, step, seconds)
            chosen = off_sphere(x) >= prices[t, left]
            left -= chosen.long()
            rows = chosen.nonzero().squeeze(1)
            if len(rows):
                x[rows] = onto_sphere(x[rows])
    return onto_sphere(x)


def run(quick: bool) -> list[dict[str, Any]]:
    steps = 20 if quick else T
    noise = torch.randn(steps, N, 3, generator=torch.Generator().manual_seed(0))
    price = tt.calibrate(lambda s: ours(s, noise, 0.0), min(BUDGET, steps), "paper", objective="path", check=False)
    rows = []
    for seconds, name in ((0.0, "tiny"), (5e-3, "5 ms")):
        ways = {
            "ours": partial(ours, price.at(price.budget), noise, seconds),
            "hand-written loop": partial(by_hand, price.table, noise, seconds),
        }
        timing = compare(ways, 3 if quick else 21)
        inputs = f"batch {N}, T = {steps}, B = {price.budget}, states of 3 numbers, {name} step"
        rows.append(timing.row("scheduling overhead", of="ours", over="hand-written loop", inputs=inputs))
    return rows
