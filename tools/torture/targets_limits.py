"""Bad arguments for limits, the experimental room, and prices: of seconds, on average, planned and raced."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from functools import cache
from typing import Any

import torch

import trimtab as tt
from torture.spoil import Targets, spoil
from torture.targets_measures import calls, no_record, not_a_budget, record
from torture.things import Walk, ball, of_problem, prices, whole_run
from torture.values import (
    N,
    T,
    Thing,
    above_zero,
    budget,
    but_none,
    function,
    level,
    mask,
    no_tensor,
    not_a_number,
    one_of,
    place,
    quantile,
    seeds,
    spoiled,
    steps,
    whole,
)
from trimtab.constraints import Ball
from trimtab.evaluation.limits import hindsight, online_bound
from trimtab.experimental import dense, learn_value, lookahead, value
from trimtab.prices import mean, seconds
from trimtab.prices.program import Solution
from trimtab.prices.collect import Explore
from trimtab.prices.transitions import estimate_transitions
from trimtab.schedules import RandomTimes


def of_walk() -> dict[str, Any]:
    """The walk as limits take it."""
    return {"sampler": Walk(), "constraint": Ball(), "seeds": torch.arange(2), "budget": 2}


def times(r: random.Random) -> Any:
    """What is not one mask of two corrections for each of two samples."""
    uneven = torch.zeros(T, 2).bool()
    uneven[0, 0] = True
    wrong = [uneven, torch.zeros(T + 1, 2).bool(), torch.zeros(T, 3).bool(), torch.zeros(T, 2)]
    return r.choice([*wrong, "x", None, 3, [], Thing(), mask(r)])


def starts(r: random.Random) -> Any:
    """What are no masks to begin with."""
    return r.choice(["x", 3, None, [3], ["x"], [torch.zeros(T, 2)], [torch.zeros(T + 1, 2).bool()], Thing(), [None]])


def some(r: random.Random) -> Any:
    """What is no budget of T steps as a count."""
    return r.choice([-1, T + r.randint(1, 99), 1.5, math.nan, 2**70, not_a_number(r), not_a_number(r)])


@cache
def to_go() -> Solution:
    """The cost to go of the walk, for two corrections."""
    from trimtab.prices.program import solve

    run = lambda schedule: tt.rollout(Walk(), ball(), schedule, range(100, 132), closing="free")  # noqa: E731
    return solve(estimate_transitions([run(Explore(torch.arange(32) % 4, seed=k)) for k in range(3)]), 2)


def charged() -> dict[str, Any]:
    """The arguments of the online limit."""
    even = torch.zeros(T, 2).bool()
    even[1::3] = True
    return {k: v for k, v in of_walk().items() if k != "budget"} | {"mask": even, "cost": to_go()}


LIMITS: Targets = {
    **spoil("hindsight", lambda **c: hindsight.hindsight(**of_walk() | {"rounds": 1, "tries": 1} | c), sampler=function, constraint=function,
            seeds=seeds, starts=starts, objective=function, rounds=lambda r: whole(r) or -1, tries=lambda r: whole(r) or -1, moves=whole, batch=whole),
    **spoil("hindsight objective's", lambda answer: hindsight.hindsight(**of_walk(), objective=lambda run, rows: answer, rounds=1, tries=1),
            answer=one_of("x", None, 3, [], Thing(), torch.rand(99), torch.rand(()))),
    **spoil("best_of_all", hindsight.best_of_all, of_walk, sampler=function, constraint=function, seeds=seeds, budget=some),
    **spoil("online_limit", online_bound.online_limit, charged, sampler=function, constraint=function, seeds=seeds, mask=times, cost=function, copies=whole),
    **spoil("mean_cost", online_bound.mean_cost, lambda: {"cost": to_go(), "t": 0, "budget": 2, "defects": torch.rand(N, 3).double()},
            cost=function, t=one_of(-1, T, "x", None, 1.5, Thing()), budget=one_of(-1, 3, "x", None, 1.5, Thing()), defects=one_of("x", None, 3, [], Thing(), torch.rand(3), torch.ones(N, 3).long(), spoiled((N, 3), random.Random(0)))),
    **spoil("fresh_seeds", online_bound.fresh_seeds, lambda: {"own": torch.arange(N), "t": 0, "n_steps": T, "draws": torch.arange(N), "copies": N},
            own=one_of("x", None, 3, [1.5], Thing(), torch.rand(N), torch.arange(N + 1)), t=one_of(-1, T, "x", None, 1.5, Thing()), n_steps=steps,
            draws=one_of("x", None, 3, [1.5], Thing(), torch.rand(N), torch.arange(N + 1), torch.arange(N) + 1), copies=whole),
    **spoil("Resampled", lambda **c: online_bound.Resampled(**{"seeds": torch.arange(N), "own": torch.arange(N)} | c).normal(0, (3,)),
            seeds=one_of("x", None, 3, [1.5], Thing(), torch.rand(N), torch.arange(N + 1)),
            own=one_of("x", None, 3, [1.5], Thing(), torch.rand(N), torch.arange(N + 1))),
}  # fmt: skip
"""The best schedules in hindsight and online."""


@cache
def learned() -> value.Value:
    """A value that decides as the table does."""
    return value.Value.untrained(prices(), torch.rand(T + 1, T).double())


def parts_of_value() -> dict[str, Any]:
    """Its parts."""
    own = learned()
    return {name: getattr(own, name) for name in ("thresholds", "expected", "center", "spread", "weights")}


def labels() -> Any:
    """Of fifty close decisions."""
    return learn_value.Labels(torch.rand(50, 8), torch.rand(50), torch.rand(50), torch.arange(50))


def ahead(**changes: Any) -> Any:
    """A look-ahead, with something spoiled."""
    given = {"sampler": Walk(), "constraint": ball(), "thresholds": prices(), "cost": to_go(), "budget": 2}
    return whole_run(lookahead.LookAhead(**given | {"horizon": 1, "copies": 2} | changes))  # type: ignore[arg-type]


def explored() -> dict[str, Any]:
    """What a learned value begins with."""
    run = lambda schedule: whole_run(schedule, closing="free")  # noqa: E731
    return {"run": run, "thresholds": prices(), "free": record(closing="free"), "batches": 5}


def batches(r: random.Random) -> Any:
    """Too few, or no number."""
    return r.choice([4, whole(r)])


def branched() -> dict[str, Any]:
    """What is run twice more."""
    explore = Explore(torch.full((N,), 2), prices(), 0.3)
    base = whole_run(explore, closing="free")
    return {"run": explored()["run"], "value": learned(), "explore": explore, "base": base, "seed": 0}


def moment() -> Any:
    """The second step of a record."""
    return tt.StepView.of_record(1, torch.rand(T, N).double(), torch.zeros(T, N).bool(), torch.full((N,), 2))


EXPERIMENTAL: Targets = {
    **spoil("dense_pays", dense.dense_pays, lambda: {"constraint": ball(), "x": torch.rand(N, 3)}, constraint=function, x=one_of("x", None, 3, [], Thing(), torch.rand(3), torch.ones(N, 3).long(), torch.rand(0, 3), torch.rand(())),
            share=lambda r: r.choice([0, 0.01, quantile(r)]), repeats=whole),
    **spoil("Value", value.Value, parts_of_value, thresholds=function, expected=no_tensor((T + 1, T)), center=no_tensor((8,)), spread=no_tensor((8,)),
            weights=no_tensor((2, 18))),
    **spoil("Value.at", lambda **c: whole_run(learned().at(**{"budget": 2} | c)), budget=lambda r: but_none(budget(r)), caution=level),
    **spoil("Value.load", value.Value.load, path=place),
    **spoil("ValueSchedule", lambda **c: whole_run(value.ValueSchedule(**{"value": learned(), "budget": 2} | c)), value=function,
            budget=lambda r: but_none(budget(r)), caution=level),
    **spoil("basis", value.basis, lambda: {"margin": torch.rand(N), "features": torch.rand(N, 8)}, margin=no_tensor((N,), numbers=False),
            features=one_of("x", None, 3, [], Thing(), torch.rand(N), torch.rand(N + 1, 8))),
    **spoil("close_decisions", value.close_decisions, lambda: {"defect": torch.rand(N), "price": torch.rand(N)},
            defect=one_of("x", None, 3, [], Thing(), torch.rand(N + 1)), price=one_of("x", None, 3, [], Thing(), torch.rand(N + 1))),
    **spoil("observed", value.observed, lambda: {"now": moment(), "price": torch.rand(N), "value": learned()}, now=function,
            price=one_of("x", None, 3, [], Thing(), torch.rand(N + 1)), value=function),
    **spoil("LookAhead", ahead, sampler=function, constraint=function, thresholds=function, cost=function, budget=lambda r: but_none(budget(r)),
            horizon=whole, copies=lambda r: r.choice([1, whole(r)]), caution=level),
    **spoil("learn", learn_value.learn, explored, run=calls, thresholds=function, free=no_record, batches=batches),
    **spoil("gather", learn_value.gather, explored, run=calls, thresholds=function, free=no_record, batches=lambda r: r.choice([2, whole(r)])),
    **spoil("fit", learn_value.fit, lambda: {"value": learned(), "labels": labels()}, value=function, labels=function),
    **spoil("Labels", lambda **c: learn_value.fit(learned(), replace(labels(), **c)), features=no_tensor((50, 8)), margin=no_tensor((50,)),
            advantage=no_tensor((50,)), sample=one_of("x", None, 3, Thing(), torch.rand(50), torch.arange(49), -torch.arange(50))),
    **spoil("counterfactuals", learn_value.counterfactuals, branched, run=calls, value=function, explore=function, base=no_record, seed=lambda r: r.choice([1.5, "x", None, [], Thing(), True])),
    **spoil("Branch", lambda **c: whole_run(learn_value.Branch(**{"explore": branched()["explore"], "at": torch.zeros(N).long(), "correct": True} | c)),
            explore=function, at=one_of("x", None, 3, [], Thing(), torch.zeros(N + 1).long(), torch.rand(N), -torch.ones(N).long()),
            correct=one_of("x", None, 3, [], Thing(), 1.5)),
}  # fmt: skip
"""Ideas that have not earned their place yet."""


def runs(r: random.Random) -> Any:
    """What are no records with projections."""
    return r.choice([None, 3, "x", [], [1], ["a"], Thing(), {}, [whole_run(tt.Terminal(), closing="none")]])


@cache
def random_run() -> tt.Rollout:
    """With projections at random steps."""
    return whole_run(RandomTimes(2))  # type: ignore[no-any-return]


@cache
def timed() -> seconds.TimedPrices:
    """Prices of seconds."""
    run = lambda schedule: tt.rollout(Walk(), ball(), schedule, range(100, 132))  # noqa: E731
    return seconds.price_seconds(run, T, 3.0, cost=lambda steps, defects: 1 + defects)


def priced() -> dict[str, Any]:
    """How they are made."""
    run = lambda schedule: tt.rollout(Walk(), ball(), schedule, range(100, 108))  # noqa: E731
    return {"run": run, "n_steps": T, "seconds": 3.0, "cost": lambda steps, defects: 1 + defects}


def costs(r: random.Random) -> Any:
    """What tells no seconds of a projection."""
    wrong = [torch.rand(3), torch.full((N,), math.nan), "x", None, Thing(), -1.0]
    answer = r.choice(wrong)
    return r.choice([lambda steps, defects: answer, but_none(function(r))])


def budget_of_seconds(r: random.Random) -> Any:
    """What is no number of at most three seconds."""
    each = [
        torch.full((N,), math.nan),
        torch.full((N,), -1.0),
        torch.full((N,), 9.0),
        torch.rand(N + 1),
        torch.rand(N, 1),
    ]
    return r.choice([3.5, math.inf, level(r), level(r), *each])


def levels() -> dict[str, Any]:
    """Mean prices of three levels."""
    return {"table": torch.rand(T, 3), "costs": torch.tensor([3.0, 2.0, 1.0])}


def average(r: random.Random) -> Any:
    """What is no mean budget of 1 to 3 corrections."""
    return r.choice([9, 0.9, -1, math.nan, math.inf, True, not_a_number(r), not_a_number(r)])


def won() -> dict[str, Any]:
    """A race of a table and a plan."""
    masks = torch.tril(torch.ones(3, T), -1).bool()
    return {"parts": (prices(), tt.prices.Plan(masks)), "winner": torch.tensor([0, 1, 0])}


PRICES: Targets = {
    **spoil("solver_cost", seconds.solver_cost, lambda: {"runs": [random_run()]}, runs=runs, seconds_per_iteration=lambda r: but_none(above_zero(r))),
    **spoil("SolverCost", lambda **c: seconds.SolverCost(**{"coefficients": torch.rand(6), "limits": (1.0, 2.0), "seconds_per_iteration": 1.0, "n_steps": T} | c)(
                torch.zeros(N), torch.rand(N)),
            coefficients=no_tensor((6,)), limits=one_of((2.0, 1.0), (1.0,), "x", None, 3, (math.nan, 1.0), Thing(), ("a", "b")),
            seconds_per_iteration=above_zero, n_steps=steps),
    **spoil("price_seconds", seconds.price_seconds, priced, run=calls, n_steps=lambda r: r.choice([T + 1, steps(r)]), seconds=above_zero, cost=costs),
    **spoil("TimedPrices.at", lambda seconds: whole_run(timed().at(seconds)), seconds=budget_of_seconds),
    **spoil("TimedPrices.load", seconds.TimedPrices.load, path=place),
    **spoil("TimedPrices", lambda **c: whole_run(replace(timed(), **c).at(1.0)), nodes=lambda r: no_tensor(tuple(timed().nodes.shape))(r),
            gain=lambda r: r.choice(["x", None, 3, Thing(), torch.rand(T, 3), timed().gain * math.nan]), seconds=above_zero, cost=costs),
    **spoil("Seconds", lambda **c: whole_run(seconds.Seconds(**{"prices": timed(), "seconds": 1.0} | c)), prices=function, seconds=budget_of_seconds),
    **spoil("Mean", mean.Mean, value=lambda r: r.choice([-1, -0.5, math.nan, math.inf, True, not_a_number(r)])),
    **spoil("calibrate on average,", lambda **c: of_problem(tt.calibrate, **c), budget=lambda r: mean.Mean(r.choice([T + 1, 1.5, 2**40, 1e300]))),
    **spoil("MeanPrices", mean.MeanPrices, levels, table=lambda r: r.choice([torch.ones(T, 4), torch.full((T, 3), math.nan), no_tensor((T, 3), numbers=False)(r)]),
            costs=lambda r: r.choice([torch.tensor([1.0, 2.0, 3.0]), no_tensor((3,))(r)]), unit=one_of("x", None, 3, [], Thing(), "Iteration")),
    **spoil("MeanPrices.at", lambda budget: mean.MeanPrices(**levels()).at(budget), budget=average),
    **spoil("MeanPrices.load", mean.MeanPrices.load, path=place),
    **spoil("AtPrice", lambda **c: whole_run(mean.AtPrice(**{"prices": torch.ones(T)} | c)),
            prices=one_of(torch.ones(T + 1), torch.ones(T, N + 1), torch.full((T,), math.nan), "x", None, 3, [1.0] * T, Thing(), torch.ones(())),
            seeds=one_of("x", None, 3, Thing(), (0,), (1.5,)), ending=one_of("x", None, 3, []), counted=one_of("x", None, 3, []),
            onward=one_of(torch.ones(T + 1), torch.full((T,), math.nan), "x", 3, [1.0] * T, Thing(), torch.ones(()))),
    **spoil("Raced", tt.prices.Raced, won, parts=one_of((), (3,), "x", None, 3, Thing(), (prices(), None)),
            winner=one_of(torch.tensor([0, 1, 2]), torch.tensor([-1, 0, 0]), torch.rand(3), torch.zeros(9).long(), torch.zeros(0).long(), "x", None, 3, [0], Thing())),
    **spoil("Raced.at", lambda budget: whole_run(tt.prices.Raced(**won()).at(budget)), budget=lambda r: but_none(budget(r))),
    **spoil("Raced.resample", lambda n_steps: tt.prices.Raced(**won()).resample(n_steps), n_steps=steps),
    **spoil("Planned", lambda **c: whole_run(tt.prices.Planned(**{"plan": won()["parts"][1], "budget": 2} | c)), plan=function, budget=lambda r: but_none(budget(r))),
    **spoil("Plan.resample", lambda n_steps: won()["parts"][1].resample(n_steps), n_steps=steps),
    **spoil("paper_prices", lambda **c: tt.prices.paper_prices(**{"runs": [record()]} | c), runs=one_of(None, 3, "x", [], [1], Thing()), budget=not_a_budget),
    **spoil("load", tt.load, path=place),
    **spoil("Thresholds.save", lambda path: prices().save(path), path=one_of("", "/", "/no/such/folder/x", "\0", "x" * 5000, None, 3.5, [], Thing())),
}  # fmt: skip
"""Prices that are not of a table alone."""

TARGETS: Targets = LIMITS | EXPERIMENTAL | PRICES
