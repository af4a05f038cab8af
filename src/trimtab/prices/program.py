"""The price of a correction as a dynamic program over step, budget left and defect.

The paper calls lambda[t, b] the marginal price of a correction and guesses it from the height of defects. Here it is
computed. A sample with defect s at step t and budget b pays s if it is left alone and its (small) residual r if it is
corrected; in both cases calibration rollouts show how its next defect s' is distributed. The cost to go is

    V[t, b](s) = min( s + E[ V[t+1, b](s') | s, left alone ],  r + E[ V[t+1, b - 1](s') | s, corrected ] )

and lambda[t, b] is the defect at which both are equal: correcting pays above it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from trimtab.prices.transitions import Array, Steps


class Solution(NamedTuple):
    """The prices, and what they are expected to achieve.

    Attributes:
        table: lambda, (T, B + 1).
        expected: Expected objective of a whole rollout with budget b, (B + 1,).
    """

    table: Tensor
    expected: Tensor


def solve(steps: Steps, budget: int, weights: Tensor | None = None) -> Solution:
    """Solve backward for the prices of whole projections.

    Args:
        steps: What one step does to a defect; see `estimate_transitions`.
        budget: The largest budget, B.
        weights: What a unit of residual costs at each step, (T,); 1 for path error.
    """
    T = len(steps.scale)
    unit = np.ones(T) if weights is None else weights.double().numpy()
    scale, nodes, residual = steps.scale.numpy(), steps.nodes.numpy(), steps.residual.numpy()
    alone, corrected = steps.alone.numpy(), steps.corrected.numpy()
    table = np.full((T, budget + 1), np.inf)
    value = np.zeros((budget + 1, nodes.shape[1]))  # the cost to go V[t + 1, b](s)
    for t in reversed(range(T)):
        stay = go = value  # nothing lies ahead of the last step
        if t < T - 1:
            stay, go = value @ alone[t].T, value @ corrected[t].T
        defects = scale[t] * nodes[t]
        stay, go = stay + unit[t] * defects, go + unit[t] * scale[t] * residual[t]
        go = np.concatenate([np.full_like(go[:1], np.inf), go[:-1]])  # with one correction less
        table[t, 1:] = _break_even(defects, (stay - go)[1:])
        table[t, T - t :] = -np.inf  # a correction for every step to go: spend it
        value = np.where(defects >= table[t][:, None], go, stay)
    return Solution(torch.from_numpy(table), torch.from_numpy(value) @ steps.start)


def _break_even(defects: Array, gain: Array) -> Array:
    """Return the defect from which on correcting pays, (B,): -inf if it always does, +inf if it never does.

    The gain is an estimate and may change its sign more than once. The cut that loses least is taken, interpolated
    between two nodes. `defects` are the nodes, (k,), and `gain` is what correcting gains there, (B, k).
    """
    above = gain[:, ::-1].cumsum(axis=1)[:, ::-1]  # correcting from each node up
    cut, rows = above.argmax(axis=1), np.arange(len(gain))
    below = np.maximum(cut - 1, 0)
    here, apart = gain[rows, cut], gain[rows, cut] - gain[rows, below]
    share = np.divide(here, apart, where=apart > 0, out=np.zeros(len(cut))).clip(0, 1)
    price: Array = defects[cut] + share * (defects[below] - defects[cut])
    price[cut == 0] = -np.inf
    price[~(above[rows, cut] > 0)] = np.inf
    return price
