"""The paper's rule with prices calibrated on rollouts of the policy itself, as studies compare it."""

from __future__ import annotations

import torch
from torch import Tensor

from trimtab.calibration.collect import Batches, check_corrections_happen, spread_budgets
from trimtab.prices.price import Thresholds
from trimtab.prices.quantile import quantile_table

__all__ = ["on_policy_prices"]

_ROUNDS, _POOLED = 6, 3
_SETTLED = 0.01  # the largest change of the spending profile at which it stops


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
        schedule = Thresholds(table, closing=batches.closing).at(batches.with_closing(budgets))
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
