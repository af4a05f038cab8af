"""What every integration shares: checked options, and correctors for runs whose number of steps is known later."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from trimtab.core.checks import moved_to_lab, unknown
from trimtab.core.constraint import Constraint
from trimtab.loop.corrector import Corrector
from trimtab.prices.learner import as_learner

__all__ = ["Correct", "check_options", "corrector_maker"]

Correct = Callable[..., Any]
"""`correct(x)` or `correct(x, t)` returns the state to continue with, (n, *event), or a tree of such arrays."""


def check_options(options: Mapping[str, Any], function: str) -> None:
    """Raise TypeError if a name is not an option of `Corrector`; all integrations pass options on to it.

    Example:
        >>> check_options({"keep_state": True}, "odeint")
        Traceback (most recent call last):
        TypeError: unknown option of odeint 'keep_state'; did you mean 'keep_states'? Known: closing, seeds...
    """
    parameters = inspect.signature(Corrector).parameters.values()
    known = [one.name for one in parameters if one.kind is one.KEYWORD_ONLY]
    for name in options:
        if name not in known:
            raise TypeError(str(unknown(f"option of {function}", name, known)))


def corrector_maker(
    function: str, constraint: Constraint, schedule: Any, options: Mapping[str, Any]
) -> Callable[[int], Corrector]:
    """Return a function of T that makes a corrector; the arguments of `function` are checked now, not during a run."""
    check_options(options, function)
    schedule = as_learner(schedule)  # one for all runs
    if not hasattr(schedule, "observe"):  # a learner takes its number of steps from the first run
        Corrector(constraint, schedule, 1 << 30, **options)
    return lambda n_steps: Corrector(constraint, schedule, n_steps, **options)


def __getattr__(name: str) -> Any:
    if name == "LoopSampler":
        return moved_to_lab(__name__, name, "loops")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
