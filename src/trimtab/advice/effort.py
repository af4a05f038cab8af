"""Is a correction itself too expensive? Cheaper projections, and less of each, tried out before doing it less often.

Where a constraint offers its iterations, three ways to save are measured on the same rollouts as the schedules: the
constraint's own cheaper projections at every step, one iteration at every step, and iterations bought by price.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from trimtab.advice.changed import changed
from trimtab.advice.diagnosis import Interval
from trimtab.advice.trials import TrialRuns
from trimtab.core.problem import Problem
from trimtab.core.record import Rollout
from trimtab.core.runner import ahead
from trimtab.prices.iterations import graded_prices
from trimtab.schedules import Stepwise

__all__ = ["Effort", "effort_trials", "effort_words"]

_SHARES = (0.25, 0.5)  # of the iterations of full projection, bought by price


@dataclass(frozen=True)
class Effort:
    """One way to spend less on correcting at every step.

    Attributes:
        how: What was done, in words.
        cheaper: Whether it is a cheaper projection, rather than less of the same.
        loss: The share of full projection's gain that is lost, with its 95% interval.
        iterations: Of those of full projection; NaN where they are not counted.
        seconds: Of the time that full projection takes to project.
    """

    how: str
    cheaper: bool
    loss: Interval
    iterations: float
    seconds: float


def effort_trials(trials: TrialRuns) -> tuple[Effort, ...]:
    """Everything that can be tried on a problem; nothing for loops of the user's own or without a gain to lose."""
    problem = trials.problems[1]
    if problem is None or trials.groups or not trials.worth_following:
        return ()
    return tuple(_tried(trials, problem))


def _tried(trials: TrialRuns, measuring: Problem) -> Iterator[Effort]:
    closing = trials.reference.closing_rule
    for how in measuring.constraint.cheaper():
        trials.progress(f"projecting with {how}")
        _, run = changed(trials, partial(_cheaper, how=how), closing=closing, measure_defects=True)
        yield _judged(trials, how, True, run(Stepwise()))
    full = trials.reference.all_iterations.double().mean().item()
    if not measuring.constraint.improves or full <= trials.n_steps:
        return  # a projection that is one iteration cannot be had in parts
    trials.progress("one iteration at every step")
    _, run = changed(trials, _same, closing=closing, unit="iteration", measure_defects=True)
    yield _judged(trials, "one iteration at every step", False, run(Stepwise()))
    trials.progress("iterations by price")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a constant defect is among the findings
        try:
            prices = graded_prices(trials.calibration_batches(int(_SHARES[-1] * full) + 1, "iteration"))
        except ValueError:  # too few steps or iterations to price; what was tried so far stands
            return
    _, run = changed(trials, _same, closing=closing)
    schedules = {share: prices.at(max(prices.closing_reserve, int(share * full))) for share in _SHARES}
    ahead(run, list(schedules.values()))
    for share, schedule in schedules.items():
        yield _judged(trials, f"iterations by price, {share:.0%} of them", False, run(schedule))


def _same(problem: Problem) -> Problem:
    return problem


def _cheaper(problem: Problem, how: str) -> Problem:
    """The problem with one of the cheaper projections that its constraint offers."""
    return replace(problem, constraint=problem.constraint.cheaper()[how])


def _judged(trials: TrialRuns, how: str, cheaper: bool, run: Rollout) -> Effort:
    trials.ran()
    reference = trials.reference
    all_iterations = reference.all_iterations.double().mean().item()
    return Effort(
        how,
        cheaper,
        trials.share_lost(trials.measure(run)),
        run.all_iterations.double().mean().item() / all_iterations if all_iterations else float("nan"),
        run.seconds["projection"] / max(reference.seconds["projection"], 1e-12),
    )


def effort_words(efforts: tuple[Effort, ...], per_step: float, less_often: str = "") -> str:
    """In the order in which to try: cheaper, then less of it, then less often.

    Args:
        efforts: What was tried; nothing is said where nothing was.
        per_step: Iterations of a projection.
        less_often: What timing whole projections comes to, in words; "" if that is not known.
    """
    if not efforts:
        return ""
    parts = []
    for name, chosen in (("Make it cheaper", True), ("Do less of it", False)):
        lines = [
            f"{each.how} ({each.iterations:.0%} of the iterations, {each.seconds:.0%} of the time) loses {each.loss}"
            for each in efforts
            if each.cheaper is chosen
        ]
        none = "its constraint offers no cheaper projection" if chosen else "its iterations cannot be had one by one"
        parts.append(f"{name}: {'; '.join(lines) or none}.")
    if less_often:
        parts.append(f"Do it less often: {less_often}.")
    return f"A projection takes {per_step:.1f} iterations. Before timing it: " + " ".join(parts)
