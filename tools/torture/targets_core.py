"""Bad arguments and answers for correctors, rollouts, prices, advice and constraints."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import torch

import trimtab as tt
from torture.things import Walk, ball, of_problem, prices, run_of_walk, whole_run
from torture.values import (
    Bad,
    N,
    T,
    Thing,
    budget,
    but_none,
    function,
    later_state,
    mask,
    matrix,
    not_a_number,
    place,
    seeds,
    state,
    steps,
    table,
    whole,
    word,
)
from trimtab import constraints as sets
from trimtab.core.bound_constraint import Retry
from trimtab.core.noise import Noise
from trimtab.core.replay import replay
from trimtab.evaluation.limits.hindsight import hindsight


def corrector_call(first: Any, later: Any = None) -> None:
    """A corrector that is given one state, or a second one."""
    corrector = tt.Corrector(ball(), tt.Periodic(2), T)
    corrector(first)
    if later is not None:
        corrector(later)


def later_state_call(value: Any) -> None:
    """The second state of a run is spoiled."""
    corrector_call(torch.rand(N, 3), value)


def _projects(answer: Any) -> None:
    """A projection that answers with this."""
    tt.Corrector(tt.as_constraint(lambda x: answer, lambda x: x.norm(dim=1)), tt.Stepwise(), T)(torch.rand(N, 3))


def _measures(answer: Any) -> None:
    """A defect that answers with this."""
    tt.Corrector(tt.as_constraint(lambda x: x * 0, lambda x: answer), tt.Stepwise(), T, measure_defects=True)(
        torch.rand(N, 3)
    )


def _decides(answer: Any) -> None:
    """A schedule that answers with this."""
    tt.Corrector(ball(), lambda view: answer, T)(torch.rand(N, 3))


def answer(r: random.Random) -> Any:
    """What is no batch of projected states."""
    return r.choice([later_state(r), torch.rand(N, 3).numpy(), "x", None, 3])


def numbers_each(r: random.Random) -> Any:
    """What is not one distance for each sample."""
    spoiled = torch.rand(N)
    spoiled[r.randrange(N)] = r.choice([math.nan, math.inf, -1.0])
    return r.choice([spoiled, torch.rand(N + 1), torch.rand(N, 1), torch.rand(()), "x", None, 1.0, [1.0] * N, Thing()])


def decisions(r: random.Random) -> Any:
    """What is not one decision for each sample."""
    return r.choice(
        [torch.ones(N), torch.ones(N + 1).bool(), torch.ones(N, 1).bool(), True, None, "x", [True] * N, Thing()]
    )


POINTS = torch.rand(N, 3)


TARGETS: dict[str, tuple[Callable[[Any], Any], Bad]] = {
    "Corrector n_steps": (lambda v: tt.Corrector(ball(), tt.Terminal(), v), steps),
    "Corrector constraint": (lambda v: tt.Corrector(v, tt.Terminal(), T), function),
    "Corrector schedule": (lambda v: tt.Corrector(ball(), v, T), function),
    "Corrector seeds": (lambda v: tt.Corrector(ball(), tt.Terminal(), T, seeds=v), lambda r: but_none(seeds(r))),
    "Corrector on_failure": (lambda v: tt.Corrector(ball(), tt.Terminal(), T, on_failure=v), word),
    "Corrector closing": (lambda v: tt.Corrector(ball(), tt.Terminal(), T, closing=v), word),
    "Corrector groups": (lambda v: tt.Corrector(ball(), tt.Terminal(), T, groups=v)(torch.rand(N, 3)),
                         lambda r: r.choice(["x", 3, 1.5, Thing(), torch.ones(N + 1).long(), torch.rand(N), [1.5] * N])),
    "Corrector first state": (corrector_call, state),
    "Corrector later state": (later_state_call, lambda r: but_none(later_state(r))),
    "Corrector t": (lambda v: tt.Corrector(ball(), tt.Terminal(), T)(torch.rand(N, 3), v),
                    lambda r: r.choice([1, -1, T, r.randint(2, 10**6), "x", 1.5, [], Thing(), math.nan])),
    "Corrector.begin": (lambda v: tt.Corrector(ball(), tt.Terminal(), T).begin(v), state),
    "answer of project": (_projects, answer),
    "answer of defect": (_measures, numbers_each),
    "answer of a schedule": (_decides, decisions),
    "Retry": (lambda v: Retry(v), whole),
    "Periodic": (lambda v: whole_run(tt.Periodic(v)), budget),
    "RandomTimes": (lambda v: whole_run(tt.schedules.RandomTimes(v)), budget),
    "FixedThreshold value": (lambda v: whole_run(tt.schedules.FixedThreshold(v, 2)), lambda r: r.choice([math.nan, not_a_number(r)])),
    "FixedThreshold budget": (lambda v: whole_run(tt.schedules.FixedThreshold(0.1, v)), lambda r: but_none(budget(r))),
    "Fixed": (lambda v: whole_run(tt.schedules.Fixed(v)), mask),
    "Fixed.at steps": (lambda v: tt.schedules.Fixed.at(v, T), lambda r: r.choice([[T], [-T - 1], ["x"], [1.5], [None], 3, None, [True]])),
    "Fixed.at n_steps": (lambda v: tt.schedules.Fixed.at([0], v), steps),
    "Thresholds": (lambda v: tt.prices.Thresholds(v), table),
    "Thresholds.at": (lambda v: whole_run(prices().at(v)), lambda r: but_none(budget(r))),
    "Adaptive": (lambda v: whole_run(tt.prices.Adaptive(prices(), v)), lambda r: but_none(budget(r))),
    "Adaptive prices": (lambda v: whole_run(tt.prices.Adaptive(v, 1)), function),
    "Plan": (lambda v: tt.prices.Plan(v), mask),
    "rollout sampler": (lambda v: tt.rollout(v, ball(), tt.Terminal(), range(N)), function),
    "rollout constraint": (lambda v: tt.rollout(Walk(), v, tt.Terminal(), range(N)), function),
    "rollout schedule": (lambda v: tt.rollout(Walk(), ball(), v, range(N)), function),
    "rollout seeds": (lambda v: tt.rollout(Walk(), ball(), tt.Terminal(), v), seeds),
    "Problem seeds": (lambda v: tt.Problem(Walk(), ball(), v), seeds),
    "replay schedule": (lambda v: replay(v, run_of_walk()), function),
    "replay record": (lambda v: replay(tt.Periodic(2), v), function),
    "as_constraint project": (lambda v: tt.as_constraint(v), function),
    "as_constraint defect": (lambda v: tt.as_constraint(lambda x: x, v), lambda r: but_none(function(r))),
    "as_constraint data": (lambda v: tt.as_constraint(lambda x: x, data=v), lambda r: r.choice(["x", 3, {}, (1,), ("a",), None, Thing()])),
    "Noise seeds": (lambda v: tt.rollout(Walk(), ball(), tt.Periodic(1), v), seeds),
    "Noise shape": (lambda v: Noise(range(N)).normal(0, v), lambda r: r.choice(["x", (-1,), (1.5,), None, Thing(), ("a",), -3])),
    "domain name": (lambda v: tt.domain(v), word),
    "domain setting": (lambda v: tt.domain("so3", n_steps=v).problem(range(2)).rollout(tt.Terminal()), whole),
    "domain kappa": (lambda v: tt.domain("so3", kappa=v), lambda r: r.choice([math.nan, math.inf, not_a_number(r)])),
    "calibrate seeds": (lambda v: of_problem(tt.calibrate, seeds=v), seeds),
    "calibrate budget": (lambda v: of_problem(tt.calibrate, budget=v), budget),
    "calibrate method": (lambda v: of_problem(tt.calibrate, method=v), lambda r: but_none(word(r))),
    "calibrate objective": (lambda v: of_problem(tt.calibrate, objective=v), word),
    "advise seeds": (lambda v: of_problem(tt.advise, seeds=v), seeds),
    "advise tolerance": (lambda v: of_problem(tt.advise, tolerance=v, cost="projections"),
                         lambda r: r.choice([-1.0, -r.random() - 1e-9, math.nan, math.inf, "x", [], Thing(), 1j])),
    "advise cost": (lambda v: of_problem(tt.advise, cost=v), word),
    "advise price": (lambda v: of_problem(tt.advise, price=v), lambda r: r.choice([3, "x", {}, Thing(), torch.ones(2)])),
    "thresholds_from_runs": (lambda v: tt.prices.paper_prices(v), lambda r: r.choice([None, 3, "x", [], [1], ["a"], Thing(), {}])),
    "quantile_table defects": (lambda v: tt.prices.quantile_table(v, 2),
                               lambda r: r.choice([None, 3, "x", torch.ones(3), torch.ones(0, 3), torch.full((T, 3), math.nan), [[1.0]]])),
    "quantile_table budget": (lambda v: tt.prices.quantile_table(torch.rand(T, 8), v), lambda r: r.choice([-1, T + 1, 1.5, "x", None, [], math.nan])),
    "hindsight budget": (lambda v: hindsight(Walk(), ball(), torch.arange(2), v, rounds=1, tries=1),
                         lambda r: r.choice([-1, T + r.randint(1, 99), "x", None, [], math.nan, 2**70, Thing()])),
    "load_price": (lambda v: tt.load(v), place),
    "Rollout.load": (lambda v: tt.Rollout.load(v), place),
    "Box": (lambda v: sets.Box(v, 1.0), lambda r: r.choice([2.0, math.nan, "x", Thing(), [], {}])),
    "Ball radius": (lambda v: sets.Ball(v).project(POINTS), lambda r: r.choice([-1.0, math.nan, "x", [], Thing(), {}])),
    "Sphere radius": (lambda v: sets.Sphere(v).project(POINTS), lambda r: r.choice([-1.0, math.nan, "x", [], Thing(), {}])),
    "HalfSpaces A": (lambda v: sets.HalfSpaces(v, torch.rand(2)).project(POINTS), matrix),
    "HalfSpaces b": (lambda v: sets.HalfSpaces(torch.rand(2, 3), v).project(POINTS),
                     lambda r: r.choice([torch.rand(3), torch.rand(2, 2), "x", None, torch.tensor([math.nan, 1.0]), Thing()])),
    "HalfSpaces state": (lambda v: sets.HalfSpaces(torch.rand(2, 3), torch.rand(2)).project(v),
                         lambda r: r.choice([torch.rand(N, 2), torch.rand(N, 50), torch.rand(3), "x", None, torch.ones(N, 3).long()])),
    "AffineEquality A": (lambda v: sets.AffineEquality(v, torch.rand(2)).project(POINTS), matrix),
    "Simplex state": (lambda v: sets.Simplex().project(v), lambda r: r.choice(["x", None, 3, torch.tensor(1.0), Thing(), torch.ones(N, 3).long()])),
    "nearest_rotation": (lambda v: sets.nearest_rotation(v), lambda r: r.choice([torch.rand(3), torch.rand(N, 3, 2), "x", None, Thing(), 3])),
    "NonlinearEquality": (lambda v: sets.NonlinearEquality(v).project(POINTS), function),
}  # fmt: skip
"""Every public function by what is spoiled: what is called with a bad value, and what makes such values."""
