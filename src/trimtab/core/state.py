"""Algorithm 1 as pure functions on an explicit run state.

    state = start(terms, budget)
    for t in range(T):
        chosen = decide(terms, state, wanted)     # b > 0 and the schedule wants it: s >= lambda[t, b]
        state = spend(terms, state, chosen)       # b -= 1
        state = next_step(state)                  # t += 1

A `RunState` is a value: nothing here changes its arguments. `Corrector` is the shell around these functions;
`trimtab.integrations.jax` calls them inside `jit`: with a budget per sample they use nothing but operators.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["Pools", "RunState", "Terms", "decide", "left_per_sample", "next_step", "spend", "start"]


class Pools(NamedTuple):
    """The samples that share a budget. A sample with a budget of its own is a pool of one.

    Attributes:
        of: The pool of each sample, (n,) int64 from 0 to P - 1.
        size: Samples in each pool, (P,) int64.
        exact: Whether a pool must be spent whole, as far as the remaining steps allow, (P,) bool.
    """

    of: Tensor
    size: Tensor
    exact: Tensor

    @classmethod
    def of_labels(cls, labels: Tensor, exact: bool) -> Pools:
        """Return the pools of samples labelled from 0, (n,) int64; each sample labelled -1 is a pool of its own."""
        own = labels < 0
        shared = int(labels.max()) + 1
        of = torch.where(own, shared + own.long().cumsum(0) - 1, labels)
        size = torch.bincount(of)
        return cls(of, size, (torch.arange(len(size), device=of.device) < shared) & exact)

    def total(self, values: Tensor) -> Tensor:
        """Return the sum of values of samples, (n,), over each pool, (P,); whole numbers stay whole."""
        values = values if values.is_floating_point() else values.long()
        return torch.zeros_like(self.size, dtype=values.dtype).index_add(0, self.of, values)


class Terms(NamedTuple):
    """What does not change during a run.

    Attributes:
        n_steps: T.
        reserve: Units of each budget that belong to the closing projection; 0 if the budget does not pay for one.
        pools: Who shares budgets; None if no sample does.
        each: Whether every correction costs one unit; otherwise what is left is only known after a correction.
    """

    n_steps: int
    reserve: float = 0
    pools: Pools | None = None
    each: bool = True


class RunState(NamedTuple):
    """What a decision depends on besides the defects.

    Attributes:
        t: The step.
        left: Units that each sample may still spend, (n,); each pool, (P,), if samples share budgets.
    """

    t: Any
    left: Any


def start(terms: Terms, budget: Any) -> RunState:
    """Return the state before the first step, given the budget of each sample, (n,) int64."""
    return RunState(0, budget if terms.pools is None else terms.pools.total(budget))


def decide(terms: Terms, state: RunState, wanted: Any, priority: Any = None) -> Any:
    """Return the samples to correct, (n,) bool: those that the schedule wants and the budget allows.

    A closing projection that the budget pays for corrects every sample at the last step.

    Args:
        terms: Of the run.
        state: Before the decision.
        wanted: What the schedule asks for, (n,) bool.
        priority: Which samples go first if a pool does not pay for all that are wanted, (n,).
    """
    if terms.pools is None:
        chosen = wanted & (state.left > terms.reserve)  # b > 0
    else:
        chosen = _ration(terms, terms.pools, state, wanted, priority)
    return chosen | (state.t == terms.n_steps - 1) if terms.reserve else chosen


def spend(terms: Terms, state: RunState, cost: Any) -> RunState:
    """Return the state after each sample has paid `cost`, (n,) integers or bool."""
    return state._replace(left=state.left - (1 * cost if terms.pools is None else terms.pools.total(cost)))


def next_step(state: RunState) -> RunState:
    """Return the same state one step later."""
    return state._replace(t=state.t + 1)


def left_per_sample(terms: Terms, state: RunState) -> Any:
    """Return what is left of each sample's budget, (n,); the mean of its pool, as floats, if samples share."""
    return state.left if terms.pools is None else (state.left / terms.pools.size)[terms.pools.of]


def _ration(terms: Terms, pools: Pools, state: RunState, wanted: Tensor, priority: Tensor) -> Tensor:
    """Keep the choice of each pool within what it has, and spend now what its later steps could not."""
    steps_after = terms.n_steps - 1 - state.t - int(terms.reserve > 0)
    if steps_after < 0:  # the closing step, which the reserve pays for
        return wanted
    count = pools.total(wanted)
    free = (state.left - terms.reserve * pools.size).clamp(min=0)
    least = (free - pools.size * steps_after).clamp(min=0) * pools.exact
    room = torch.minimum(free, pools.size) if terms.each else torch.where(free > 0, pools.size, 0)
    allowed = torch.minimum(torch.maximum(count, least), room)
    if torch.equal(allowed, count):
        return wanted
    order = priority.argsort(descending=True, stable=True)
    order = order[wanted[order].int().argsort(descending=True, stable=True)]  # wanted ones first
    order = order[pools.of[order].argsort(stable=True)]  # pool by pool
    rank = torch.arange(len(order), device=order.device) - (pools.size.cumsum(0) - pools.size)[pools.of[order]]
    return torch.zeros_like(wanted).index_copy(0, order, rank < allowed[pools.of[order]])
