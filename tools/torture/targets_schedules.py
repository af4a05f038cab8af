"""Bad arguments for schedules that wait or keep to a stretch, and for corrections that are bought by iterations."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from functools import cache
from typing import Any

import torch

import trimtab as tt
from torture.spoil import Targets
from torture.things import ball, of_problem, prices, run_of_walk, whole_run
from torture.values import (
    N,
    T,
    Thing,
    above_zero,
    budget,
    but_none,
    function,
    later_state,
    level,
    not_a_number,
    quantile,
    spoiled,
    state,
    steps,
    whole,
    word,
)
from trimtab import schedules
from trimtab.core.constraint import Improvement
from trimtab.core.stream import Stream
from trimtab.prices.iterations import iteration_steps
from trimtab.prices.program import solve_iterations
from trimtab.prices.rates import calibrate_rate


def numbers_by_step(r: random.Random) -> Any:
    """What is not one number of at least 0 for each step."""
    wrong = [torch.ones(T - 1), torch.ones(T + 1), torch.ones(T, 1), torch.ones(()), torch.ones(T).long()]
    return r.choice([*wrong, -torch.rand(T) - 1e-6, spoiled((T,), r).abs().where(torch.rand(T) < 2, 0), *others(r)])


def others(r: random.Random) -> list[Any]:
    """What is no tensor, thrice."""
    return [r.choice(["x", 3, 1.5, Thing(), [1.0], {}, len, (1, 2)]) for _ in range(3)]


def seed(r: random.Random) -> Any:
    """What is no seed of a schedule."""
    return r.choice([1.5, math.nan, True, -1, 2**70, not_a_number(r), not_a_number(r)])


def edge(r: random.Random) -> Any:
    """What is neither a step nor a share of them."""
    return r.choice([-1, -0.1 - r.random(), 1.1 + r.random(), math.nan, math.inf, True, T + 1, not_a_number(r)])


def levels(r: random.Random) -> Any:
    """What is neither a number of at least 0 nor one for each sample."""
    each = [
        torch.rand(N + 1),
        torch.rand(N, 1),
        -torch.rand(N) - 1e-6,
        torch.ones(N).long(),
        torch.full((N,), math.nan),
    ]
    return r.choice([level(r), level(r), r.choice(each)])


def from_data(**changes: Any) -> Any:
    """Thresholds from feasible data, with something spoiled."""
    given: dict[str, Any] = {"constraint": ball(), "noised": lambda t: torch.rand(N, 3), "n_steps": T}
    return schedules.AboveNoise.from_data(**given | changes)


def over(**changes: Any) -> Any:
    """A ramp over noise levels, with something spoiled."""
    given: dict[str, Any] = {"levels": torch.linspace(1, 0, T), "low": 0.1, "high": 0.9, "budget": 2}
    return whole_run(schedules.RandomRamp.over(**given | changes))


def streamed(value: Any = None, **changes: Any) -> Any:
    """A loop with no end, with something spoiled."""
    given = {"constraint": ball(), "schedule": tt.Stepwise(), "rate": 0.5, "burst": 2.0}
    stream = Stream(**given | changes)  # type: ignore[arg-type]
    return stream(torch.rand(N, 3) if value is None else value)


def rate_of(**changes: Any) -> Any:
    """A stationary price, with something spoiled."""
    given = {"run": lambda schedule: whole_run(schedule, closing="free"), "n_steps": T, "rate": 0.5, "burst": 1.0}
    return calibrate_rate(**given | changes)


SCHEDULES: Targets = {
    "AccumulatedDefect value": (lambda v: whole_run(schedules.AccumulatedDefect(v, 2)), levels),
    "AccumulatedDefect budget": (lambda v: whole_run(schedules.AccumulatedDefect(0.1, v)), lambda r: but_none(budget(r))),
    "MeasureEvery schedule": (lambda v: whole_run(schedules.MeasureEvery(v)), function),
    "MeasureEvery every": (lambda v: whole_run(schedules.MeasureEvery(schedules.FixedThreshold(0.1, 2), v)), whole),
    "Trigger value": (lambda v: whole_run(schedules.Trigger(v)), levels),
    "Trigger gap": (lambda v: whole_run(schedules.Trigger(0.1, v)), whole),
    "Trigger budget": (lambda v: whole_run(schedules.Trigger(0.1, 1, v)), lambda r: but_none(budget(r))),
    "UntilBelow tolerance": (lambda v: whole_run(schedules.UntilBelow(v)), levels),
    "UntilBelow budget": (lambda v: whole_run(schedules.UntilBelow(0.1, v)), lambda r: but_none(budget(r))),
    "AboveNoise thresholds": (lambda v: whole_run(schedules.AboveNoise(v)), lambda r: _not_inf(numbers_by_step(r))),
    "AboveNoise budget": (lambda v: whole_run(schedules.AboveNoise(torch.ones(T), v)), lambda r: but_none(budget(r))),
    "AboveNoise.from_data constraint": (lambda v: from_data(constraint=v), function),
    "AboveNoise.from_data noised": (lambda v: from_data(noised=v), function),
    "AboveNoise.from_data answer": (lambda v: from_data(noised=lambda t: v), state),
    "AboveNoise.from_data n_steps": (lambda v: from_data(n_steps=v), steps),
    "AboveNoise.from_data quantile": (lambda v: from_data(quantile=v), quantile),
    "AboveNoise.from_stepwise run": (schedules.AboveNoise.from_stepwise, lambda r: r.choice([run_of_walk(), function(r)])),
    "AboveNoise.from_stepwise quantile": (lambda v: schedules.AboveNoise.from_stepwise(stepwise_run(), quantile=v), quantile),
    "Window start": (lambda v: whole_run(schedules.Window(v)), edge),
    "Window stop": (lambda v: whole_run(schedules.Window(0, v)), lambda r: r.choice([0, edge(r), edge(r)])),
    "Window.steps": (lambda v: schedules.Window(0.5).steps(v), steps),
    "windows budget": (lambda v: schedules.windows(v, T), budget),
    "windows n_steps": (lambda v: schedules.windows(0.5, v), steps),
    "windows closing": (lambda v: schedules.windows(2, T, v), word),
    "Geometric": (lambda v: whole_run(schedules.Geometric(v)), budget),
    "RandomRamp budget": (lambda v: whole_run(schedules.RandomRamp(v)), budget),
    "RandomRamp weights": (lambda v: whole_run(schedules.RandomRamp(2, v)), lambda r: but_none(numbers_by_step(r))),
    "RandomRamp seed": (lambda v: whole_run(schedules.RandomRamp(2, None, v)), seed),
    "RandomTimes seed": (lambda v: whole_run(schedules.RandomTimes(2, v)), seed),
    "RandomRamp.over levels": (lambda v: over(levels=v), lambda r: r.choice([spoiled((T,), r), torch.ones(T + 1), *others(r)])),
    "RandomRamp.over low": (lambda v: over(low=v), lambda r: r.choice([0.9, 2.0, math.nan, math.inf, not_a_number(r)])),
    "RandomRamp.over high": (lambda v: over(high=v), lambda r: r.choice([0.1, -2.0, math.nan, -math.inf, not_a_number(r)])),
    "Stream constraint": (lambda v: streamed(constraint=v), function),
    "Stream schedule": (lambda v: streamed(schedule=v), function),
    "Stream rate": (lambda v: streamed(rate=v), lambda r: r.choice([above_zero(r), 1.5])),
    "Stream burst": (lambda v: streamed(burst=v), lambda r: r.choice([above_zero(r), 0.5])),
    "Stream state": (streamed, lambda r: but_none(state(r))),
    "calibrate_rate run": (lambda v: rate_of(run=v), function),
    "calibrate_rate answer": (lambda v: rate_of(run=lambda schedule: v), function),
    "calibrate_rate n_steps": (lambda v: rate_of(n_steps=v), steps),
    "calibrate_rate rate": (lambda v: rate_of(rate=v), lambda r: r.choice([above_zero(r), 1.5])),
    "calibrate_rate burst": (lambda v: rate_of(burst=v), lambda r: r.choice([above_zero(r), 0.5])),
    "Thresholds.resample": (lambda v: prices().resample(v), steps),
    "Thresholds.resample keep": (lambda v: prices().resample(9, v), word),
}  # fmt: skip
"""Schedules that look today's way at a run, and loops without an end."""


