"""Prices by quantiles of defects: the paper's rule, and the same rule on the policy's own rollouts."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from trimtab.core.budget import Budget, most_corrections
from trimtab.core.checks import check_integer, check_type
from trimtab.core.record import Rollout
from trimtab.prices.price import Thresholds, free_size


def quantile_table(defects: Tensor, budget: int) -> Tensor:
    """Return the paper's thresholds: lambda[t, b] is the (1 - b / (T - t))-quantile of all defects from step t on.

    The quantile falls between two values, of which the upper one is taken: exactly the share b / (T - t) of the pool is
    then at or above the price, ties apart.

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
    check_type(defects, Tensor, "calibration defects")
    if defects.ndim != 2 or 0 in defects.shape:
        raise ValueError(f"calibration defects must be (T, n) with T, n >= 1: got {tuple(defects.shape)}")
    T, n = defects.shape
    check_integer(budget, f"a budget of corrections in T = {T} steps", 0, T)
    values = defects.detach().cpu().double().numpy()
    if np.isnan(values).any():
        raise ValueError("calibration defects have NaN; a rollout that produced NaN cannot calibrate anything")
    table = np.full((T, budget + 1), -np.inf)
    table[:, 0] = np.inf
    order = values.argsort(axis=None)
    pool, step = values.ravel()[order], order // n  # all defects in ascending order, and their steps
    for t in range(T):
        pool, step = pool[step >= t], step[step >= t]
        b = np.arange(1, min(budget, T - t - 1) + 1)
        table[t, b] = pool[(T - t - b) * n]
    return torch.from_numpy(table)


def paper_prices(runs: Iterable[Rollout], budget: Budget = 1.0) -> Thresholds:
    """Return the paper's prices from recorded runs of a loop; nothing is run.

    Args:
        runs: Runs of the loop with `Terminal()` whose defects were measured (`measure_defects=True`), all of the same
            T and closing: `corrector.rollout` of any number of batches.
        budget: The largest budget wanted.

    Example:
        >>> import torch, trimtab as tt
        >>> ball = tt.as_constraint(lambda x: x / x.norm(dim=1, keepdim=True).clamp(min=1),
        ...                         lambda x: (x.norm(dim=1) - 1).clamp(min=0))
        >>> corrector = tt.Corrector(ball, tt.Terminal(), n_steps=8, measure_defects=True)
        >>> x = torch.zeros(4, 2)
        >>> for t in range(8):
        ...     x = corrector(x + 0.3, t)
        >>> paper_prices([corrector.rollout], budget=0.25).budget
        2
    """
    if not isinstance(runs, Iterable):
        raise TypeError(f"runs must be a list of rollouts: got {runs!r:.60}")
    runs = [check_type(run, Rollout, "a run to calibrate from", "rollout(…) returns one") for run in runs]
    if not runs:
        raise ValueError("no runs to calibrate from: give the rollouts of at least one run with Terminal()")
    kinds = sorted({(run.n_steps, run.closing_rule) for run in runs})
    if len(kinds) > 1:
        raise ValueError(f"runs to calibrate from must have the same number of steps and the same closing: got {kinds}")
    n_steps, closing = kinds[0]
    n_choices, spendable = free_size(n_steps, most_corrections(budget, n_steps), closing)
    corrected = sum(bool(run.projected[:n_choices].any()) for run in runs)
    if corrected:
        raise ValueError(
            f"{corrected} of {len(runs)} runs were corrected before their end, so that their defects do not show what "
            "happens without corrections; record them with Terminal()"
        )
    defects = torch.cat([run.defects for run in runs], dim=1)[:n_choices]
    if bool(defects.isnan().any()):
        raise ValueError(
            "the defects of these runs were not measured, since Terminal() does not need them: record them with "
            "measure_defects=True"
        )
    return Thresholds(
        quantile_table(defects, spendable),
        method="paper",
        seeds=tuple(int(s) for run in runs if run.seeds is not None for s in run.seeds),
        closing=closing,
    )
