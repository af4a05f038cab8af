"""Estimating the price table on held-out rollouts."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from trimtab.constraint import Constraint
from trimtab.loop import Sampler, rollout
from trimtab.noise import as_seeds
from trimtab.schedule import Budget, Terminal, corrections
from trimtab.thresholds import Thresholds, fingerprint

__all__ = ["calibrate", "quantile_table"]


def calibrate(
    sampler: Sampler,
    constraint: Constraint,
    seeds: Iterable[int] | Tensor,
    budget: Budget = 1.0,
    method: str = "paper",
) -> Thresholds:
    """Estimate the price of a correction, lambda[t, b], for all budgets up to `budget`.

    Args:
        sampler: As in `rollout`, for these seeds.
        constraint: As in `rollout`, for these seeds.
        seeds: Calibration seeds; the schedule made from the result refuses to be evaluated on them.
        budget: The largest budget wanted. A smaller one needs no table of its own: the price of a correction depends
            on how many are left and how many steps remain, not on how many there were.
        method: "paper" is the rule of the paper's appendix B.
    """
    seeds = as_seeds(seeds)
    most = corrections(budget, sampler.n_steps)
    if isinstance(most, Tensor):
        most = int(most.max())
    free = rollout(sampler, constraint, Terminal(), seeds)
    return Thresholds(
        quantile_table(free.defects, most),
        method=method,
        seeds=tuple(seeds.tolist()),
        fingerprint=fingerprint(sampler, constraint),
    )


def quantile_table(defects: Tensor, budget: int) -> Tensor:
    """The paper's thresholds: lambda[t, b] is the (1 - b / (T - t))-quantile of all defects from step t on.

    Of the values between which that quantile lies, the upper one is taken: then exactly the share b / (T - t) of the
    pool is at or above the price, ties apart, and no interpolation is needed, since (1 - b / (T - t)) times the pool's
    size is a whole number.

    The pool is sorted once. Walking forward in time, the step just passed is struck out of the sorted pool, and the
    quantiles of all budgets are every n-th value of what is left.

    Args:
        defects: Of calibration rollouts, (T, n); inf is allowed, NaN is not.
        budget: The largest budget, B <= T.

    Returns:
        (T, B + 1) float64, with +inf for b = 0 and -inf for b >= T - t.

    Example:
        >>> import torch
        >>> quantile_table(torch.tensor([[3.0], [1.0], [2.0]]), 2)
        tensor([[inf, 3., 2.],
                [inf, 2., -inf],
                [inf, -inf, -inf]], dtype=torch.float64)
    """
    if defects.ndim != 2 or 0 in defects.shape:
        raise ValueError(f"calibration defects are (T, n) with T, n >= 1: got {tuple(defects.shape)}")
    T, n = defects.shape
    if not 0 <= budget <= T:
        raise ValueError(f"a budget of {budget} corrections does not fit T = {T} steps")
    values = defects.detach().cpu().double().numpy().ravel()
    if np.isnan(values).any():
        raise ValueError("calibration defects have NaN; a rollout that produced NaN cannot calibrate anything")
    order = np.argsort(-values, kind="stable")
    pool = values[order]  # descending
    step = (order // n).astype(np.int32)

    table = np.full((T, budget + 1), -np.inf)
    table[:, 0] = np.inf
    for t in range(T):
        ranks = np.arange(1, min(budget, T - t - 1) + 1) * n
        struck = np.flatnonzero(step < t)  # positions in `pool` of steps passed since it was last compacted
        # the r-th largest of what is left stands behind j struck values, where struck[j - 1] - (j - 1) <= r - 1
        behind = np.searchsorted(struck - np.arange(len(struck)), ranks - 1, side="right")
        table[t, 1 : len(ranks) + 1] = pool[ranks - 1 + behind]
        if len(struck) > len(pool) // 16:
            keep = step >= t
            pool, step = pool[keep], step[keep]
    return torch.from_numpy(table)
