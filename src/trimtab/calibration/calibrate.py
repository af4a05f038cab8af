"""Calibration: from held-out rollouts to a price.

A price is made by one of three methods, each a function of the calibration batches. That of the dynamic program is
guarded: if even spacing does better on calibration noise, that is the price.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from trimtab.calibration.collect import Batches, Source, check_enough_for_intervals, spread_budgets
from trimtab.calibration.cost import calibration_cost
from trimtab.core.budget import Budget
from trimtab.core.checks import check_bool, check_callable, unknown
from trimtab.core.metrics import Distance
from trimtab.core.progress import progress_of
from trimtab.core.record import Closing
from trimtab.loop.rollout import Problem
from trimtab.loop.runner import Engine, open_runner
from trimtab.prices.learner import warn_of_path_error
from trimtab.prices.objective import Objective, describe, objective_weights
from trimtab.prices.plan import planned_masks
from trimtab.prices.price import Plan, Price, Thresholds
from trimtab.prices.program import solve
from trimtab.prices.quantile import quantile_table
from trimtab.prices.sample_scale import Seen
from trimtab.prices.transitions import estimate_transitions

__all__ = ["METHODS", "Price", "calibrate"]

EVEN = "even spacing"
"""The method of a price that even spacing has taken the place of."""

_RANGES = 5  # of budgets, in which costs are alike


def calibrate(
    source: Source,
    budget: Budget = 1.0,
    method: str | None = None,
    *,
    objective: Objective = "endpoint",
    distance: Distance | None = None,
    closing: Closing = "paid",
    check: bool = True,
    uncertainty: bool = False,
    engine: Engine = None,
    progress: Callable[[str], None] | None = None,
) -> Any:
    """Find out when to correct, for all budgets up to `budget`.

    What that takes is said first, through `progress`, and kept in the price's notes. With 64 seeds, T = 100 and a
    budget of 0.25 it is about 128 projections for "paper", 7,000 for "dp" and path error, and 32,000 for the default.
    A smaller `budget` costs less. `trimtab.calibration.calibration_cost` estimates it without running anything.

    Args:
        source: A `Problem` made for calibration seeds, on which the resulting schedules refuse to be evaluated; or a
            function `run(schedule)` that runs a loop once with a `Corrector` on that schedule, always with the same
            seeds, and returns `corrector.rollout`. 64 samples are plenty for most samplers; below 16 expect to lose
            something.
        budget: The largest budget wanted. Smaller ones need no other calibration: the price of a correction depends on
            how many are left and how many steps remain, not on how many there were.
        method: "dp" (the default: a dynamic program; if even spacing does better by two standard errors on the
            calibration samples, the price is a plan of even spacing, said with a warning), "paper" (appendix B of the
            paper) or "planned" (times fixed in advance).
        objective: What is to be low: "endpoint" (the distance of final states to those of full projection), "path",
            "state", or a mix such as `{"path": 1.0, "endpoint": 5.0}`. "paper" prices path error only.
        distance: Between states, (n, *event) twice to (n,); by default the problem's, or Euclidean.
        closing: How the rollouts of a problem end; see `Corrector`. A function has that of its corrector.
        check: Whether to run the first batch twice, to check that it is repeatable.
        uncertainty: Whether to estimate an interval for every price ("paper" and "dp") by resampling the calibration
            rollouts, at least 8, which runs nothing more: `price.interval`.
        engine: Where to run batches: None is in this process, a number in so many processes; or an executor, such as
            those of `concurrent.futures`, dask, loky and `trimtab.integrations.ray`. It changes no number. A
            `trimtab.loop.runner.BatchRunner` also keeps finished batches in a folder.
        progress: Called with a text before each batch. Without it, a slow call shows a bar of tqdm.

    Example:
        >>> import trimtab as tt
        >>> domain = tt.domain("so3", n_steps=40)
        >>> price = tt.calibrate(domain.problem(range(1000, 1016)), method="dp", objective="path")
        >>> domain.problem(range(4)).rollout(price.at(0.25)).spent.tolist()
        [10, 10, 10, 10]
    """
    problem = source if isinstance(source, Problem) else None
    if problem is None and not callable(source):
        raise TypeError(
            "calibrate takes a Problem or a function run(schedule): got "
            f"{type(source).__name__} (for a sampler write calibrate(Problem(sampler, constraint, seeds)))"
        )
    mix = objective_weights(objective)
    method = _checked_method(method, mix)
    if method == "paper":
        objective = "path"
    if distance is not None:
        check_callable(distance, "distance", "distance(a, b)")
    elif problem is not None:
        distance = problem.distance
    check_bool(check, "check")
    if isinstance(budget, Tensor) and budget.ndim:
        raise ValueError(f"calibrate takes the largest budget wanted, one number: got {len(budget)} of them")
    if check_bool(uncertainty, "uncertainty") and method == "planned":
        raise ValueError(f"uncertainty= is for methods 'paper' and 'dp': got {method!r}")
    if problem is not None and len(set(problem.seeds.tolist())) < len(problem.seeds):
        raise ValueError(
            "a calibration seed is repeated, and a repeated rollout shows nothing new: give each seed once"
        )
    if problem is not None and uncertainty:
        check_enough_for_intervals(len(problem))
    is_path = set(objective_weights(objective)) == {"path"}
    if problem is not None and is_path and not problem.constraint.is_projection:
        warn_of_path_error(problem.constraint, "compare(…, quality=…)", stacklevel=2)
    tell = progress_of("calibrate", progress)
    cost_of = partial(calibration_cost, method, budget=budget, objective=objective, check=check)
    with tell, open_runner(engine) as runner:
        known: dict[str, Any] = {}
        if problem is None:
            run = runner.runs(source, "calibrate")
        else:
            options: dict[str, Any] = {"closing": closing, "keep_states": "state" in mix, "measure_defects": True}
            run = runner.runs(problem, **options)
            known["constraint"] = type(problem.constraint).__name__
            tell.plan(cost_of(problem.sampler.n_steps, len(problem.seeds)))
        known |= {"check": check, "progress": tell, "uncertainty": uncertainty}
        batches = Batches(run, budget, objective, distance, **known)
        if problem is None:  # the first batch has shown how many steps there are
            tell.plan(cost_of(batches.n_steps, batches.n))
        return _MAKERS[method](batches)


def _checked_method(method: str | None, mix: dict[str, float]) -> str:
    """Return the method, "dp" if none was given; raise if it cannot lower what is asked for."""
    method = "dp" if method is None else method
    if not isinstance(method, str) or method not in METHODS:
        raise unknown("method", method, METHODS)
    if method == "paper" and set(mix) not in ({"path"}, {"endpoint"}):
        raise ValueError(
            f"method 'paper' prices path error only; for the objective {describe(mix)!r} use 'dp' or 'planned'"
        )
    return method


# ------------------------------------------------------------------ methods


def by_paper(batches: Batches, method: str = "paper") -> Thresholds:
    """Return the paper's prices (appendix B), quantiles of uncorrected defects; also used if there is no choice."""
    defects, budget = batches.uncorrected.defects, batches.spendable
    interval = batches.interval(lambda rows: quantile_table(defects[:, rows], budget))
    return batches.thresholds(quantile_table(defects, budget), method, interval=interval)


