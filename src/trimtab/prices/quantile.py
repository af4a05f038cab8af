"""Prices by quantiles of defects: the paper's rule, and the same rule on the policy's own rollouts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import isqrt

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trimtab.core.budget import Budget, most_corrections
from trimtab.core.checks import check_integer, check_type
from trimtab.core.record import Rollout
from trimtab.prices.explore import spread_budgets
from trimtab.prices.thresholds import Thresholds, choices, with_closing

__all__ = ["on_policy_table", "paper_prices", "quantile_table"]


def quantile_table(defects: Tensor, budget: int) -> Tensor:
    """The paper's thresholds: lambda[t, b] is the (1 - b / (T - t))-quantile of all defects from step t on.

    Of the values between which that quantile lies, the upper one is taken: then exactly the share b / (T - t) of the
    pool is at or above the price, ties apart, and no interpolation is needed, since (1 - b / (T - t)) times the pool's
    size is a whole number.

    The pool is sorted once. Walking forward in time, the values of passed steps are struck out of the sorted pool, and
    the quantiles of all budgets are every n-th value of what is left.

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
        raise ValueError(f"calibration defects are (T, n) with T, n >= 1: got {tuple(defects.shape)}")
    T, n = defects.shape
    check_integer(budget, f"a budget of corrections in T = {T} steps", 0, T)
    values = defects.detach().cpu().double().numpy().ravel()
    if np.isnan(values).any():
        raise ValueError("calibration defects have NaN; a rollout that produced NaN cannot calibrate anything")
    order = np.argsort(values)  # among equal values any order will do: only values are read off
    table = np.full((T, budget + 1), -np.inf)
    table[:, 0] = np.inf
    _walk(table, values[order], order, n)
    return torch.from_numpy(table)


