"""Should I bother? Which schedule, which budget, what is lost and what is saved.

Half of the samples calibrate, the other half measures. Everything recommended has been measured on the second half,
paired by seed, by the quality of the final samples: 0 is projecting at every step, 1 is projecting at the end alone.
Before anything is recommended, the two are compared: full projection is a reference, not the truth.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from trimtab.advice.changed import changed
from trimtab.advice.choice import WORTHWHILE, choice, nothing_saved
from trimtab.advice.diagnosis import Effects, Interval, correction_effects
from trimtab.advice.effort import Effort, effort_trials
from trimtab.advice.findings import findings_of
from trimtab.advice.measured import Measured
from trimtab.advice.projection_checks import (
    Stability,
    divergence,
    final_stability,
    first_samples,
    loop_divergence,
    nudged,
    projection_stability,
    recorded_stability,
)
from trimtab.advice.result import Advice
from trimtab.advice.trial import KINDS, Cost, Trial
from trimtab.advice.trials import TrialRuns
from trimtab.advice.validate import check_arguments, check_price_fits, tolerance_of, two_batches
from trimtab.core.checks import unknown
from trimtab.core.constraint import Constraint
from trimtab.core.distributions import compare_samples
from trimtab.core.metrics import Distance, euclidean, top_mass
from trimtab.core.progress import progress_of
from trimtab.core.quality import Quality, as_quality
from trimtab.core.record import Rollout
from trimtab.core.runner import BatchRunner, Engine, open_runner
from trimtab.core.schedule import Schedule, Watched
from trimtab.prices.calibration import price_of_a_look
from trimtab.prices.collect import Source
from trimtab.prices.objective import Objective
from trimtab.prices.price import Price
from trimtab.schedules import Stepwise, Window

__all__ = ["advise"]

_GRID = (0.1, 0.25, 0.5)


def advise(
    source: Source,
    held_out: Source | None = None,
    *,
    quality: Quality | Callable[..., Any] | None = None,
    objective: Objective = "endpoint",
    tolerance: float | None = None,
    seconds: float | None = None,
    cost: Cost = "seconds",
    distance: Distance | None = None,
    price: Price | None = None,
    window: int | float | None = None,
    look: float = 0.0,
    constraint: Constraint | None = None,
    nudge: Callable[[Schedule, float], Rollout] | None = None,
    engine: Engine | BatchRunner | str | None = None,
    progress: Callable[[str], None] | None = None,
) -> Advice:
    """Find out whether correcting on schedule is worth it for a sampler, and recommend a schedule and a budget.

    Args:
        source: A `Problem`, whose first half of samples calibrates and whose second half measures: at least 16, better
            64. Or a function `run(schedule)` that runs a loop of your own, as in `calibrate`, to calibrate with.
        held_out: With a function, another one that runs the same loop on other seeds, to measure with.
        quality: A measure of final samples to go by: a function of the final states (and of the problem), finite and
            lower being better, or a `Quality`.
        objective: What to go by without one: "endpoint" (the distance of final states to those of full projection), or
            "path".
        tolerance: The share of what full projection gains over terminal projection that may be lost; the smallest
            budget that meets it is recommended, with the whole interval below it. 0.1 if neither this nor `seconds` is
            given.
        seconds: A time limit per sample; the schedule that loses least within it is recommended (and the tolerance,
            if given too, is met or said to be missed).
        cost: What is to be saved: "seconds" of wall clock as measured here, or "projections" where those of the real
            application are expensive but these are not.
        distance: Between states; the problem's own, or Euclidean, if not given.
        price: Prices or a plan made earlier, to be judged instead of new ones.
        window: What you do today: the step, or share of the steps, from which on you project at every step. It is
            measured and told beside the rest.
        look: What a look at the defect costs, in projections, where it is not negligible. It counts in what
            schedules that look at defects cost and have left to spend. In seconds looks are measured anyway.
        constraint: With functions, the constraint of the loop that measures, so that its projection can be tried out.
        nudge: With functions, `nudge(schedule, size)` runs the loop that measures, with the same seeds, from initial
            states that are moved at random by the share `size` of their own size. Without it nothing is known of
            whether rollouts that begin a hair apart stay together.
        engine: Where to run batches, as in `calibrate`. Seconds are then those of one thread, with other batches
            running beside on the same machine; `cost="projections"` gives the same advice whatever the engine.
        progress: Told what is being done; see `calibrate`.

    Example:
        >>> import trimtab as tt
        >>> problem = tt.domain("terrain-ridge", n_steps=24).problem(range(1000, 1032))
        >>> advice = advise(problem, objective="path", tolerance=0.2, cost="projections")
        >>> advice.kind, advice.loss.high <= 0.2
        ('adaptive', True)
    """
    tolerance = tolerance_of(tolerance, seconds, cost)
    check_arguments(source, constraint, nudge)
    if objective not in ("endpoint", "path"):
        raise unknown("objective", str(objective), ("endpoint", "path"))
    today = None if window is None else Window(window)
    tell = progress_of("advise", progress)
    with tell, open_runner(engine, tell, source) as shop:
        calibrating, measuring, problems, n_steps = two_batches(source, held_out, shop)
        check_price_fits(price, n_steps)
        if today is not None:
            today.steps(n_steps)  # refuses one that does not fit, before anything is run for it
        if problems[0] is not None and distance is None:
            distance = problems[0].distance
        trials = TrialRuns(
            calibrating,
            measuring,
            n_steps,
            euclidean if distance is None else distance,
            price,
            tell,
            quality=as_quality(quality),
            problems=problems,
            objective=objective,
            look=price_of_a_look(look),
        )
        trials.ran(int(held_out is not None))  # it was run once to see what it is
        needed, effects = _try_out(trials, tolerance, seconds)
        yours = None if today is None else trials.your_window(today)
        trials.progress("how sound the projection is")
        stability = _soundness(trials, constraint, nudge)
        efforts = effort_trials(trials)
        chosen = _choose(trials, needed, tolerance, seconds, cost, _unreliable(trials, stability))
        return _answer(trials, chosen, needed, effects, stability, efforts, yours, (tolerance, seconds, cost))


# ------------------------------------------------------------------ trying out, choosing, answering


def _try_out(
    trials: TrialRuns, tolerance: float | None, limit: float | None
) -> tuple[dict[str, Trial], Effects | None]:
    """Run every kind of schedule at some budgets: by kind, the trial that does what was asked for."""
    needed: dict[str, Trial] = {}
    if not trials.worth_following:
        return needed, None
    grids = {}
    for kind in trials.kinds:  # the last one has to be calibrated, while the others are running
        grids[kind] = [max(2, min(round(share * trials.n_steps), trials.most(kind))) for share in _GRID]
        grids[kind] += [trials.most(kind)] if trials.falls_short(kind) else []
        trials.announce(kind, grids[kind])
    for kind in trials.kinds:
        for budget in grids[kind]:
            trials.trial(kind, budget)
        found = None
        if limit is not None:
            found = trials.best_within(kind, limit)
        elif tolerance is not None:
            found = trials.cheapest_within(kind, tolerance)
        if found is not None and not (found is trials.stepwise and trials.falls_short(kind)):
            needed[kind] = found
    if trials.degenerate >= 0.5:
        return needed, None
    trials.progress("single corrections at random steps")
    return needed, correction_effects(trials.run, trials.alone, trials.reference, trials.distance)


def _choose(
    trials: TrialRuns,
    needed: dict[str, Trial],
    tolerance: float | None,
    limit: float | None,
    unit: Cost,
    unreliable: str,
) -> tuple[Trial, Trial, Trial, Interval, str]:
    """The trial to recommend, the same and the stepwise one with their times taken again, what is saved, and why."""
    trial, reason = choice(trials, needed, tolerance, limit, unit, unreliable)
    timed, stepwise = trial, trials.stepwise
    share = 1 - trial.projections / stepwise.projections
    saving = Interval(share, share, share)
    if unit == "seconds":
        trials.progress("timing")
        timed, stepwise, saving = trials.timed_again(trial)
    if unit == "seconds" and trial.kind not in ("terminal", "stepwise") and saving.mean < WORTHWHILE and limit is None:
        # the first timing was lucky: side by side there is nothing to gain
        reason = nothing_saved(saving.mean, unit)
        trial, timed, saving = stepwise, stepwise, Interval(0.0, 0.0, 0.0)
    return trial, timed, stepwise, saving, reason


def _answer(
    trials: TrialRuns,
    chosen: tuple[Trial, Trial, Trial, Interval, str],
    needed: dict[str, Trial],
    effects: Effects | None,
    stability: Stability,
    efforts: tuple[Effort, ...],
    yours: Trial | None,
    asked: tuple[float | None, float | None, Cost],
) -> Advice:
    """Everything that was measured, and what to do."""
    trial, timed, stepwise, saving, reason = chosen
    tolerance, limit, unit = asked
    nothing = Interval(math.nan, math.nan, math.nan)

    def as_timed(one: Trial) -> Trial:
        return timed if one is trial else one

    everything = sorted(map(as_timed, trials.trials.values()), key=lambda t: (KINDS.index(t.kind), t.budget))
    measured = Measured(
        n_steps=trials.n_steps,
        calibrated=trials.calibrated,
        held_out=len(trials.full),
        batch=trials.n,
        grouped=trials.groups,
        tolerance=tolerance,
        limit=limit,
        unit=unit,
        measure=trials.measure_name,
        to_full=trials.quality is None and trials.objective == "endpoint",
        gain=trials.gain,
        full=float(trials.full.mean()),
        terminal=as_timed(trials.terminal),
        stepwise=stepwise,
        trials=tuple(everything),
        needed={kind: as_timed(one) for kind, one in needed.items()},
        yours=yours,
        concentration=float(top_mass(trials.alone.defects).double().nanmean()),
        constant=trials.constant,
        looks_project=trials.looks_project,
        effects=effects,
        alignment=effects.alignment(effects.value) if effects else nothing,
        endpoint_alignment=effects.alignment(effects.endpoint) if effects else nothing,
        stability=stability,
        fidelity=_fidelity(trials, trial),
        batches=trials.batches,
        given=trials.given is not None,
        efforts=efforts,
        per_step=trials.reference.iterations.double().mean().item(),
    )
    return Advice(
        kind=trial.kind,
        budget=trial.budget,
        loss=trial.loss,
        saving=saving,
        schedule=trial.schedule,
        price=trials.prices.get(trial.kind),
        findings=findings_of(measured),
        measured=measured,
        reason=reason,
    )


def _soundness(
    trials: TrialRuns, constraint: Constraint | None, nudge: Callable[[Schedule, float], Rollout] | None
) -> Stability:
    """Of the projection, nudged where a problem or its constraint allows it, and of the rollout after a nudge."""
    if trials.problems[1] is None:
        found = recorded_stability(trials.reference, *final_stability(constraint, trials.reference))
        trials.ran(int(nudge is not None))
        return replace(found, divergence=loop_divergence(nudge, trials.reference, trials.distance))
    some, run = changed(trials, first_samples, keep_states=True, measure_defects=True)
    found = projection_stability(some, run, trials.reference)
    moved, run = changed(trials, nudged, closing=trials.reference.closing_rule, measure_defects=False)
    trials.ran()
    return replace(found, divergence=divergence(moved, run, trials.reference, trials.distance))


def _unreliable(trials: TrialRuns, stability: Stability) -> str:
    """Why no schedule can be recommended by what was measured; "" if one can."""
    if not stability.sound:
        return "the projection cannot be relied on (see below), and a schedule of it neither"
    if stability.chaotic and trials.quality is None and trials.objective == "endpoint":
        return "rollouts part however close they begin, so endpoints cannot tell schedules apart; give a quality"
    return ""


def _fidelity(trials: TrialRuns, trial: Trial) -> Any:
    """How the recommended schedule's final samples compare with those of full projection on the other seeds."""
    if trials.groups or trial.kind == "stepwise":
        return None
    trials.progress("final samples as distributions")
    return compare_samples(trials.finals[trial.kind, trial.budget], trials.calibrating(Watched(Stepwise())))
