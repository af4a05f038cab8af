"""What a schedule decides on the defects of a recorded run, worked out apart from the loop."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

from trimtab.core.budget import units
from trimtab.core.errors import check_type
from trimtab.core.record import Rollout
from trimtab.core.schedule import Schedule, as_schedule
from trimtab.core.view import StepView

__all__ = ["replay"]


def replay(schedule: Schedule | Callable[[StepView], Tensor], record: Rollout) -> Tensor:
    """What the schedule decides on the defects of a recorded run, (T, n) bool; where iterations were counted, how many.

    Equal to `record.projected`, or to `record.iterations`, exactly if that schedule is the one that ran (for schedules
    that look at states, which a record does not hold, this cannot be told). It shares nothing with the loop but the
    schedule: each moment is built from the record alone. A closing projection that was paid for takes what it took.
    """
    check_type(record, Rollout, "the record to replay on", "rollout(…) returns one")
    asked = as_schedule(schedule).to(record.defects.device)
    rows, record = record, record.grouped()
    made, n = record.defects.shape
    T = record.planned_steps or made
    counted = record.unit == "iteration"
    budget = torch.as_tensor(units(asked.budget, T, record.unit)).expand(n).to(record.defects.device)
    decided = torch.zeros(made, n, dtype=torch.bool, device=budget.device)
    times, taken = decided.long(), record.iterations.long()
    paid, memo = record.closing_rule == "paid", dict[Hashable, Any]()
    closing_reserve = (asked.closing_reserve if counted else 1) if paid else 0
    for t in range(made):
        if paid and t == T - 1:
            decided[t], times[t] = True, record.iterations[t]
            break
        going = torch.ones(n, dtype=torch.bool, device=budget.device)
        again, costs = _looked_at_again(record, t)
        taken[t] = costs.sum(dim=0)
        for k, defect in enumerate([record.defects[t], *again]):
            spent = times.sum(dim=0)
            view = StepView.of_record(
                t,
                record.defects,
                decided,
                budget,
                n_steps=T,
                seeds=record.seeds,
                spent=spent,
                defect=defect,
                closing_reserve=closing_reserve,
                memo=memo,
                again=k,
            )
            going &= torch.as_tensor(asked.decide(view)) & (spent < budget - closing_reserve)
            if k:
                going &= ~defect.isnan()
            decided[t] |= going
            times[t] += going * (costs[k].clamp(min=1) if counted and k < len(costs) else 1)
    answer = times if counted else decided
    if rows.groups is None:
        return answer
    each = rows.groups.per_row(answer)
    # where a group takes what it took, so does each of its rows, which may be less than the group pays
    return torch.where(each == rows.groups.per_row(taken), rows.iterations.long(), each) if counted else each


def _looked_at_again(record: Rollout, t: int) -> tuple[Tensor, Tensor]:
    """The defects at which a schedule was asked again within step t, (p, n), and what the iterations before cost.

    Defects are NaN for samples that it was not about. Where it was asked once, what its one iteration cost.
    """
    if record.passes is None:
        return record.defects[:0], record.iterations[t : t + 1]
    here = record.passes.step == t
    return record.passes.defects[here], record.passes.cost[here]
