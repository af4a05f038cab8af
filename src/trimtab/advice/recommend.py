"""Should I bother? Which schedule and projection, which budget, what is lost and what is saved.

Some seeds calibrate, others choose, and the rest measure what was chosen once more. Losses are paired by seed: 0 is
projecting at every step, 1 is projecting once at the end. Full projection is a reference, not the truth: before
anything is recommended, both ends are compared, and the projection is checked.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import torch

from trimtab.advice.checks import (
    Stability,
    correction_effects,
    first_samples,
    loop_divergence,
    loop_stability,
    nudged,
    problem_divergence,
    problem_stability,
)
from trimtab.advice.result import Advice, Measured
from trimtab.advice.trials import KINDS, Cost, Evaluation, Goal, Search, Trial, Way, cheaper_constraint
from trimtab.core.arrays import Form
from trimtab.core.checks import check_callable, check_number, check_positive, unknown
from trimtab.core.constraint import Constraint, check_constraint
from trimtab.core.metrics import Distance, distinct_seeds, euclidean, top_mass
from trimtab.core.progress import progress_of
from trimtab.core.quality import Quality, as_quality
from trimtab.core.record import Rollout
from trimtab.core.repeatable import RunBatch, as_record
from trimtab.core.schedule import Schedule
from trimtab.core.statistics import Summary, ratio, summarize
from trimtab.loop.rollout import Problem
from trimtab.loop.runner import BatchRunner, Engine, open_runner
from trimtab.prices import Plan, Price, Thresholds
from trimtab.schedules import Terminal, Window
from trimtab.schedules.measured import measured

__all__ = ["FEWEST_FOR_ADVICE", "WORTHWHILE", "advise", "check_projection_unit"]

Source = Problem | RunBatch

FEWEST_FOR_ADVICE = 16
"""Fewest samples for advice."""

WORTHWHILE = 0.1
"""Share of the cost of stepwise correction: below it, projecting at every step is simpler and as good."""

_FEWEST_STEPS = 4
_FEWEST_FOR_FRESH = 32  # samples: with fewer, none are kept for measuring the recommendation once more
_BATCHES = 20  # a typical number
_HOPE = 1 / 3  # of the tolerance: a mean loss, without an interval, that is worth a try on fresh seeds
_MARGIN = 0.9  # of the tolerance, for each choice that fresh seeds have rejected
_TRIES = 3  # choices that fresh seeds may reject


def advise(
    source: Source,
    held_out: Source | None = None,
    *,
    fresh: Source | None = None,
    quality: Quality | Callable[..., Any] | None = None,
    objective: Literal["endpoint", "path"] = "endpoint",
    tolerance: float | None = None,
    tolerance_unit: Literal["share", "absolute"] = "share",
    seconds: float | None = None,
    cost: Cost = "seconds",
    distance: Distance | None = None,
    price: Price | None = None,
    window: int | float | None = None,
    look: float = 0.0,
    constraint: Constraint | None = None,
    nudge: Callable[[Schedule, float], Rollout] | None = None,
    thorough: bool = False,
    engine: Engine = None,
    progress: Callable[[str], None] | None = None,
    say: Callable[[str], None] | None = None,
) -> Advice:
    """Find out whether scheduled correction is worth it, and recommend a schedule, a projection and a budget.

    Candidates are ways to project (whole, the cheaper variants of `constraint.cheaper()`, single iterations) with times
    to project at (every step, evenly spaced, the last steps, by price, by price shared by the batch). They are compared
    at equal work, cheap ones first, and the cheapest one that meets the tolerance is recommended. It takes about 20
    batches of at most half the seeds.

    Args:
        source: A `Problem` with at least 16 seeds, better 64 or more; repeated seeds count once. A quarter of them
            calibrates; of the others, half chooses and half measures the choice once more. Or a function
            `run(schedule)` that runs your loop, as in `calibrate`, to calibrate with.
        held_out: With a function, another one that runs the same loop on other seeds, to choose with.
        fresh: With a function, a third one on yet other seeds, to measure the choice with.
        quality: A measure of final samples to go by: a function of the final states (and of the problem), lower being
            better, or a `Quality`. It is tried on the first batch; if it fails later, the rest still stands.
        objective: The measure without a quality: "endpoint" (distance of final states to those of full projection) or
            "path". Neither is quality.
        tolerance: The loss that may be lost, 0.1 if neither this nor `seconds` is given. It is met if the whole
            interval of the loss is below it.
        tolerance_unit: "share" of what full projection gains over terminal projection, or "absolute", in the unit of
            the measure.
        seconds: A time limit per sample; what loses least within it is recommended.
        cost: What to save: "seconds" as measured here, or "projections". If the solver iterates, "projections" are
            counted in iterations, because equal projections are then not equal work.
        distance: Between states; that of the problem, or Euclidean, if not given.
        price: A price made earlier, judged instead of a new one.
        window: What you do today: the step, or share of the steps, from which on you project at every step.
        look: The cost of measuring the defect, in projections, if it is not negligible.
        constraint: With functions, the constraint of the loop, so that its projection can be checked.
        nudge: With functions, `nudge(schedule, size)` runs the loop of `held_out` from initial states that are moved at
            random by the share `size` of their size. Without it, nothing is known about diverging rollouts.
        thorough: Whether to calibrate by the dynamic program instead of the paper's rule (which is done for "path"
            anyway), and to search longer. It takes about twice as many batches.
        engine: Where to run batches, as in `calibrate`.
        progress: Called with a line about what is being done.
        say: The former name of `progress`.

    Example:
        >>> from trimtab.examples import problem
        >>> advice = advise(problem(range(1000, 1064), n_steps=24), objective="path", tolerance=0.3, cost="projections")
        >>> advice.loss.mean <= 0.3, advice.saving.mean > 0.1
        (True, True)
    """
    if say is not None:
        warnings.warn("say= is now called progress=", DeprecationWarning, stacklevel=2)
        progress = progress or say
    judged = as_quality(quality)
    tolerance = _checked_tolerance(tolerance, tolerance_unit, seconds, cost, objective)
    _check_loop(source, held_out, fresh, constraint, nudge)
    if distance is None:
        distance = source.distance if isinstance(source, Problem) else euclidean
    check_number(look, "look, the cost of measuring a defect in projections,", 0)
    goal = Goal(distance, judged, objective, tolerance, tolerance_unit == "absolute", seconds, cost, float(look))
    today = None if window is None else Window(window)
    tell = progress_of("advise", progress)
    with tell, open_runner(engine) as runner:
        tell.expect(_BATCHES)
        parts = _parts(source, held_out, fresh, runner, price is not None)
        _check_price(price, parts.n_steps)
        if today is not None:
            today.steps(parts.n_steps)  # raises if it does not fit
        tell(f"this takes about {_BATCHES} batches")
        at = Evaluation(parts.choosing, parts.problems[1], goal, tell)
        parts.check_distinct(at.alone)
        if at.n_steps != parts.n_steps:
            raise ValueError(f"expected {parts.n_steps} steps: got a run of {at.n_steps}; pass the loop's n_steps")
        search = Search(at, parts.calibrating, price, thorough, parts.engine)
        yours = None
        if today is not None:
            yours = at.judge(Way("window"), len(today.steps(at.n_steps)), today, at.run(today))
        tell("checking the projection")
        stability = _stability(at, constraint, nudge)
        stop = _reason_to_stop(at, stability)
        needed = {} if stop else search.explore()
        choice = _Choice(at.terminal, stop) if stop else _chosen(search, parts)
        return _answer(search, parts, choice, needed, stability, yours, constraint)


def _reason_to_stop(at: Evaluation, stability: Stability) -> str:
    """Return why nothing can be found out, or nothing gained, by trying schedules; "" if it can."""
    once = "not at all" if at.terminal.never_projects else "once, at the end"
    needs = "give quality= (a measure of your final samples), and this can be decided"
    if at.goal.quality is None and not stability.reliable:
        return f"the projection is not reliable, so full projection is no reference; project {once}, and {needs}"
    if stability.chaotic and at.goal.to_full:
        return f"rollouts part however close they start, so endpoints decide nothing; project {once}, and {needs}"
    if not at.worth_following:
        return f"projecting at every step is no better than {once}, by {at.goal.measure}"
    if at.goal.limit is None and at.goal.met(at.terminal):
        return "the tolerance is met without any correction on the way"
    return ""


class _Choice(NamedTuple):
    """What is recommended, why, and how it did on fresh seeds; `rejected` did not meet the tolerance there."""

    trial: Trial
    reason: str
    confirmed: Trial | None = None
    fresh: Evaluation | None = None
    rejected: tuple[Trial, ...] = ()


def _chosen(search: Search, parts: _Parts) -> _Choice:
    """Choose, and measure the choice on fresh seeds; if it does not meet the tolerance there, choose again."""
    at, goal = search.at, search.goal
    fresh: Evaluation | None = None
    rejected: list[Trial] = []
    for _ in range(_TRIES):
        trial, reason = choose(search, {one.name for one in rejected}, hopeful=parts.fresh is not None)
        if parts.fresh is None or trial in (at.terminal, at.stepwise):
            return _Choice(trial, reason, None, fresh, tuple(rejected))
        at.progress(f"{trial.name} on fresh seeds")
        if fresh is None:
            fresh = Evaluation(parts.fresh, parts.problems[2], goal, at.progress, check=False)
        again = fresh.again(trial)
        if goal.tolerance is not None and not goal.lost(again).reliable and goal.lost(again).mean <= goal.tolerance:
            again = _pooled((at, trial), (fresh, again))
        if goal.tolerance is None or goal.met(again):
            return _Choice(trial, reason, again, fresh, tuple(rejected))
        rejected.append(again)
        if (trial.way, trial.budget) in search.trials:  # a little more may do
            search.trial(trial.way, min(max(trial.budget + 1, round(1.4 * trial.budget)), search.most(trial.way)))
    reason = f"{len(rejected)} cheaper candidates met the tolerance at first but not on fresh seeds"
    return _Choice(at.stepwise, reason, None, fresh, tuple(rejected))


def _pooled(*pairs: tuple[Evaluation, Trial]) -> Trial:
    """Return the last trial with the losses of all samples, because the fresh ones alone are too few."""
    lost = torch.cat([trial.measured - at.full for at, trial in pairs])
    gain = torch.cat([at.closed - at.full for at, _ in pairs])
    return replace(pairs[-1][1], loss=ratio(lost, gain), excess=summarize(lost))


def choose(search: Search, rejected: Collection[str] = (), hopeful: bool = False) -> tuple[Trial, str]:
    """Return the trial to recommend, and why; no other trial is cheaper and loses less.

    If `hopeful`, the first choice may be one whose interval is not known, since fresh seeds decide.
    """
    at, goal, unit = search.at, search.goal, search.at.unit
    candidates = [trial for trial in search.everything if trial.name not in rejected and not trial.missing]

    def rank(trial: Trial) -> tuple[float, float, int]:
        return trial.cost(unit), goal.lost(trial).mean, KINDS.index(trial.kind)

    if goal.limit is not None:
        if at.stepwise.seconds <= goal.limit:
            return at.stepwise, "projecting at every step is within the time limit"
        fitting = [trial for trial in candidates if trial.seconds <= goal.limit]
        if not fitting:
            return at.terminal, "even one projection at the end takes longer than the limit, so this is the quickest"
        return min(fitting, key=lambda trial: goal.lost(trial).mean), "it loses least within the time limit"
    # what failed on fresh seeds shows that the choice is optimistic: the next one needs a margin
    most = (goal.tolerance or 0.0) * _MARGIN ** len(rejected)
    good = [trial for trial in search.good if trial is at.stepwise or goal.lost(trial).high <= most]
    if hopeful and not rejected:
        good += [t for t in candidates if not goal.lost(t).reliable and goal.lost(t).mean <= _HOPE * most]
    best = min((trial for trial in good if trial in candidates), key=rank)
    least = goal.lost(best).mean
    best = min((trial for trial in candidates if trial is best or goal.lost(trial).mean <= least), key=rank)
    for plain in search.efforts:  # the same projection at every step, if leaving steps out saves next to nothing
        near = plain.how == best.how and best.cost(unit) > (1 - WORTHWHILE) * plain.cost(unit)
        if near and plain in good and goal.lost(plain).mean <= goal.lost(best).mean:
            best = plain
    saved = 1 - best.cost(unit) / max(at.stepwise.cost(unit), 1e-300)
    if best is not at.stepwise and (saved >= WORTHWHILE or goal.lost(best).mean <= 0):
        return best, f"it is the cheapest of {len(search.everything)} candidates that meets the tolerance"
    tails = [t for t in candidates if not goal.lost(t).reliable and goal.lost(t).mean <= (goal.tolerance or 0.0)]
    if tails or rejected:
        return at.stepwise, (
            f"whether less would do cannot be decided with {len(at.full)} samples, because a few of them hold most of "
            "the loss; give more seeds, a quality, or a tolerance in its unit"
        )
    return at.stepwise, (
        f"nothing that meets the tolerance saves as much as {WORTHWHILE:.0%} of the {unit} (the best saves "
        f"{max(saved, 0.0):.0%})"
    )


def _answer(
    search: Search,
    parts: _Parts,
    choice: _Choice,
    needed: dict[str, Trial],
    stability: Stability,
    yours: Trial | None,
    constraint: Constraint | None,
) -> Advice:
    """Return the advice, with everything that was measured."""
    at, goal, unit = search.at, search.goal, search.at.unit
    chosen, reason, confirmed, again, rejected = choice
    effects = None
    if search.trials and float((at.ends[1] - at.ends[0] <= 1e-9).double().mean()) < 0.5:
        at.progress("single corrections at random steps")
        effects = correction_effects(at.run, at.alone, at.reference, goal.distance)
    shares = [0.0 if chosen is at.stepwise else 1 - chosen.cost(unit) / max(at.stepwise.cost(unit), 1e-300)]
    if confirmed is not None and again is not None:
        shares.append(1 - confirmed.cost(unit) / max(again.stepwise.cost(unit), 1e-300))
    spent = at.spent[unit] + (0 if again is None else again.spent[unit])
    each = at.terminal if not search.thorough else at.stepwise  # the paper's rule is calibrated by uncorrected rollouts
    spent += search.calibration_batches * parts.calibrated * each.cost(unit)
    saved = (at.stepwise.cost(unit) - chosen.cost(unit)) if chosen is not at.stepwise else 0.0
    measured = Measured(
        goal=goal,
        unit=unit,
        n_steps=at.n_steps,
        calibrated=parts.calibrated if search.calibration_batches else 0,
        held_out=at.gain.n,
        fresh=0 if confirmed is None or again is None else again.gain.n,
        repeated=parts.repeated,
        batch=at.n,
        gain=at.gain,
        full=float(at.full.nanmean()),
        terminal=at.terminal,
        stepwise=at.stepwise,
        trials=tuple(search.trials.values()),
        efforts=tuple(search.efforts),
        needed=needed,
        confirmed=confirmed,
        rejected=rejected,
        yours=yours,
        concentration=float(top_mass(at.alone.defects).double().nanmean()),
        constant=at.constant,
        looks_project=at.looks_project,
        iterates=at.iterates,
        effects=effects,
        stability=stability,
        turnable=goal.to_full
        and goal.distance is euclidean
        and tuple(getattr(at.alone.final, "shape", ()))[2:] == (3,),
        batches=at.batches
        + (again.batches if again else 0)
        + search.calibration_batches
        + int(parts.first is not None),
        paid_back=spent / saved if saved > 0 else math.inf,
        given=search.given is not None,
        broken=at.broken or ("" if again is None else again.broken),
    )
    return Advice(
        trial=chosen,
        loss=chosen.loss if confirmed is None else confirmed.loss,
        saving=Summary(sum(shares) / len(shares), min(shares), max(shares), n=len(shares), reliable=True),
        schedule=chosen.schedule,
        constraint=constraint if parts.whole is None else cheaper_constraint(parts.whole.constraint, chosen.how),
        price=getattr(chosen.schedule, "price", None),
        measured=measured,
        reason=reason,
    )


def _stability(at: Evaluation, constraint: Constraint | None, nudge: Any) -> Stability:
    """Check the projection and the rollout, as far as a problem or a loop allows it."""
    if at.problem is None:
        found = loop_stability(constraint, at.reference)
        at.batches += int(nudge is not None)
        return replace(found, divergence=loop_divergence(nudge, at.reference, at.goal.distance))
    some, run = at.changed(first_samples, "first", keep_states=True, measure_defects=True)
    found = problem_stability(some, run, at.reference)
    moved, run = at.changed(nudged, "nudged", closing=at.reference.closing_rule, measure_defects=False)
    at.count(at.reference)  # it costs the same
    return replace(found, divergence=problem_divergence(moved, run, at.reference, at.goal.distance))


# ------------------------------------------------------------------ what calibrates, chooses and measures


class _Parts:
    """The seeds that calibrate, choose and measure: runs, and their problems if there are any."""

    def __init__(self, runs: Sequence[RunBatch | None], problems: Sequence[Problem | None], n_steps: int) -> None:
        _, choosing, self.fresh = runs
        assert choosing is not None
        self.choosing, self.problems, self.n_steps = choosing, problems, n_steps
        self.calibrating: Any = problems[0] if problems[0] is not None else runs[0]
        self.calibrated, self.repeated = 0, 0
        self.whole: Problem | None = None
        self.engine: BatchRunner | None = None
        self.first: Rollout | None = None  # of a loop that calibrates

    def check_distinct(self, alone: Rollout) -> None:
        """Check that the loop that chooses runs the same steps on other seeds than the one that calibrates."""
        if self.first is None:
            return
        if self.first.n_steps != alone.n_steps:
            raise ValueError(
                f"the two functions must run the same loop on different seeds: got {self.first.n_steps} steps of the "
                f"one that calibrates and {alone.n_steps} of the one that measures"
            )
        ours, theirs = (Form(run.final, floats=False) for run in (self.first, alone))
        if (ours.tree, ours.dtypes, ours.shapes) == (theirs.tree, theirs.dtypes, theirs.shapes):
            finals = zip(ours.leaves(self.first.final), theirs.leaves(alone.final), strict=True)
            if torch.equal(self.first.defects, alone.defects) and all(torch.equal(a, b) for a, b in finals):
                raise ValueError("the two runs are the same rollouts; measuring needs other seeds than calibrating")
        _check_count(2 * min(self.first.defects.shape[1], alone.defects.shape[1]), alone.n_steps)


def _parts(source: Source, held_out: Source | None, fresh: Source | None, runner: BatchRunner, given: bool) -> _Parts:
    """Return the parts that calibrate, choose and measure: shares of the seeds, or the functions that run the loop."""
    if isinstance(source, Problem):
        problem = distinct(source)
        _check_count(len(problem), source.n_steps)
        shares = _shares(len(problem), given)
        problems = split(problem, shares)
        runs = [None if one is None else runner.runs(one) for one in problems]
        parts = _Parts(runs, problems, source.n_steps)
        parts.calibrated, parts.repeated, parts.whole = shares[0], len(source) - len(problem), source
        parts.engine = runner
        return parts
    assert not isinstance(held_out, Problem)
    assert not isinstance(fresh, Problem)
    assert held_out is not None
    loops = {"calibrate": source, "choose": held_out, "measure": fresh}
    each = [None if one is None else runner.runs(one, role) for role, one in loops.items()]
    assert each[0] is not None
    first = as_record(each[0](measured(Terminal())))
    parts = _Parts(each, [None] * 3, first.n_steps)
    parts.first, parts.calibrated = first, first.defects.shape[1]
    return parts


def distinct(problem: Problem) -> Problem:
    """Return the problem with every seed once."""
    rows = distinct_seeds(problem.seeds)
    return problem if len(rows) == len(problem) else problem.take(rows)


def _shares(count: int, given: bool) -> tuple[int, int, int]:
    """Return how many samples calibrate, choose and measure."""
    if count < _FEWEST_FOR_FRESH:
        return (0 if given else count // 2), (count if given else count - count // 2), 0
    calibrating = 0 if given else max(FEWEST_FOR_ADVICE // 2, count // 4)
    choosing = (count - calibrating + 1) // 2
    return calibrating, choosing, count - calibrating - choosing


def split(problem: Problem, shares: Sequence[int]) -> list[Problem | None]:
    """Return problems of so many samples each; None for 0."""
    parts: list[Problem | None] = []
    start = 0
    for share in shares:
        parts.append(problem.take(torch.arange(start, start + share)) if share else None)
        start += share
    return parts


def _units(run: Rollout) -> int:
    return run.defects.shape[1] if run.groups is None else run.groups.n


# ------------------------------------------------------------------ checks of arguments


def _checked_tolerance(
    tolerance: float | None, tolerance_unit: str, seconds: float | None, cost: str, objective: str
) -> float | None:
    """Check these options, and return the tolerance, or its default if it is not given."""
    if cost not in ("seconds", "projections", "iterations"):
        raise unknown("cost", str(cost), ("seconds", "projections", "iterations"))
    if objective not in ("endpoint", "path"):
        raise unknown("objective", str(objective), ("endpoint", "path"))
    if tolerance_unit not in ("share", "absolute"):
        raise unknown("tolerance_unit", str(tolerance_unit), ("share", "absolute"))
    if tolerance is None and tolerance_unit == "absolute":
        raise ValueError("tolerance_unit='absolute' needs a tolerance, in the unit of the measure")
    for name, value in (("tolerance", tolerance), ("seconds", seconds)):
        if value is not None:
            check_positive(value, name)
    return 0.1 if tolerance is None and seconds is None else tolerance


def _check_loop(source: object, held_out: object, fresh: object, constraint: object, nudge: object) -> None:
    """Check the arguments that only go with functions, and the functions."""
    if isinstance(source, Problem):
        if held_out is not None or fresh is not None:
            raise ValueError("a Problem is split by itself; held_out and fresh go with a function run(schedule)")
        if constraint is not None or nudge is not None:
            raise ValueError("constraint= and nudge= go with functions; a Problem already provides both")
        return
    if not callable(source) or not callable(held_out) or (fresh is not None and not callable(fresh)):
        raise TypeError(
            "advise takes a Problem, or two functions run(schedule) of which the second runs other seeds: "
            f"advise(run, held_out=other_run); got {type(source).__name__} and {type(held_out).__name__}"
        )
    if constraint is not None:
        check_constraint(constraint, "the constraint of a loop")
    if nudge is not None:
        check_callable(nudge, "nudge", "nudge(schedule, size)")


def _check_count(count: int, n_steps: int) -> None:
    least = FEWEST_FOR_ADVICE
    if count < least:
        raise ValueError(
            f"{count} distinct rollouts are too few to advise on; give at least {least} seeds, better 64 or more"
        )
    if n_steps < _FEWEST_STEPS:
        raise ValueError(
            f"a sampler of {n_steps} steps leaves nothing to schedule: project at every step (advice needs at "
            f"least {_FEWEST_STEPS} steps)"
        )


def check_projection_unit(unit: str, what: str) -> None:
    """Raise if something counts iterations although budgets are projections."""
    if unit == "iteration":
        raise ValueError(
            f"{what} counts iterations, and budgets here are projections: give one that was calibrated with "
            "unit='projection'"
        )


def _check_price(price: Price | None, n_steps: int) -> None:
    if price is None:
        return
    if not isinstance(price, Thresholds | Plan):
        raise TypeError(f"price must come from calibrate or load: got {type(price).__name__}")
    check_projection_unit(price.unit, "the price")
    if price.n_steps != n_steps:
        raise ValueError(
            f"the price was calibrated for T = {price.n_steps} steps, this sampler has {n_steps}; calibrate again, or "
            "use price.resample(n_steps)"
        )
    if price.budget < 2:
        raise ValueError(f"the price is for a budget of {price.budget} corrections; calibrate with a larger budget")
