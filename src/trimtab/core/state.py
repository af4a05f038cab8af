"""Algorithm 1 as pure functions on an explicit run state.

    state = start(budget)
    for t in range(T):
        chosen = decide(terms, state, wanted)     # b > 0 and the schedule wants it: s >= lambda[t, b]
        state = spend(terms, state, chosen)       # b -= 1, t += 1

A `RunState` is a value: nothing here changes its arguments. `Corrector` is the shell around these functions;
`trimtab.integrations.jax` calls them inside `jit`, since own budgets use nothing but operators.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["RunState", "Terms", "decide", "mean_left", "next_step", "spend", "start"]


class Terms(NamedTuple):
    """What does not change during a run.

    Attributes:
        n_steps: T.
        reserve: Units of each budget that belong to the closing projection; 0 if the budget does not pay for one.
        pools: The pool that each sample draws from, (n,) int64, -1 for a budget of its own; None if no sample shares.
        exact: Whether a pool must be spent whole, as far as the remaining steps allow.
    """

    n_steps: int
    reserve: int = 0
    pools: Tensor | None = None
    exact: bool = True


class RunState(NamedTuple):
    """What a decision depends on besides the defects.

    Attributes:
        t: The step.
        left: Units that each sample may still spend, (n,); samples that share have their pool's here.
        pool: Units that each pool may still spend, (P,); None if no sample shares.
    """

    t: Any
    left: Any
    pool: Any = None


def start(terms: Terms, budget: Any) -> RunState:
    """Return the state before the first step, given the budget of each sample, (n,) int64."""
    if terms.pools is None:
        return RunState(0, budget)
    return _shared(terms, RunState(0, budget), _by_pool(terms, budget))


def decide(terms: Terms, state: RunState, wanted: Any, priority: Any = None) -> Any:
    """Return the samples to correct, (n,) bool: those that the schedule wants and the budget allows.

    A closing projection that the budget pays for corrects every sample at the last step.

    Args:
        terms: Of the run.
        state: Before the decision.
        wanted: What the schedule asks for, (n,) bool.
        priority: Which samples go first if a pool does not pay for all that are wanted, (n,).
    """
    if terms.reserve and isinstance(state.t, int) and state.t == terms.n_steps - 1:
        return wanted | True
    chosen = wanted & (state.left > terms.reserve)  # b > 0
    return chosen if terms.pools is None else _ration(terms, state, chosen, priority)


def spend(terms: Terms, state: RunState, cost: Any) -> RunState:
    """Return the state after each sample has paid `cost`, (n,) integers or bool."""
    paid = state._replace(left=state.left - 1 * cost)
    return paid if terms.pools is None else _shared(terms, paid, state.pool - _by_pool(terms, 1 * cost))


def next_step(state: RunState) -> RunState:
    """Return the same state one step later."""
    return state._replace(t=state.t + 1)


def mean_left(terms: Terms, state: RunState) -> Tensor:
    """Return what is left per sample, (n,) floats: of its pool on average, or of its own budget."""
    assert terms.pools is not None
    sizes = _by_pool(terms, torch.ones_like(terms.pools))
    return torch.where(terms.pools >= 0, (state.pool / sizes)[terms.pools], state.left.double())


def _by_pool(terms: Terms, values: Tensor) -> Tensor:
    """Return the sums of values of samples, (n,), over each pool, (P,)."""
    assert terms.pools is not None
    shares = terms.pools >= 0
    sums = torch.zeros(int(terms.pools.max()) + 1, dtype=values.dtype, device=values.device)
    return sums.index_add(0, terms.pools[shares], values[shares])


def _shared(terms: Terms, state: RunState, pool: Tensor) -> RunState:
    """Return the state with these pools, (P,), shown to the samples that share them."""
    assert terms.pools is not None
    return state._replace(left=torch.where(terms.pools >= 0, pool[terms.pools], state.left), pool=pool)


def _ration(terms: Terms, state: RunState, chosen: Tensor, priority: Tensor) -> Tensor:
    """Keep the choice of each pool within what it has, and spend what its later steps could not."""
    assert terms.pools is not None
    rows = (terms.pools >= 0).nonzero().squeeze(1)
    size, count = _by_pool(terms, torch.ones_like(terms.pools)), _by_pool(terms, chosen.long())
    free = (state.pool - terms.reserve * size).clamp(min=0)
    steps_after = terms.n_steps - 1 - state.t - int(terms.reserve > 0)
    least = (free - size * steps_after).clamp(min=0) if terms.exact else torch.zeros_like(free)
    allowed = torch.minimum(torch.maximum(count, least), torch.minimum(free, size))
    if torch.equal(allowed, count):
        return chosen
    order = rows[priority[rows].argsort(descending=True, stable=True)]
    order = order[chosen[order].int().argsort(descending=True, stable=True)]  # wanted ones first
    order = order[terms.pools[order].argsort(stable=True)]  # pool by pool
    rank = torch.arange(len(order), device=order.device) - (size.cumsum(0) - size)[terms.pools[order]]
    rationed = chosen.clone()
    rationed[order] = rank < allowed[terms.pools[order]]
    return rationed
