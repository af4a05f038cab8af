"""Estimating the price table on held-out rollouts."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from trimtab.constraint import Constraint
from trimtab.loop import Sampler, rollout
from trimtab.noise import as_seeds
from trimtab.record import Rollout
from trimtab.schedule import Budget, Terminal, corrections
from trimtab.thresholds import Thresholds, fingerprint

__all__ = ["calibrate", "quantile_table", "thresholds_from_runs"]


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


def thresholds_from_runs(runs: Iterable[Rollout], budget: Budget = 1.0) -> Thresholds:
    """Estimate the price table from recorded runs of a loop that is not ours, by the paper's rule.

    Args:
        runs: Runs of the loop with `Terminal()`, all of the same T: `corrector.rollout` of as many batches as you like.
        budget: The largest budget wanted.

    Example:
        >>> import torch, trimtab as tt
        >>> ball = tt.as_constraint(lambda x: x / x.norm(dim=1, keepdim=True).clamp(min=1),
        ...                         lambda x: (x.norm(dim=1) - 1).clamp(min=0))
        >>> corrector = tt.Corrector(ball, tt.Terminal(), n_steps=8)
        >>> x = torch.zeros(4, 2)
        >>> for t in range(8):
        ...     x = corrector(x + 0.3, t)
        >>> tt.thresholds_from_runs([corrector.rollout], budget=0.25).budget
        2
    """
    runs = list(runs)
    if not runs:
        raise ValueError("no runs to calibrate from: give the rollouts of at least one run with Terminal()")
    lengths = sorted({run.n_steps for run in runs})
    if len(lengths) > 1:
        raise ValueError(f"runs to calibrate from must have the same number of steps: got {lengths}")
    touched = sum(bool(run.projected.any()) for run in runs)
    if touched:
        raise ValueError(
            f"{touched} of {len(runs)} runs were corrected on the way, so that their defects do not show what happens "
            "without corrections; record them with Terminal()"
        )
    most = corrections(budget, lengths[0])
    return Thresholds(
        quantile_table(torch.cat([run.defects for run in runs], dim=1), int(torch.as_tensor(most).max())),
        method="paper",
        seeds=tuple(int(s) for run in runs if run.seeds is not None for s in run.seeds),
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
