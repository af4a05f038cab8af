"""One step of a `Corrector` against one of the plain reference of the tests, in processor time of one thread.

Both measure, compare the defects with the same prices, project the same samples of a random walk onto a ball, keep the
same records, and end in the same states to the bit. The walk and the ball take tens of microseconds of both.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import trimtab as tt
from _compare import compare
from trimtab.constraints import Ball

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from reference import Reference

BALL = Ball(1.0)


def ours(schedule: tt.Schedule, noise: Tensor) -> tt.Rollout:
    corrector, x = tt.Corrector(BALL, schedule, len(noise)), torch.zeros_like(noise[0])
    for t, step in enumerate(noise):
        x = corrector(x + step, t)
    return corrector.rollout


def plain(table: Tensor, budget: int, noise: Tensor) -> Any:
    reference, x = Reference(BALL, table, budget), torch.zeros_like(noise[0])
    for t, step in enumerate(noise):
        x = reference(x + step, t)
    return reference.record


def run(quick: bool) -> list[dict[str, Any]]:
    steps, rows = 40 if quick else 400, []
    for n in (1, 64, 1024):
        noise = 0.1 * torch.randn(steps, n, 3, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
        budget = steps // 4
        walk = noise[:, :64].cumsum(dim=0).norm(dim=2)
        table = tt.prices.quantile_table((walk / walk.max()).contiguous(), budget)
        schedule = tt.prices.Thresholds(table).at(budget)
        peer = "the plain reference"
        ways = {"ours": partial(ours, schedule, noise), peer: partial(plain, table, budget, noise)}
        found, expected = ways["ours"](), ways[peer]()
        assert torch.equal(found.final, expected.final), "the reference ends elsewhere"
        assert torch.equal(found.projected, expected.projected), "the reference decides otherwise"
        timing = compare(ways, 3 if quick else 15, one_thread=True)
        each = ", ".join(f"{name} {1e6 * timing.median(name) / steps:.0f} µs" for name in ways)
        inputs = f"n = {n}, T = {steps}, B = {budget}, states of 3 numbers; a step: {each}"
        rows.append(timing.row("a step of Algorithm 1", of="ours", over=peer, target="<= 1.2", inputs=inputs))
    return rows