def by_dp(batches: Batches) -> Thresholds | Plan:
    """Return the prices of the dynamic program, or even spacing if that does better on the calibration samples."""
    batches.require()
    if not batches.has_choice:
        return by_paper(batches, "dp")
    weights = batches.weights
    runs, sample_scale = batches.explored(weights)
    table, expected = solve(estimate_transitions(runs, sample_scale), batches.spendable, weights)
    prices = Thresholds(table, sample_scale=sample_scale, closing=batches.closing)
    even = Plan(even_masks(batches), closing=batches.closing)
    ahead, error = _saved(batches, even, prices)
    notes: dict[str, Any] = {"ahead_of_even_spacing": [ahead, error]}
    if ahead < -2 * error:
        warnings.warn(
            "on the calibration samples, the prices of the dynamic program cost more than even spacing at the same "
            f"budgets, by {-ahead:.0%} ± {error:.0%} ({describe(batches.objective)}): the defect does not show why it "
            "is large, and the result is even spacing; method='planned' may do better",
            stacklevel=3,
        )
        return batches.plan(even.masks, notes, method=EVEN)

    def table_of(rows: Tensor) -> Tensor:
        some = [Seen(*(part[:, rows] for part in (run.defects, run.residuals, run.projected))) for run in runs]
        return solve(estimate_transitions(some, sample_scale), batches.spendable, weights).table

    notes["expected"] = [float(expected[0])] * (batches.budget - batches.spendable) + expected.tolist()
    interval = batches.interval(table_of)
    return batches.thresholds(table, "dp", notes, sample_scale=sample_scale, interval=interval)


def even_masks(batches: Batches) -> Tensor:
    """Return the free decisions of evenly spaced steps for every budget, (B' + 1, T') bool, as `Periodic` has them."""
    T, t = batches.n_steps, torch.arange(batches.n_choices)
    b = torch.arange(batches.budget - batches.spendable, batches.budget + 1)[:, None]
    return ((t + 1) * b) // T > (t * b) // T


def _saved(batches: Batches, even: Price, prices: Price) -> tuple[float, float]:
    """Return how much less the samples cost by prices than by even spacing, as a share, and its standard error.

    Each sample has a budget of its own. Its cost counts as a share of even spacing's mean, or of that at similar
    budgets, by which all budgets have a say: the worse of the two is returned.
    """
    most = batches.spendable
    spread = spread_budgets(batches.n, batches.n_choices, most, seed=0).clamp(max=most)
    schedules = [price.at(batches.with_closing(spread)) for price in (even, prices)]
    batches.prefetch(schedules)
    theirs, ours = (batches.cost(batches.run(schedule)) for schedule in schedules)
    usual = torch.empty_like(theirs)
    for similar in spread.argsort(stable=True).tensor_split(min(_RANGES, len(spread))):
        usual[similar] = theirs[similar].mean().clamp(min=1e-300)
    saved = [(theirs - ours) / than for than in (theirs.mean().clamp(min=1e-300), usual)]
    found = [(float(share.mean()), float(share.std() / len(share) ** 0.5)) for share in saved]
    return min(found, key=lambda share: share[0] + 2 * share[1])


def by_plan(batches: Batches) -> Plan:
    """Return the best times fixed in advance."""
    batches.require()
    runs = [*batches.explore(range(3)), batches.uncorrected]
    return batches.plan(planned_masks(runs, batches.spendable, batches.weights))


_MAKERS: dict[str, Callable[[Batches], Price]] = {
    "dp": by_dp,
    "paper": by_paper,
    "planned": by_plan,
}
METHODS = tuple(_MAKERS)