def _not_inf(value: Any) -> Any:
    """A threshold of inf is never reached, which may be meant."""
    return torch.full((T,), math.nan) if isinstance(value, torch.Tensor) and bool((value == math.inf).any()) else value


@cache
def stepwise_run() -> tt.Rollout:
    """Corrected at every step."""
    return whole_run(tt.Stepwise())  # type: ignore[no-any-return]


# ------------------------------------------------------------------ iterations


class Halves(tt.Constraint):
    """The origin, each iteration half the way; what an iteration answers may be spoiled."""

    improves = True

    def __init__(self, **spoiled: Any) -> None:
        """With these parts of the answer instead of the right ones."""
        self.spoiled = spoiled

    def defect(self, x: torch.Tensor) -> torch.Tensor:
        """Distance."""
        return x.norm(dim=1)

    def project(self, x: torch.Tensor) -> tt.Projection:
        """All the way."""
        return tt.Projection(x * 0, None, torch.full((len(x),), 3))

    def improve(self, x: torch.Tensor, state: Any, **context: Any) -> Any:
        """Half the way."""
        y = x / 2
        if "whole" in self.spoiled:
            return self.spoiled["whole"]
        right = Improvement(y, y.norm(dim=1), torch.zeros(len(x), dtype=torch.bool), (y,))
        return right._replace(**self.spoiled)


