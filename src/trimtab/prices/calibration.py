"""Calibration: from held-out rollouts to a price.

A price is made by one of several methods, each a function of the calibration batches. The race tries them all and
keeps, for each range of budgets, the one with the best final samples.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, get_args

from torch import Tensor

from trimtab.core.budget import Budget, Unit
from trimtab.core.checks import check_bool, check_callable, check_number, unknown
from trimtab.core.metrics import Distance, summary
from trimtab.core.problem import Problem
from trimtab.core.progress import progress_of
from trimtab.core.quality import Quality, as_quality
from trimtab.core.record import Closing
from trimtab.loop.runner import Engine, open_runner
from trimtab.prices.collect import Batches, Source, check_enough_for_intervals, spread_budgets
from trimtab.prices.cost import calibration_cost
from trimtab.prices.iterations import by_iteration_race, graded_prices
from trimtab.prices.objective import Objective, describe, objective_weights
from trimtab.prices.online import Traces, warn_of_path_error
from trimtab.prices.plan import planned_masks
from trimtab.prices.price import Plan, Price, Thresholds
from trimtab.prices.program import solve
from trimtab.prices.quantile import on_policy_prices, quantile_table
from trimtab.prices.race import by_race, check_candidates
from trimtab.prices.transitions import estimate_transitions
from trimtab.schedules import Periodic

__all__ = ["METHODS", "Price", "calibrate"]


def calibrate(
    source: Source,
    budget: Budget = 1.0,
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
    uncertainty: bool = False,
    engine: Engine = None,
    progress: Callable[[str], None] | None = None,
    say: Callable[[str], None] | None = None,
) -> Any:
    """Find out when to correct, for all budgets up to `budget`.

    What that takes is said first, through `progress`, and kept in the price's notes. With 64 seeds, T = 100 and a
    budget of 0.25 it is about 128 projections for "paper", 7,000 for "dp" and path error, and 36,000 for the default.
    A smaller `budget` costs less. `trimtab.prices.cost.calibration_cost` estimates it without running anything.

    Args:
        source: A `Problem` made for calibration seeds, on which the resulting schedules refuse to be evaluated; or a
            function `run(schedule)` that runs a loop once with a `Corrector` on that schedule, always with the same
            seeds, and returns `corrector.rollout`. 64 samples are plenty for most samplers; below 16 expect to lose
            something.
        budget: The largest budget wanted. Smaller ones need no other calibration: the price of a correction depends on
            how many are left and how many steps remain, not on how many there were.
        method: "race" (all methods below but "on-policy", even spacing and windows, compared on the measure), "dp" (the
            dynamic program), "paper" (appendix B of the paper), "on-policy" (the paper's rule on the policy's own
            rollouts; for `budget` itself rather than all below it) or "planned" (times fixed in advance). The default
            is "dp" for the objective "path" without quality and candidates, else "race".
        objective: What is to be low: "endpoint" (the distance of final states to those of full projection), "path",
            "state" (which needs method="dp" or "planned"), or a mix such as `{"path": 1.0, "endpoint": 5.0}`. "paper"
            and "on-policy" price path error only.
        quality: A measure of final samples that the race uses instead of the objective: a function of the final states
            (and of the problem), finite and lower being better, or a `Quality`.
        distance: Between states, (n, *event) twice to (n,); by default the problem's, or Euclidean.
        candidates: More prices for the race, by name: of the same number of steps, closing and unit, for budgets up to
            `budget` at least. Their calibration seeds are added to those of the result.
        look: What one evaluation of the defect costs, in units of the budget, if that is not negligible. In the race,
            prices that look at defects pay for it at every step, and fixed times do not.
        closing: How the rollouts of a problem end; see `Corrector`. A function has that of its corrector.
        unit: What a budget counts: "projection", or "iteration" for a constraint that offers `improve`. Methods are
            then "dp" and "race", which compares prices of iterations with whole projections and truncated solves. A
            float budget is iterations per step.
        check: Whether to run the first batch twice, to check that it is repeatable.
        uncertainty: Whether to estimate an interval for every price ("paper" and "dp") by resampling the calibration
            rollouts, at least 8, which runs nothing more: `price.interval`, `price.close_calls(run)`, and bands in the
            drawing.
        engine: Where to run batches: None is in this process, a number in so many processes; or an executor, such as
            those of `concurrent.futures`, dask, loky and `trimtab.integrations.ray`. It changes no number. A
            `trimtab.loop.runner.BatchRunner` also keeps finished batches in a folder.
        progress: Called with a text before each batch. Without it, a slow call shows a bar of tqdm.
        say: The old name of `progress`.

    Example:
        >>> import trimtab as tt
        >>> domain = tt.domain("so3", n_steps=40)
        >>> price = tt.calibrate(domain.problem(range(1000, 1016)), method="dp", objective="path")
        >>> domain.problem(range(4)).rollout(price.at(0.25)).spent.tolist()
        [10, 10, 10, 10]
    """
    if say is not None:
        warnings.warn("calibrate(say=…) is called progress=; the old name goes in 0.4", DeprecationWarning, 2)
        progress = progress or say
    problem = source if isinstance(source, Problem) else None
    if problem is None and not callable(source):
        raise TypeError(
            "calibrate takes a Problem or a function run(schedule): got "
            f"{type(source).__name__} (for a sampler write calibrate(Problem(sampler, constraint, seeds)))"
        )
    if unit not in get_args(Unit):
        raise ValueError(f"unit must be 'projection' or 'iteration': got {unit!r}")
    if candidates is not None and not (
        isinstance(candidates, dict) and all(isinstance(k, str) and isinstance(v, Price) for k, v in candidates.items())
    ):
        raise TypeError(f"candidates must be prices by name, as in {{'own': price}}: got {candidates!r:.60}")
    judge = as_quality(quality)
    mix = objective_weights(objective)
    method = _checked_method(method, mix, unit, judge is not None, bool(candidates), look)
    if method in ("paper", "on-policy"):
        objective = "path"
    if distance is not None:
        check_callable(distance, "distance", "distance(a, b)")
    elif problem is not None:
        distance = problem.distance
    check_bool(check, "check")
    if isinstance(budget, Tensor) and budget.ndim:
        raise ValueError(f"calibrate takes the largest budget wanted, one number: got {len(budget)} of them")
    if check_bool(uncertainty, "uncertainty") and (method not in ("paper", "dp") or unit == "iteration"):
        raise ValueError(f"uncertainty= is for methods 'paper' and 'dp' that count projections: got {method!r}")
    if problem is not None and len(set(problem.seeds.tolist())) < len(problem.seeds):
        raise ValueError(
            "a calibration seed is repeated, and a repeated rollout shows nothing new: give each seed once"
        )
    if problem is not None and uncertainty:
        groups = problem.groups
        check_enough_for_intervals(*((len(problem), "rollouts") if groups is None else (groups.n, "groups")))
    is_path = judge is None and set(objective_weights(objective)) == {"path"}
    if problem is not None and is_path and not problem.constraint.is_projection:
        warn_of_path_error(problem.constraint, "calibrate(…, quality=…)", stacklevel=2)
    tell = progress_of("calibrate", progress)
    cost_of = partial(calibration_cost, method, budget=budget, objective=objective, unit=unit, check=check)
    with tell, open_runner(engine) as runner:
        known: dict[str, Any] = {}
        if problem is None:
            run = runner.runs(source, "calibrate")
        else:
            options: dict[str, Any] = {"closing": closing, "keep_states": "state" in mix, "measure_defects": True}
            run = runner.runs(problem, **options)
            known = {"constraint": type(problem.constraint).__name__}
            tell.plan(cost_of(problem.sampler.n_steps, len(problem.seeds)))
        known |= {"check": check, "progress": tell, "unit": unit, "uncertainty": uncertainty}
        batches = Batches(run, budget, objective, distance, **known)
        if problem is None:  # the first batch has shown how many steps there are
            tell.plan(cost_of(batches.n_steps, batches.n))
        if method == "race":
            race = by_iteration_race if unit == "iteration" else by_race
            return race(batches, judge, problem, check_candidates(candidates or {}, batches), look)
        return graded_prices(batches) if unit == "iteration" else _MAKERS[method](batches)


def _checked_method(
    method: str | None, mix: dict[str, float], unit: Unit, quality: bool, candidates: bool, look: float
) -> str:
    """Return the method, by default the one for the objective; raise if it does not use what was given."""
    path = set(mix) == {"path"}
    if method is None:
        method = "dp" if path and not (quality or candidates) else "race"
    if not isinstance(method, str) or method not in METHODS:
        raise unknown("method", method, METHODS)
    if (quality or candidates) and method != "race":
        raise ValueError(
            f"quality= and candidates= are for the race, and method {method!r} uses neither: leave them out, or use "
            "method='race'"
        )
    if unit == "iteration" and method not in ("race", "dp"):
        raise ValueError(f"method must be 'dp' or 'race' if the budget counts iterations: got {method!r}")
    if check_number(look, "look, what one evaluation of the defect costs,", 0.0, 1e6) and method != "race":
        raise ValueError(f"look= is for the race; method {method!r} assumes that defects cost nothing")
    if method in ("paper", "on-policy") and not path and set(mix) != {"endpoint"}:
        raise ValueError(
            f"method {method!r} prices path error only; for the objective {describe(mix)!r} use 'dp' or 'planned'"
        )
    if method == "race" and not quality and "state" in mix:
        raise ValueError("a race compares 'endpoint', 'path' or a quality; for state error use 'dp' or 'planned'")
    return method


# ------------------------------------------------------------------ methods


def by_paper(batches: Batches, method: str = "paper") -> Thresholds:
    """Return the paper's prices (appendix B), quantiles of uncorrected defects; also used if there is no choice."""
    defects, budget = batches.uncorrected.defects, batches.spendable
    interval = batches.interval(lambda rows: quantile_table(defects[:, rows], budget))
    return batches.thresholds(quantile_table(defects, budget), method, interval=interval)


