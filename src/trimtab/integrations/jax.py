"""Decisions inside `jit`, `vmap` and `scan`: the table of a calibrated price as a pure function of JAX arrays.

A `Corrector` between jitted steps takes and returns JAX arrays as they are. Inside a traced function it cannot be
called: which rows it projects depends on values that are not there yet. There, carry the decisions' own state along:

    start, decide = decision_function(price.at(0.25))
    mask, state = decide(state, defect, t)
    x = jnp.where(mask[:, None], project(x), x)
"""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral
from typing import Any, NamedTuple, get_args

import numpy as np

from trimtab.core.errors import check_type, missing_extra
from trimtab.core.record import Closing
from trimtab.prices.plan import Planned
from trimtab.prices.schedule import Adaptive

try:
    import jax
    import jax.numpy as jnp
except ImportError as error:
    raise missing_extra("jax", "jax", "trimtab.integrations.jax") from error

__all__ = ["DecisionState", "Decisions", "decision_function"]


class DecisionState(NamedTuple):
    """What decisions carry from step to step, (n,) each or of no dimension for one sample.

    Attributes:
        left: Corrections left.
        last: 1 + the step of the last correction, 0 for never.
        total: The sum of defects in typical ones so far; 0 where prices are the same for all samples.
    """

    left: jax.Array
    last: jax.Array
    total: jax.Array


class Decisions(NamedTuple):
    """The two functions of `decision_function`."""

    start: Callable[[tuple[int, ...]], DecisionState]
    decide: Callable[[DecisionState, jax.Array, Any], tuple[jax.Array, DecisionState]]


def decision_function(schedule: Adaptive | Planned, closing: Closing | None = None) -> Decisions:
    """The decisions of a calibrated schedule as pure functions that trace, jit and vmap.

    They are those of a `Corrector` with the same schedule, decision for decision. A defect in float32 is compared as
    exactly as there: the table is rounded up to the next float32. Only where prices are in units of each sample's own
    scale, a running sum, may float32 decide a tie the other way. Inside `jit` nothing can be refused: a defect that is
    NaN, where a `Corrector` would stop, reaches no price.

    With `closing="paid"` the mask of the last step is all of them. With "free", project what the last step left alone
    afterwards; with "none", nothing.

    Args:
        schedule: `price.at(budget)` of a price table or a plan, with one budget for all samples.
        closing: As in `Corrector`; by default what the price was made for, or "paid", as there, if it does not say.

    Returns:
        `start(shape)`, the state of a batch, (n,), or of one sample, (); and `decide(state, defect, t)`, the samples to
        project after step t and the state to go on with. `t` may be traced.

    Example:
        >>> import jax.numpy as jnp, torch, trimtab as tt
        >>> price = tt.prices.Thresholds(torch.tensor([[torch.inf, 0.5], [torch.inf, 0.1]]))
        >>> start, decide = decision_function(price.at(1), "free")
        >>> mask, state = decide(start((2,)), jnp.array([0.4, 0.6]), 0)
        >>> mask.tolist(), decide(state, jnp.array([0.2, 0.2]), 1)[0].tolist()
        ([False, True], [True, False])
    """
    if not isinstance(schedule, Adaptive | Planned):
        raise TypeError(
            f"decision_function takes price.at(budget) of a price table or a plan: got {type(schedule).__name__}; "
            "other schedules are a line of JAX each"
        )
    if not isinstance(schedule.budget, int):
        raise ValueError("decision_function takes one budget for all samples; vmap over tables for several")
    if schedule.unit == "iteration":
        raise ValueError(
            "the prices are of single iterations, which a Corrector buys one after another; decision_function decides "
            "about whole projections: calibrate without unit='iteration'"
        )
    if closing is not None and closing not in get_args(Closing):
        raise ValueError(f"closing must be 'paid', 'free' or 'none': got {closing!r}")
    rule = closing or schedule.closing or "paid"
    if schedule.closing not in ("", rule):
        raise ValueError(
            f"the schedule's prices were made for closing={schedule.closing!r}: got closing={rule!r}; calibrate with "
            "the one that is used"
        )
    if rule == "paid" and schedule.budget < 1:
        raise ValueError("a budget of 0 leaves nothing for the closing projection, which is one; give at least 1")
    budget = schedule.budget
    wanted, n_steps, prior = _planned(schedule) if isinstance(schedule, Planned) else _priced(schedule)

    def start(shape: tuple[int, ...]) -> DecisionState:
        sizes = shape if isinstance(shape, tuple | list) else (shape,)
        if not all(isinstance(size, int) and size >= 0 for size in sizes):
            raise ValueError(f"start takes the shape of a batch, (n,), or of one sample, (): got {shape!r}")
        zero = jnp.zeros(shape, jnp.int32)
        return DecisionState(zero + budget, zero, jnp.full(shape, prior))

    def decide(state: DecisionState, defect: jax.Array, t: Any) -> tuple[jax.Array, DecisionState]:
        check_type(state, DecisionState, "the state of decide", "start(shape) makes the first")
        _check_moment(state, defect, t, n_steps)
        last_step = jnp.asarray(t) == n_steps - 1
        mask, total = wanted(state, defect, t)
        if rule == "paid":
            mask = jnp.where(last_step, True, mask & (state.left > 1))
        mask = mask & (state.left > 0)
        spent = mask.astype(jnp.int32)
        last = jnp.where(mask, jnp.asarray(t, jnp.int32) + 1, state.last)
        return mask, DecisionState(state.left - spent, last, total)

    return Decisions(start, decide)


