"""Bad inputs for every public function: each must be a clear error, none a crash, none accepted in silence."""

from __future__ import annotations

import faulthandler
import inspect
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

import trimtab as tt
from torture.judge import is_clear, where
from trimtab import constraints as sets
from trimtab.core.applied import Retry
from trimtab.core.noise import Noise
from trimtab.core.replay import replay
from trimtab.limits.hindsight import hindsight

T, N = 6, 4
Bad = Callable[[random.Random], Any]


class Thing:
    """An object of a kind that nothing takes."""

    def __repr__(self) -> str:
        """Short."""
        return "Thing()"


# ------------------------------------------------------------------ values that cannot be meant


def not_a_number(r: random.Random) -> Any:
    """What is no number at all."""
    return r.choice(["x", "0.5", b"1", None, [], {}, Thing(), (1, 2), 1j, set(), object, len, ...])


def whole(r: random.Random) -> Any:
    """What is no whole number of at least 1."""
    many = [0, -1, -r.randint(2, 10**9), r.random() * 9 + 0.01, math.nan, math.inf, -math.inf, True, False]
    return r.choice([*many, not_a_number(r), not_a_number(r)])


def steps(r: random.Random) -> Any:
    """What cannot be a number of steps."""
    return r.choice([whole(r), whole(r), 2**31, 2**40, 10**30])


def budget(r: random.Random) -> Any:
    """What is neither a share of the steps nor a number of at most T corrections."""
    numbers = [-1, -r.randint(2, 10**9), T + r.randint(1, 10**6), 1 + r.random() + 1e-6, -r.random() - 1e-6]
    odd = [math.nan, math.inf, -math.inf, 2**70, 1e300, True]
    tensors = [torch.tensor([-1] * N), torch.tensor([math.nan] * N), torch.full((N,), T + 5), torch.ones(N + 1).long()]
    return r.choice([*numbers, *odd, *tensors, torch.ones(2, 2).long(), not_a_number(r), not_a_number(r)])


def seeds(r: random.Random) -> Any:
    """What are no seeds of samples."""
    listed = [["a"], [1, "b"], [1.5], [None], [[1, 2]], [math.nan], [2**70], [True], [Thing()], {"a": 1}]
    tensors = [torch.ones(3), torch.ones(2, 2).long(), torch.tensor(3), torch.tensor([True]), np.array(["a"])]
    return r.choice([*listed, *tensors, "abc", 3, 1.5, None, Thing(), len])


def state(r: random.Random) -> Any:
    """What is no batch of states of N samples in R^3."""
    shape = r.choice([(), (0,), (0, 3), (N, 0)])
    n = r.randint(0, N - 1)
    spoiled = torch.rand(N, 3)
    spoiled[r.randrange(N), r.randrange(3)] = r.choice([math.nan, math.inf, -math.inf])
    tensors = [
        torch.zeros(shape),
        spoiled,
        torch.ones(N, 3, dtype=torch.int64),
        torch.ones(N, 3, dtype=torch.complex64),
    ]
    odd = [
        torch.ones(N, 3, dtype=torch.bool),
        torch.ones(N, 3, device="meta"),
        torch.eye(3).to_sparse(),
        torch.tensor(1.0),
    ]
    others = ["x", None, 3, 1.5, [1, 2], [[1.0]], {}, Thing(), np.array(["a", "b"]), np.array([object()]), len]
    return r.choice([*tensors, *odd, *others, torch.rand(n, 3)[:0]])


def later_state(r: random.Random) -> Any:
    """What cannot follow a batch of N states of three float32."""
    wrong = [torch.rand(N + 1, 3), torch.rand(N - 1, 3), torch.rand(N, 4), torch.rand(N), torch.rand(N, 3).double()]
    return r.choice([state(r), *wrong, torch.rand(N, 3).half(), torch.rand(N, 3).numpy(), [torch.rand(N, 3)]])


def function(r: random.Random) -> Any:
    """What is no function."""
    return r.choice([None, 3, "f", [], {}, Thing(), 1.5, torch.ones(2), (1,)])


def word(r: random.Random) -> Any:
    """What is no name of anything."""
    return r.choice(["", "dP", "pathh", "x" * r.randint(1, 50), None, 3, 1.5, [], {}, Thing(), b"dp", ("dp",)])


def but_none(value: Any) -> Any:
    """Where None has a meaning of its own."""
    return "x" if value is None else value


def mask(r: random.Random) -> Any:
    """What is no mask."""
    return r.choice(
        [torch.ones(T), torch.ones(0).bool(), torch.ones(1, 1, 1).bool(), [True], None, "x", 3, np.ones(T, bool),
         torch.ones(T, dtype=torch.int64), torch.ones(0, 3).bool(), Thing(), {}]
    )  # fmt: skip


def table(r: random.Random) -> Any:
    """What is no table of prices."""
    spoiled = torch.full((T, 3), 1.0)
    spoiled[:, 0] = torch.inf
    spoiled[r.randrange(T), 1 + r.randrange(2)] = math.nan
    wrong = [torch.ones(T), torch.ones(T, 3), torch.ones(0, 3), torch.ones(T, 0), torch.ones(2, 2, 2), torch.ones(2, 9)]
    return r.choice([spoiled, *wrong, torch.ones(T, 3).long(), None, "x", [[1.0]], np.ones((2, 2)), Thing(), 3])


