"""What the scheduling itself costs, beside the calls it schedules."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

import trimtab as tt
from _compare import compare, median_interval
from trimtab.core.noise import as_seeds

N, T, BUDGET = 64, 100, 25


@dataclass(frozen=True)
class Walk:
    """Steps that keep the processor busy for a stated time."""

    n_steps: int
    step_seconds: float

    def start(self, noise: tt.core.noise.Noise) -> Tensor:
        """Normal numbers."""
        return noise.normal(-1, (3,))

    def step(self, x: Tensor, t: int, noise: tt.core.noise.Noise) -> Tensor:
        """A normal step."""
        until = perf_counter() + self.step_seconds
        x = x + 0.1 * noise.normal(t, (3,))
        while perf_counter() < until:
            pass
        return x


def onto_sphere(x: Tensor) -> Tensor:
    return x / x.norm(dim=1, keepdim=True)


def off_sphere(x: Tensor) -> Tensor:
    return (x.norm(dim=1) - 1).abs()


def by_hand(sampler: Walk, prices: Tensor, seeds: Tensor) -> float:
    """The same sampler and rule as one would write them down, with nothing checked, counted or recorded.

    Returns:
        The seconds it took beside updates, defects and projections.
    """
    noise = tt.core.noise.Noise(seeds)
    x = sampler.start(noise)
    left = torch.full((len(seeds),), prices.shape[1] - 1)
    deciding = 0.0
    with torch.no_grad():
        for t in range(sampler.n_steps):
            x = sampler.step(x, t, noise)
            defect = off_sphere(x)
            begin = perf_counter()
            chosen = defect >= prices[t, left]
            rows = chosen.nonzero().squeeze(1)
            left -= chosen.long()
            deciding += perf_counter() - begin
            if len(rows):
                x[rows] = onto_sphere(x[rows])
    onto_sphere(x)
    return deciding


def run(quick: bool) -> list[dict[str, Any]]:
    steps, repeats = (20, 3) if quick else (T, 15)
    sphere = tt.as_constraint(onto_sphere, off_sphere)
    seeds = as_seeds(range(1000, 1000 + N))
    slow, fast = Walk(steps, 5e-3), Walk(steps, 0.0)
    prices = tt.calibrate(
        tt.Problem(fast, sphere, range(N)), budget=min(BUDGET, steps), method="paper", objective="path"
    )
    schedule = tt.prices.Adaptive(prices)

    rows = []
    # two hundredths are to be told from one: on a machine that others use too, that takes many rounds
    for sampler, name, rounds, target in ((slow, "5 ms", 4 * repeats + 1, "<= 1.02"), (fast, "tiny", repeats, "")):
        timing = compare(
            {
                "ours": lambda sampler=sampler: tt.rollout(sampler, sphere, schedule, seeds),
                "hand-written loop": lambda sampler=sampler: by_hand(sampler, prices.table, seeds),
            },
            rounds,
        )
        inputs = f"batch {N}, T = {steps}, B = {prices.budget}, states of 3 numbers, {name} step"
        rows.append(
            timing.row("scheduling overhead", of="ours", over="hand-written loop", target=target, inputs=inputs)
        )
    problem = tt.Problem(fast, sphere, range(N))
    default = tt.calibrate(problem, min(BUDGET, steps), "dp", objective="path").at(min(BUDGET, steps))
    for name, price, target in (("the paper's price", schedule, "<= 2.5"), ("prices in own scale", default, "")):
        rows.append(_against_bare(name, price, target, fast, sphere, prices.table, seeds, 3 * repeats))
    return rows


def _against_bare(
    name: str, price: tt.Schedule, target: str, sampler: Walk, sphere: Any, table: Tensor, seeds: Tensor, rounds: int
) -> dict[str, Any]:
    """What a step costs beside updates, defects and projections, over the bare comparison, round by round."""
    ours, bare = [], []
    for _ in range(rounds):
        ours.append(tt.rollout(sampler, sphere, price, seeds).seconds["scheduling"])
        bare.append(by_hand(sampler, table, seeds))
    middle = median_interval([a / b for a, b in zip(ours, bare, strict=True)])
    return {
        "claim": f"a decision by {name}, all checks and records",
        "against": "the bare comparison written by hand, nothing checked or recorded",
        "ratio": middle.ratio,
        "low": middle.low,
        "high": middle.high,
        "target": target,
        "inputs": f"batch {N}, T = {sampler.n_steps}, tiny step; time outside update, defect and projection",
    }
