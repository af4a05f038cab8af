"""The paper's price table for all budgets and steps, against sorting the pool of defects again at each step."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from _compare import compare
from trimtab import quantile_table
from trimtab.noise import Noise, as_seeds


def sort_per_step(defects: Tensor, budget: int, descending: Callable[[Tensor], Tensor]) -> Tensor:
    """The rule as it is stated: at each step sort all defects from there on and read the quantiles off."""
    T, n = defects.shape
    table = torch.full((T, budget + 1), -torch.inf, dtype=torch.float64)
    table[:, 0] = torch.inf
    for t in range(T):
        ranks = torch.arange(1, min(budget, T - t - 1) + 1) * n
        table[t, 1 : len(ranks) + 1] = descending(defects[t:].flatten())[ranks - 1]
    return table


def by_torch(values: Tensor) -> Tensor:
    return values.sort(descending=True).values


def by_numpy(values: Tensor) -> Tensor:
    return torch.from_numpy(np.sort(values.numpy())[::-1].copy())


def run(quick: bool) -> list[dict[str, Any]]:
    size = 200 if quick else 1000
    defects = Noise(as_seeds(range(size))).normal(0, (size,)).abs().T.contiguous()
    assert torch.equal(quantile_table(defects, size), sort_per_step(defects, size, by_numpy))
    ours = partial(quantile_table, defects, size)
    inputs = f"T = N = B = {size}, float64, equal results"
    rows = []
    for sort, repeats in ((by_torch, 3), (by_numpy, 7)):
        peer = f"a sort per step, {sort.__name__.removeprefix('by_')}.sort"
        timing = compare({"ours": ours, peer: partial(sort_per_step, defects, size, sort)}, repeats, warmup=0)
        rows.append(timing.row("threshold tables", of=peer, over="ours", target=">= 20", inputs=inputs))
    timing = compare({"ours": ours, "one sort of all values": partial(by_torch, defects.flatten())}, 7)
    rows.append(
        timing.row(
            "threshold tables, in sorts", of="ours", over="one sort of all values", target="<= 100", inputs=inputs
        )
    )
    return rows
