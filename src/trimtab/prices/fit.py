"""What each way of correcting does to a defect, and what a step does to what is left, fitted to traces.

Everything is a smooth function of the defect at each step, known on one grid of defects: the residual and the work of a
way are local means in the logarithm of the defect, and the next defect is a slope times the residual plus a draw from
what was seen at similar residuals. Steps near each other are pooled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Model", "Traces", "fit"]

Array = NDArray[np.float64]

_NODES = 28
_NEAR = 20  # steps within T / 20 are pooled
_NEIGHBOURS = 128  # residuals whose next defects stand for those of a node
_LEAST = 4  # outcomes of a way near a step; with fewer, all steps are pooled


class Traces(NamedTuple):
    """What is learned from: one column per sample, at the T' steps with a choice, (T', m) each, and the landing.

    Attributes:
        defects: Of the proposals; (T' + 1, m) if a closing projection follows.
        residuals: Of what was kept.
        ways: How it was corrected, int8; 0 is not at all.
        work: Solver iterations, or 1 per correction.
        tried: What was tried beside the runs, (5, q): step, way, defect, residual, work.
    """

    defects: Tensor
    residuals: Tensor
    ways: Tensor
    work: Tensor
    tried: Tensor

    def last(self, samples: int) -> Traces:
        """Return the traces of the last samples."""
        d, r, w, k = (part[:, -samples:] for part in self[:4])
        return Traces(d, r, w, k, self.tried)


def joined(parts: Sequence[Traces]) -> Traces:
    """Return traces side by side."""
    return Traces(*(torch.cat(columns, dim=1) for columns in zip(*parts, strict=True)))


@dataclass(frozen=True, eq=False)
class Model:
    """What ways and steps do, on a grid of k defects.

    Attributes:
        nodes: The grid, ascending from 0, (k,).
        residual: What each way leaves, (T', m + 1, k); way 0 leaves all.
        work: What each way takes, (T', m + 1, k).
        following: The next defect given a residual at each node, as weights of the nodes, (T', k, k).
        closing: What a whole projection takes at the end, (k,).
        seen: How often each way was seen, (m + 1,).
    """

    nodes: Array
    residual: Array
    work: Array
    following: Array
    closing: Array
    seen: Array


def fit(traces: Traces, n_ways: int) -> Model:
    """Fit a model of the ways 0 to `n_ways`, of which the last is whole, to traces."""
    defects, residuals, ways, work = (part.double().cpu().numpy() for part in traces[:4])
    T, n = residuals.shape
    tried = traces.tried.double().cpu().numpy()
    steps = np.repeat(np.arange(T), n)
    fact = np.stack([steps, ways.ravel(), defects[:T].ravel(), residuals.ravel(), work.ravel()])
    fact = np.concatenate([fact, tried], axis=1)
    nodes = _grid(defects)
    residual, cost = np.zeros((2, T, n_ways + 1, _NODES))
    residual[:, 0] = nodes
    width, log_nodes = max(T // _NEAR, 1), _log(nodes, nodes)
    seen = np.bincount(fact[1].astype(int), minlength=n_ways + 1).astype(float)
    for way in range(1, n_ways + 1):
        mine = fact[:, fact[1] == way]
        mine = mine[:, mine[0].argsort(kind="stable")]
        first = np.searchsorted(mine[0], np.arange(T) - width)
        last = np.searchsorted(mine[0], np.arange(T) + width, side="right")
        known: dict[tuple[int, int], tuple[Array, Array]] = {}
        for t in range(T):
            ends = (first[t], last[t]) if last[t] - first[t] >= _LEAST else (0, mine.shape[1])
            if ends not in known:
                known[ends] = _local_means(mine[2:, ends[0] : ends[1]], nodes, log_nodes)
            residual[t, way], cost[t, way] = known[ends]
    following = np.zeros((T, _NODES, _NODES))
    for t in range(len(defects) - 1):
        near = slice(max(0, t - width), min(len(defects) - 1, t + width + 1))
        ahead = slice(near.start + 1, near.stop + 1)
        following[t] = _next_defects(residuals[near].ravel(), defects[ahead].ravel(), nodes)
    return Model(nodes, residual, cost, following, cost[-1, -1], seen)


def _grid(defects: Array) -> Array:
    """Return the nodes: 0, and a geometric grid over the defects seen."""
    positive = defects[defects > 0]
    if not len(positive):
        return np.linspace(0.0, 1.0, _NODES)
    low, high = 0.3 * np.quantile(positive, 1e-3), 3 * positive.max()
    return np.concatenate([[0.0], np.geomspace(max(low, 1e-9 * high), high, _NODES - 1)])


def _log(x: Array, nodes: Array) -> Array:
    logarithm: Array = np.log(np.maximum(x, nodes[1] / 2))
    return logarithm


def _local_means(seen: Array, nodes: Array, log_nodes: Array) -> tuple[Array, Array]:
    """Return the mean residual and work at each node, (k,), of outcomes (3, q): defect, residual, work."""
    if not seen.shape[1]:
        return np.full(_NODES, np.inf), np.full(_NODES, np.inf)
    defect, residual, work = seen
    x = _log(defect, nodes)
    width = max(0.15, 0.5 * float(x.std()))
    square = -0.5 * ((log_nodes[:, None] - x) / width) ** 2
    weight = np.exp(square - square.max(axis=1, keepdims=True))  # far from all that was seen, the nearest counts
    weight /= weight.sum(axis=1, keepdims=True)
    left, taken = weight @ residual, weight @ work
    left = left * np.maximum(nodes / max(float(defect.max()), 1e-300), 1.0)  # in proportion, beyond what was seen
    return np.where(nodes > 0, left, 0.0), taken


def _next_defects(residual: Array, following: Array, nodes: Array) -> Array:
    """Return the next defect at each residual node as weights of the nodes, (k, k), from pairs (q,)."""
    weight = 1 / (np.median(following) + following + 1e-300)
    mean_r, mean_d = (np.average(part, weights=weight) for part in (residual, following))
    spread = np.average((residual - mean_r) ** 2, weights=weight)
    covary = np.average((residual - mean_r) * (following - mean_d), weights=weight)
    slope = float(np.clip(covary / spread, 0, 1.5)) if spread > 0 else 0.0
    order = residual.argsort(kind="stable")
    residual, rest = residual[order], (following - slope * residual)[order]
    count = min(_NEIGHBOURS, len(residual))
    first = (np.searchsorted(residual, nodes) - count // 2).clip(0, len(residual) - count)
    drawn = np.maximum(slope * nodes[:, None] + rest[first[:, None] + np.arange(count)], 0)  # (k, count)
    left, share = locate(nodes, drawn)
    weights = np.zeros((len(nodes), len(nodes)))
    rows = np.broadcast_to(np.arange(len(nodes))[:, None], left.shape)
    np.add.at(weights, (rows, left), (1 - share) / count)
    np.add.at(weights, (rows, left + 1), share / count)
    return weights


def locate(nodes: Array, x: Array) -> tuple[NDArray[np.intp], Array]:
    """Return the node below each x, and how far x is from it to the next, from 0 to 1."""
    left = (np.searchsorted(nodes, x, side="right") - 1).clip(0, len(nodes) - 2)
    share = ((x - nodes[left]) / (nodes[left + 1] - nodes[left])).clip(0, 1)
    return left, share
