"""Price tables that a learner makes: for budgets of one's own, and for a number of rows that is known before a run."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from trimtab.core.budget import PerBatch, PerSample, corrections
from trimtab.prices.fit import Traces
from trimtab.prices.learned import Arm, Counted, Priced
from trimtab.prices.price import Thresholds
from trimtab.prices.program import solve
from trimtab.prices.sample_scale import Seen, fit_sample_scale
from trimtab.prices.transitions import Steps, estimate_transitions

__all__ = ["Table", "learn_table", "table_arm"]


class Table(NamedTuple):
    """A learned price table.

    Attributes:
        price: lambda[t, b].
        pace: Corrections per sample at each step that it is expected to buy, (T',).
        spend: Corrections per sample before the closing projection.
        fixed: Whether the number of rows of each step is fixed.
    """

    price: Thresholds
    pace: Tensor
    spend: int
    fixed: bool


def learn_table(traces: Traces, budget: PerBatch | PerSample, n_steps: int, closing: str) -> Table | None:
    """Return the table of the dynamic program for traces; None if they show too little."""
    reserve = int(closing == "paid")
    spend, n_choices = int(corrections(budget, n_steps)) - reserve, len(traces.residuals)
    if spend < 1 or n_choices < 2:
        return None
    seen = Seen(traces.defects[:n_choices], traces.residuals.double(), traces.ways > 0)
    scale = fit_sample_scale([seen])
    try:
        steps = estimate_transitions([seen], scale, widen=False)
    except ValueError:  # around some step only one of the two actions was seen
        return None
    table = solve(steps, spend).table
    price = Thresholds(table, scale, method="learned", closing=closing)
    return Table(price, _pace(steps, table), spend, isinstance(budget, PerBatch))


def table_arm(table: Table, rows: Tensor) -> Arm:
    """Return the arm of some rows that follows a table."""
    limit = table.price.budget
    if table.fixed:
        return Counted(rows, limit, True, table.price, _counts(table.pace, len(rows), table.spend))
    return Priced(rows, limit, False, table.price)


def _pace(steps: Steps, table: Tensor) -> Tensor:
    """Return the corrections per sample that prices are expected to buy at each step, (T',), with the largest budget.

    Args:
        steps: What one step does to a defect, at the T' steps with a choice.
        table: The prices, (T', B + 1).
    """
    share = torch.zeros(table.shape[1], len(steps.start), dtype=torch.float64)  # of samples, by units left and node
    share[-1] = steps.start
    pace = torch.zeros(len(table), dtype=torch.float64)
    for t, prices in enumerate(table):
        bought = torch.where(steps.scale[t] * steps.nodes[t] >= prices[:, None], share, 0.0)
        pace[t] = bought.sum()
        if t < len(table) - 1:
            share = (share - bought) @ steps.alone[t]
            share[:-1] += (bought @ steps.corrected[t])[1:]  # one unit less
    return pace.clamp(0, 1)


def _counts(pace: Tensor, n: int, spend: int) -> tuple[int, ...]:
    """Return how many of n samples to correct at each step, in proportion to `pace`, (T',); the sum is n * spend."""
    counts: list[int] = []
    left = n * spend
    due = (pace.cumsum(0) / pace.sum() * left).round().long().tolist()
    for t, total in enumerate(due):
        fewest = left - n * (len(due) - 1 - t)  # what later steps could not take
        counts.append(min(max(total - sum(counts), fewest, 0), n, left))
        left -= counts[-1]
    return tuple(counts)
