"""diffrax's solvers, stepped one interval at a time, with corrections at step ends and never at stages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_origin

import numpy as np
from torch import Tensor

from trimtab.core.constraint import Constraint
from trimtab.core.corrector import Corrector
from trimtab.core.checks import missing_extra
from trimtab.core.record import Rollout
from trimtab.core.schedule import Schedule
from trimtab.core.view import StepView
from trimtab.integrations.options import check_options

try:
    import diffrax
    import equinox
    import jax
    import jax.numpy as jnp
except ImportError as error:
    raise missing_extra("diffrax", "jax", "trimtab.integrations.diffrax") from error

__all__ = ["diffeqsolve"]


def diffeqsolve(
    terms: Any,
    solver: Any,
    times: Any,
    y0: Any,
    constraint: Constraint,
    schedule: Schedule | Callable[[StepView], Tensor],
    *,
    args: Any = None,
    **options: Any,
) -> tuple[Any, Rollout]:
    """Step a solver of diffrax from time to time, with projections on schedule after each step.

    The step is jitted; decisions are made between steps, and what a solver carries along from its last step is begun
    anew where a projection has made it stale. Steps are those of `times`: one step size for all samples is no influence
    of one on another, as an adaptive one would be. For decisions inside `jit`, see `trimtab.integrations.jax`.

    Args:
        terms: As in `diffrax.diffeqsolve`, of states with the samples along the first dimension.
        solver: Any solver of diffrax that takes fixed steps, such as `diffrax.Heun()` or `diffrax.Tsit5()`; an implicit
            one has to be given tolerances for its equations, as in
            `diffrax.ImplicitEuler(root_finder=diffrax.VeryChord(rtol=1e-5, atol=1e-6))`.
        times: Step ends with the beginning, (T + 1,).
        y0: Initial states, (n, *event), or a tree of such arrays, of JAX or of numpy.
        constraint: On the states, as JAX arrays. It may need "time", that of the states, and "previous".
        schedule: When to project.
        args: As in `diffrax.diffeqsolve`.
        **options: Of `Corrector`: seeds, groups, closing, on_failure, keep_states, ….

    Returns:
        The final states, and the record.

    Example:
        >>> import diffrax, jax.numpy as jnp, trimtab as tt
        >>> sphere = tt.as_constraint(lambda x: x / jnp.linalg.norm(x, axis=1, keepdims=True),
        ...                           lambda x: jnp.abs(jnp.linalg.norm(x, axis=1) - 1))
        >>> term = diffrax.ODETerm(lambda t, y, args: y[:, ::-1])
        >>> y, record = diffeqsolve(term, diffrax.Tsit5(), jnp.linspace(0, 1, 11), jnp.array([[0.6, 0.8]]), sphere,
        ...                         tt.Periodic(2))
        >>> record.n_steps, record.spent.tolist(), bool(jnp.abs(jnp.linalg.norm(y, axis=1) - 1).max() < 1e-6)
        (10, [2], True)
    """
    times = _checked_times(times)
    check_options(options, "diffeqsolve")
    if not isinstance(solver, diffrax.AbstractSolver):
        raise TypeError(f"the solver is one of diffrax, such as diffrax.Heun(): got {type(solver).__name__}")
    leaves = jax.tree_util.tree_leaves(terms, is_leaf=lambda leaf: isinstance(leaf, diffrax.AbstractTerm))
    if not leaves or not all(isinstance(leaf, diffrax.AbstractTerm) for leaf in leaves):
        raise TypeError(f"terms are of diffrax, such as diffrax.ODETerm(f): got {type(terms).__name__}")
    _check_unusable(solver, terms)
    y0 = jax.tree_util.tree_map(_as_jax, y0)
    corrector = Corrector(constraint, schedule, len(times) - 1, **options)
    advance = equinox.filter_jit(solver.step)
    state = solver.init(terms, times[0], times[1], y0, args)
    y, changed = y0, False
    with corrector:
        corrector.begin(y0)
        for k in range(len(times) - 1):
            y, _, _, state, result = advance(
                terms, times[k], times[k + 1], y, args, state, made_jump=jnp.asarray(changed)
            )
            if not bool(result == diffrax.RESULTS.successful):
                raise RuntimeError(f"step {k} of {len(times) - 1} of {type(solver).__name__} failed: {result}")
            y = corrector(y, k, time=times[k + 1])
            changed = bool(corrector.projected.any())
            if changed and k + 2 < len(times) and _is_by_rows(state, len(corrector.projected)):
                fresh = solver.init(terms, times[k + 1], times[k + 2], y, args)
                rows = jnp.asarray(corrector.projected.numpy())
                state = jax.tree_util.tree_map(lambda new, old: _chosen(rows, new, old), fresh, state)  # noqa: B023
                changed = False  # the rows that stay keep what they carried
    return y, corrector.rollout


def _check_unusable(solver: Any, terms: Any) -> None:
    """Say what is missing where diffrax would not, since it is not its own loop that asks."""
    name = type(solver).__name__
    if isinstance(solver, diffrax.LeapfrogMidpoint):
        raise ValueError(
            f"{name} steps from the state before the last one, which undoes a projection; take another solver, such "
            "as diffrax.Midpoint()"
        )
    wanted = solver.term_structure
    several = isinstance(wanted, tuple)
    kind = tuple if several else get_origin(wanted)
    if kind in (tuple, diffrax.MultiTerm) and not (
        isinstance(terms, kind) and (not several or len(terms) == len(wanted))
    ):
        raise TypeError(f"{name} wants its terms as {wanted}: got {type(terms).__name__}")
    if isinstance(solver, diffrax.AbstractImplicitSolver) and not isinstance(solver.root_finder.rtol, int | float):
        raise ValueError(
            f"{name} solves equations in each step, and no step size controller says how exactly: give it "
            f"tolerances, as in diffrax.{name}(root_finder=diffrax.VeryChord(rtol=1e-5, atol=1e-6))"
        )


def _as_jax(leaf: Any) -> jax.Array:
    """An array of the initial states as those of a step are."""
    if not isinstance(leaf, jax.Array | np.ndarray):
        raise TypeError(f"y0 is an array of JAX or numpy, (n, *event), or a tree of those: got {type(leaf).__name__}")
    return jnp.asarray(leaf)


def _is_by_rows(state: Any, n: int) -> bool:
    """Whether all that a solver carries along has a row per sample, so that some of them can begin anew."""
    leaves = jax.tree_util.tree_leaves(state)
    return bool(leaves) and all(jnp.ndim(leaf) > 0 and len(leaf) == n for leaf in leaves)


def _chosen(rows: Any, new: Any, old: Any) -> Any:
    """The new rows where `rows`, (n,), says so."""
    return jnp.where(rows.reshape(-1, *[1] * (jnp.ndim(new) - 1)), new, old)


def _checked_times(times: Any) -> Any:
    """Step ends as a JAX array; refused where they are none."""
    try:
        found = jnp.asarray(times)
    except (TypeError, ValueError) as error:
        raise TypeError(f"times are numbers, (T + 1,): got {times!r:.60}") from error
    if found.ndim != 1 or len(found) < 2:
        raise ValueError(f"times are the step ends with the beginning, (T + 1,) with T >= 1: got shape {found.shape}")
    steps = jnp.diff(found)
    if not bool(jnp.isfinite(found).all() & ((steps > 0).all() | (steps < 0).all())):
        raise ValueError(f"times must be finite and go in one direction: got {found.tolist()[:8]}")
    return found
