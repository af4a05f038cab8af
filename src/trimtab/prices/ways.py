r"""The program over ways: when, how much and how to correct, at one price per unit of work.

A sample with defect d at step t takes the way w that costs least from here to the end,

    V[t](d) = min over w of  residual[w](t, d) + mu work[w](t, d) + E[ V[t + 1](next defect) | residual ]

where way 0 is to stay: its residual is d and its work nothing. The price of work, mu, is one number. It is chosen anew
at every step, the smallest at which the expected work to go of the whole batch is not more than what is left of its
budget. With whole projections as the only way, this is the dynamic program of `trimtab.prices.program`, with a price of
work in place of a budget of one's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from trimtab.core.budget import COST, Cost
from trimtab.prices.fit import Model, locate

__all__ = ["Program", "fit_cost", "solve_ways"]

_PRICES = 46
_DECADES = 9
_NEVER = 1e300  # costs to go are interpolated, which infinity would not survive


@dataclass(frozen=True, eq=False)
class Program:
    """The solved program.

    Attributes:
        nodes: Defects at which it is known, (k,).
        mu: Prices of a unit of work, ascending, (p,).
        q: The cost to go by way, (T', m + 1, p, k); 1e300 for ways that are left out.
        to_go: Expected work to go at each price, the closing projection included, (T', p, k).
        taken: The expected work of each way now, (T', m + 1, k).
        call: What a call of the solver costs, in units of work.
    """

    nodes: Tensor
    mu: Tensor
    q: Tensor
    to_go: Tensor
    taken: Tensor
    call: float = 0.0

    def decide(self, t: int, defect: Tensor, left: float) -> Tensor:
        """Return the way of each sample, (n,) int64, given defects (n,) and the work left for all of them."""
        place, share = self._locate(defect)
        to_go = self._at(self.to_go[t], place, share).sum(dim=-1)  # (p,)
        affordable = (to_go <= left).nonzero()
        price = int(affordable[0]) if len(affordable) else len(self.mu) - 1
        cost = self._at(self.q[t, :, price], place, share)  # (m + 1, n)
        ways = cost.argmin(dim=0)
        if self.call:
            ways = _worth_a_call(cost, float(self.mu[price]) * self.call)
        return self._within(t, ways, cost, place, share, left)

    def gain(self, t: int, defect: Tensor) -> Tensor:
        """Return what the best way is worth beyond staying, (n,), if work costs nothing."""
        cost = self._at(self.q[t, :, 0], *self._locate(defect))
        return cost[0] - cost.amin(dim=0)

    def _within(self, t: int, ways: Tensor, cost: Tensor, place: Tensor, share: Tensor, left: float) -> Tensor:
        """Leave out what would eat the closing projection's share, the least gain per work first."""
        work = self._at(self.taken[t], place, share).gather(0, ways[None])[0]
        closing = self._at(self.to_go[t, -1], place, share).sum()  # if nothing is corrected before the end
        room = left - float(closing)
        if float(work.sum()) <= room:
            return ways
        gain = (cost[0] - cost.gather(0, ways[None])[0]) / work.clamp(min=1e-9)
        order = gain.argsort(descending=True)
        kept = work[order].cumsum(0) <= room
        return torch.zeros_like(ways).index_copy(0, order, torch.where(kept, ways[order], 0))

    def _locate(self, defect: Tensor) -> tuple[Tensor, Tensor]:
        nodes = self.nodes
        place = (torch.searchsorted(nodes, defect.double().contiguous(), right=True) - 1).clamp(0, len(nodes) - 2)
        return place, ((defect - nodes[place]) / (nodes[place + 1] - nodes[place])).clamp(0, 1)

    @staticmethod
    def _at(values: Tensor, place: Tensor, share: Tensor) -> Tensor:
        """Return values at nodes, (…, k), interpolated at defects, (…, n)."""
        low = values[..., place]
        return low + share * (values[..., place + 1] - low)

    def to(self, device: torch.device) -> Program:
        """Return the same program on `device`."""
        return replace(self, **{name: part.to(device) for name, part in vars(self).items() if name != "call"})


def _worth_a_call(cost: Tensor, call: float) -> Tensor:
    """Return the best ways, (n,), where each way that is taken costs one call more: (m + 1, n) to (n,)."""
    kept = list(range(len(cost)))
    while len(kept) > 1:
        best = cost[kept].amin(dim=0)
        without = {way: float((cost[[w for w in kept if w != way]].amin(dim=0) - best).sum()) for way in kept[1:]}
        least = min(without, key=without.__getitem__)
        if without[least] >= call:
            break
        kept.remove(least)
    return torch.tensor(kept, device=cost.device)[cost[kept].argmin(dim=0)]


def solve_ways(
    model: Model, ways: Sequence[int], closing: bool, cost: Cost = COST["iteration"], per_call: float = 8
) -> Program:
    """Solve the program backward for all prices.

    Args:
        model: What ways and steps do.
        ways: The ways that may be taken, numbers of the model; staying is always among them.
        closing: Whether a whole projection that the budget pays for follows the last free decision.
        cost: Of a call, a row and an iteration.
        per_call: How many samples usually share a call.
    """
    nodes, (T, n_ways, k) = model.nodes, model.residual.shape
    work_of = cost.iteration * model.work + cost.row * (np.arange(n_ways) > 0)[:, None]
    last = cost.iteration * model.closing + cost.row + cost.call / per_call
    positive = nodes[nodes > 0]
    middle = float(np.sqrt(positive[0] * positive[-1]))
    mu = middle * np.geomspace(10 ** (-0.6 * _DECADES), 10 ** (0.4 * _DECADES), _PRICES)
    allowed = [0, *ways]
    q, to_go = np.full((T, n_ways, _PRICES, k), _NEVER), np.empty((T, _PRICES, k))
    value, work = np.zeros((2, _PRICES, k))
    if closing:
        value, work = nodes + mu[:, None] * last, np.broadcast_to(last, (_PRICES, k))
    for t in reversed(range(T)):
        ahead, work_ahead = value @ model.following[t].T, work @ model.following[t].T  # by residual, (p, k)
        place, share = locate(nodes, model.residual[t, allowed])  # (w, k)
        onward = (part[:, place] + share * (part[:, place + 1] - part[:, place]) for part in (ahead, work_ahead))
        future, future_work = (part.transpose(1, 0, 2) for part in onward)  # (w, p, k)
        taken = work_of[t, allowed][:, None]
        shared = taken + (cost.call / per_call) * (np.arange(len(allowed)) > 0)[:, None, None]
        now = model.residual[t, allowed][:, None] + future
        q[t, allowed] = np.minimum(now + mu[:, None] * taken, _NEVER)  # `decide` prices the call of this step
        total = np.minimum(now + mu[:, None] * shared, _NEVER)  # later steps: each row pays its share of a call
        best = total.argmin(axis=0)[None]
        value = np.take_along_axis(total, best, axis=0)[0]
        work = np.take_along_axis(shared + future_work, best, axis=0)[0]
        to_go[t] = work
    grid, prices, by_way, left, now = (
        torch.from_numpy(np.ascontiguousarray(p)) for p in (nodes, mu, q, to_go, work_of)
    )
    return Program(grid, prices, by_way, left, now, cost.call)


def fit_cost(log: Sequence[tuple[float, int, int]]) -> Cost:
    """Return what a call, a row and an iteration cost, in seconds, from seconds, rows and iterations of calls.

    The fit has no negative parts; without calls, an iteration costs 1.
    """
    seen = np.array(log, dtype=np.float64).reshape(-1, 3)
    if not len(seen):
        return Cost(iteration=1)
    seconds = seen[:, 0]
    facts = np.column_stack([np.ones(len(seen)), seen[:, 1], seen[:, 2]])
    usual = seconds <= 5 * np.median(seconds)  # a call that waited for the machine says nothing
    facts, seconds = facts[usual], seconds[usual]
    parts = [0, 1, 2] if facts[:, 2].any() else [0, 1]
    while True:
        found = np.linalg.lstsq(facts[:, parts], seconds, rcond=None)[0]
        if (found >= 0).all() or len(parts) == 1:
            break
        parts = [part for part, one in zip(parts, found, strict=True) if one > 0] or parts[:1]
    cost = np.zeros(3)
    cost[parts] = np.maximum(found, 0)
    return Cost(*map(float, cost))
