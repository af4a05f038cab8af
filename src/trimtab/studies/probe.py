"""Trying out a sampler of the user's own: one step of a few samples, before anything long is run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from trimtab.core.applied import checked_projection
from trimtab.core.rollout import noise_of, take_rows
from trimtab.core.states import Form, all_finite
from trimtab.domains.base import Domain, Problem
from trimtab.integrations.independence import check_independence, check_rows
from trimtab.studies.usercode import short_error
from trimtab.studies.whole_groups import next_end

__all__ = ["probe"]

_TOGETHER = 16  # samples that are tried where they belong together, or a few more to fill the last group


def probe(domain: Domain, seeds: Iterable[int] | Tensor, whole: bool = False) -> None:
    """Try one step of a few samples, and complain about what would go wrong later.

    Args:
        domain: The user's.
        seeds: A few of those that will be used, at least two.
        whole: Also run whole rollouts of a batch and of single samples, and compare.
    """
    problem = domain.problem(seeds)
    grouped = problem.groups is not None
    if grouped:
        first = int(problem.seeds[0])
        problem = domain.problem(range(first, next_end(domain, first + _TOGETHER)))
    name, sampler, own_seeds = domain.name, problem.sampler, problem.seeds
    noise, n = noise_of(sampler, own_seeds), len(own_seeds)
    with torch.no_grad():
        x = _state(f"{name}: the sampler's start", lambda: sampler.start(noise), None, n)
        y = _state(f"{name}: the sampler's step", lambda: sampler.step(x, 0, noise), Form(x), n)
        _check_constraint(name, problem, x, y, by_rows=not grouped)
        _one_each(f"{name}: distance", domain.distance(x, y), n)
    if grouped:  # rows of a group may depend on each other
        return

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
    """What a sampler made, if it is a batch of n finite states, of the form of those before."""
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


def _check_constraint(name: str, problem: Problem, x: Any, y: Any, *, by_rows: bool) -> None:
    """Refuse a constraint that cannot handle proposals y made from x, for the whole batch or for one row."""
    constraint = problem.constraint
    known = {"t": 0, "previous": x}
    missing = [need for need in constraint.needs if need not in known]
    if missing:
        raise ValueError(
            f"{name}: the constraint needs {', '.join(missing)}, and a sampler that trimtab steps tells it only t and "
            "previous; work it out from t, or run the loop yourself and call a Corrector"
        )
    context = {need: known[need] for need in constraint.needs}
    try:
        checked_projection(constraint, y, **context)
        defect = constraint.defect(y, **context)
    except Exception as error:
        raise ValueError(f"{name}: the constraint failed after the first step: {short_error(error)}") from error
    _one_each(f"{name}: defect", defect, len(problem.seeds))
    if by_rows:
        check_rows(constraint, y, **context)


def _one_each(what: str, values: Any, n: int) -> None:
    """Refuse what is not one number per sample."""
    shape = getattr(values, "shape", None)
    if shape is None or tuple(shape) != (n,):
        came = type(values).__name__ if shape is None else tuple(shape)
        raise ValueError(f"{what} must be one number per sample, shape ({n},) here: got {came}")
