"""Comparing sets of samples, with the permutations that a p-value needs, against SciPy.

SciPy has the energy distance in one dimension; in several, people compute all distances by `cdist` and index the table
for every permutation.
"""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor

from _compare import compare, median_interval, row, skipped
from trimtab_lab.distributions import compare_samples, relabelled_distances

CDIST = "scipy cdist, parts of the table"
RELABELLINGS = 20


def drawn(n: int, d: int, seed: int) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def labels_of(n: int) -> Tensor:
    """Return the true labels, then random ones, (RELABELLINGS, 2 n) bool."""
    generator = torch.Generator().manual_seed(0)
    orders = [torch.arange(2 * n), *(torch.randperm(2 * n, generator=generator) for _ in range(RELABELLINGS - 1))]
    labels = torch.zeros(RELABELLINGS, 2 * n, dtype=torch.bool)
    for label, order in zip(labels, orders, strict=True):
        label[order[:n]] = True
    return labels


def by_cdist(pool: Tensor, labels: Tensor) -> np.ndarray:
    """Return energy distances as they are usually written."""
    distance = importlib.import_module("scipy.spatial.distance")
    table = distance.cdist(pool.numpy(), pool.numpy())
    found = []
    for label in labels.numpy():
        x, y = label.nonzero()[0], (~label).nonzero()[0]
        within = table[np.ix_(x, x)].mean() + table[np.ix_(y, y)].mean()
        found.append(np.sqrt(max(2 * table[np.ix_(x, y)].mean() - within, 0)))
    return np.array(found)


def run(quick: bool) -> list[dict[str, Any]]:
    rows = []
    d, repeats = 9, 3 if quick else 7
    for n in (200,) if quick else (500, 2000):
        claim = f"energy distance with relabellings, {n} samples"
        if find_spec("scipy") is None:
            rows.append(skipped(claim, CDIST, "scipy is not installed"))
        else:
            rows.append(_against_scipy(claim, n, d, repeats))
    n = 1000 if quick else 10_000
    x, y = drawn(n, d, 0), drawn(n, d, 1)
    timing = compare({"ours": lambda: compare_samples(x, y)}, repeats=1 if quick else 3, warmup=0, one_thread=True)
    claim = f"energy: {n} samples compared, with p-value and smallest shift"
    inputs = f"{n} and {n} samples of {d} numbers, 200 relabellings, float64"
    found = median_interval(timing.seconds["ours"])
    return [*rows, row(claim, "ten seconds", found, "<= 10", inputs, unit="s of one processor")]


def _against_scipy(claim: str, n: int, d: int, repeats: int) -> dict[str, Any]:
    """Time ours and SciPy's on the same labels, and report how far they differ."""
    pool, labels = torch.cat([drawn(n, d, 0), drawn(n, d, 1)]), labels_of(n)
    apart = np.abs(relabelled_distances(pool, labels).numpy() - by_cdist(pool, labels)).max()
    calls = {"ours": lambda: relabelled_distances(pool, labels), CDIST: lambda: by_cdist(pool, labels)}
    inputs = f"{n} and {n} samples of {d} numbers, {RELABELLINGS} relabellings, float64; answers agree to {apart:.0e}"
    return compare(calls, repeats=repeats).row(claim, of=CDIST, over="ours", target=">= 3", inputs=inputs)