def _walk(table: NDArray[np.float64], pool: NDArray[np.float64], order: NDArray[np.int64], n: int) -> None:
    """Fill the table, (T, B + 1), from all values ascending and where each of them stands in the (T, n) defects.

    About sqrt(T) steps are struck out by counting, then the pool is packed: T^1.5 n work in all.
    """
    T = len(table)
    step = (order // n).astype(np.min_scalar_type(T))
    stride = isqrt(T)
    for first in range(0, T, stride):
        left = step >= first
        pool, step = pool[left], step[left]
        _fill(table[first : first + stride], pool, step, first, n)


def _fill(
    table: NDArray[np.float64], pool: NDArray[np.float64], step: NDArray[np.unsignedinteger], first: int, n: int
) -> None:
    """The rows of some steps from `first` on, from the ascending pool of values left at the first of them.

    Where a passed value stands at place p of the pool and k passed ones stand before it, p - k of the left ones do. So
    the r-th value left stands r places and one for each passed value with p - k <= r from the pool's beginning.
    """
    to_go = len(pool) // n
    places = np.flatnonzero(step < first + len(table) - 1)  # of values that pass while these rows are filled
    when = step[places]
    order, ranks = np.arange(len(places)), np.arange(to_go) * n
    for t, row in enumerate(table):
        passed = places.take(np.flatnonzero(when < first + t))  # a mask as index takes three times as long
        before = passed - order[: len(passed)]
        wanted = ranks[max(to_go - t - len(row) + 1, 1) : to_go - t]  # largest budget first
        found = pool.take(wanted + before.searchsorted(wanted, side="right"))
        row[len(wanted) : 0 : -1] = found


def on_policy_table(
    run: Callable[[Tensor, Tensor], Rollout],
    free: Rollout,
    budget: int,
    rounds: int = 6,
    pooled: int = 3,
    tolerance: float = 0.01,
) -> tuple[Tensor, list[dict[str, float]]]:
    """The paper's rule, calibrated under the policy it makes.

    Once corrections begin, defects are smaller than uncorrected rollouts show, and how much smaller depends on how
    often a sample is corrected. So the batch is spread over all rates of correction, run under the present table, and
    lambda[t, b] is read off the defects of samples whose rate was near b / (T - t). Each round adds to a pool of the
    last few, which damps the back and forth between spending too early and too late; it stops when the spending
    profile, the share of the budget spent by each step, has settled.

    Args:
        run: Runs a calibration batch by a table (T, B + 1) at budgets (n,).
        free: The uncorrected batch, where it starts from.
        budget: The largest budget, B.
        rounds: At the most.
        pooled: How many of the last rounds make up the pool.
        tolerance: The largest change of the spending profile that counts as settled.

    Returns:
        The table (T, B + 1), and a record of each round.
    """
    T, n = free.defects.shape
    table = quantile_table(free.defects, budget)
    record: list[dict[str, float]] = []
    traces: list[tuple[Tensor, Tensor]] = []
    profile = torch.zeros(T, dtype=torch.float64)
    for number in range(rounds):
        budgets = spread_budgets(n, T, budget, seed=number).clamp(max=budget)
        rollout = run(table, budgets)
        traces = [*traces, (budgets / T, rollout.defects)][-pooled:]
        table = _by_rate(traces, free.defects, budget)
        spent = rollout.projected.double().cumsum(dim=0) / budgets.clamp(min=1)
        before, profile = profile, spent[:, budgets > 0].mean(dim=1)
        change = float((profile - before).abs().max())
        record.append(
            {"round": number, "path_error": float(rollout.residuals.sum(dim=0).mean()), "profile_change": change}
        )
        if change < tolerance:
            break
    return table, record


def _by_rate(traces: list[tuple[Tensor, Tensor]], free: Tensor, budget: int) -> Tensor:
    """The paper's table where the pool of lambda[t, b] is made of samples corrected at a rate of about b / (T - t).

    Samples are put into groups of similar rate; between the groups' tables it is interpolated.
    """
    T = len(free)
    rate = torch.cat([rates for rates, _ in traces])
    defects = torch.cat([defects for _, defects in traces], dim=1)
    groups = rate.argsort().tensor_split(max(1, min(8, len(rate) // 6)))
    tables = [quantile_table(free, budget)] + [quantile_table(defects[:, group], budget) for group in groups]
    rates = torch.stack([torch.tensor(0.0), *(rate[group].mean() for group in groups)])

    b, to_go = torch.arange(budget + 1), T - torch.arange(T)[:, None]
    wanted = (b / to_go).clamp(max=1.0)
    right = torch.searchsorted(rates, wanted).clamp(1, len(rates) - 1)
    share = ((wanted - rates[right - 1]) / (rates[right] - rates[right - 1]).clamp(min=1e-9)).clamp(0, 1)
    stack = torch.stack(tables)
    low, high = stack.gather(0, right[None] - 1)[0], stack.gather(0, right[None])[0]
    return torch.where(low.isinf(), low, low + share * (high - low))  # the conventions at b = 0 and b >= T - t stay


def paper_prices(runs: Iterable[Rollout], budget: Budget = 1.0) -> Thresholds:
    """The paper's prices from recorded runs of a loop, with nothing run anew.

    Args:
        runs: Runs of the loop with `Terminal()` whose defects were measured (`measure_defects=True`), all of the same
            T and ended alike: `corrector.rollout` of as many batches as you like.
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
        raise TypeError(f"runs to calibrate from are a list of rollouts: got {runs!r:.60}")
    runs = [check_type(run, Rollout, "a run to calibrate from", "rollout(…) returns one") for run in runs]
    if not runs:
        raise ValueError("no runs to calibrate from: give the rollouts of at least one run with Terminal()")
    kinds = sorted({(run.n_steps, run.closing_rule) for run in runs})
    if len(kinds) > 1:
        raise ValueError(f"runs to calibrate from must have the same number of steps and the same closing: got {kinds}")
    n_steps, closing = kinds[0]
    n_choices, spendable = choices(n_steps, most_corrections(budget, n_steps), closing)
    touched = sum(bool(run.projected[:n_choices].any()) for run in runs)
    if touched:
        raise ValueError(
            f"{touched} of {len(runs)} runs were corrected on the way, so that their defects do not show what happens "
            "without corrections; record them with Terminal()"
        )
    defects = torch.cat([run.grouped().defects for run in runs], dim=1)[:n_choices]
    if bool(defects.isnan().any()):
        raise ValueError(
            "the defects of these runs were not measured, which Terminal() does without: record them with "
            "measure_defects=True"
        )
    return Thresholds(
        with_closing(quantile_table(defects, spendable), n_steps - n_choices),
        method="paper",
        seeds=tuple(int(s) for run in runs if run.seeds is not None for s in run.seeds),
        closing=closing,
    )
