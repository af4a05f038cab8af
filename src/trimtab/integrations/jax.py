"""Decisions inside `jit`, `vmap` and `scan`: a calibrated price as a pure function of JAX arrays.

Between jitted steps a `Corrector` takes and returns JAX arrays. Inside a traced function it cannot be called, because
the rows it projects depend on values that are not known yet. Carry the state of the decisions there:

    start, decide = decision_function(price.at(0.25))
    mask, state = decide(state, defect, t)
    x = jnp.where(mask[:, None], project(x), x)
"""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral
from typing import Any, NamedTuple, get_args

import numpy as np

from trimtab.core import state as accounts
from trimtab.core.checks import check_type, missing_extra
from trimtab.core.record import Closing
from trimtab.core.state import RunState, Terms
from trimtab.prices.plan import Planned
from trimtab.prices.schedule import Adaptive

try:
    import jax
    import jax.numpy as jnp
except ImportError as error:
    raise missing_extra("jax", "jax", "trimtab.integrations.jax") from error

__all__ = ["DecisionState", "Decisions", "decision_function"]


class DecisionState(NamedTuple):
    """The state between two steps: (n,) each, or scalars for one sample.

    Attributes:
        left: Corrections left.
        last: 1 + the step of the last correction; 0 if there was none.
        total: The sum of defects relative to typical ones; 0 if all samples have the same prices.
    """

    left: jax.Array
    last: jax.Array
    total: jax.Array


class Decisions(NamedTuple):
    """The two functions that `decision_function` returns."""

    start: Callable[[tuple[int, ...]], DecisionState]
    decide: Callable[[DecisionState, jax.Array, Any], tuple[jax.Array, DecisionState]]


def decision_function(schedule: Adaptive | Planned, closing: Closing | None = None) -> Decisions:
    """Return the decisions of a calibrated schedule as pure functions that trace, jit and vmap.

    They equal the decisions of a `Corrector` with the same schedule. The table is rounded up to the next float32, so
    that float32 defects decide the same. Only if prices are relative to each sample's scale (a running sum) may a tie
    be decided differently in float32. Nothing can raise inside `jit`: a defect that is NaN is never chosen.

    With `closing="paid"` the mask of the last step is all True. With "free", project afterwards what the last step did
    not project; with "none", nothing.

    Args:
        schedule: `price.at(budget)` of a price table or a plan, with one budget for all samples.
        closing: As in `Corrector`; None is the one that the price was made for, or "paid".

    Returns:
        `start(shape)`, which returns the state of a batch, (n,), or of one sample, (); and `decide(state, defect, t)`,
        which returns the samples to project after step t and the next state. `t` may be traced.

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
            "decision_function decides about whole projections, but these prices are for single iterations; calibrate "
            "without unit='iteration'"
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
        raise ValueError("a budget of 0 leaves nothing for the closing projection; give at least 1")
    budget = schedule.budget
    wanted, n_steps, prior = _planned(schedule) if isinstance(schedule, Planned) else _priced(schedule)
    terms = Terms(n_steps, reserve=int(rule == "paid"))

    def start(shape: tuple[int, ...]) -> DecisionState:
        sizes = shape if isinstance(shape, tuple | list) else (shape,)
        if not all(isinstance(size, int) and size >= 0 for size in sizes):
            raise ValueError(f"start takes the shape of a batch, (n,), or of one sample, (): got {shape!r}")
        zero = jnp.zeros(shape, jnp.int32)
        return DecisionState(zero + budget, zero, jnp.full(shape, prior))

    def decide(state: DecisionState, defect: jax.Array, t: Any) -> tuple[jax.Array, DecisionState]:
        _check_step(state, defect, t, n_steps)
        mask, total = wanted(state, defect, t)
        run = RunState(t, state.left)
        mask = accounts.decide(terms, run, mask)
        last = jnp.where(mask, jnp.asarray(t, jnp.int32) + 1, state.last)
        return mask, DecisionState(accounts.spend(terms, run, mask).left, last, total)

    return Decisions(start, decide)


def _check_step(state: DecisionState, defect: Any, t: Any, n_steps: int) -> None:
    """Check shapes and the step: JAX would broadcast the defects, and clip the step."""
    check_type(state, DecisionState, "the state of decide", "start(shape) makes the first")
    if not hasattr(defect, "dtype") or not jnp.issubdtype(defect.dtype, jnp.floating):
        raise TypeError(f"defect must be an array of floats, one per sample: got {type(defect).__name__}")
    if jnp.shape(defect) != jnp.shape(state.left):
        raise ValueError(f"defect must have one number per sample, {jnp.shape(state.left)}: got {jnp.shape(defect)}")
    is_array = hasattr(t, "dtype") and jnp.shape(t) == () and jnp.issubdtype(t.dtype, jnp.integer)
    is_number = isinstance(t, Integral) and not isinstance(t, bool)
    if not (is_array or is_number):
        raise TypeError(f"t must be a step, one whole number: got {t!r:.60}")
    if not isinstance(t, jax.core.Tracer) and not 0 <= int(t) < n_steps:
        raise ValueError(f"t must be a step of the {n_steps} that the price was made for, 0 to {n_steps - 1}: got {t}")


Wanted = Callable[[DecisionState, jax.Array, Any], tuple[jax.Array, jax.Array]]


def _priced(schedule: Adaptive) -> tuple[Wanted, int, float]:
    """Choose samples with s >= lambda[t, b], times the sample's scale if there is one."""
    price = schedule.price
    table, scale = _rounded_up(price.table.detach().cpu().numpy()), price.sample_scale
    last = len(table) - 1  # a closing projection that is paid for comes after it, and is decided without prices

    def threshold(state: DecisionState, t: Any) -> jax.Array:
        return table[jnp.minimum(t, last), jnp.maximum(state.left - price.closings, 0)]

    if scale is None:
        return lambda state, defect, t: (defect >= threshold(state, t), state.total), price.n_steps, 0.0
    typical, prior = jnp.asarray(scale.typical.detach().cpu().numpy()), float(scale.prior)

    def scaled(state: DecisionState, defect: jax.Array, t: Any) -> tuple[jax.Array, jax.Array]:
        total = state.total + defect / typical[state.last, jnp.minimum(t, last)]
        return defect >= threshold(state, t) * (total / (prior + t + 1)), total

    return scaled, price.n_steps, prior


def _planned(schedule: Planned) -> tuple[Wanted, int, float]:
    """Choose all samples at the planned steps."""
    plan = schedule.price
    due = jnp.asarray(plan.masks[int(schedule.budget) - plan.closings].cpu().numpy())
    return (
        lambda state, defect, t: (jnp.broadcast_to(due[jnp.minimum(t, len(due) - 1)], state.left.shape), state.total),
        plan.n_steps,
        0.0,
    )


def _rounded_up(table: Any) -> jax.Array:
    """Return the table in JAX's precision with no entry below the original: s >= lambda then decides the same."""
    rounded = np.asarray(jnp.asarray(table))
    lower = rounded.astype(table.dtype) < table
    return jnp.asarray(np.where(lower, np.nextafter(rounded, np.inf, dtype=rounded.dtype), rounded))