def matrix(r: random.Random) -> Any:
    """What is no matrix of finite numbers with three columns."""
    spoiled = torch.rand(2, 3)
    spoiled[0, 0] = r.choice([math.nan, math.inf])
    return r.choice([spoiled, torch.rand(3), torch.rand(2, 2, 3), "x", None, [["a"]], Thing(), 3])


def place(r: random.Random) -> Any:
    """What is no file of ours."""
    return r.choice(["", "no/such/file", "/", "/dev/null", "\0", "x" * 5000, None, 3.5, [], {}, Thing(), b"\xff"])


# ------------------------------------------------------------------ what is called with them


class Walk:
    """A random walk in R^3."""

    n_steps = T

    def start(self, noise: Any) -> torch.Tensor:
        """Somewhere."""
        return noise.normal(-1, (3,))

    def step(self, x: torch.Tensor, t: int, noise: Any) -> torch.Tensor:
        """Nearby."""
        return x + 0.3 * noise.normal(t, (3,))


def ball() -> Any:
    """The unit ball."""
    return tt.as_constraint(
        lambda x: x / x.norm(dim=1, keepdim=True).clamp(min=1), lambda x: (x.norm(dim=1) - 1).clamp(min=0)
    )


def prices() -> Any:
    """A table of prices for T steps and two corrections."""
    values = torch.full((T, 3), 0.2)
    values[:, 0] = torch.inf
    return tt.prices.Thresholds(values)


def whole_run(schedule: Any, **options: Any) -> Any:
    """A rollout of the walk."""
    return tt.rollout(Walk(), ball(), schedule, range(N), **{"measure_defects": True} | options)


def corrector_call(first: Any, later: Any = None) -> None:
    """A corrector that is given one state, or a second one."""
    corrector = tt.Corrector(ball(), tt.Periodic(2), T)
    corrector(first)
    if later is not None:
        corrector(later)


def _of_problem(function: Callable[..., Any], **changes: Any) -> Any:
    """`calibrate` or `advise` on the walk, with some arguments spoiled."""
    given = {"sampler": Walk(), "constraint": ball(), "seeds": range(1000, 1032)}
    own = {name: changes.pop(name) for name in list(changes) if name in given}
    if next(iter(inspect.signature(function).parameters)) == "sampler":
        return function(**given | own, **changes)
    return function(tt.Problem(**given | own), **changes)


RUN = []


def run_of_walk() -> Any:
    """A record, made once."""
    if not RUN:
        RUN.append(whole_run(tt.Terminal()))
    return RUN[0]


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
    tt.Corrector(ball(), lambda now: answer, T)(torch.rand(N, 3))


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
    "Corrector later state": (later_state_call, later_state),
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
    "FixedThreshold budget": (lambda v: whole_run(tt.schedules.FixedThreshold(0.1, v)), budget),
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
    "calibrate seeds": (lambda v: _of_problem(tt.calibrate, seeds=v), seeds),
    "calibrate budget": (lambda v: _of_problem(tt.calibrate, budget=v), budget),
    "calibrate method": (lambda v: _of_problem(tt.calibrate, method=v), word),
    "calibrate objective": (lambda v: _of_problem(tt.calibrate, objective=v), word),
    "advise seeds": (lambda v: _of_problem(tt.advise, seeds=v), seeds),
    "advise tolerance": (lambda v: _of_problem(tt.advise, tolerance=v, cost="projections"),
                         lambda r: r.choice([-1.0, -r.random() - 1e-9, math.nan, math.inf, "x", [], Thing(), 1j])),
    "advise cost": (lambda v: _of_problem(tt.advise, cost=v), word),
    "advise price": (lambda v: _of_problem(tt.advise, price=v), lambda r: r.choice([3, "x", {}, Thing(), torch.ones(2)])),
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


def cases(count: int, seed: int) -> Iterator[tuple[str, Callable[[Any], Any], Any]]:
    """`count` bad inputs, about as many for each target."""
    r = random.Random(seed)
    names = list(TARGETS)
    for i in range(count):
        call, bad = TARGETS[names[i % len(names)]]
        yield names[i % len(names)], call, bad(r)


def run(count: int, seed: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Call everything with bad inputs and count what comes of it."""
    faulthandler.enable()
    clear = 0
    unclear: Counter[str] = Counter()
    accepted: Counter[str] = Counter()
    examples: dict[str, str] = {}
    for i, (name, call, value) in enumerate(cases(count, seed)):
        try:
            call(value)
        except Exception as error:
            if is_clear(error):
                clear += 1
            else:
                unclear[name] += 1
                examples.setdefault(f"{name}: unclear", f"{value!r:.60}: {where(error)}")
        else:
            accepted[name] += 1
            examples.setdefault(f"{name}: accepted", f"{value!r:.60}")
        say(f"{i + 1} of {count} inputs, {sum(unclear.values())} unclear, {sum(accepted.values())} accepted")
    return {
        "inputs": count,
        "targets": len(TARGETS),
        "clear": clear,
        "unclear": sum(unclear.values()),
        "accepted": sum(accepted.values()),
        "crashes": 0,  # or this line would not have been reached
        "examples": examples,
    }