class GradedWalk:
    """A random walk in R^3, of T steps, in single precision."""

    n_steps = T
    dtype = torch.float32

    def start(self, noise: Any) -> torch.Tensor:
        """Somewhere."""
        return noise.normal(-1, (3,))  # type: ignore[no-any-return]

    def step(self, x: torch.Tensor, t: int, noise: Any) -> torch.Tensor:
        """Nearby."""
        return x + noise.normal(t, (3,))  # type: ignore[no-any-return]


def iterated(constraint: Any = None, schedule: Any = None, **options: Any) -> Any:
    """A rollout that buys iterations, with something spoiled."""
    chosen = (lambda view: view.spent < 3) if schedule is None else schedule
    given = {"unit": "iteration", "closing": "free"} | options
    return tt.rollout(GradedWalk(), Halves() if constraint is None else constraint, chosen, range(N), **given)


def iterations(r: random.Random) -> Any:
    """What is no number of iterations."""
    tensors = [torch.tensor([-1] * N), torch.tensor([math.nan] * N), torch.ones(N + 1).long(), torch.ones(2, 2).long()]
    return r.choice([-1, -r.random() - 1e-6, math.nan, math.inf, 2**70, 1e300, True, *tensors, not_a_number(r)])


def told(r: random.Random) -> Any:
    """What is not one yes or no for each sample."""
    return r.choice([torch.ones(N), torch.ones(N + 1).bool(), torch.ones(N, 1).bool(), True, None, "x", 3, Thing()])


def carried(r: random.Random) -> Any:
    """What no solver can carry along."""
    odd = [
        torch.ones(N),
        [torch.ones(N)],
        ("x",),
        (torch.ones(N + 1),),
        (torch.ones(()),),
        (None,),
        {"a": torch.ones(N)},
    ]
    return r.choice([*odd, "x", 3, Thing()])


def distances(r: random.Random) -> Any:
    """What is not one distance for each of N samples."""
    wrong = [spoiled((N,), r), -torch.rand(N) - 1e-6, torch.rand(N + 1), torch.rand(N, 1), torch.rand(())]
    return r.choice([*wrong, "x", None, 1.0, [1.0], Thing()])


def graded(**changes: Any) -> Any:
    """Prices of iterations of the walk, with something spoiled."""
    given = {"sampler": GradedWalk(), "constraint": Halves(), "unit": "iteration", "budget": 2.0, "objective": "path"}
    return of_problem(tt.calibrate, **given | changes)


@cache
def explored() -> Any:
    """A record of iterations at random places."""
    walk, coins = GradedWalk(), torch.Generator().manual_seed(0)
    decide = lambda view: torch.rand(len(view), generator=coins) < 0.6  # noqa: E731
    return tt.rollout(walk, Halves(), decide, range(64), unit="iteration", closing="free")


def no_records(r: random.Random) -> Any:
    """What are no records of one number of steps."""
    shorter = replace(explored(), defects=explored().defects[:-1])
    return r.choice([None, 3, "x", [], [1], ["a"], Thing(), {}, [explored(), 3], [explored(), shorter]])


