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
        shares: Which samples share one budget, (n,) bool; None if each has its own.
        exact: Whether a shared budget must be spent whole, as far as the remaining steps allow.
    """

    n_steps: int
    reserve: int = 0
    shares: Tensor | None = None
    exact: bool = True


class RunState(NamedTuple):
    """What a decision depends on besides the defects.

    Attributes:
        t: The step.
        left: Units that each sample may still spend, (n,); samples that share have the pool's here.
        pool: Units that the samples which share may still spend together, ().
    """

    t: Any
    left: Any
    pool: Any = None


def start(terms: Terms, budget: Any) -> RunState:
    """Return the state before the first step, given the budget of each sample, (n,) int64."""
    if terms.shares is None:
        return RunState(0, budget)
    pool = budget[terms.shares].sum()
    return RunState(0, torch.where(terms.shares, pool, budget), pool)


def decide(terms: Terms, state: RunState, wanted: Any, priority: Any = None) -> Any:
    """Return the samples to correct, (n,) bool: those that the schedule wants and the budget allows.

    A closing projection that the budget pays for corrects every sample at the last step.

    Args:
        terms: Of the run.
        state: Before the decision.
        wanted: What the schedule asks for, (n,) bool.
        priority: Which samples go first if a shared budget does not pay for all that are wanted, (n,).
    """
    if terms.reserve and isinstance(state.t, int) and state.t == terms.n_steps - 1:
        return wanted | True
    chosen = wanted & (state.left > terms.reserve)  # b > 0
    return chosen if terms.shares is None else _ration(terms, state, chosen, priority)


def spend(terms: Terms, state: RunState, cost: Any) -> RunState:
    """Return the state after each sample has paid `cost`, (n,) integers or bool."""
    if terms.shares is None:
        return state._replace(left=state.left - 1 * cost)
    pool = state.pool - torch.where(terms.shares, 1 * cost, 0).sum()
    return state._replace(left=torch.where(terms.shares, pool, state.left - 1 * cost), pool=pool)


def next_step(state: RunState) -> RunState:
    """Return the same state one step later."""
    return state._replace(t=state.t + 1)


def mean_left(terms: Terms, state: RunState) -> float:
    """Return what is left of a shared budget per sample, without what the closing projections take."""
    assert terms.shares is not None
    n = int(terms.shares.sum())
    return max(float(state.pool) / n - terms.reserve, 0.0)


def _ration(terms: Terms, state: RunState, chosen: Tensor, priority: Tensor) -> Tensor:
    """Keep the choice of the samples that share within what the pool has, and spend what later steps could not."""
    rows = terms.shares.nonzero().squeeze(1)  # type: ignore[union-attr]
    n, wanted = len(rows), chosen[rows]
    free = max(int(state.pool) - terms.reserve * n, 0)
    steps_after = terms.n_steps - 1 - state.t - int(terms.reserve > 0)
    least = max(free - n * steps_after, 0) if terms.exact else 0
    count = int(wanted.sum())
    allowed = min(max(count, least), free, n)
    if allowed == count:
        return chosen
    by_priority = priority[rows].argsort(descending=True, stable=True)
    order = by_priority[wanted[by_priority].int().argsort(descending=True, stable=True)]  # wanted ones first
    rationed = chosen.clone()
    rationed[rows] = False
    rationed[rows[order[:allowed]]] = True
    return rationed