def by_dp(batches: Batches) -> Thresholds:
    """Return the prices of the dynamic program; for path error they are compared with even spacing."""
    batches.require()
    if not batches.has_choice:
        return by_paper(batches, "dp")
    weights = batches.weights
    runs, sample_scale = batches.explored(weights)
    table, expected, *_ = solve(estimate_transitions(runs, sample_scale), batches.spendable, weights)
    notes: dict[str, Any] = {"expected": [float(expected[0])] * batches.closing_reserve + expected.tolist()}
    if weights is None:  # other objectives have run more batches already
        prices = Thresholds(batches.closed(table), sample_scale=sample_scale)
        notes["ahead_of_periodic"] = _ahead_of_periodic(batches, prices)

    def table_of(rows: Tensor) -> Tensor:
        some = [Traces(*(part[:, rows] for part in (run.defects, run.residuals, run.projected))) for run in runs]
        return solve(estimate_transitions(some, sample_scale), batches.spendable, weights).table

    interval = batches.interval(table_of)
    return batches.thresholds(table, "dp", notes, sample_scale=sample_scale, interval=interval)


def _ahead_of_periodic(batches: Batches, prices: Thresholds) -> list[float]:
    """Return how much less path error the prices have than even spacing on calibration seeds, and its SE."""
    most = batches.spendable
    budgets = spread_budgets(batches.n, batches.n_choices, most, seed=0).clamp(max=most) + batches.closing_reserve
    schedules = [Periodic(budgets), prices.at(budgets)]
    batches.prefetch(schedules)
    even, ours = (batches.inner(batches.run(schedule)).residuals.cpu().double().sum(dim=0) for schedule in schedules)
    ahead = summary(even - ours)
    if ahead.mean < -2 * ahead.se:
        warnings.warn(
            f"on the calibration seeds, these prices cost more than even spacing at the same budgets, by "
            f"{-ahead.mean:.3g} ± {ahead.se:.1g} per rollout: the defect does not show why it is large; "
            "use Periodic or method='planned' (trimtab advise measures which)",
            stacklevel=4,
        )
    return [ahead.mean, ahead.se]


def by_plan(batches: Batches) -> Plan:
    """Return the best times fixed in advance."""
    batches.require()
    runs = [*batches.explore(range(3)), batches.uncorrected]
    return batches.plan(planned_masks(runs, batches.spendable, batches.weights))


_MAKERS: dict[str, Callable[[Batches], Price]] = {
    "dp": by_dp,
    "paper": by_paper,
    "on-policy": on_policy_prices,
    "planned": by_plan,
}
METHODS = ("race", *_MAKERS)