ITERATIONS: Targets = {
    "Corrector unit": (lambda v: tt.Corrector(Halves(), tt.Terminal(), T, unit=v), lambda r: _or_empty(but_none(word(r)))),
    "Corrector unit of a constraint without iterations": (lambda v: tt.Corrector(v, tt.Terminal(), T, unit="iteration"),
                                                          lambda r: r.choice([ball(), function(r)])),
    "Corrector dense with iterations": (lambda v: tt.Corrector(Halves(), tt.Terminal(), T, unit="iteration", dense=v),
                                        lambda r: r.choice([True, "x", 3, Thing()])),
    "Corrector dense": (lambda v: tt.Corrector(ball(), tt.Terminal(), T, dense=v), lambda r: r.choice(["x", 3, None, [], Thing()])),
    "Corrector keep_states": (lambda v: tt.Corrector(ball(), tt.Terminal(), T, keep_states=v),
                              lambda r: r.choice(["x", 3, None, [], Thing()])),
    "Corrector measure_defects": (lambda v: tt.Corrector(ball(), tt.Terminal(), T, measure_defects=v),
                                  lambda r: r.choice(["x", 3, [], Thing()])),
    "Corrector on_step": (lambda v: tt.Corrector(ball(), tt.Terminal(), T, on_step=v), lambda r: but_none(function(r))),
    "Inexact per_step": (lambda v: iterated(schedule=schedules.Inexact(v)), lambda r: r.choice([math.inf, 1e300, level(r)])),
    "Corrector.stop": (lambda v: stopped(v), later_state),
    "Corrector.stop of iterations": (lambda v: stopped(v, Halves(), unit="iteration"), later_state),
    "rollout unit": (lambda v: iterated(unit=v), lambda r: _or_empty(but_none(word(r)))),
    "rollout of iterations, budget": (lambda v: iterated(schedule=tt.Periodic(v)), lambda r: r.choice([budget(r), iterations(r)])),
    "rollout of iterations, constraint": (lambda v: iterated(v), lambda r: r.choice([ball(), but_none(function(r))])),
    "answer of improve": (lambda v: iterated(Halves(whole=v)), function),
    "answer of improve, states": (lambda v: iterated(Halves(x=v)), later_state),
    "answer of improve, defect": (lambda v: iterated(Halves(defect=v)), distances),
    "answer of improve, done": (lambda v: iterated(Halves(done=v)), told),
    "answer of improve, state": (lambda v: iterated(Halves(state=v)), carried),
    "calibrate unit": (lambda v: graded(unit=v), word),
    "calibrate iterations, budget": (lambda v: graded(budget=v), iterations),
    "calibrate iterations, method": (lambda v: graded(method=v), lambda r: r.choice(["paper", "planned", but_none(word(r))])),
    "calibrate iterations, constraint": (lambda v: graded(constraint=v), lambda r: r.choice([ball(), function(r)])),
    "Thresholds unit": (lambda v: tt.prices.Thresholds(prices().table, unit=v), word),
    "Thresholds closing_reserve": (lambda v: tt.prices.Thresholds(prices().table, closing_reserve=v), whole),
    "prices of iterations, budget": (lambda v: iterated(schedule=priced().at(v)), lambda r: but_none(iterations(r))),
    "iteration_steps": (iteration_steps, no_records),
    "solve_iterations steps": (lambda v: solve_iterations(v, 3), function),
    "solve_iterations budget": (lambda v: solve_iterations(iteration_steps([explored()]), v), lambda r: whole(r) or -3),
    "solve_iterations weights": (lambda v: solve_iterations(iteration_steps([explored()]), 3, v), lambda r: but_none(numbers_by_step(r))),
}  # fmt: skip
"""Corrections that are bought one iteration at a time."""


def priced() -> tt.prices.Thresholds:
    """Prices of up to nine iterations."""
    table = torch.full((T, 10), 0.2)
    table[:, 0] = torch.inf
    return tt.prices.Thresholds(table, unit="iteration")


def _or_empty(value: Any) -> Any:
    """Where the empty word means what None does."""
    return "x" if isinstance(value, str | list | dict) and not value else value


def stopped(value: Any, constraint: Any = None, **options: Any) -> None:
    """A run that is stopped after its second step with this state."""
    corrector = tt.Corrector(constraint or ball(), tt.Terminal(), T, **options)
    for t in range(2):
        corrector(torch.rand(N, 3), t)
    corrector.stop(value)


TARGETS: Targets = SCHEDULES | ITERATIONS
