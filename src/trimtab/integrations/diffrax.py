"""Solvers of diffrax with corrections at the ends of steps, never at stages."""

from __future__ import annotations

from typing import Any, get_origin

import numpy as np

from trimtab.core.checks import missing_extra
from trimtab.core.constraint import Constraint
from trimtab.core.record import Rollout
from trimtab.integrations.loops import check_options
from trimtab.loop.corrector import Corrector

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
    schedule: Any,
    *,
    args: Any = None,
    **options: Any,
) -> tuple[Any, Rollout]:
    """Step a solver of diffrax through given times, with projections on schedule after each step.

    The step is jitted, and decisions are made between steps. What a solver carries from one step to the next is made
    again for samples that were projected. The step sizes are those of `times`, so samples do not influence each
    other. For decisions inside `jit`, see `trimtab.integrations.jax`.

    Args:
        terms: As in `diffrax.diffeqsolve`, of states with the samples along the first dimension.
        solver: A solver of diffrax that takes fixed steps, such as `diffrax.Heun()` or `diffrax.Tsit5()`. An implicit
            one needs tolerances for its equations, as in
            `diffrax.ImplicitEuler(root_finder=diffrax.VeryChord(rtol=1e-5, atol=1e-6))`.
        times: The start and the ends of the steps, (T + 1,).
        y0: Initial states, (n, *event), or a tree of such arrays, of JAX or numpy.
        constraint: On the states, as JAX arrays. It may need "time", that of the states, and "previous".
        schedule: When to project.
        args: As in `diffrax.diffeqsolve`.
        **options: Options of `Corrector`, such as seeds, closing, on_failure and keep_states.

    Returns:
        The final states and the record.

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
    times = _as_times(times)
    check_options(options, "diffeqsolve")
    _check_solver(solver, terms)
    y = jax.tree_util.tree_map(_as_jax, y0)
    corrector = Corrector(constraint, schedule, len(times) - 1, **options)
    advance = equinox.filter_jit(solver.step)
    state, changed = solver.init(terms, times[0], times[1], y, args), False
    with corrector:
        corrector.begin(y)
        for k in range(len(times) - 1):
            y, _, _, state, result = advance(
                terms, times[k], times[k + 1], y, args, state, made_jump=jnp.asarray(changed)
            )
            if not bool(result == diffrax.RESULTS.successful):
                raise RuntimeError(f"step {k} of {len(times) - 1} of {type(solver).__name__} failed: {result}")
            y = corrector(y, k, time=times[k + 1])
            changed = bool(corrector.projected.any())
            if changed and k + 2 < len(times) and _has_rows(state, len(corrector.projected)):
                fresh = solver.init(terms, times[k + 1], times[k + 2], y, args)
                rows = jnp.asarray(corrector.projected.numpy())
                state = jax.tree_util.tree_map(lambda new, old: _where(rows, new, old), fresh, state)  # noqa: B023
                changed = False  # the other rows keep their state
    return y, corrector.rollout


def _check_solver(solver: Any, terms: Any) -> None:
    """Check what diffrax checks in its own loop, which is not used here."""
    if not isinstance(solver, diffrax.AbstractSolver):
        raise TypeError(f"solver must be one of diffrax, such as diffrax.Heun(): got {type(solver).__name__}")
    leaves = jax.tree_util.tree_leaves(terms, is_leaf=lambda leaf: isinstance(leaf, diffrax.AbstractTerm))
    if not leaves or not all(isinstance(leaf, diffrax.AbstractTerm) for leaf in leaves):
        raise TypeError(f"terms must be of diffrax, such as diffrax.ODETerm(f): got {type(terms).__name__}")
    name, wanted = type(solver).__name__, solver.term_structure
    if isinstance(solver, diffrax.LeapfrogMidpoint):
        raise ValueError(
            f"{name} steps from the state before the last one, which undoes a projection; use another solver, such as "
            "diffrax.Midpoint()"
        )
    several = isinstance(wanted, tuple)
    kind = tuple if several else get_origin(wanted)
    fits = isinstance(terms, kind) and (not several or len(terms) == len(wanted)) if kind else True
    if kind in (tuple, diffrax.MultiTerm) and not fits:
        raise TypeError(f"{name} needs its terms as {wanted}: got {type(terms).__name__}")
    if isinstance(solver, diffrax.AbstractImplicitSolver) and not isinstance(solver.root_finder.rtol, int | float):
        raise ValueError(
            f"{name} solves equations in each step: give it tolerances, as in "
            f"diffrax.{name}(root_finder=diffrax.VeryChord(rtol=1e-5, atol=1e-6))"
        )


def _as_jax(leaf: Any) -> jax.Array:
    if not isinstance(leaf, jax.Array | np.ndarray):
        raise TypeError(
            f"y0 must be an array of JAX or numpy, (n, *event), or a tree of those: got {type(leaf).__name__}"
        )
    return jnp.asarray(leaf)


def _as_times(times: Any) -> Any:
    """Return the times as a JAX array, (T + 1,); raise if they are not finite or not in one direction."""
    try:
        found = jnp.asarray(times)
    except (TypeError, ValueError) as error:
        raise TypeError(f"times must be numbers, (T + 1,): got {times!r:.60}") from error
    if found.ndim != 1 or len(found) < 2:
        raise ValueError(f"times must have the start and the ends of T >= 1 steps, (T + 1,): got shape {found.shape}")
    steps = jnp.diff(found)
    if not bool(jnp.isfinite(found).all() & ((steps > 0).all() | (steps < 0).all())):
        raise ValueError(f"times must be finite and go in one direction: got {found.tolist()[:8]}")
    return found


def _has_rows(state: Any, n: int) -> bool:
    """Return whether all arrays of a solver's state have n rows."""
    leaves = jax.tree_util.tree_leaves(state)
    return bool(leaves) and all(jnp.ndim(leaf) > 0 and len(leaf) == n for leaf in leaves)


def _where(rows: Any, new: Any, old: Any) -> Any:
    return jnp.where(rows.reshape(-1, *[1] * (jnp.ndim(new) - 1)), new, old)
