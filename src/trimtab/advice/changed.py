"""The batch that measures with something else in its problem: on the engine like all others, and kept like them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from trimtab.advice.trials import TrialRuns
from trimtab.core.problem import Problem
from trimtab.core.runner import RunBatch, Runs

__all__ = ["changed"]


def changed(trials: TrialRuns, change: Callable[[Problem], Problem], **options: Any) -> tuple[Problem, RunBatch]:
    """Another problem made of the one that measures, and what runs it.

    Args:
        trials: Of a problem; a loop of one's own has nothing that could be changed.
        change: Makes the other problem; a function of a module, since a worker may have to call it too.
        options: Of `rollout`.
    """
    problem, run = trials.problems[1], trials.measuring
    assert problem is not None
    other = change(problem)
    if not isinstance(run, Runs):
        return other, partial(other.rollout, **options)
    make = run.shop.maker_of(problem)
    if make is not None:
        run.shop.knows(other, partial(_made, make, change))
    return other, run.shop.runs(other, **options)


def _made(make: Callable[[], Problem], change: Callable[[Problem], Problem]) -> Problem:
    """The other problem, of one that is made anew in a worker."""
    return change(make())
