"""Should I bother? Which schedule, which budget, what is lost and what is saved.

Half of the seeds calibrate, the other half measures. Everything recommended has been measured on the second half,
paired by seed with projecting at every step (NEPE 0) and with projecting at the end alone (NEPE 1).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from trimtab.advice.choice import WORTHWHILE, choice, nothing_saved
from trimtab.advice.diagnosis import (
    Interval,
    Stability,
    correction_effects,
    euclidean,
    projection_stability,
    recorded_stability,
)
from trimtab.advice.result import Advice, Measured
from trimtab.advice.trials import KINDS, Bench, Cost, Trial
from trimtab.advice.words import findings_of
from trimtab.core.constraint import Constraint
from trimtab.core.errors import real_number, unknown
from trimtab.core.fingerprint import fingerprint
from trimtab.core.metrics import Distance, top_mass
from trimtab.core.noise import as_seeds
from trimtab.core.record import Rollout
from trimtab.core.rollout import Sampler, rollout, take_rows
from trimtab.prices.calibration import Price
from trimtab.prices.explore import Run
from trimtab.schedules import Terminal

__all__ = ["advise", "advise_runs"]

FEWEST = 16
"""Seeds below which there is no advice."""

_FEWEST_STEPS = 4
_GRID = (0.1, 0.25, 0.5)


def advise(
    sampler: Sampler,
    constraint: Constraint,
    seeds: Iterable[int] | Tensor,
    *,
    tolerance: float | None = None,
    seconds: float | None = None,
    cost: Cost = "seconds",
    distance: Distance | None = None,
    price: Price | None = None,
    say: Callable[[str], None] | None = None,
) -> Advice:
    """Find out whether correcting on schedule is worth it for a sampler, and recommend a schedule and a budget.

    Args:
        sampler: For these seeds.
        constraint: For these seeds.
        seeds: The first half calibrates, the second measures. At least 16; 64 give intervals worth having.
        tolerance: The NEPE that may be lost; the smallest budget that meets it is recommended, with the whole interval
            below it. 0.1 if neither this nor `seconds` is given.
        seconds: A time limit a sample; the schedule that loses least within it is recommended (and the tolerance, if
            given too, is met or said to be missed).
        cost: What is to be saved: "seconds" of wall clock as measured here, or "projections" where those of the real
            application are dear but these are not.
        distance: The domain's rho; Euclidean if not given.
        price: Prices or a plan made earlier, to be judged instead of new ones.
        say: Told what is being done.

    Example:
        >>> import trimtab as tt
        >>> seeds = range(1000, 1032)
        >>> problem = tt.domain("terrain-ridge", n_steps=24).problem(seeds)
        >>> from trimtab.advice.recommend import advise
        >>> advice = advise(problem.sampler, problem.constraint, seeds, tolerance=0.2, cost="projections")
        >>> advice.kind, advice.loss.high <= 0.2
        ('adaptive', True)
    """
    tolerance = _tolerance(tolerance, seconds, cost)
    seeds = as_seeds(seeds)
    _refuse_too_few(len(seeds), sampler.n_steps)
    if not callable(getattr(constraint, "take", None)):
        raise ValueError(
            f"{type(constraint).__name__} has no take(rows), by which the samples to project are selected; a "
            "constraint without data of its own returns itself"
        )
    _refuse_foreign_price(price, sampler.n_steps)
    everyone, half = torch.arange(len(seeds)), len(seeds) // 2
    batches = [
        (take_rows(sampler, rows), constraint.take(rows), seeds[rows]) for rows in (everyone[:half], everyone[half:])
    ]

    def batch(which: int) -> Run:
        its_sampler, its_constraint, its_seeds = batches[which]
        return lambda schedule: rollout(its_sampler, its_constraint, schedule, its_seeds)

    timed = cost == "seconds" or seconds is not None
    known = fingerprint(*batches[0][:2])
    bench = Bench(
        batch(0), batch(1), sampler.n_steps, distance or euclidean, price, say or _silent, timed, fingerprint=known
    )
    return _recommend(
        bench, tolerance, seconds, cost, half, lambda stepwise: projection_stability(*batches[1], stepwise)
    )


def advise_runs(
    calibrating: Run,
    measuring: Run,
    n_steps: int,
    *,
    tolerance: float | None = None,
    seconds: float | None = None,
    cost: Cost = "seconds",
    distance: Distance | None = None,
    price: Price | None = None,
    say: Callable[[str], None] | None = None,
) -> Advice:
    """Advise on a loop that is not ours.

    The same as `advise`, but for one thing: no state can be nudged, so that of the projection's stability only
    failures and what is left of the defect are known.

    Args:
        calibrating: `calibrating(schedule)` runs the loop once with a `Corrector` on that schedule, always with the
            same seeds, and returns `corrector.rollout`.
        measuring: The same with other seeds.
        n_steps: T.
        tolerance: As in `advise`, and so are the rest.
        seconds: See `advise`.
        cost: See `advise`.
        distance: See `advise`.
        price: See `advise`.
        say: See `advise`.
    """
    tolerance = _tolerance(tolerance, seconds, cost)
    _refuse_foreign_price(price, n_steps)
    timed = cost == "seconds" or seconds is not None
    bench = Bench(calibrating, measuring, n_steps, distance or euclidean, price, say or _silent, timed)
    others = calibrating(Terminal())
    calibrated = others.defects.shape[1]
    _refuse_too_few(2 * min(bench.n, calibrated), n_steps)
    if others.defects.shape == bench.alone.defects.shape and bool((others.defects == bench.alone.defects).all()):
        raise ValueError("the two runs are the same rollouts; measuring needs other seeds than calibrating")
    return _recommend(bench, tolerance, seconds, cost, calibrated, recorded_stability)


def _silent(text: str) -> None:
    """Say nothing."""


def _tolerance(tolerance: float | None, seconds: float | None, cost: str) -> float | None:
    """The tolerance, with its default; what was asked for is checked."""
    if cost not in ("seconds", "projections"):
        raise unknown("cost", str(cost), ("seconds", "projections"))
    for name, value in (("tolerance", tolerance), ("seconds", seconds)):
        if value is not None and not 0 < real_number(value, name) < math.inf:
            raise ValueError(f"{name} must be a number above 0: got {value!r}")
    return 0.1 if tolerance is None and seconds is None else tolerance


def _refuse_too_few(rollouts: int, n_steps: int) -> None:
    if rollouts < FEWEST:
        raise ValueError(
            f"{rollouts} rollouts are too few to advise on: half of them calibrate and half measure; give at least "
            f"{FEWEST} seeds, better 64"
        )
    if n_steps < _FEWEST_STEPS:
        raise ValueError(
            f"a sampler of {n_steps} steps leaves nothing to schedule: project at every step (advice needs at "
            f"least {_FEWEST_STEPS} steps)"
        )


def _refuse_foreign_price(price: Price | None, n_steps: int) -> None:
    if price is None:
        return
    if not isinstance(price, Price):
        raise TypeError(f"price must be one that calibrate or load_price made: got {price!r:.60}")
    if price.n_steps != n_steps:
        raise ValueError(
            f"the price was calibrated for T = {price.n_steps} steps, this sampler has {n_steps}; calibrate again"
        )
    if price.objective != "path":
        raise ValueError(
            f"the price was calibrated for the objective {price.objective!r}; advice is about path error, so give one "
            "calibrated for 'path' (the default of calibrate)"
        )
    if price.budget < 1:
        raise ValueError("the price is for a budget of 0 corrections; calibrate with a larger budget")


# ------------------------------------------------------------------ recommending


def _recommend(
    bench: Bench,
    tolerance: float | None,
    limit: float | None,
    unit: Cost,
    calibrated: int,
    soundness: Callable[[Rollout], Stability],
) -> Advice:
    needed: dict[str, Trial] = {}
    consequential = bench.degenerate < 0.5
    effects = None
    if consequential:
        for kind in bench.kinds:
            for share in _GRID:
                bench.trial(kind, max(1, min(round(share * bench.n_steps), bench.most(kind))))
            if limit is not None:
                fitting = bench.best_within(kind, limit)
                needed |= {} if fitting is None else {kind: fitting}
            elif tolerance is not None:
                needed[kind] = bench.cheapest_within(kind, tolerance)
        bench.say("single corrections at random steps")
        effects = correction_effects(bench.run, bench.alone, bench.reference, bench.distance)
    trial, reason = choice(bench, needed, tolerance, limit, unit, consequential)
    bench.say("how sound the projection is")
    stability = soundness(bench.reference)
    timed, stepwise = trial, bench.stepwise
    share = 1 - trial.projections / stepwise.projections
    saving = Interval(share, share, share)
    if unit == "seconds":
        bench.say("timing")
        timed, stepwise, saving = bench.timed_again(trial)
    if unit == "seconds" and trial.kind not in ("terminal", "stepwise") and saving.mean < WORTHWHILE and limit is None:
        # the first timing was lucky: side by side there is nothing to gain
        reason = nothing_saved(saving.mean, unit)
        trial, timed, saving = stepwise, stepwise, Interval(0.0, 0.0, 0.0)
    needed = {kind: timed if one is trial else one for kind, one in needed.items()}
    nothing = Interval(math.nan, math.nan, math.nan)
    measured = Measured(
        n_steps=bench.n_steps,
        calibrated=calibrated,
        held_out=bench.n,
        tolerance=tolerance,
        limit=limit,
        unit=unit,
        terminal=timed if trial.kind == "terminal" else bench.terminal,
        stepwise=stepwise,
        trials=tuple(
            sorted(
                (timed if one is trial else one for one in bench.trials.values()),
                key=lambda t: (KINDS.index(t.kind), t.budget),
            )
        ),
        needed=needed,
        degenerate=bench.degenerate,
        concentration=float(top_mass(bench.alone.defects).double().nanmean()),
        constant=bench.constant,
        looks_project=bench.looks_project,
        share=bench.reference.seconds["projection"] / sum(bench.reference.seconds.values()),
        effects=effects,
        alignment=effects.alignment(effects.value) if effects else nothing,
        endpoint_alignment=effects.alignment(effects.endpoint) if effects else nothing,
        stability=stability,
        expected=_expected(bench),
        batches=bench.batches,
    )
    return Advice(
        kind=trial.kind,
        budget=trial.budget,
        loss=trial.nepe,
        saving=saving,
        schedule=trial.schedule,
        price=bench.prices.get(trial.kind),
        findings=findings_of(measured),
        measured=measured,
        reason=reason,
    )


def _expected(bench: Bench) -> dict[int, float]:
    """NEPE of the adaptive trials as the calibration half foretold it, in units of the held-out half's ends."""
    price = bench.prices.get("adaptive")
    foretold = None if price is None else price.notes.get("expected")
    span = float(bench.span.mean())
    if foretold is None or span <= 0:
        return {}
    low = float(bench.ends[0].mean())
    return {b: (float(foretold[b]) - low) / span for kind, b in bench.trials if kind == "adaptive"}
