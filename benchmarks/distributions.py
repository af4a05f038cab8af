"""Comparing sets of samples, with the permutations that a p-value needs, against SciPy and Python Optimal Transport.

SciPy has energy and Wasserstein distances in one dimension; in several, people compute all distances by `cdist` and
index the table for every permutation. POT has the sliced Wasserstein distance, and sorts for every permutation.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor

from _compare import compare, median_interval, row, skipped
from trimtab.core.distributions import compare_samples
from trimtab.core.set_distances import set_distance

CDIST, POT = "scipy cdist, parts of the table", "POT sliced_wasserstein_distance"
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


def by_pot(pool: Tensor, labels: Tensor, directions: Tensor) -> np.ndarray:
    """Return sliced Wasserstein distances, one call for every permutation."""
    ot = importlib.import_module("ot")
    samples, projections = pool.numpy(), directions.T.numpy()
    return np.array(
        [ot.sliced_wasserstein_distance(samples[r], samples[~r], projections=projections, p=1) for r in labels.numpy()]
    )


def run(quick: bool) -> list[dict[str, Any]]:
    rows = []
    d, repeats = 9, 3 if quick else 7
    for n in (200,) if quick else (500, 2000):
        pool, labels = torch.cat([drawn(n, d, 0), drawn(n, d, 1)]), labels_of(n)
        inputs = f"{n} and {n} samples of {d} numbers, {RELABELLINGS} relabellings, float64"
        for measure, peer, package in (("energy", CDIST, "scipy"), ("sliced", POT, "ot")):
            claim = f"{measure} distance with relabellings, {n} samples"
            if find_spec(package) is None:
                rows.append(skipped(claim, peer, f"{package} is not installed"))
                continue
            rows.append(_against(claim, measure, peer, pool, labels, repeats, inputs))
    n = 1000 if quick else 10_000
    x, y = drawn(n, d, 0), drawn(n, d, 1)
    for measure in ("energy", "sliced", "kernel"):

        def whole(measure: str = measure) -> object:
            return compare_samples(x, y, measure=measure)

        timing = compare({"ours": whole}, repeats=1 if quick else 3, warmup=0, one_thread=True)
        claim = f"{measure}: {n} samples compared, with p-value and smallest shift"
        inputs = f"{n} and {n} samples of {d} numbers, 200 relabellings, float64"
        found = median_interval(timing.seconds["ours"])
        rows.append(row(claim, "ten seconds", found, "<= 10", inputs, unit="s of one processor"))
    return rows


def _against(
    claim: str, measure: str, peer: str, pool: Tensor, labels: Tensor, repeats: int, inputs: str
) -> dict[str, Any]:
    """Time ours and the peer on the same labels, and report how far they differ."""
    distance: Any = set_distance(measure, pool)
    others: dict[str, Callable[[], np.ndarray]] = {
        CDIST: lambda: by_cdist(pool, labels),
        POT: lambda: by_pot(pool, labels, distance.directions),
    }
    apart = np.abs(distance.relabelled(pool, labels).numpy() - others[peer]()).max()
    timing = compare({"ours": lambda: distance.relabelled(pool, labels), peer: others[peer]}, repeats=repeats)
    return timing.row(claim, of=peer, over="ours", target=">= 3", inputs=f"{inputs}; answers agree to {apart:.0e}")
