"""What a schedule decides on the defects of a recorded run, worked out apart from the loop."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

from trimtab.core.errors import of_type
from trimtab.core.record import Rollout
from trimtab.core.schedule import Moment, Schedule, as_schedule, corrections

__all__ = ["replay"]


def replay(schedule: Schedule | Callable[[Moment], Tensor], record: Rollout) -> Tensor:
    """What the schedule decides on the defects of a recorded run, (T, n) bool.

    Equal to `record.projected` exactly if that schedule is the one that ran (for schedules that look at states, which
    a record does not hold, this cannot be told). It shares nothing with the loop but the schedule: each moment is
    built from the record alone.
    """
    of_type(record, Rollout, "the record to replay on", "rollout(…) returns one")
    asked = as_schedule(schedule).to(record.defects.device)
    groups, record = record.groups, record.grouped()
    T, n = record.defects.shape
    budget = torch.as_tensor(corrections(asked.budget, T)).expand(n).to(record.defects.device)
    decided = torch.zeros(T, n, dtype=torch.bool, device=budget.device)
    paid, memo = record.closing_rule == "paid", dict[Hashable, Any]()
    for t in range(T):
        if paid and t == T - 1:
            decided[t] = True
            break
        now = Moment.of_record(t, record.defects, decided, budget, seeds=record.seeds, kept_back=int(paid), memo=memo)
        wanted = torch.as_tensor(asked.decide(now))
        decided[t] = wanted & (decided[:t].sum(dim=0) < budget - int(paid))
    return decided if groups is None else groups.per_row(decided)
