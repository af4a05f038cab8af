"""Try a user's sampler: one step of a few samples, before anything long is run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from trimtab.core.arrays import Form, all_finite
from trimtab.core.bound_constraint import checked_projection
from trimtab.integrations.independence import check_independence, check_rows
from trimtab.loop.rollout import noise_of, take_rows
from trimtab_lab.domains.base import Domain, Problem
from trimtab_lab.studies.usercode import short_error

__all__ = ["probe"]

_KNOWN = ("t", "previous")  # the context that trimtab's own loop passes to a constraint


def probe(domain: Domain, seeds: Iterable[int] | Tensor, whole: bool = False) -> None:
    """Try one step of a few samples, and raise if something would fail later.

    Args:
        domain: The user's.
        seeds: A few of those that will be used, at least two.
        whole: Also run whole rollouts of a batch and of single samples, and compare.
    """
    problem = domain.problem(seeds)
    name, sampler, own_seeds = domain.name, problem.sampler, problem.seeds
    noise, n = noise_of(sampler, own_seeds), len(own_seeds)
    with torch.no_grad():
        x = _state(f"{name}: the sampler's start", lambda: sampler.start(noise), None, n)
        y = _state(f"{name}: the sampler's step", lambda: sampler.step(x, 0, noise), Form(x), n)
        _check_constraint(name, problem, x, y)
        _check_one_each(f"{name}: distance", domain.distance(x, y), n)

    def first_step(rows: Tensor) -> Any:
        some, own = take_rows(sampler, rows), noise.take(rows)
        return some.step(some.start(own), 0, own)

    try:
        check_independence(first_step, torch.arange(n))
        if whole:
            check_independence(sampler, own_seeds)
    except ValueError as error:
        hint = "; if the sampler holds data for each sample, it needs take(rows) as well"
        raise ValueError(f"{name}: {error}{'' if hasattr(sampler, 'take') else hint}") from error


def _state(what: str, make: Callable[[], Any], form: Form | None, n: int) -> Any:
    """Return the states that `make` makes, checked: n finite rows, of the form of earlier states."""
    try:
        x = make()
    except Exception as error:
        raise ValueError(f"{what} failed: {short_error(error)}") from error
    try:
        found = Form(x) if form is None else form
        leaves = found.leaves(x)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{what} must return states of one form, floats with a row per sample: {error}") from error
    if found.n != n:
        raise ValueError(f"{what} must return one row for each of {n} samples: got {found.n} rows")
    if not all_finite(leaves):
        raise ValueError(f"{what} returned NaN or inf")
    return x


def _check_constraint(name: str, problem: Problem, x: Any, y: Any) -> None:
    """Check that the constraint handles proposals y made from x, for the whole batch and for one row."""
    constraint = problem.constraint
    missing = [need for need in constraint.needs if need not in _KNOWN]
    if missing:
        raise ValueError(
            f"{name}: the constraint needs {', '.join(missing)}, but trimtab's own loop passes only t and previous; "
            "compute it from t, or run the loop yourself and call a Corrector"
        )
    context = _context(problem, x)
    try:
        checked_projection(constraint, y, **context)
        defect = constraint.defect(y, **context)
    except Exception as error:
        raise ValueError(f"{name}: the constraint failed after the first step: {short_error(error)}") from error
    _check_one_each(f"{name}: defect", defect, len(problem.seeds))
    check_rows(constraint, y, **context)


def _context(problem: Problem, x: Any) -> dict[str, Any]:
    """Return the context of the constraint after the first step from x."""
    return {need: {"t": 0, "previous": x}[need] for need in problem.constraint.needs}


def _check_one_each(what: str, values: Any, n: int) -> None:
    shape = getattr(values, "shape", None)
    if shape is None or tuple(shape) != (n,):
        got = type(values).__name__ if shape is None else tuple(shape)
        raise ValueError(f"{what} must be one number per sample, shape ({n},) here: got {got}")