def _check_moment(state: DecisionState, defect: Any, t: Any, n_steps: int) -> None:
    """Refuse defects and steps that do not fit: JAX would spread the ones, and take the nearest of the others."""
    if not hasattr(defect, "dtype") or not jnp.issubdtype(defect.dtype, jnp.floating):
        raise TypeError(f"defect must be an array of floats, one per sample: got {type(defect).__name__}")
    if jnp.shape(defect) != jnp.shape(state.left):
        raise ValueError(f"defect must have one number per sample, {jnp.shape(state.left)}: got {jnp.shape(defect)}")
    whole = isinstance(t, Integral) and not isinstance(t, bool)
    if not whole and (jnp.shape(t) != () if hasattr(t, "dtype") else True):
        raise TypeError(f"t must be a step, one whole number: got {t!r:.60}")
    if not whole and not jnp.issubdtype(t.dtype, jnp.integer):
        raise TypeError(f"t must be a step, one whole number: got {t.dtype}")
    if not isinstance(t, jax.core.Tracer) and not 0 <= int(t) < n_steps:
        raise ValueError(f"t must be a step of the {n_steps} that the price was made for, 0 to {n_steps - 1}: got {t}")


Wanted = Callable[[DecisionState, jax.Array, Any], tuple[jax.Array, jax.Array]]


def _priced(schedule: Adaptive) -> tuple[Wanted, int, float]:
    """Where the defect is at least lambda[t, b], times the sample's own scale if there is one."""
    price = schedule.thresholds
    table = _not_below(price.table.detach().cpu().numpy())
    if price.sample_scale is None:

        def plain(state: DecisionState, defect: jax.Array, t: Any) -> tuple[jax.Array, jax.Array]:
            return defect >= table[t, state.left], state.total

        return plain, price.n_steps, 0.0
    typical, prior = jnp.asarray(price.sample_scale.typical.detach().cpu().numpy()), float(price.sample_scale.prior)

    def scaled(state: DecisionState, defect: jax.Array, t: Any) -> tuple[jax.Array, jax.Array]:
        total = state.total + defect / typical[state.last, t]
        return defect >= table[t, state.left] * (total / (prior + t + 1)), total

    return scaled, price.n_steps, prior


def _planned(schedule: Planned) -> tuple[Wanted, int, float]:
    """At the planned times."""
    due = jnp.asarray(schedule.plan.masks[int(schedule.budget)].cpu().numpy())

    def planned(state: DecisionState, defect: jax.Array, t: Any) -> tuple[jax.Array, jax.Array]:
        return jnp.broadcast_to(due[t], jnp.shape(state.left)), state.total

    return planned, schedule.plan.n_steps, 0.0


def _not_below(table: Any) -> jax.Array:
    """The table in JAX's precision, no entry below its own: s >= lambda then decides the same for every s of it."""
    rounded = jnp.asarray(table)
    there = np.asarray(rounded)
    lower = there.astype(table.dtype) < table
    return jnp.asarray(np.where(lower, np.nextafter(there, np.inf, dtype=there.dtype), there))
