"""Prices by quantiles of defects: the paper's rule, and the same rule on the policy's own rollouts."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from trimtab.core.budget import Budget, most_corrections
from trimtab.core.checks import check_integer, check_type
from trimtab.core.record import Rollout
from trimtab.prices.collect import Batches, check_corrections_happen, spread_budgets
from trimtab.prices.price import Thresholds, inner_size, with_closing

_ROUNDS, _POOLED = 6, 3  # of the rule on the policy's own rollouts
_SETTLED = 0.01  # the largest change of the spending profile at which it stops


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


def on_policy_prices(batches: Batches) -> Thresholds:
    """Return the paper's prices, calibrated under the policy that they make.

    Corrected samples have smaller defects than uncorrected rollouts show, the more so the more often they are
    corrected. So the batch is spread over all rates of correction and run under the present table, and lambda[t, b] is
    read off the defects of samples whose rate was near b / (T - t). A pool of the last few rounds damps the oscillation
    between spending too early and too late. It stops when the share of the budget spent by each step has settled.
    """
    batches.require()
    T, budget, uncorrected = batches.n_choices, batches.spendable, batches.uncorrected.defects
    table = quantile_table(uncorrected, budget)
    rounds: list[dict[str, float]] = []
    traces: list[tuple[Tensor, Tensor]] = []
    profile = torch.zeros(T, dtype=torch.float64)
    for number in range(_ROUNDS if batches.has_choice else 0):
        budgets = spread_budgets(batches.n, T, budget, seed=number).clamp(max=budget)
        schedule = Thresholds(batches.closed(table)).at(budgets + batches.closing_reserve)
        rollout = batches.inner(batches.run(schedule))
        if bool(budgets.any()):
            check_corrections_happen([rollout])
        traces = [*traces, (budgets / T, rollout.defects)][-_POOLED:]
        table = _by_rate(traces, uncorrected, budget)
        spent = rollout.projected.double().cumsum(dim=0) / budgets.clamp(min=1)
        before, profile = profile, spent[:, budgets > 0].mean(dim=1)
        change = float((profile - before).abs().max())
        path_error = float(rollout.residuals.sum(dim=0).mean())
        rounds.append({"round": number, "path_error": path_error, "profile_change": change})
        if change < _SETTLED:
            break
    return batches.thresholds(table, "on-policy", {"rounds": rounds})


def _by_rate(traces: list[tuple[Tensor, Tensor]], uncorrected: Tensor, budget: int) -> Tensor:
    """Return the paper's table with lambda[t, b] from samples that were corrected at a rate of about b / (T - t).

    Samples are put into groups of similar rate, and the table is interpolated between the tables of the groups.
    """
    T = len(uncorrected)
    rate = torch.cat([rates for rates, _ in traces])
    defects = torch.cat([defects for _, defects in traces], dim=1)
    groups = rate.argsort().tensor_split(max(1, min(8, len(rate) // 6)))
    tables = [quantile_table(uncorrected, budget)] + [quantile_table(defects[:, group], budget) for group in groups]
    rates = torch.stack([torch.tensor(0.0), *(rate[group].mean() for group in groups)])

    b, to_go = torch.arange(budget + 1), T - torch.arange(T)[:, None]
    wanted = (b / to_go).clamp(max=1.0)
    right = torch.searchsorted(rates, wanted).clamp(1, len(rates) - 1)
    share = ((wanted - rates[right - 1]) / (rates[right] - rates[right - 1]).clamp(min=1e-9)).clamp(0, 1)
    stack = torch.stack(tables)
    low, high = stack.gather(0, right[None] - 1)[0], stack.gather(0, right[None])[0]
    return torch.where(low.isinf(), low, low + share * (high - low))  # b = 0 and b >= T - t stay infinite


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
    n_choices, spendable = inner_size(n_steps, most_corrections(budget, n_steps), closing)
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
        with_closing(quantile_table(defects, spendable), n_steps - n_choices),
        method="paper",
        seeds=tuple(int(s) for run in runs if run.seeds is not None for s in run.seeds),
        closing=closing,
    )
