"""Recompute the decisions of a recorded run."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

from trimtab.core import state as accounts
from trimtab.core.checks import check_type
from trimtab.core.record import Rollout
from trimtab.core.schedule import Schedule, as_schedule
from trimtab.core.trace import run_terms
from trimtab.core.view import StepView

__all__ = ["replay"]


def replay(schedule: Schedule | Callable[[StepView], Tensor], record: Rollout) -> Tensor:
    """Return what the schedule decides on the defects of a recorded run.

    The result is (T, n) bool, or the numbers of iterations, (T, n), if the budget counts those. It equals
    `record.projected`, or `record.iterations`, if that schedule is the one that ran. (A schedule that looks at states
    cannot be replayed: a record does not hold them.) Each view is built from the record alone. A closing projection
    that the budget paid for costs what it cost in the recorded run.
    """
    check_type(record, Rollout, "the record to replay on", "rollout(…) returns one")
    asked = as_schedule(schedule).to(record.defects.device)
    rows, record = record, record.grouped()
    made, n = record.defects.shape
    T, counted = record.planned_steps or made, record.unit == "iteration"
    terms, budget = run_terms(asked, T, record.closing_rule, record.unit, n, record.defects.device)
    state = accounts.start(terms, budget)
    decided = torch.zeros(made, n, dtype=torch.bool, device=budget.device)
    times, memo = decided.long(), dict[Hashable, Any]()
    for t in range(made):
        if record.closing_rule == "paid" and t == T - 1:
            decided[t], times[t] = True, record.iterations[t]
            break
        going = torch.ones(n, dtype=torch.bool, device=budget.device)
        again, costs = _passes_of(record, t)
        for k, defect in enumerate([record.defects[t], *again]):
            left = accounts.left_per_sample(terms, state)
            view = StepView.of_record(
                t,
                record.defects,
                decided,
                budget,
                n_steps=T,
                seeds=record.seeds,
                defect=defect,
                reserve=terms.reserve,
                memo=memo,
                iteration=k,
                left=left,
                shares=terms.pools is not None,
            )
            wanted = torch.as_tensor(asked.decide(view))
            priority = asked.priority(view) if view.shares else None
            going = going & accounts.decide(terms, state, wanted, priority)
            if k:
                going &= ~defect.isnan()
            decided[t] |= going
            spent = going * (costs[k].clamp(min=1) if counted and k < len(costs) else 1)
            state = accounts.spend(terms, state, spent.long())
            times[t] += spent
        state = accounts.next_step(state)
    if rows.groups is None:
        return times if counted else decided
    each = rows.groups.per_row(times if counted else decided)
    if not counted:
        return each
    # a group pays for the row that takes most; its other rows took what they took
    taken = rows.groups.largest(rows.iterations.long())
    return torch.where(each == rows.groups.per_row(taken), rows.iterations.long(), each)


def _passes_of(record: Rollout, t: int) -> tuple[Tensor, Tensor]:
    """Return the defects at each repeated question within step t, (p, n), and the cost of the iterations before.

    Defects are NaN for samples that were not asked about. If it was asked once, the cost of its one iteration.
    """
    if record.passes is None:
        return record.defects[:0], record.iterations[t : t + 1]
    here = record.passes.step == t
    return record.passes.defects[here], record.passes.cost[here]
