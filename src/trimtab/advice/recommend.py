"""Should I bother? Which way to correct, at which times, with which budget, and what is lost and saved.

Some seeds calibrate, others choose, and the rest measure what was chosen once more. Losses are paired by seed, and one
rule judges them all (`trimtab.advice.verdict`). Full projection is a reference, not the truth: before anything is
recommended, both ends are compared, and the projection is checked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from trimtab.advice.checks import (
    Stability,
    correction_effects,
    loop_stability,
    problem_divergence,
    problem_stability,
)
from trimtab.advice.result import Advice, Measured
from trimtab.advice.trials import SIMPLE, Cost, Evaluation, Goal, Search, Trial
from trimtab.advice.verdict import Verdict, seeds_in_words, two_digits
from trimtab.core.arrays import Form
from trimtab.core.checks import check_positive, unknown
from trimtab.core.constraint import Constraint, check_constraint
from trimtab.core.metrics import Distance, distinct_seeds, euclidean, top_mass
from trimtab.core.progress import progress_of
from trimtab.core.quality import Quality, as_quality
from trimtab.core.record import Rollout
from trimtab.core.repeatable import RunBatch, as_record
from trimtab.core.statistics import Summary
from trimtab.loop.rollout import Problem
from trimtab.loop.runner import BatchRunner, Engine, open_runner
from trimtab.prices import Price
from trimtab.schedules import Terminal
from trimtab.schedules.measured import measured

__all__ = ["FEWEST_FOR_ADVICE", "WORTHWHILE", "advise", "check_price"]

Source = Problem | RunBatch

FEWEST_FOR_ADVICE = 16
"""Fewest samples for advice."""

WORTHWHILE = 0.1
"""Share of the cost of projecting at every step: what saves less is not worth leaving steps out."""

_FEWEST_STEPS = 4
_FEWEST_FOR_FRESH = 32  # samples: with fewer, none are kept for measuring the recommendation once more
_BATCHES = 30  # a typical number
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
    constraint: Constraint | None = None,
    engine: Engine = None,
    progress: Callable[[str], None] | None = None,
) -> Advice:
    """Find out whether scheduled correction is worth it, and recommend how, when and how much to correct.

    Candidates are ways to correct (whole projections, one or two iterations, the variants of `constraint.cheaper()`) at
    times (every step, evenly spaced, the last or the first steps, by price, by price shared by the batch). They are
    compared at equal work, and the cheapest that loses no more than the tolerance is recommended. The answer is one of
    three: full projection is *better* than what is cheaper, *no better within the tolerance*, or it is *undecided*, and
    about so many seeds would decide.

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
        tolerance: The loss that may be lost, 0.1 if not given. It is met if the whole interval of the loss is below it.
        tolerance_unit: "absolute", in the unit of the measure, or "share" of what full projection changes in a typical
            sample (a median, so that a few samples with a large change do not make a loss look small).
        seconds: A time limit per sample; what loses least within it is recommended.
        cost: What to save: "seconds" as measured here, or "projections". If the solver iterates, "projections" are
            counted in iterations, because equal projections are then not equal work.
        distance: Between states; that of the problem, or Euclidean, if not given.
        price: A price made earlier, judged instead of a new one.
        constraint: With functions, the constraint of the loop, so that its cheaper ways are tried and its projection is
            checked.
        engine: Where to run batches, as in `calibrate`.
        progress: Called with a line about what is being done.

    Example:
        >>> import trimtab as tt
        >>> problem = tt.domain("terrain-ridge", n_steps=24).problem(range(1000, 1064))
        >>> advice = advise(problem, objective="path", tolerance=0.3, cost="projections")
        >>> advice.verdict, advice.loss.high <= 0.3, advice.saving.mean > 0.1
        ('no better', True, True)
    """
    judge = as_quality(quality)
    _check_options(tolerance, tolerance_unit, seconds, cost, objective)
    _check_loop(source, held_out, fresh, constraint)
    if isinstance(source, Problem):
        constraint, distance = source.constraint, distance or source.distance
    goal = Goal(
        distance or euclidean,
        judge,
        objective,
        0.1 if tolerance is None else tolerance,
        tolerance_unit == "absolute",
        seconds,
        cost,
    )
    tell = progress_of("advise", progress)
    with tell, open_runner(engine) as runner:
        tell.expect(_BATCHES)
        parts = _parts(source, held_out, fresh, runner, price is not None)
        check_price(price, parts.n_steps)
        tell(f"this takes about {_BATCHES} batches")
        at = Evaluation(parts.choosing, parts.problem, goal, tell)
        parts.check_distinct(at.alone)
        if at.n_steps != parts.n_steps:
            raise ValueError(f"expected {parts.n_steps} steps: got a run of {at.n_steps}; pass the loop's n_steps")
        search = Search(at, parts.calibrating, price, constraint, runner)
        tell("checking the projection")
        stability = _stability(at, constraint)
        choice = _without_trying(at, stability)
        if choice is None:
            search.explore()
            search.clock()
            choice = _chosen(search, parts)
        return _answer(search, parts, choice, stability)


@dataclass(frozen=True, eq=False)
class _Choice:
    """What is recommended and why; `seeds` of the batch that decided would decide, if it is undecided."""

    trial: Trial
    verdict: Verdict
    reason: str
    seeds: int = 0
    confirmed: Trial | None = None
    fresh: Evaluation | None = None
    rejected: tuple[Trial, ...] = ()


def _without_trying(at: Evaluation, stability: Stability) -> _Choice | None:
    """Return the choice if nothing can be found out, or nothing gained, by trying candidates; None if it can."""
    once = "not at all" if at.terminal.projections == 0 else "once, at the end"
    needs = "give quality= (a measure of your final samples), and this can be decided"
    if at.goal.quality is None and not stability.reliable:
        reason = f"the projection is not reliable, so full projection is no reference; project {once}, and {needs}"
        return _Choice(at.terminal, "undecided", reason)
    if stability.chaotic and at.goal.to_full:
        reason = f"rollouts part however close they start, so endpoints decide nothing; project {once}, and {needs}"
        return _Choice(at.terminal, "undecided", reason)
    if at.goal.limit is not None:
        return None
    gain = at.gain
    if gain.verdict == "no better":
        worse = "worse than" if gain.loss.high < 0 else "no better, within the tolerance, than"
        return _Choice(at.terminal, "no better", f"projecting at every step is {worse} {once}, by {at.goal.measure}")
    if gain.verdict == "undecided" and not gain.loss.mean > 0:
        reason = f"whether projecting at every step is better than {once} is undecided, by {at.goal.measure}"
        return _Choice(at.terminal, "undecided", reason, gain.seeds)
    return None


def _chosen(search: Search, parts: _Parts) -> _Choice:
    """Choose, and measure the choice on fresh seeds; if it does not meet the tolerance there, choose again."""
    at, goal = search.at, search.goal
    fresh: Evaluation | None = None
    rejected: list[Trial] = []
    for _ in range(_TRIES):
        choice = choose(search, rejected)
        trial = choice.trial
        if parts.fresh is None or trial in (at.terminal, at.stepwise):
            return replace(choice, fresh=fresh, rejected=tuple(rejected))
        at.progress(f"{trial.name} on fresh seeds")
        if fresh is None:
            fresh = Evaluation(parts.fresh, parts.fresh_problem, goal, at.progress, scale=at.scale)
        again = fresh.again(trial)
        if goal.limit is not None or again.meets:
            return replace(choice, confirmed=again, fresh=fresh, rejected=tuple(rejected))
        rejected.append(again)
    return replace(_full(search, rejected), fresh=fresh, rejected=tuple(rejected))


def choose(search: Search, rejected: Sequence[Trial] = ()) -> _Choice:
    """Return the choice among the trials: the cheapest that meets the tolerance, or what loses least within a limit."""
    at, goal, unit = search.at, search.goal, search.at.unit
    out = {trial.name for trial in rejected}
    candidates = [trial for trial in search.everything if trial.name not in out and not trial.missing]
    if goal.limit is not None:
        return _within_limit(at, goal.limit, candidates)
    good = [t for t in candidates if t.meets and t is not at.stepwise]
    saved = 1 - min((t.cost(unit) for t in good), default=math.inf) / max(at.stepwise.cost(unit), 1e-300)
    if not good or saved < WORTHWHILE:
        return _full(search, rejected)
    best, why = good[0], f"it is the cheapest of {len(search.everything)} candidates that meets the tolerance"
    for plain in good:  # the same way at every step, if leaving steps out saves next to nothing
        near = plain.times == "stepwise" and plain.way == best.way and plain is not best
        if near and best.cost(unit) > (1 - WORTHWHILE) * plain.cost(unit):
            best, why = plain, f"leaving out steps would save less than {WORTHWHILE:.0%} of the {unit}"
    if best.times in SIMPLE and any(not trial.simple for trial in search.everything):
        why += "; a simple rule, which needs no prices"
    return _Choice(best, "no better", why)


def _within_limit(at: Evaluation, limit: float, candidates: Sequence[Trial]) -> _Choice:
    if at.stepwise.seconds <= limit:
        return _Choice(at.stepwise, "better", "projecting at every step is within the time limit")
    fitting = [trial for trial in candidates if trial.seconds <= limit]
    if not fitting:
        why = "even one projection at the end takes longer than the limit, so this is the quickest"
        return _Choice(at.terminal, at.terminal.judged.verdict, why, at.terminal.judged.seeds)
    best = min(fitting, key=lambda trial: trial.loss.mean)
    return _Choice(best, best.judged.verdict, "it loses least within the time limit", best.judged.seeds)


def _full(search: Search, rejected: Sequence[Trial]) -> _Choice:
    """Return full projection: nothing that saves enough is shown to do. That is proven, or undecided."""
    at, unit = search.at, search.at.unit
    cheap = [t for t in search.everything if t.cost(unit) <= (1 - WORTHWHILE) * at.stepwise.cost(unit)]
    latest = {trial.name: trial for trial in rejected}
    open_ones = [one for t in cheap if (one := latest.get(t.name, t)).judged.verdict != "better"]
    if not open_ones:
        reason = f"full projection is better than every candidate that saves {WORTHWHILE:.0%} of the {unit} or more"
        return _Choice(at.stepwise, "better", reason)
    seeds = min((one.judged.seeds for one in open_ones if not one.meets), default=2 * len(at.full))
    reason = f"whether less would do is undecided on {len(at.full)} samples"
    if rejected:
        reason += f": {len(rejected)} of the candidates met the tolerance at first, but not on fresh seeds"
    return _Choice(at.stepwise, "undecided", reason, seeds)


def _answer(search: Search, parts: _Parts, choice: _Choice, stability: Stability) -> Advice:
    """Return the advice, with everything that was measured."""
    at, goal, unit = search.at, search.goal, search.at.unit
    chosen, confirmed, again = choice.trial, choice.confirmed, choice.fresh
    effects = None
    if search.trials and bool((at.alone.residuals - at.reference.residuals).abs().sum() > 0):
        at.progress("single corrections at random steps")
        effects = correction_effects(at.run, at.alone, at.reference, goal.distance)
    shares = [0.0 if chosen is at.stepwise else 1 - chosen.cost(unit) / max(at.stepwise.cost(unit), 1e-300)]
    if confirmed is not None and again is not None:
        shares.append(1 - confirmed.cost(unit) / max(again.stepwise.cost(unit), 1e-300))
    spent = at.spent[unit] + (0 if again is None else again.spent[unit])
    spent += search.calibration_batches * parts.calibrated * at.terminal.cost(unit)
    saved = (at.stepwise.cost(unit) - chosen.cost(unit)) if chosen is not at.stepwise else 0.0
    numbers = Measured(
        goal=goal,
        unit=unit,
        scale=at.scale,
        calibrated=parts.calibrated if search.calibration_batches else 0,
        repeated=parts.repeated + at.n - len(at.rows),
        batch=at.n,
        terminal=at.terminal,
        stepwise=at.stepwise,
        trials=tuple(search.trials.values()),
        confirmed=confirmed,
        rejected=choice.rejected,
        concentration=float(top_mass(at.alone.defects).double().nanmean()),
        constant=at.constant,
        looks_project=at.looks_project,
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
    seeds = 0
    if choice.verdict == "undecided" and choice.seeds:
        seeds = two_digits(choice.seeds * parts.given / len(at.full))
    reason = choice.reason + (f"; {seeds_in_words(seeds)} would decide" if seeds else "")
    return Advice(
        trial=chosen,
        verdict=choice.verdict,
        seeds=seeds,
        loss=chosen.loss if confirmed is None else confirmed.loss,
        saving=Summary(sum(shares) / len(shares), min(shares), max(shares), n=len(shares), reliable=True),
        schedule=chosen.schedule,
        price=search.prices.get(chosen.times),
        measured=numbers,
        reason=reason,
    )


def _stability(at: Evaluation, constraint: Constraint | None) -> Stability:
    """Check the projection and the rollout, as far as a problem or a loop allows it."""
    if at.problem is None:
        return loop_stability(constraint, at.reference)
    at.count(at.reference)  # the nudged batch costs the same
    found = problem_stability(at.problem, at.reference)
    return replace(found, divergence=problem_divergence(at.problem, at.reference, at.goal.distance))


# ------------------------------------------------------------------ what calibrates, chooses and measures


@dataclass(eq=False)
class _Parts:
    """The seeds that calibrate, choose and measure: runs, and their problems if there are any."""

    calibrating: Any
    choosing: RunBatch
    fresh: RunBatch | None
    n_steps: int
    given: int  # number of samples in all
    calibrated: int
    problem: Problem | None = None  # of the seeds that choose
    fresh_problem: Problem | None = None
    repeated: int = 0
    first: Rollout | None = None  # of a loop that calibrates

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
        _check_count(2 * min(_distinct(self.first), _distinct(alone)), alone.n_steps)
        self.given = _distinct(alone)  # of each function


def _parts(source: Source, held_out: Source | None, fresh: Source | None, runner: BatchRunner, given: bool) -> _Parts:
    """Return the parts that calibrate, choose and measure: shares of the seeds, or the functions that run the loop."""
    if isinstance(source, Problem):
        problem = distinct(source)
        _check_count(len(problem), source.n_steps)
        shares = _shares(len(problem), given)
        first, second, third = split(problem, shares)
        assert second is not None
        return _Parts(
            first,
            runner.runs(second),
            None if third is None else runner.runs(third),
            source.n_steps,
            len(problem),
            shares[0],
            second,
            third,
            len(source) - len(problem),
        )
    assert not isinstance(held_out, Problem)
    assert not isinstance(fresh, Problem)
    assert held_out is not None
    calibrating, choosing = runner.runs(source, "calibrate"), runner.runs(held_out, "choose")
    alone = as_record(calibrating(measured(Terminal())))
    count = _distinct(alone)
    measuring = None if fresh is None else runner.runs(fresh, "measure")
    return _Parts(calibrating, choosing, measuring, alone.n_steps, count, count, first=alone)


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


def _distinct(run: Rollout) -> int:
    return run.defects.shape[1] if run.seeds is None else len(distinct_seeds(run.seeds))


# ------------------------------------------------------------------ checks of arguments


def _check_options(
    tolerance: float | None, tolerance_unit: str, seconds: float | None, cost: str, objective: str
) -> None:
    for name, got, known in (
        ("cost", cost, ("seconds", "projections", "iterations")),
        ("objective", objective, ("endpoint", "path")),
        ("tolerance_unit", tolerance_unit, ("share", "absolute")),
    ):
        if got not in known:
            raise unknown(name, str(got), known)
    if tolerance is None and tolerance_unit == "absolute":
        raise ValueError("tolerance_unit='absolute' needs a tolerance, in the unit of the measure")
    for name, value in (("tolerance", tolerance), ("seconds", seconds)):
        if value is not None:
            check_positive(value, name)


def _check_loop(source: object, held_out: object, fresh: object, constraint: object) -> None:
    """Check the arguments that only go with functions, and the functions."""
    if isinstance(source, Problem):
        if held_out is not None or fresh is not None:
            raise ValueError("a Problem is split by itself; held_out and fresh go with a function run(schedule)")
        if constraint is not None:
            raise ValueError("constraint= goes with functions; a Problem has its own")
        return
    if not callable(source) or not callable(held_out) or (fresh is not None and not callable(fresh)):
        raise TypeError(
            "advise takes a Problem, or two functions run(schedule) of which the second runs other seeds: "
            f"advise(run, held_out=other_run); got {type(source).__name__} and {type(held_out).__name__}"
        )
    if constraint is not None:
        check_constraint(constraint, "the constraint of a loop")


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


def check_price(price: object, n_steps: int, what: str = "the price") -> None:
    """Raise if a price is for another number of steps, or counts iterations; None is no price."""
    if price is None:
        return
    if not isinstance(price, Price):
        raise TypeError(f"{what} must come from calibrate or load: got {type(price).__name__}")
    if price.unit == "iteration":
        raise ValueError(
            f"{what} counts iterations, and budgets here are projections: give one that was calibrated with "
            "unit='projection'"
        )
    if price.n_steps != n_steps:
        raise ValueError(
            f"{what} was calibrated for T = {price.n_steps} steps, this sampler has {n_steps}; calibrate again, or "
            "use price.resample(n_steps)"
        )
    if price.budget < 2:
        raise ValueError(f"{what} is for a budget of {price.budget} corrections; calibrate with a larger budget")
