"""What a schedule decides on the defects of a recorded run, worked out apart from the loop."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from trimtab.core.record import Rollout
from trimtab.core.schedule import Moment, Schedule, as_schedule, corrections

__all__ = ["replay"]


def replay(schedule: Schedule | Callable[[Moment], Tensor], record: Rollout) -> Tensor:
    """What the schedule decides on the defects of a recorded run, (T, n) bool.

    Equal to `record.projected` exactly if that schedule is the one that ran (for schedules that look at states, which
    a record does not hold, this cannot be told). It shares nothing with the loop but the schedule: each moment is
    built from the record alone.
    """
    asked = as_schedule(schedule).to(record.defects.device)
    groups, record = record.groups, record.grouped()
    T, n = record.defects.shape
    left = torch.as_tensor(corrections(asked.budget, T)).expand(n).clone().to(record.defects.device)
    decided = torch.zeros(T, n, dtype=torch.bool, device=left.device)
    last = torch.zeros_like(left)
    paid = record.closing_rule == "paid"
    for t in range(T):
        now = Moment(t, T, record.defects, decided, left, last, seeds=record.seeds, kept_back=int(paid and t < T - 1))
        if paid and t == T - 1:
            decided[t] = True
            break
        decided[t] = asked.decide(now) & (left > int(paid))
        left = torch.where(decided[t], left - 1, left)
        last = torch.where(decided[t], t + 1, last)
    return decided if groups is None else groups.per_row(decided)
