"""What advice was asked for: checked, and made into two batches, one that calibrates and one that measures."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from trimtab.advice.shared import Shared
from trimtab.core.arrays import Form
from trimtab.core.checks import check_callable, check_positive, unknown
from trimtab.core.constraint import check_constraint
from trimtab.core.groups import Groups
from trimtab.core.problem import Problem
from trimtab.core.record import Rollout
from trimtab.core.repeatable import as_record
from trimtab.core.runner import BatchRunner, RunBatch, ahead
from trimtab.core.schedule import Watched
from trimtab.prices.collect import Source
from trimtab.prices.plan import Plan
from trimtab.prices.price import Price, Raced, Thresholds
from trimtab.schedules import Terminal

__all__ = [
    "FEWEST_FOR_ADVICE",
    "check_arguments",
    "check_iterations",
    "check_price_fits",
    "tolerance_of",
    "two_batches",
]

FEWEST_FOR_ADVICE = 16
"""Samples, or groups of them, below which there is no advice: half of them calibrate, half measure."""

_FEWEST_STEPS = 4


def two_batches(
    source: Source, held_out: Source | None, shop: BatchRunner | None
) -> tuple[Shared, RunBatch, tuple[Problem | None, Problem | None], int]:
    """What calibrates and what measures, and the number of steps."""
    if isinstance(source, Problem):
        if held_out is not None:
            raise ValueError("a Problem is split into halves by itself; held_out goes with a function run(schedule)")
        _check_too_few(*_counted(source.groups, len(source)), source.n_steps)
        one, other = source.halves()
        if shop is None:
            return Shared(one.rollout), other.rollout, (one, other), source.n_steps
        make = shop.maker_of(source)
        if make is not None:
            shop.knows(one, partial(_half_of, make, 0))
            shop.knows(other, partial(_half_of, make, 1))
        return Shared(shop.runs(one)), shop.runs(other), (one, other), source.n_steps
    if not callable(source) or not callable(held_out):
        raise TypeError(
            "advise takes a Problem, or two functions run(schedule) of which the second runs other seeds: "
            f"advise(run, held_out=other_run); got {type(source).__name__} and {type(held_out).__name__}"
        )
    assert not isinstance(held_out, Problem)
    if shop is not None:
        source, held_out = shop.runs(source), shop.runs(held_out)
        ahead(held_out, [Watched(Terminal())])
    shared = Shared(source)
    first, second = shared(Watched(Terminal())), as_record(held_out(Watched(Terminal())))
    count, what = min(_counted(run.groups, run.defects.shape[1]) for run in (first, second))
    _check_too_few(2 * count, what, first.n_steps)
    if first.n_steps != second.n_steps:
        raise ValueError(
            f"the two functions run one loop on different seeds: got {first.n_steps} steps of the one that calibrates "
            f"and {second.n_steps} of the one that measures"
        )
    if _same_rollouts(first, second):
        raise ValueError("the two runs are the same rollouts; measuring needs other seeds than calibrating")
    return shared, held_out, (None, None), first.n_steps


def _same_rollouts(one: Rollout, other: Rollout) -> bool:
    """Whether two runs are of the same samples; where those are feasible by themselves, final states alone tell."""
    ours, theirs = (Form(run.final, floats=False) for run in (one, other))
    if (ours.tree, ours.dtypes, ours.shapes) != (theirs.tree, theirs.dtypes, theirs.shapes):
        return False
    finals = zip(ours.leaves(one.final), theirs.leaves(other.final), strict=True)
    return torch.equal(one.defects, other.defects) and all(torch.equal(a, b) for a, b in finals)


def _half_of(make: Callable[[], Problem], which: int) -> Problem:
    """Half of a problem that is made anew, in a worker."""
    return make().halves()[which]


def check_arguments(source: Source, constraint: object, nudge: object) -> None:
    """Refuse what goes with a loop of the user's own beside a problem, and what is neither of the two."""
    if isinstance(source, Problem) and (constraint is not None or nudge is not None):
        raise ValueError("a Problem has its constraint and is nudged by itself; constraint and nudge go with functions")
    if constraint is not None:
        check_constraint(constraint, "the constraint of a loop")
    if nudge is not None:
        check_callable(nudge, "nudge", "nudge(schedule, size)")


def tolerance_of(tolerance: float | None, seconds: float | None, cost: str) -> float | None:
    """The tolerance, with its default; what was asked for is checked."""
    if cost not in ("seconds", "projections"):
        raise unknown("cost", str(cost), ("seconds", "projections"))
    for name, value in (("tolerance", tolerance), ("seconds", seconds)):
        if value is not None:
            check_positive(value, name)
    return 0.1 if tolerance is None and seconds is None else tolerance


def _counted(groups: Groups | None, rows: int) -> tuple[int, str]:
    """How many things are measured independently of each other, and what they are: the rows of a group go together."""
    return (rows, "rollouts") if groups is None else (groups.n, "groups")


def _check_too_few(count: int, what: str, n_steps: int) -> None:
    least = FEWEST_FOR_ADVICE
    if count < least:
        enough = f"{least} seeds, better 64" if what == "rollouts" else f"the seeds of {least} groups, better of 64"
        raise ValueError(
            f"{count} {what} are too few to advise on: half of them calibrate and half measure; give at least {enough}"
        )
    if n_steps < _FEWEST_STEPS:
        raise ValueError(
            f"a sampler of {n_steps} steps leaves nothing to schedule: project at every step (advice needs at "
            f"least {_FEWEST_STEPS} steps)"
        )


def check_iterations(unit: str, what: str) -> None:
    """Refuse what counts iterations, where budgets are projections."""
    if unit == "iteration":
        raise ValueError(
            f"{what} counts iterations, and budgets here are projections: give one that was calibrated with "
            "unit='projection'"
        )


def check_price_fits(price: Price | None, n_steps: int) -> None:
    """Refuse what is no price, or one for another number of steps or another unit."""
    if price is None:
        return
    if not isinstance(price, Thresholds | Plan | Raced):
        raise TypeError(f"price is what calibrate makes and load reads: got {type(price).__name__}")
    check_iterations(price.unit, "the price")
    if price.n_steps != n_steps:
        raise ValueError(
            f"the price was calibrated for T = {price.n_steps} steps, this sampler has {n_steps}; calibrate again, or "
            "use price.resample(n_steps)"
        )
    if price.budget < 2:
        raise ValueError(f"the price is for a budget of {price.budget} corrections; calibrate with a larger budget")
