"""Trying out a sampler of the user's own: one step of a few samples, before anything long is run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from trimtab.core.arrays import Form, all_finite, map_leaves, numbers_of, pick
from trimtab.core.bound_constraint import checked_projection
from trimtab.core.rollout import noise_of, take_rows
from trimtab.evaluation.domains.base import Domain, Problem
from trimtab.evaluation.studies.explored import replicate_problem
from trimtab.evaluation.studies.usercode import short_error
from trimtab.evaluation.studies.whole_groups import next_end
from trimtab.integrations.independence import check_independence, check_rows

__all__ = ["probe", "probe_side_by_side"]

_TOGETHER = 16  # samples that are tried where they belong together, or a few more to fill the last group


def probe(domain: Domain, seeds: Iterable[int] | Tensor, whole: bool = False) -> None:
    """Try one step of a few samples, and complain about what would go wrong later.

    Args:
        domain: The user's.
        seeds: A few of those that will be used, at least two.
        whole: Also run whole rollouts of a batch and of single samples, and compare.
    """
    problem = _some(domain, seeds)
    grouped = problem.groups is not None
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


def probe_side_by_side(domain: Domain, seeds: Iterable[int] | Tensor) -> None:
    """Refuse samples that belong together if they depend on the same samples under another budget.

    A study runs budgets side by side: one batch holds each seed once for every budget. Who tells by their seeds which
    rows belong together takes the rows of all budgets for one group.

    Args:
        domain: The user's, which `probe` found usable.
        seeds: A few of those that will be used, from the beginning of a group on.
    """
    alone = _some(domain, seeds)
    if alone.groups is None:
        return
    noise = noise_of(alone.sampler, alone.seeds)
    with torch.no_grad():
        x = alone.sampler.start(noise)
        y = alone.sampler.step(x, 0, noise)
        fixed = checked_projection(alone.constraint, y, **_context(alone, x)).x
        other = map_leaves(lambda leaf: leaf.flip(0), y)  # proposals, but of other samples
        precisions = [torch.finfo(leaf.dtype).eps for leaf in Form(x).leaves(x) if leaf.is_floating_point()]
        for rows in (slice(len(alone)), slice(len(alone), None)):  # first or second in the batch
            both = replicate_problem(domain.problem, alone.seeds, 2)
            noise = noise_of(both.sampler, both.seeds)
            both.sampler.start(noise)  # a loop has to be begun
            stepped = both.sampler.step(_beside(x, other, rows), 0, noise)
            projected = checked_projection(
                both.constraint, _beside(y, other, rows), **_context(both, _beside(x, x, rows))
            ).x
            for what, expected, found in (("sampler steps", y, stepped), ("constraint projects", fixed, projected)):
                wanted = numbers_of(expected)
                apart = float((numbers_of(pick(found, rows)) - wanted).abs().max())
                if not apart <= max(precisions) ** 0.5 * float(wanted.abs().max()):
                    raise ValueError(
                        f"{domain.name}: the {what} samples that belong together differently beside the same samples "
                        "in another state. Budgets are compared in one batch, which holds each seed once for every "
                        "budget: rows that follow each other belong together, not all rows whose seeds say so. "
                        "Reshape states to (groups, samples, …), or number the groups of a batch by "
                        "torch.arange(len(seeds)) // size"
                    )


def _beside(one: Any, other: Any, rows: slice) -> Any:
    """Both states in one batch, `one` as these rows of it."""
    form = Form(one)
    pairs = zip(form.leaves(one), form.leaves(other), strict=True)
    return form.state(tuple(torch.cat(pair if rows.start is None else pair[::-1]) for pair in pairs))


def _some(domain: Domain, seeds: Iterable[int] | Tensor) -> Problem:
    """The problem of these seeds; where samples belong together, of whole groups from the first seed on."""
    problem = domain.problem(seeds)
    if problem.groups is None:
        return problem
    first = int(problem.seeds[0])
    return domain.problem(range(first, next_end(domain, first + _TOGETHER)))


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
    missing = [need for need in constraint.needs if need not in _KNOWN]
    if missing:
        raise ValueError(
            f"{name}: the constraint needs {', '.join(missing)}, and a sampler that trimtab steps tells it only t and "
            "previous; work it out from t, or run the loop yourself and call a Corrector"
        )
    context = _context(problem, x)
    try:
        checked_projection(constraint, y, **context)
        defect = constraint.defect(y, **context)
    except Exception as error:
        raise ValueError(f"{name}: the constraint failed after the first step: {short_error(error)}") from error
    _one_each(f"{name}: defect", defect, len(problem.seeds))
    if by_rows:
        check_rows(constraint, y, **context)


_KNOWN = ("t", "previous")  # what a sampler that trimtab steps tells a constraint


def _context(problem: Problem, x: Any) -> dict[str, Any]:
    """What the constraint needs to know after the first step from x."""
    return {need: {"t": 0, "previous": x}[need] for need in problem.constraint.needs}


def _one_each(what: str, values: Any, n: int) -> None:
    """Refuse what is not one number per sample."""
    shape = getattr(values, "shape", None)
    if shape is None or tuple(shape) != (n,):
        got = type(values).__name__ if shape is None else tuple(shape)
        raise ValueError(f"{what} must be one number per sample, shape ({n},) here: got {got}")
