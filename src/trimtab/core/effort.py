"""How much to correct: Algorithm 1 inside the step, where the unit of cost is one iteration of the solver.

The paper's rule decides once per step whether to project. A projection that iterates can be had in parts, and the same
table of prices decides again after each of them: while b > 0 and s >= lambda[t, b], one iteration, b -= 1 (or what the
solver says that it cost). Where one iteration is the whole projection the two are the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trimtab.core.bound_constraint import BoundConstraint, ProjectionError
from trimtab.core.state import RunState
from trimtab.core.states import Leaves, finite_rows, put_rows

__all__ = ["improve_while_it_pays"]

_ENDLESS = 1000


def improve_while_it_pays(
    ledger: RunState, constraint: BoundConstraint, x: Leaves, rows: Tensor, proposal: Any, context: Mapping[str, Any]
) -> Leaves:
    """Iterate on the chosen rows, one unit each time, until the schedule wants no more: the states to go on with.

    A row that is left alone once is left alone for the rest of the step. What the solver carries from one iteration to
    the next goes with its rows, and is dropped at the end of the step.

    Args:
        ledger: Whose first unit of each chosen row is spent already.
        constraint: For the whole batch.
        x: The proposals.
        rows: Of the chosen samples, (k,) int64.
        proposal: As the loop gave it, for schedules that look at it.
        context: What the loop passed with this step.
    """
    state: tuple[Tensor, ...] | None = None
    count = 0
    while rows.numel():
        if (count := count + 1) > _ENDLESS:
            raise ProjectionError(
                f"{rows.numel()} samples were not done after {_ENDLESS} iterations at step {ledger.t}; improve must "
                "say done where it cannot go on, or the schedule must have a budget"
            )
        answer = constraint.take(rows).improve(x, rows, state)
        if not (ledger.improve(rows, answer) and bool(finite_rows(answer.x).all())):
            raise ProjectionError(
                f"improve returned states or defects with NaN, inf or below 0 at step {ledger.t}; it must return "
                "finite states and say done where it cannot go on"
            )
        x = put_rows(x, rows, answer.x)
        if not ledger.schedule.repeats:
            break
        going = torch.zeros_like(ledger.done).index_fill_(0, rows, True) & ~ledger.done
        again = torch.as_tensor(ledger.decide(proposal, context, among=going))[rows]
        rows, state = rows[again], None if answer.state is None else tuple(part[again] for part in answer.state)
    return x
