"""The one schedule to recommend of those that were tried, and one sentence why."""

from __future__ import annotations

from collections.abc import Mapping

from trimtab.advice.diagnosis import bootstrap, mean
from trimtab.advice.trial import KINDS, Cost, Trial
from trimtab.advice.trials import TrialRuns

__all__ = ["WORTHWHILE", "choice", "nothing_saved"]

WORTHWHILE = 0.1
"""Of the cost of stepwise correction; who saves less had better keep things simple and project at every step."""

_BETTER = 0.05  # of the cost of stepwise correction: what a less simple schedule must save beyond a simpler one


def choice(
    trials: TrialRuns,
    needed: Mapping[str, Trial],
    tolerance: float | None,
    limit: float | None,
    unit: Cost,
    unreliable: str,
) -> tuple[Trial, str]:
    """The trial to recommend, and why; `unreliable` is why no schedule can be, if there is such a reason."""
    if unreliable and trials.worth_following:
        return trials.stepwise, unreliable
    if not trials.worth_following:
        once = "not at all" if trials.terminal.never_projects else "once, at the end"
        return trials.terminal, f"projecting at every step is no better than {once}, by the measure that was asked for"
    if limit is not None:
        return _best_in_time(trials, needed, limit)
    assert tolerance is not None
    if trials.terminal.loss.mean <= tolerance:  # it is 1 by definition
        return trials.terminal, "the tolerance is met without any correction on the way"
    whole = trials.stepwise.cost(unit)
    least = min(trial.cost(unit) for trial in needed.values())
    if 1 - least / whole < WORTHWHILE:
        return trials.stepwise, nothing_saved(1 - least / whole, unit)
    kind = next(kind for kind in KINDS if kind in needed and needed[kind].cost(unit) <= least + _BETTER * whole)
    beaten = [k for k in needed if KINDS.index(k) > KINDS.index(kind)]
    if kind != "adaptive" and beaten:
        return needed[kind], f"{' and '.join(beaten)} correction would save little more, or nothing"
    return needed[kind], "it meets the tolerance at the lowest cost"


def nothing_saved(share: float, unit: Cost) -> str:
    """Why stepwise correction is as good as any."""
    return (
        f"no schedule that meets the tolerance saves as much as {WORTHWHILE:.0%} of the {unit} (the best saves "
        f"{max(share, 0.0):.0%})"
    )


def _best_in_time(trials: TrialRuns, needed: Mapping[str, Trial], limit: float) -> tuple[Trial, str]:
    if trials.stepwise.seconds <= limit:
        return trials.stepwise, "projecting at every step is within the time limit"
    if not needed:
        return trials.terminal, "even without corrections a sample takes longer than the limit, so this is the quickest"
    best = min(needed.values(), key=lambda trial: trial.loss.mean)
    level = (needed[kind] for kind in KINDS if kind in needed)  # the best is level with itself, so there is one
    chosen = next(trial for trial in level if bootstrap(mean, trial.values - best.values).low <= 0)
    if chosen is best:
        return best, "it loses least within the time limit"
    return chosen, "it loses no more than any other in time"
