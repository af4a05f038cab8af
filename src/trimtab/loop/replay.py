"""Compute the decisions of a recorded run again."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

from trimtab.core import state as accounts
from trimtab.core.checks import check_type
from trimtab.core.record import Rollout, work_of
from trimtab.core.schedule import WHOLE, Schedule, as_schedule
from trimtab.core.view import StepView
from trimtab.loop.run import run_terms

__all__ = ["replay"]


def replay(schedule: Schedule | Callable[[StepView], Tensor], record: Rollout) -> Tensor:
    """Return what the schedule decides on the defects of a recorded run.

    The result is (T, n) bool, or the way of each correction, (T, n) int8, if the schedule chooses among several. It
    equals `record.projected`, or `record.ways`, if that schedule is the one that ran; a way that failed and was
    followed by a whole projection is recorded as whole. (A schedule that looks at states cannot be replayed: a record
    does not hold them.) Each view is built from the record alone, and corrections cost what they cost in it.
    """
    check_type(record, Rollout, "the record to replay on", "rollout(…) returns one")
    asked = as_schedule(schedule).to(record.defects.device)
    made, n = record.defects.shape
    T = record.planned_steps or made
    terms, budget = run_terms(asked, T, record.closing_rule, record.unit, n, record.defects.device)
    state, memo = accounts.start(terms, budget), dict[Hashable, Any]()
    several = asked.ways != (WHOLE,)
    ways = torch.zeros(made, n, dtype=torch.int8, device=budget.device)
    for t in range(made):
        if record.closing_rule == "paid" and t == T - 1:
            ways[t] = record.way_names.index(WHOLE) + 1
            break
        left, shares = accounts.left_per_sample(terms, state), terms.pools is not None
        seen: dict[str, Any] = {"n_steps": T, "seeds": record.seeds, "reserve": terms.reserve, "memo": memo}
        view = StepView.of_record(t, record.defects, ways > 0, budget, left=left, shares=shares, **seen)
        wanted = torch.as_tensor(asked.decide(view))
        wanted = wanted * len(asked.ways) if wanted.dtype is torch.bool else wanted
        chosen = accounts.decide(terms, state, wanted > 0, asked.priority(view) if shares else None)
        ways[t] = torch.where(chosen, wanted.clamp(min=1), 0)
        paid = work_of(record.cost, chosen, record.iterations[t], None if record.ways is None else record.ways[t])
        state = accounts.next_step(accounts.spend(terms, state, paid))
    return ways if several else ways > 0
