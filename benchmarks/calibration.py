"""How calibration grows with T, rollouts included, and the paper's price table against a sort at every step.

Calibration is measured on a trivial sampler at all budgets; its growth is divided by that of the table, T x B with
B = T. Times are processor times of one thread.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import trimtab as tt
from _compare import Ratio, compare, row

Array = NDArray[np.float64]
BALL = tt.as_constraint(
    project=lambda x: x / x.norm(dim=1, keepdim=True).clamp(min=1),
    defect=lambda x: (x.norm(dim=1) - 1).clamp(min=0),
)


def calibrated(method: str, T: int) -> object:
    noise = 0.2 * torch.randn(T, 64, 2, generator=torch.Generator().manual_seed(0))

    def rollout(schedule: Any) -> Any:
        corrector = tt.Corrector(BALL, schedule, n_steps=T)
        x = torch.zeros(64, 2)
        for t in range(T):
            x = corrector(0.98 * x + noise[t], t)
        return corrector.rollout

    return tt.calibrate(rollout, 1.0, method, objective="path", check=False)


def sort_per_step(defects: Array, budget: int) -> Array:
    """The rule as it is stated: at each step sort all later defects and read the quantiles off."""
    T, n = defects.shape
    table = np.full((T, budget + 1), -np.inf)
    table[:, 0] = np.inf
    for t in range(T):
        ranks = np.arange(1, min(budget, T - t - 1) + 1) * n
        pool = np.sort(defects[t:], axis=None)
        table[t, 1 : len(ranks) + 1] = pool[len(pool) - ranks]
    return table


def run(quick: bool) -> list[dict[str, Any]]:
    rows, lengths = [], [25, 50] if quick else [100, 200, 400]
    for method in ("dp", "planned"):
        timing = compare({str(T): partial(calibrated, method, T) for T in lengths}, 3, warmup=0, one_thread=True)
        for shorter, longer in pairwise(lengths):
            found, growth = timing.ratio(of=str(longer), over=str(shorter)), (longer / shorter) ** 2
            seconds = ", ".join(f"{timing.median(str(T)):.3g} s at T = {T}" for T in (shorter, longer))
            claim = f"growth of calibrate(method={method!r}), all budgets"
            rows.append(row(claim, "growth of T x B", Ratio(*(f / growth for f in found)), "<= 1", seconds))
    size = 200 if quick else 500
    defects = torch.randn(size, size, generator=torch.Generator().manual_seed(0), dtype=torch.float64).abs()
    ways = {
        "ours": partial(tt.prices.quantile_table, defects, size),
        "a sort per step, numpy.sort": partial(sort_per_step, defects.numpy(), size),
    }
    assert np.array_equal(*(np.asarray(way()) for way in ways.values()))
    timing = compare(ways, 3 if quick else 5, warmup=0)
    inputs = f"T = N = B = {size}, float64, equal results"
    return [*rows, timing.row("the paper's price table", of="a sort per step, numpy.sort", over="ours", inputs=inputs)]
