"""Calibration: from held-out rollouts to a price that a schedule can use.

A price is made by one of several methods, each a function of the calibration batches. The race runs them all and keeps,
for each range of budgets, the one whose final samples are best.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, get_args, overload

import torch
from torch import Tensor

from trimtab.core.budget import Budget, Unit
from trimtab.core.engine import Engine, RunBatch, Workshop, workshop
from trimtab.core.errors import unknown
from trimtab.core.fingerprint import fingerprint
from trimtab.core.metrics import Distance, endpoint_distance, summary
from trimtab.core.problem import Problem
from trimtab.core.progress import Progress, progress_of
from trimtab.core.quality import Quality, as_quality
from trimtab.core.record import Closing, Rollout
from trimtab.prices.batches import Batches, Source
from trimtab.prices.dynamic import CostToGo, solve
from trimtab.prices.fit_scale import fit_own_scale
from trimtab.prices.graded import graded_prices
from trimtab.prices.mean import Mean, MeanPrices, mean_prices
from trimtab.prices.objective import Objective, as_mix
from trimtab.prices.own_scale import OwnScale
from trimtab.prices.plan import Plan
from trimtab.prices.planned import planned_masks
from trimtab.prices.quantile import on_policy_table, quantile_table
from trimtab.prices.race import Measure, fixed_plans, race
from trimtab.prices.raced import Raced
from trimtab.prices.thresholds import Adaptive, Thresholds
from trimtab.prices.transitions import MEMORY, one_step
from trimtab.schedules import Periodic

__all__ = ["METHODS", "Price", "calibrate", "cost_to_go"]

Price = Thresholds | Plan | Raced
"""What calibration makes; `price.at(budget)` is a schedule."""


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
    engine: Engine | Workshop | str | None = None,
    say: Callable[[str], None] | None = None,
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
        method: "race" (all that follow, and even spacing and windows, tried out on the measure), "dp" (the dynamic
            program), "paper" (appendix B of the paper), "on-policy" (the paper's rule on the policy's own rollouts; for
            `budget` itself rather than all below it) or "planned" (times fixed in advance, no defect looked at
            online). "race" unless the objective is "path", for which "dp" is.
        objective: What is to be low: "endpoint" (the distance of final states to those of full projection), "path",
            "state", or a mix of them such as `{"path": 1.0, "endpoint": 5.0}`. "paper" and "on-policy" price path error
            only.
        quality: A measure of final samples that the race goes by instead of the objective: a function of the final
            states (and of the problem), lower being better, or a `Quality`.
        distance: Between states, (n, *event) twice to (n,); the problem's own, or Euclidean, if not given.
        candidates: More prices for the race, by name.
        look: What a look at the defect costs, in projections, where that is not negligible: prices in the race that
            look pay for a look at every step out of the budget, fixed times do not.
        closing: How the rollouts of a problem end; see `Corrector`. A loop of your own has its corrector's.
        unit: What a budget counts: "projection", or "iteration" for a constraint that offers `improve`: prices of one
            iteration each, by the dynamic program of `trimtab.prices.graded`, for the objective. A float budget is then
            iterations per step.
        check: Whether to run the first batch twice, to see that it repeats itself.
        engine: Where to run batches: "processes", "ray", "serial", or an `Engine`, which can also keep finished batches
            in a folder; in this process, with all its threads, if not given. It changes no number.
        say: Told what is being done. Without it, a call that takes longer than a few seconds prints on stderr how far
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
    if unit == "iteration" or isinstance(budget, Mean):
        if method not in (None, "dp") or quality is not None or candidates:
            raise ValueError(
                "prices of iterations, or of a mean budget, are made by method='dp' for an objective; leave the others "
                "out"
            )
        method = "dp"
    if method is None:
        method = "dp" if objective == "path" and quality is None else "race"
    if not isinstance(method, str) or method not in METHODS:
        raise unknown("method", method, METHODS)
    if isinstance(look, bool) or not isinstance(look, int | float) or not 0 <= look < math.inf:
        raise ValueError(f"look is what a look at the defect costs, in projections, at least 0: got {look!r}")
    if look and method != "race":
        raise ValueError(f"the price of a look is weighed in the race; method {method!r} takes looks to cost nothing")
    mix = as_mix(objective)
    if set(mix) != {"path"} and method in ("paper", "on-policy"):
        if objective != "endpoint":
            raise ValueError(
                f"method {method!r} prices path error only; for the objective {objective!r} use 'dp' or 'planned'"
            )
        objective = "path"
    known = fingerprint(source.sampler, source.constraint) if isinstance(source, Problem) else ""
    if isinstance(source, Problem) and distance is None:
        distance = source.distance
    tell = progress_of("calibrate", say)
    if tell is not say:
        tell.expect(batches_of(method, objective))
    with tell, workshop(engine, tell, source) as shop:
        run = _run_of(source, closing, "state" in mix, shop)
        exact = 1.0 if isinstance(budget, Mean) else budget
        batches = Batches(run, exact, objective, distance, known, check, tell, unit)
        if isinstance(budget, Mean):
            batches.enough(_LEAST)
            return mean_prices(batches, budget)
        if unit == "iteration":
            return graded_prices(batches)
        if method == "race":
            problem = source if isinstance(source, Problem) else None
            return _race(batches, as_quality(quality), problem, candidates or {}, look)
        return METHODS[method](batches)


def batches_of(method: str, objective: Objective = "endpoint") -> int:
    """About how many batches a calibration runs, to tell how long it will take."""
    more = 0 if set(as_mix(objective)) == {"path"} else 4
    return {"race": 14 + 3 * more // 2, "dp": 9 + more, "planned": 5 + more, "on-policy": 8, "paper": 2}[method]


def _run_of(source: Source, closing: Closing, keep_states: bool, shop: Workshop | None) -> RunBatch:
    if not isinstance(source, Problem):
        return source if shop is None else shop.runs(source)
    seeds = source.seeds.tolist()
    repeated = len(seeds) - len(set(seeds))
    if repeated:
        raise ValueError(
            f"{repeated} of the {len(seeds)} calibration seeds are repeated: the same rollout twice tells nothing new; "
            "give each seed once"
        )
    options: dict[str, Any] = {"closing": closing, "keep_states": keep_states, "measure_defects": True}
    return partial(source.rollout, **options) if shop is None else shop.runs(source, **options)


def cost_to_go(run: RunBatch, budget: Budget = 1.0) -> CostToGo:
    """The whole solution of the dynamic program, for what needs more than its prices (`LookAhead`, `online_limit`).

    Samples are taken to be alike: it is not in units of their own scale. It counts corrections as the paper does.

    Args:
        run: As in `calibrate`, with a corrector whose closing projection is free.
        budget: The largest budget wanted.
    """
    batches = Batches(run, budget, "path", None, "", check=False, say=Progress("cost_to_go"))
    batches.enough(_LEAST)
    return _tried(batches, _explored(batches, None)[0], None, None, keep_cost=True)[0]


# ------------------------------------------------------------------ the methods

_RANDOM_ROUNDS = 2
_NEAR_POLICY_ROUNDS = 2
_SHARE = 0.15  # of decisions made at random while staying near the policy
_LEAST = 4


def _thresholds(batches: Batches, table: Tensor, method: str, notes: dict[str, Any], **more: Any) -> Thresholds:
    return Thresholds(batches.keep_one_back(table), method, **batches.facts(notes), **more)


def _paper(batches: Batches) -> Thresholds:
    return _thresholds(batches, quantile_table(batches.cut(batches.free).defects, batches.spendable), "paper", {})


def _on_policy(batches: Batches) -> Thresholds:
    batches.enough(_LEAST)

    def run(table: Tensor, budgets: Tensor) -> Rollout:
        by_table = Thresholds(batches.keep_one_back(table))
        return batches.cut(batches.run(Adaptive(by_table, budgets + batches.kept_back)))

    table, rounds = on_policy_table(run, batches.cut(batches.free), batches.spendable)
    return _thresholds(batches, table, "on-policy", {"rounds": rounds})


def _dp(batches: Batches) -> Thresholds:
    batches.enough(_LEAST)
    if not batches.has_choice:  # the conventions of the table say it all
        return _thresholds(batches, quantile_table(batches.cut(batches.free).defects, batches.spendable), "dp", {})
    weights = batches.weights
    runs, own_scale = _explored(batches, weights)
    solution, memory, costs = _tried(batches, runs, weights, own_scale)
    expected = solution.expected.tolist()
    notes = {"expected": [expected[0]] * batches.kept_back + expected, "memory": memory}
    if weights is None:  # other objectives have taken their batches already
        notes["ahead_of_periodic"] = _ahead_of_periodic(batches, costs)
    return _thresholds(batches, solution.table, "dp", notes, own_scale=own_scale)


def _explored(
    batches: Batches, weights: Tensor | None, near_rounds: int = _NEAR_POLICY_ROUNDS
) -> tuple[list[Rollout], OwnScale | None]:
    """Batches at random times and then near the policy, and the own scale they show."""
    runs, free = batches.explore(range(_RANDOM_ROUNDS)), batches.cut(batches.free)
    for k in range(_RANDOM_ROUNDS, _RANDOM_ROUNDS + near_rounds):
        own_scale = _own_scale(batches, [*runs, free])
        steps = one_step([*runs, free], own_scale).remembering(MEMORY)
        table = batches.keep_one_back(solve(steps, batches.spendable, weights, keep_cost=False).table)
        runs += batches.explore(range(k, k + 1), Thresholds(table, own_scale=own_scale), _SHARE)
    return runs, _own_scale(batches, [*runs, free])


def _own_scale(batches: Batches, runs: list[Rollout]) -> OwnScale | None:
    """The own scale of cut records, with a last step that nobody reads where the closing is paid."""
    found = fit_own_scale(runs)
    if found is None or not batches.kept_back:
        return found
    typical = torch.cat([found.typical, found.typical[-1:]])
    return OwnScale(torch.cat([typical, typical[:, -1:]], dim=1), found.prior)


def _tried(
    batches: Batches,
    runs: list[Rollout],
    weights: Tensor | None,
    own_scale: OwnScale | None,
    keep_cost: bool = False,
) -> tuple[CostToGo, float, Tensor]:
    """The solution, how much memory of a corrected defect it assumes, and what the calibration seeds cost by it, (n,).

    Whether what raised a defect outlasts the correction by more than a step does not show in single steps. It shows in
    what prices come to: those for a cause that stays are taken where they cost less by more than 1 SE when tried out.
    """
    steps = one_step([*runs, batches.cut(batches.free)], own_scale)
    solved, schedules = [], []
    for memory in (MEMORY, 1.0):
        solution = solve(steps.remembering(memory), batches.spendable, weights, keep_cost=keep_cost)
        prices = Thresholds(batches.keep_one_back(solution.table), own_scale=own_scale)
        schedules.append(Adaptive(prices, batches.trial_budgets))
        batches.ahead(schedules[-1:])
        solved.append((solution, memory))
    costs = [_cost(batches, schedule, weights) for schedule in schedules]
    saved = summary(costs[0] - costs[1])
    best = int(saved.mean > saved.se)
    return *solved[best], costs[best]


def _cost(batches: Batches, schedule: Adaptive | Periodic, weights: Tensor | None = None) -> Tensor:
    """What each calibration rollout costs on that schedule, (n,)."""
    residuals = batches.cut(batches.run(schedule)).residuals.cpu().double()
    return residuals.sum(dim=0) if weights is None else weights @ residuals


def _ahead_of_periodic(batches: Batches, costs: Tensor) -> list[float]:
    """By how much less the calibration seeds cost than with even spacing at the same budgets, and the SE of that."""
    ahead = summary(_cost(batches, Periodic(batches.trial_budgets)) - costs)
    if ahead.mean < -2 * ahead.se:
        warnings.warn(
            f"tried out on the calibration seeds, these prices cost more than even spacing at the same budgets, by "
            f"{-ahead.mean:.3g} ± {ahead.se:.1g} per rollout: what makes a defect large here does not show in it; "
            "use Periodic or method='planned' (trimtab advise measures which)",
            stacklevel=4,
        )
    return [ahead.mean, ahead.se]


def _planned(batches: Batches) -> Plan:
    batches.enough(_LEAST)
    runs = [*batches.explore(range(3)), batches.cut(batches.free)]
    return _plan(batches, planned_masks(runs, batches.spendable, batches.weights))


def _plan(batches: Batches, masks: Tensor, method: str = "planned") -> Plan:
    """A plan of the choices (B' + 1, T') as one of all steps."""
    if batches.kept_back:
        closed = torch.cat([masks, torch.ones(len(masks), 1, dtype=torch.bool)], dim=1)
        masks = torch.cat([torch.zeros_like(closed[:1]), closed])
    return Plan(masks, **batches.facts({}), method=method)


# ------------------------------------------------------------------ the race


def _race(
    batches: Batches, quality: Quality | None, problem: Problem | None, more: dict[str, Price], look: float = 0.0
) -> Raced | Thresholds:
    """Everything there is, tried out on the measure that was asked for."""
    batches.enough(_LEAST)
    if not batches.has_choice:
        return _dp(batches)
    path_only = set(as_mix(batches.objective)) == {"path"}
    batches.expect_weights()
    free = batches.cut(batches.free)
    runs, own_scale = _explored(batches, None, near_rounds=1)
    steps = one_step([*runs, free], own_scale).remembering(MEMORY)
    weights = {"path": None} | ({} if path_only else {"influence": batches.weights})
    candidates: dict[str, Price] = {
        name: _plan(batches, masks, name) for name, masks in fixed_plans(batches.n_choices, batches.spendable).items()
    }
    candidates["paper"] = _thresholds(batches, quantile_table(free.defects, batches.spendable), "paper", {})
    for name, weight in weights.items():
        candidates[f"planned for {name}"] = _plan(
            batches, planned_masks([*runs, free], batches.spendable, weight), f"planned for {name}"
        )
        table = solve(steps, batches.spendable, weight, keep_cost=False).table
        candidates[f"dp for {name}"] = _thresholds(batches, table, f"dp for {name}", {}, own_scale=own_scale)
    return race(batches, candidates | more, _measure(batches, quality, problem), look)


def _measure(batches: Batches, quality: Quality | None, problem: Problem | None) -> Measure:
    """What a batch of final samples, or its path, costs: lower is better, (n,)."""
    if quality is not None:
        chosen = quality
        return Measure(chosen.name, lambda run: batches.per_unit(chosen.costs(run.final, problem)))
    mix = as_mix(batches.objective)

    def cost(run: Rollout) -> Tensor:
        parts = {"path": lambda: run.residuals.double().sum(dim=0).cpu()}
        parts["endpoint"] = lambda: batches.per_unit(
            endpoint_distance(run, batches.stepwise, batches.distance).double().cpu()
        )
        if set(mix) - set(parts):
            raise ValueError("a race goes by 'endpoint', 'path' or a quality; state error can be priced by method='dp'")
        return torch.stack([weight * parts[name]() for name, weight in mix.items()]).sum(dim=0)

    return Measure(batches.facts({})["objective"], cost)


METHODS: dict[str, Callable[[Batches], Price]] = {
    "race": lambda batches: _race(batches, None, None, {}),
    "dp": _dp,
    "paper": _paper,
    "on-policy": _on_policy,
    "planned": _planned,
}
