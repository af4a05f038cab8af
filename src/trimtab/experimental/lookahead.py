"""Look-ahead: simulate both branches a few steps where the price table is nearly indifferent.

A price table knows the defect. The sampler knows the whole state, and where an update costs little and a projection
much, it pays to ask it: the sample is carried on a few steps with fresh noise, corrected now and not corrected now, by
the table's own decisions, and what is left then is read off the cost to go. That takes `2 * copies * horizon` updates
for a decision, and simulated projections as well: it is meant for projections that have a cheap stand-in, and for
finding out what a schedule that knew the sampler could gain.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from trimtab.core.budget import Budget
from trimtab.core.constraint import Constraint, checked_constraint
from trimtab.core.errors import of_type, real_number, whole_number
from trimtab.core.moment import Moment
from trimtab.core.noise import Noise
from trimtab.core.rollout import Sampler, check_sampler, take_rows
from trimtab.experimental.value import close_decisions
from trimtab.limits.online_bound import fresh_seeds
from trimtab.prices.dynamic import CostToGo
from trimtab.prices.provenance import Priced, budget_within
from trimtab.prices.thresholds import Thresholds

__all__ = ["LookAhead"]


@dataclass(frozen=True, eq=False)
class LookAhead(Priced):
    """Decide close calls of a price table by simulation; follow the table elsewhere.

    The noise it simulates with is its own, never the rollout's.

    Attributes:
        sampler: As in the rollout, for the same seeds.
        constraint: As in the rollout, for the same seeds; or one that is cheaper to project onto. It needs to know
            nothing beside the states.
        thresholds: The table, without an own scale.
        cost: The cost to go that belongs to it.
        budget: At most the table's own.
        horizon: Steps to simulate.
        copies: Of each branch, with the same noise for both.
        caution: Depart from the table only where the simulated advantage is this many standard errors from 0.
    """

    sampler: Sampler
    constraint: Constraint
    thresholds: Thresholds
    cost: CostToGo
    budget: Budget
    horizon: int = 5
    copies: int = 32
    caution: float = 2.0

    def __post_init__(self) -> None:
        """Check the numbers, and the budget against the table."""
        check_sampler(self.sampler)
        if checked_constraint(self.constraint).needs:
            raise ValueError(
                f"look-ahead simulates steps, of which it cannot tell {', '.join(self.constraint.needs)}, which the "
                "constraint needs; give one that stands in for it and needs nothing"
            )
        of_type(self.thresholds, Thresholds, "the table of a look-ahead", "calibrate makes one")
        of_type(self.cost, CostToGo, "the cost of a look-ahead", "trimtab.prices.dynamic.solve makes one")
        whole_number(self.horizon, "the horizon of a look-ahead")
        whole_number(self.copies, "the copies of a look-ahead", 2)
        real_number(self.caution, "caution, a number of standard errors,", 0)
        if self.thresholds.own_scale is not None:
            raise ValueError("look-ahead simulates prices that are the same for all samples: this table has own scales")
        b = budget_within(self.budget, self.thresholds.n_steps, self.thresholds.budget)
        steps, counts = self.cost.cost.shape[:2]
        if steps != self.thresholds.n_steps or counts <= self.thresholds.budget:
            raise ValueError(
                f"the cost of a look-ahead is kept for the {self.thresholds.n_steps} steps of its table and up to its "
                f"{self.thresholds.budget} corrections: got one for {steps} steps and up to {counts - 1} corrections; "
                "take both from one solve(…, keep_cost=True)"
            )
        object.__setattr__(self, "budget", b)

    @property
    def made_from(self) -> Thresholds:
        """The price table."""
        return self.thresholds

    def decide(self, now: Moment) -> Tensor:
        """By the table where the defect is far from its price, by simulation where it is close."""
        price = torch.as_tensor(self.thresholds.price(now, now.arrays(self)[1]))
        chosen = now.defect >= price
        rows = close_decisions(now.defect, price).nonzero().squeeze(1)
        if len(rows) == 0 or now.t == now.n_steps - 1:
            return chosen
        if now.proposal is None or now.seeds is None:
            raise ValueError("look-ahead goes on from the states of a running loop that knows its seeds")
        proposal, left = now.proposal[rows], now.budget_left[rows]
        constraint = self.constraint.take(rows)
        answer = constraint.project(proposal.clone())  # it may work in place, and the proposal is gone on from as well
        projected = answer if isinstance(answer, Tensor) else answer.x
        stay = self._simulate(now, rows, proposal, left) + now.defect[rows, None]
        go = self._simulate(now, rows, projected, left - 1) + constraint.defect(projected)[:, None]
        advantage, spread = (stay - go).mean(dim=1), (stay - go).std(dim=1) / self.copies**0.5
        chosen[rows] = torch.where(advantage.abs() > self.caution * spread, advantage > 0, chosen[rows])
        return chosen

    def _simulate(self, now: Moment, rows: Tensor, x: Tensor, left: Tensor) -> Tensor:
        """What samples `rows` that go on from x with so much left cost from the next step on, (m, copies)."""
        assert now.seeds is not None
        m, T = len(rows), now.n_steps
        rows, left = rows.repeat_interleave(self.copies), left.repeat_interleave(self.copies)
        x = x.repeat_interleave(self.copies, dim=0)
        draws = torch.arange(self.copies, device=x.device).repeat(m)
        noise = Noise(fresh_seeds(now.seeds[rows], now.t, T, draws, self.copies), x.dtype)
        sampler, constraint = take_rows(self.sampler, rows), self.constraint.take(rows)
        total = torch.zeros(len(rows), dtype=torch.float64, device=x.device)
        until = min(now.t + self.horizon, T - 1)
        for t in range(now.t + 1, until + 1):
            x = sampler.step(x, t, noise)
            defect = constraint.defect(x).double()
            if t == until:  # what is left is read off, this step's decision included
                total += _at(self.cost, t, left, defect)
                break
            correct = (defect >= self.thresholds.table[t][left]) & (left > 0)
            chosen = correct.nonzero().squeeze(1)
            answer = constraint.take(chosen).project(x[chosen])
            x = x.index_copy(0, chosen, answer if isinstance(answer, Tensor) else answer.x)
            total += torch.where(correct, 0.0, defect)
            left = left - correct.long()
        return total.reshape(m, self.copies)

    def to(self, device: torch.device) -> LookAhead:
        """The same schedule with its table and its budget on `device`."""
        cost = CostToGo(*(part.to(device) for part in vars(self.cost).values()))
        budget = self.budget.to(device) if isinstance(self.budget, Tensor) else self.budget
        return replace(self, thresholds=self.thresholds.to(device), cost=cost, budget=budget)


def _at(cost: CostToGo, t: int, left: Tensor, defect: Tensor) -> Tensor:
    """The cost to go from step t with so many corrections left and this defect, (m,): linear between nodes."""
    nodes, values = cost.nodes[t], cost.cost[t]
    right = torch.searchsorted(nodes, defect).clamp(1, len(nodes) - 1)
    share = ((defect - nodes[right - 1]) / (nodes[right] - nodes[right - 1])).clamp(min=0)
    return (1 - share) * values[left, right - 1] + share * values[left, right]
