"""Calibration: from held-out rollouts to a price that a schedule can use.

A price is made by one of several methods, each a function of the calibration batches. The race runs them all and keeps,
for each range of budgets, the one whose final samples are best.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, get_args, overload

import numpy as np

from trimtab.core.budget import Budget, Unit
from trimtab.core.checks import check_bool
from trimtab.core.checks import check_callable, unknown
from trimtab.core.identity import fingerprint
from trimtab.core.metrics import Distance
from trimtab.core.problem import Problem
from trimtab.core.progress import progress_of
from trimtab.core.quality import Quality, as_quality
from trimtab.core.record import Closing
from trimtab.core.runner import BatchRunner, Engine, RunBatch, open_runner
from trimtab.prices.batches import Batches, Source, check_distinct_seeds, largest
from trimtab.prices.candidates import by_iteration_race, by_race, check_candidates, valid_candidates
from trimtab.prices.graded import graded_prices
from trimtab.prices.mean import Mean, MeanPrices
from trimtab.prices.mean_program import mean_prices
from trimtab.prices.methods import FEWEST, by_dp, by_on_policy, by_paper, by_plan
from trimtab.prices.objective import Objective, objective_weights, simplify_objective
from trimtab.prices.raced import Price

__all__ = ["METHODS", "Price", "calibrate", "price_of_a_look"]


@overload
def calibrate(source: Source, budget: Mean, method: str | None = None, **options: Any) -> MeanPrices: ...
@overload
def calibrate(source: Source, budget: Budget = 1.0, method: str | None = None, **options: Any) -> Price: ...


def calibrate(  # type: ignore[misc]  # the overloads stand for all its options
    source: Source,
    budget: Budget | Mean = 1.0,
    method: str | None = None,
    *,
    objective: Objective = "endpoint",
    quality: Quality | Callable[..., Any] | None = None,
    distance: Distance | None = None,
    candidates: dict[str, Price] | None = None,
    look: float = 0.0,
    closing: Closing = "paid",
    unit: Unit = "projection",
    check: bool = True,
    engine: Engine | BatchRunner | str | None = None,
    progress: Callable[[str], None] | None = None,
) -> Price | MeanPrices:
    """Find out when to correct, for all budgets up to `budget`.

    Args:
        source: A `Problem` made for calibration seeds, which a schedule made from the result refuses to be evaluated
            on; or a function `run(schedule)` that runs a loop once with a `Corrector` on that schedule, always with
            the same seeds, and returns `corrector.rollout`. 64 samples are plenty for most samplers, below 16 expect
            to lose something (docs/prices.md shows how much).
        budget: The largest budget wanted. A smaller one needs no calibration of its own: the price of a correction
            depends on how many are left and how many steps remain, not on how many there were. `Mean(…)` makes prices
            that hold a budget on average over samples.
        method: "race" ("dp", "paper" and "planned" against even spacing and windows, tried out on the measure), "dp"
            (the dynamic program), "paper" (appendix B of the paper), "on-policy" (the paper's rule on the policy's own
            rollouts; for `budget` itself rather than all below it) or "planned" (times fixed in advance, no defect
            looked at online). "race" unless the objective is "path", for which "dp" is if there is no quality and no
            candidate.
        objective: What is to be low: "endpoint" (the distance of final states to those of full projection), "path",
            "state" (which needs method="dp" or "planned"), or a mix of them such as `{"path": 1.0, "endpoint": 5.0}`.
            "paper" and "on-policy" price path error only.
        quality: A measure of final samples that the race, and no other method, goes by instead of the objective: a
            function of the final states (and of the problem), finite and lower being better, or a `Quality`.
        distance: Between states, (n, *event) twice to (n,); the problem's own, or Euclidean, if not given.
        candidates: More prices for the race, by name: of as many steps, the same closing and unit, and for budgets up
            to `budget` at least. What comes of it refuses their calibration seeds too.
        look: What a look at the defect costs, in units of the budget, where that is not negligible: prices in the race
            that look pay for a look at every step out of the budget, fixed times do not.
        closing: How the rollouts of a problem end; see `Corrector`. A loop of your own has its corrector's.
        unit: What a budget counts: "projection", or "iteration" for a constraint that offers `improve`. "dp" is then
            the program of `trimtab.prices.graded`, and "race" tries its prices out against whole projections by price,
            a solver that is cut short, and iterations until the defect is below one number
            (`trimtab.prices.iteration_race`). A float budget is then iterations per step.
        check: Whether to run the first batch twice, to see that it repeats itself.
        engine: Where to run batches: "processes", "ray", "serial", or an `Engine`, which can also keep finished batches
            in a folder; in this process, with all its threads, if not given. It changes no number.
        progress: Told what is being done. Without it, a call that takes longer than a few seconds prints on stderr how far
            it is.

    Example:
        >>> import trimtab as tt
        >>> domain = tt.domain("so3", n_steps=40)
        >>> price = tt.calibrate(domain.problem(range(1000, 1016)), method="dp", objective="path")
        >>> domain.problem(range(4)).rollout(price.at(0.25)).spent.tolist()
        [10, 10, 10, 10]
    """
    if not isinstance(source, Problem) and not callable(source):
        raise TypeError(
            "calibrate takes a Problem or a function run(schedule): got "
            f"{type(source).__name__} (for a sampler write calibrate(Problem(sampler, constraint, seeds)))"
        )
    if unit not in get_args(Unit):
        raise ValueError(f"unit must be 'projection' or 'iteration': got {unit!r}")
    if candidates is not None and not (isinstance(candidates, dict) and all(map(_is_candidate, candidates.items()))):
        raise TypeError(f"candidates are prices by name, as in {{'own': price}}: got {candidates!r:.60}")
    judge = as_quality(quality)
    objective, mix = simplify_objective(objective), objective_weights(objective)
    method = _method_of(method, budget, objective, judge is not None or bool(candidates))
    if unit == "iteration" and method not in ("race", "dp"):
        raise ValueError(f"prices of iterations are made by method='dp' or 'race': got {method!r}")
    if price_of_a_look(look) and method != "race":
        raise ValueError(f"the price of a look is weighed in the race; method {method!r} takes looks to cost nothing")
    if set(mix) != {"path"} and method in ("paper", "on-policy"):
        if objective != "endpoint":
            raise ValueError(
                f"method {method!r} prices path error only; for the objective {objective!r} use 'dp' or 'planned'"
            )
        objective = "path"
    if method == "race" and judge is None and "state" in mix:
        raise ValueError(
            "a race goes by 'endpoint', 'path' or a quality; state error is priced by method='dp' or 'planned'"
        )
    known = fingerprint(source.sampler, source.constraint) if isinstance(source, Problem) else ""
    if distance is not None:
        check_callable(distance, "distance", "distance(a, b)")
    elif isinstance(source, Problem):
        distance = source.distance
    check_bool(check, "check")
    exact = 1.0 if isinstance(budget, Mean) else budget
    more = valid_candidates(candidates or {}, unit)
    if isinstance(source, Problem) and more:  # of a loop, the first batch tells
        check_candidates(more, source.n_steps, largest(exact, source.n_steps, unit), closing)
    tell = progress_of("calibrate", progress)
    if tell is not progress:
        tell.expect(batches_of(method, objective, unit))
    with tell, open_runner(engine, tell, source) as shop:
        run = _run_of(source, closing, "state" in mix, shop)
        batches = Batches(run, exact, objective, distance, known, check, tell, unit)
        if isinstance(budget, Mean):
            batches.enough(FEWEST)
            return mean_prices(batches, budget)
        if method == "race":
            check_candidates(more, batches.n_steps, batches.budget, batches.closing)
            problem = source if isinstance(source, Problem) else None
            race = by_iteration_race if unit == "iteration" else by_race
            return race(batches, judge, problem, more, look)
        if unit == "iteration":
            return graded_prices(batches)
        return _MAKERS[method](batches)


def _method_of(method: str | None, budget: Budget | Mean, objective: Objective, to_race: bool) -> str:
    """The method that was asked for, or the one for what was asked; what it would not look at is refused.

    Args:
        method: By name, if it was.
        budget: The largest wanted.
        objective: What is to be low.
        to_race: Whether a quality or candidates were given, which the race goes by.
    """
    if isinstance(budget, Mean):
        if method not in (None, "dp") or to_race:
            raise ValueError("prices of a mean budget are made by method='dp' for an objective; leave the others out")
        return "dp"
    if method is None:
        return "dp" if objective == "path" and not to_race else "race"
    if not isinstance(method, str) or method not in METHODS:
        raise unknown("method", method, METHODS)
    if to_race and method != "race":
        raise ValueError(
            f"a quality and candidates are for the race, and method {method!r} looks at neither: leave them out, or "
            "use method='race'"
        )
    return method


def price_of_a_look(look: float) -> float:
    """What a look costs, in units of the budget, checked."""
    if (
        isinstance(look, bool)
        or not isinstance(look, int | float | np.integer | np.floating)
        or not 0 <= look < math.inf
    ):
        raise ValueError(f"look is what a look at the defect costs, in units of the budget, at least 0: got {look!r}")
    return float(look)


def _is_candidate(item: tuple[object, object]) -> bool:
    return isinstance(item[0], str) and isinstance(item[1], Price)


def batches_of(method: str, objective: Objective = "endpoint", unit: Unit = "projection") -> int:
    """About how many batches a calibration runs, to tell how long it will take."""
    more = 0 if set(objective_weights(objective)) == {"path"} else 4
    if unit == "iteration" and method == "race":
        return 24 + 3 * more // 2
    return {"race": 14 + 3 * more // 2, "dp": 9 + more, "planned": 5 + more, "on-policy": 8, "paper": 2}[method]


def _run_of(source: Source, closing: Closing, keep_states: bool, shop: BatchRunner | None) -> RunBatch:
    if not isinstance(source, Problem):
        return source if shop is None else shop.runs(source)
    check_distinct_seeds(source)
    options: dict[str, Any] = {"closing": closing, "keep_states": keep_states, "measure_defects": True}
    return partial(source.rollout, **options) if shop is None else shop.runs(source, **options)


_MAKERS: dict[str, Callable[[Batches], Price]] = {
    "dp": by_dp,
    "paper": by_paper,
    "on-policy": by_on_policy,
    "planned": by_plan,
}
METHODS = ("race", *_MAKERS)
