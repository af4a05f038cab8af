"""Prices for another number of steps than they were calibrated for.

Step t of S stands for the step of T that ends at the same share of the run; between known prices is interpolated. What
budget stands for which depends on what needs correcting. Where it is a number of events in the run (bursts, obstacles
passed), b corrections stand for b, however many steps there are: keep the "count". Where every step adds its own noise,
b of S steps stand for b T / S of T: keep the "share". What either loses is measured in docs/prices.md.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from trimtab.core.checks import check_integer
from trimtab.schedules.basic import MOST_STEPS

__all__ = ["Keep", "between", "old_budgets", "resampled_masks", "resampled_table", "resampled_typical"]


Keep = Literal["count", "share"]
"""What of a budget stays the same when the number of steps changes."""


def ends_at(n_steps: int, old_steps: int) -> Tensor:
    """The step of `old_steps` that ends at the same share of the run, for each of `n_steps`, as a fraction (S,)."""
    check_integer(n_steps, "n_steps", most=MOST_STEPS)
    ends = torch.arange(1, n_steps + 1, dtype=torch.float64) * old_steps / n_steps
    return (ends - 1).clamp(min=0)


def old_budgets(n_steps: int, old_steps: int, most: int, keep: Keep) -> Tensor:
    """The budget of `old_steps` that each of 0, 1, … corrections of `n_steps` stands for, as a fraction."""
    check_integer(n_steps, "n_steps", most=MOST_STEPS)
    if keep == "count":
        return torch.arange(min(most, n_steps) + 1, dtype=torch.float64)
    if keep == "share":
        return torch.arange(most * n_steps // old_steps + 1, dtype=torch.float64) * old_steps / n_steps
    raise ValueError(f"resample keeps the 'count' or the 'share' of a budget: got {keep!r}")


def between(rows: Tensor, at: Tensor) -> Tensor:
    """The rows (m, k) read off at fractional positions (s,), (s, k); where a neighbour is infinite, the nearest.

    Example:
        >>> between(torch.tensor([[0.0, 1.0], [2.0, torch.inf]]), torch.tensor([0.25, 1.0]))
        tensor([[0.5000, 1.0000],
                [2.0000,    inf]])
    """
    low, high = at.floor().long(), at.ceil().long().clamp(max=len(rows) - 1)
    share = (at - low)[:, None].to(rows)
    a, b = rows[low], rows[high]
    mixed = a + share * (b - a)
    return torch.where(a.isfinite() & b.isfinite(), mixed, torch.where(share <= 0.5, a, b))


def resampled_table(table: Tensor, n_steps: int, keep: Keep) -> Tensor:
    """A price table (T, B + 1) for S steps, (S, B' + 1)."""
    old, most = table.shape[0], table.shape[1] - 1
    rows = between(table, ends_at(n_steps, old).to(table.device))
    stands_for = old_budgets(n_steps, old, most, keep).to(table.device)
    new = between(rows.T, stands_for).T.contiguous()
    new[:, 0] = torch.inf
    if most > 0 and float(table[-1, 1]) == -torch.inf:  # enough for all steps to go: spend
        budgets = torch.arange(len(stands_for), device=table.device)
        to_go = n_steps - torch.arange(n_steps, device=table.device)
        new[budgets >= to_go[:, None]] = -torch.inf
    return new


def resampled_typical(typical: Tensor, n_steps: int) -> Tensor:
    """Typical defects (T + 1, T), as `SampleScale` keeps them, for S steps."""
    at = ends_at(n_steps, typical.shape[1]).to(typical.device)
    by_step = between(typical.T, at).T
    return torch.cat([by_step[:1], between(by_step[1:], at)])


def resampled_masks(masks: Tensor, n_steps: int, keep: Keep) -> Tensor:
    """Planned times (B + 1, T) bool for S steps, (B' + 1, S): as much of the budget spent by each share of the run.

    Where that asks for more than one at a step, which one correction a step cannot give, the next steps take them.
    """
    check_integer(n_steps, "n_steps", most=MOST_STEPS)
    old, most = masks.shape[1], len(masks) - 1
    counts = torch.nn.functional.pad(masks.double().cumsum(dim=1), (1, 0))  # by the end of each step, (B + 1, T + 1)
    ends = torch.arange(n_steps + 1, dtype=torch.float64, device=masks.device) * old / n_steps
    stands_for = old_budgets(n_steps, old, most, keep).to(masks.device)
    done = between(between(counts, stands_for).T, ends).T  # (B' + 1, S + 1)
    budgets = torch.arange(len(done), dtype=torch.float64, device=masks.device)
    due = (done / stands_for.clamp(min=1e-9)[:, None] * budgets[:, None] + 0.5 - 1e-9).floor()
    due[:, -1] = budgets
    new = torch.zeros(len(done), n_steps, dtype=torch.bool, device=masks.device)
    spent = torch.zeros_like(budgets)
    for t in range(n_steps):
        to_go = n_steps - t - 1
        new[:, t] = (spent < due[:, t + 1]) | (budgets - spent > to_go)  # what cannot wait any longer
        spent += new[:, t]
    return new
