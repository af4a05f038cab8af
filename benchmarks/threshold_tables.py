"""The paper's price table for all budgets and steps, against sorting the pool of defects again at each step."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from _compare import compare
from trimtab.core.noise import Noise, as_seeds
from trimtab.prices import quantile_table

Array = NDArray[np.float64]


def sort_per_step(defects: Array, budget: int) -> Array:
    """The rule as it is stated: at each step sort all defects from there on and read the quantiles off."""
    T, n = defects.shape
    table = np.full((T, budget + 1), -np.inf)
    table[:, 0] = np.inf
    for t in range(T):
        ranks = np.arange(1, min(budget, T - t - 1) + 1) * n
        pool = np.sort(defects[t:], axis=None)  # torch.sort takes several times as long
        table[t, 1 : len(ranks) + 1] = pool[len(pool) - ranks]
    return table


def run(quick: bool) -> list[dict[str, Any]]:
    size = 200 if quick else 1000
    defects = Noise(as_seeds(range(size))).normal(0, (size,)).abs().T.contiguous()
    values = defects.numpy()
    assert np.array_equal(quantile_table(defects, size).numpy(), sort_per_step(values, size))
    ours = partial(quantile_table, defects, size)
    inputs = f"T = N = B = {size}, float64, equal results"
    peer = "a sort per step, numpy.sort"
    timing = compare({"ours": ours, peer: partial(sort_per_step, values, size)}, 7, warmup=0)
    rows = [timing.row("threshold tables", of=peer, over="ours", target=">= 20", inputs=inputs)]
    peer, claim = "one sort of all values, numpy.argsort", "threshold tables, in sorts"
    timing = compare({"ours": ours, peer: partial(np.argsort, values.ravel())}, 9)
    return [*rows, timing.row(claim, of="ours", over=peer, target="<= 100", inputs=inputs)]
