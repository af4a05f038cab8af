"""Calls of everything that is public, with values that cannot be meant for each argument."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import torch

import trimtab as tt
from trimtab import constraints as sets
from trimtab import schedules
from trimtab.core.noise import Noise
from trimtab.integrations import flows, independence, loggers, manifolds
from trimtab.loop.replay import replay

T, N = 6, 4
Values = list[Any]
Row = tuple[Callable[..., Any], dict[str, Values]]


class Thing:
    """An object that nothing takes."""

    def __repr__(self) -> str:
        return "Thing()"


# ------------------------------------------------------------------ bad values by kind

NO_NUMBER: Values = ["x", "0.5", b"1", None, [], {}, Thing(), (1, 2), 1j, len]
NOTHING: Values = ["x", [], {}, Thing(), (1, 2)]  # no number, no None, no function
WHOLE: Values = [0, -1, -(10**9), 1.5, math.nan, math.inf, True, *NO_NUMBER]
STEPS: Values = [*WHOLE, 2**31, 10**30]
LEVEL: Values = [-1.0, math.nan, -math.inf, True, *NO_NUMBER]  # at least 0
POSITIVE: Values = [0, 0.0, math.inf, *LEVEL]
COUNTS = [torch.tensor([-1] * N), torch.full((N,), math.nan), torch.full((N,), T + 5), torch.ones(N + 1).long()]
BUDGET: Values = [-1, T + 1, 1.5, -0.1, math.nan, math.inf, 2**70, True, *COUNTS, *NOTHING, b"1", 1j, len]
SEEDS: Values = [["a"], [1.5], [None], [[1, 2]], [2**70], {"a": 1}, torch.ones(3), torch.ones(2, 2).long(), "abc", 3]
FUNCTION: Values = [None, 3, "f", [], {}, Thing(), 1.5, torch.ones(2), (1,)]
SCHEDULE: Values = [None, "f", [], {}, Thing(), (1,)]  # a number may be a budget
WORD: Values = ["", "dP", "pathh", "x" * 40, 3, 1.5, [], {}, Thing(), b"dp"]
FLAG: Values = ["x", 3, [], Thing()]
PATH: Values = ["", "no/such/file", "/", "\0", "x" * 5000, None, 3.5, [], {}, Thing()]
TABLE: Values = [
    *(torch.ones(T), torch.ones(T, 3), torch.ones(0, 3), torch.ones(T, 0), torch.ones(2, 9), torch.ones(T, 3).long()),
    *(None, "x", [[1.0]], Thing(), 3),
]
MASK: Values = [torch.ones(T), torch.ones(0).bool(), torch.ones(1, 1, 1).bool(), None, "x", 3, Thing(), {}]
STATE: Values = [
    *(torch.zeros(()), torch.zeros(0, 3), torch.zeros(N, 0), torch.full((N, 3), math.nan), torch.ones(N, 3).long()),
    *(torch.ones(N, 3, dtype=torch.complex64), torch.ones(N, 3).bool(), torch.ones(N, 3, device="meta")),
    *("x", None, 3, [1, 2], {}, Thing(), len),
]
LATER: Values = [*STATE, torch.rand(N + 1, 3), torch.rand(N, 4), torch.rand(N), torch.rand(N, 3).double()]
POINTS: Values = [torch.rand(N, 2), torch.rand(3), torch.ones(N, 3).long(), "x", None, 3, Thing()]
MATRIX: Values = [torch.full((2, 3), math.nan), torch.rand(3), torch.rand(2, 2, 3), "x", None, [["a"]], Thing()]
EACH: Values = [torch.rand(N + 1), torch.full((N,), math.nan), torch.rand(()), "x", 1.0, [1.0] * N, Thing()]
DECISIONS: Values = [torch.ones(N), torch.ones(N + 1).bool(), torch.ones(N, 1).bool(), True, None, "x", Thing()]
TIMES: Values = [
    torch.zeros(T + 1),
    torch.ones(()),
    torch.linspace(0, 1, T + 1) * math.nan,
    "x",
    3,
    [0.0, 1.0],
    Thing(),
]


# ------------------------------------------------------------------ good things


class Walk:
    n_steps = T

    def start(self, noise: Any) -> torch.Tensor:
        return noise.start((3,))

    def step(self, x: torch.Tensor, t: int, noise: Any) -> torch.Tensor:
        return x + 0.3 * noise.normal(t, (3,))


BALL = tt.as_constraint(
    lambda x: x / x.norm(dim=1, keepdim=True).clamp(min=1), lambda x: (x.norm(dim=1) - 1).clamp(min=0)
)
CIRCLE = sets.NonlinearEquality(lambda y: (y * y).sum()[None] - 1)
X = torch.rand(N, 3)
PRICES = tt.prices.Thresholds(torch.full((T, 3), 0.2).index_fill(1, torch.tensor([0]), torch.inf))
RUN = tt.rollout(Walk(), BALL, tt.Terminal(), range(N), measure_defects=True)


def run(schedule: Any) -> Any:
    """Use a schedule: some budgets can only be checked when T is known."""
    return tt.rollout(Walk(), BALL, schedule, range(N))


def used(schedule: type) -> Callable[..., Any]:
    return lambda **own: run(schedule(**own))


def corrector(x: Any = X, later: Any = X, t: Any = 0, **own: Any) -> None:
    made = tt.Corrector(**{"constraint": BALL, "schedule": tt.Periodic(2), "n_steps": T} | own)
    made(x, t)
    made(later)


def answers(project: Any = X, defect: Any = None, schedule: Any = torch.ones(N).bool()) -> None:
    constraint = tt.as_constraint(lambda x: project, lambda x: x.norm(dim=1) if defect is None else defect)
    tt.Corrector(constraint, lambda view: schedule, T, measure_defects=True)(X)


def of_problem(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(seeds: Any = range(1000, 1032), **own: Any) -> Any:
        return function(tt.Problem(Walk(), BALL, seeds), **{"schedules": {"even": tt.Periodic(2)}} | own)

    def without(seeds: Any = range(1000, 1032), **own: Any) -> Any:
        return function(tt.Problem(Walk(), BALL, seeds), **own)

    return call if "schedules" in inspect.signature(function).parameters else without


def projected(kind: Callable[..., Any], state: torch.Tensor = X, **good: Any) -> Callable[..., Any]:
    return lambda x=state, **own: kind(**good | own).project(x)


CALLS: dict[str, Row] = {
    "Corrector": (
        corrector,
        {"constraint": FUNCTION, "schedule": SCHEDULE, "n_steps": STEPS, "closing": [*WORD, None], "seeds": SEEDS}
        | {"on_failure": WORD, "unit": ["x", 3, Thing()]}
        | {"keep_states": FLAG, "measure_defects": FLAG, "on_step": ["x", 3, [], Thing()]}
        | {"x": STATE, "later": LATER, "t": [1, -1, T, "x", 1.5, [], Thing()]},
    ),
    "Corrector.begin": (lambda x: tt.Corrector(BALL, tt.Periodic(2), T).begin(x), {"x": STATE}),
    "Constraint": (answers, {"project": [*LATER, 1.0], "defect": [*EACH, torch.full((N,), -1.0)]}),
    "Schedule": (answers, {"schedule": DECISIONS}),
    "as_constraint": (
        tt.as_constraint,
        {"project": FUNCTION, "data": ["x", 3, {}, (1,), ("a",), None, Thing()], "needs": ["x", 3, (1,), Thing()]}
    ),
    "rollout": (
        lambda **own: tt.rollout(
            **{"sampler": Walk(), "constraint": BALL, "schedule": tt.Periodic(2), "seeds": range(N)} | own
        ),
        {"sampler": FUNCTION, "constraint": FUNCTION, "schedule": SCHEDULE, "seeds": SEEDS, "closing": WORD},
    ),
    "Problem": (
        lambda **own: tt.Problem(**{"sampler": Walk(), "constraint": BALL, "seeds": range(N)} | own),
        {"seeds": SEEDS, "sampler": FUNCTION, "constraint": FUNCTION},
    ),
    "Noise": (
        lambda shape=(2,), seeds=torch.arange(N): Noise(seeds).normal(0, shape),
        {"shape": ["x", (-1,), None], "seeds": SEEDS},
    ),
    "replay": (
        lambda schedule=tt.Periodic(2), record=RUN: replay(schedule, record),
        {"schedule": SCHEDULE, "record": FUNCTION},
    ),
    "Rollout.load": (tt.Rollout.load, {"path": PATH}),
    "load": (tt.load, {"path": PATH}),
    "domain": (tt.domain, {"name": [*WORD, None]}),
    "domain.so3": (
        lambda **own: tt.domain("so3", **own).problem(range(2)),
        {"n_steps": WHOLE, "kappa": [math.nan, math.inf, *NO_NUMBER]},
    ),
    "calibrate": (of_problem(tt.calibrate), {"seeds": SEEDS, "budget": BUDGET, "method": WORD, "objective": WORD}),
    "advise": (of_problem(tt.advise), {"seeds": SEEDS, "tolerance": [-1.0, math.nan, "x", [], Thing()], "cost": WORD}),
    "compare": (of_problem(tt.compare), {"seeds": SEEDS, "schedules": ["x", 3, [], Thing(), {"a": 3.5j}], "budgets": [["x"], [-1]]}),
    # schedules
    "Periodic": (used(tt.Periodic), {"budget": BUDGET}),
    "Geometric": (used(schedules.Geometric), {"budget": BUDGET}),
    "RandomTimes": (used(schedules.RandomTimes), {"budget": BUDGET, "seed": [1.5, "x", Thing()]}),
    "RandomRamp": (used(schedules.RandomRamp), {"budget": BUDGET, "weights": ["x", 3, torch.ones(T + 1), torch.zeros(T)]}),
    "FixedThreshold": (
        lambda value=0.1, budget=2: run(schedules.FixedThreshold(value, budget)),
        {"value": [math.nan, *NO_NUMBER], "budget": BUDGET},
    ),
    "Fixed": (used(schedules.Fixed), {"mask": MASK}),
    "Fixed.at": (schedules.Fixed.at, {"steps": [[T], ["x"], [1.5], [None], 3, None], "n_steps": STEPS}),
    "Window": (used(schedules.Window), {"start": [-1, T + 1, 1.5, math.nan, *NO_NUMBER], "stop": [math.nan, "x", Thing()]}),
    "windows": (schedules.windows, {"budget": [-1, "x", None, Thing()], "n_steps": STEPS}),
    "Trigger": (
        lambda value=0.1, gap=1, budget=2: run(schedules.Trigger(value, gap, budget)),
        {"value": [math.nan, *NO_NUMBER], "gap": WHOLE, "budget": BUDGET},
    ),
    "UntilBelow": (lambda tolerance=0.1, budget=2: run(schedules.UntilBelow(tolerance, budget)), {"budget": BUDGET}),
    "AccumulatedDefect": (lambda value, budget=2: run(schedules.AccumulatedDefect(value, budget)), {"value": ["x", None, math.nan]}),
    "AboveNoise": (used(schedules.AboveNoise), {"thresholds": ["x", None, torch.ones(T + 1), torch.full((T,), math.nan)]}),
    "By": (
        lambda way="1 iteration", schedule=tt.Periodic(2): tt.rollout(Walk(), CIRCLE, schedules.By(way, schedule), range(N)),
        {"way": ["", "0 iterations", "-1 iterations", "frozen", "1.5 iterations", 1, None, Thing(), []], "schedule": FUNCTION},
    ),
    # prices
    "Thresholds": (tt.prices.Thresholds, {"table": TABLE}),
    "Thresholds.at": (lambda budget: run(PRICES.at(budget)), {"budget": [-1, T + 1, 1.5, math.nan, True, "x", Thing()]}),
    "Adaptive": (lambda thresholds=PRICES, budget=1: run(tt.prices.Adaptive(thresholds, budget)), {"thresholds": FUNCTION}),
    "Learner": (
        lambda constraint=BALL, **own: tt.rollout(Walk(), constraint, tt.prices.Learner(**{"budget": 0.5} | own), range(N)),
        {"budget": [-1, T + 1, 1.5, math.nan, True, "x", None, Thing(), torch.ones(2).long()], "tolerance": [-1.0, math.nan, "x", None]}
        | {"quality": [3, "x", Thing()], "unit": [*WORD, None], "ways": [("x", "whole"), ("whole", "1 iteration"), (), 3, "whole"]}
        | {"twins": [-1, 1.5, "x", None, True], "seed": ["x", None, 1.5, Thing()]},
    ),
    "EnergyDescent": (
        lambda energy=lambda x: x.square().sum(1), steps=2, step_size=0.1: tt.constraints.EnergyDescent(
            energy, steps, step_size
        ),
        {"energy": FUNCTION, "steps": [0, -1, 1.5, "x"], "step_size": [-1.0, math.nan, "x"]},
    ),
    "Plan": (tt.prices.Plan, {"masks": MASK}),
    "paper_prices": (tt.prices.paper_prices, {"runs": [None, 3, "x", [], [1], ["a"], Thing(), {}]}),
    "quantile_table": (
        lambda defects=torch.rand(T, 8), budget=2: tt.prices.quantile_table(defects, budget),
        {"defects": [None, 3, "x", torch.ones(3), torch.ones(0, 3), [[1.0]]], "budget": [-1, T + 1, 1.5, "x", None]},
    ),
    # constraints
    "Box": (projected(sets.Box, low=0.0, high=1.0), {"low": [2.0, math.nan, *NOTHING], "x": STATE[4:]}),
    "Ball": (projected(sets.Ball), {"radius": [-1.0, math.nan, *NOTHING], "x": STATE[4:]}),
    "Sphere": (projected(sets.Sphere), {"radius": [-1.0, math.nan, *NOTHING], "x": STATE[4:]}),
    "Simplex": (projected(sets.Simplex), {"total": [-1.0, math.nan, *NOTHING], "x": STATE[4:]}),
    "SO3": (projected(sets.SO3, torch.rand(N, 3, 3)), {"x": POINTS}),
    "SE3": (projected(sets.SE3, torch.rand(N, 4, 4)), {"x": POINTS, "alpha": POSITIVE, "translation": NOTHING}),
    "Stiefel": (projected(sets.Stiefel, torch.rand(N, 3, 2)), {"x": POINTS[1:]}),
    "nearest_rotation": (sets.nearest_rotation, {"a": [torch.rand(3), torch.rand(N, 3, 2), "x", None, Thing(), 3]}),
    "HalfSpaces": (
        projected(sets.HalfSpaces, A=torch.rand(2, 3), b=torch.rand(2)),
        {"A": MATRIX, "b": [torch.rand(3), torch.rand(2, 2), "x", None, Thing()], "x": POINTS, "tolerance": POSITIVE},
    ),
    "AffineEquality": (projected(sets.AffineEquality, A=torch.rand(2, 3), b=torch.rand(2)), {"A": MATRIX, "x": POINTS}),
    "Surface": (sets.Surface, {"height": FUNCTION}),
    "NonlinearEquality": (
        projected(sets.NonlinearEquality, function=lambda y: (y * y).sum()[None] - 1),
        {"function": FUNCTION, "tolerance": [0.0, -1.0, math.nan, *NOTHING], "max_iterations": WHOLE, "x": STATE[4:]},
    ),
    "NonlinearInequality": (
        projected(sets.NonlinearInequality, inequalities=lambda y: (y * y).sum()[None] - 1),
        {"inequalities": FUNCTION, "max_iterations": WHOLE, "data": ["x", 3, None, (1,), Thing()]},
    ),
    "Part": (
        lambda **own: sets.Product((sets.Part(**{"start": 0, "stop": 2, "constraint": sets.Ball()} | own),)).project(X),
        {"start": [-1, 2, 1.5, *NO_NUMBER], "stop": [0, 9, 1.5, *NO_NUMBER], "constraint": FUNCTION, "weight": LEVEL},
    ),
    "Product": (sets.Product, {"parts": [(sets.Ball(),), (3,), "x", None, 3, Thing(), [None], {"a": 1}]}),
    "Together": (
        lambda x=torch.rand(N, 2, 3), **own: sets.Together(**{"constraint": sets.Ball(), "k": 2} | own).project(x),
        {"constraint": FUNCTION, "k": [*WHOLE, 3], "reduce": [*WORD, None], "x": [torch.rand(N, 3, 3), torch.rand(N), "x", None]},
    ),
    "TimeLimit": (lambda **own: sets.TimeLimit(**{"constraint": BALL, "seconds": 1.0} | own), {"constraint": FUNCTION, "seconds": POSITIVE}),
    # integrations that need no other library
    "FlowSampler": (
        lambda **own: run_flow(**{"velocity": lambda x, t: -x, "n_steps": T, "event": (3,)} | own),
        {"velocity": FUNCTION, "n_steps": STEPS, "method": [*WORD, None], "arguments": WORD, "times": TIMES}
        | {"start_from": [3, "x", Thing()], "dtype": ["x", 3, torch.int64]},
    ),
    "with_target": (
        lambda flow=None, constraint=BALL, target="clean": flows.with_target(flow, constraint, target),
        {"flow": FUNCTION, "constraint": FUNCTION, "target": [*WORD, None]},
    ),
    "check_independence": (
        lambda thing=torch.sin, batch=X, samples=3: independence.check_independence(thing, batch, samples=samples),
        {"thing": FUNCTION, "batch": [*STATE[:4], "x", None, Thing()], "samples": WHOLE},
    ),
    "check_rows": (
        lambda constraint=BALL, x=X, tolerance=None: independence.check_rows(constraint, x, tolerance=tolerance),
        {"constraint": FUNCTION, "x": STATE, "tolerance": [-1.0, math.nan, "x", [], Thing()]},
    ),
    "manifold_constraint": (manifolds.manifold_constraint, {"manifold": FUNCTION}),
    "to_tensorboard": (loggers.to_tensorboard, {"writer": FUNCTION}),
    "to_wandb": (loggers.to_wandb, {"run": FUNCTION}),
    "to_mlflow": (loggers.to_mlflow, {"mlflow": FUNCTION}),
}  # fmt: skip
"""By public name: a call whose other arguments are good, and bad values for each argument."""


def run_flow(**own: Any) -> Any:
    return run_sampler(flows.FlowSampler(**own))


def run_sampler(sampler: Any) -> Any:
    return tt.rollout(sampler, BALL, tt.Periodic(2), range(N))


CORRECTED: dict[str, Values] = {"constraint": FUNCTION, "schedule": SCHEDULE, "closing": [*WORD, None]}


def optional_calls() -> dict[str, Row]:
    """Return the rows of integrations whose libraries are installed."""
    found: dict[str, Row] = {}
    if find_spec("azula"):
        found |= _azula()
    if find_spec("diffusers"):
        found |= _diffusers()
    if find_spec("torchdiffeq"):
        found |= _torchdiffeq()
    if find_spec("flow_matching"):
        found |= _flow_matching()
    if find_spec("jax") and find_spec("diffrax"):
        found |= _jax()
    return found


def _azula() -> dict[str, Row]:
    from azula.denoise import GaussianDenoiser
    from azula.linalg.covariance import IsotropicCovariance
    from azula.noise import VPSchedule
    from azula.sample import zABSampler

    from trimtab.integrations.azula import wrap

    denoiser = GaussianDenoiser(torch.zeros(3), IsotropicCovariance(torch.ones(())), VPSchedule())
    good = {"sampler": zABSampler(denoiser, steps=T, silent=True), "constraint": BALL, "schedule": tt.Periodic(2)}
    return {"azula.wrap": (lambda x=X, **own: wrap(**good | own)(x), CORRECTED | {"sampler": FUNCTION, "x": STATE})}


def _diffusers() -> dict[str, Row]:
    from diffusers import DDIMScheduler

    from trimtab.integrations.diffusers import ProjectionCallback, unwrap, wrap
    from trimtab_lab.pipelines import pipeline_sampler

    def wrapped(sample: Any = X, **own: Any) -> None:
        scheduler = wrap(**{"thing": DDIMScheduler(), "constraint": BALL, "schedule": tt.Periodic(2)} | own)
        scheduler.set_timesteps(T)
        scheduler.step(torch.zeros(N, 3), scheduler.timesteps[0], sample)

    def sampled(**own: Any) -> Any:
        pipe = SimpleNamespace(scheduler=DDIMScheduler(), device="cpu")
        return pipeline_sampler(**{"pipe": pipe, "call": lambda pipe, generators: None, "n_steps": T} | own)

    def called_back(latents: Any = X, **own: Any) -> None:
        pipe = SimpleNamespace(scheduler=DDIMScheduler())
        pipe.scheduler.set_timesteps(T)
        callback = ProjectionCallback(**{"constraint": BALL, "schedule": tt.Periodic(2)} | own)
        callback.callback_fn(pipe, 0, pipe.scheduler.timesteps[0], {"latents": latents})

    return {
        "diffusers.wrap": (wrapped, CORRECTED | {"thing": FUNCTION, "target": WORD, "history": WORD, "sample": STATE[3:4]}),
        "unwrap": (unwrap, {"thing": FUNCTION}),
        "pipeline_sampler": (sampled, {"pipe": FUNCTION, "call": FUNCTION, "n_steps": STEPS, "history": WORD}),
        "ProjectionCallback": (called_back, CORRECTED | {"latents": STATE}),
    }  # fmt: skip


def _torchdiffeq() -> dict[str, Row]:
    from trimtab.integrations.torchdiffeq import odeint

    good: dict[str, Any] = {"func": lambda t, x: -x, "y0": X, "t": torch.linspace(0, 1, T + 1), "method": "euler"}
    good |= {"constraint": BALL, "schedule": tt.Periodic(2)}
    flow = {"velocity": lambda x, t: -x, "n_steps": T, "event": (3,), "method": "rk4"}
    return {
        "odeint": (
            lambda **own: odeint(**good | own),
            CORRECTED
            | {"func": FUNCTION, "y0": STATE, "t": TIMES, "method": [*WORD, None], "rtol": LEVEL, "atol": LEVEL}
            | {"options": [{"step_size": 0.0}, {"step_size": "x"}, {"grid_constructor": 3}, "x", 3]},
        ),
        "FlowSampler by torchdiffeq": (
            lambda **own: run_sampler(flows.FlowSampler(**flow | own)),
            {"method": [*WORD, None], "rtol": LEVEL, "atol": LEVEL, "times": TIMES},
        ),
    }


def _flow_matching() -> dict[str, Row]:
    from trimtab.integrations.flow_matching import ProjectedODESolver

    def sampled(x_init: Any = X, step_size: Any = 0.1, method: Any = "euler", time_grid: Any = None, **own: Any) -> Any:
        good: dict[str, Any] = {"velocity_model": lambda x, t: -x, "constraint": BALL, "schedule": tt.Periodic(2)}
        solver = ProjectedODESolver(**good | own)
        return solver.sample(x_init, step_size=step_size, method=method, time_grid=time_grid)

    bad = {"velocity_model": FUNCTION, "x_init": STATE, "step_size": [0.0, -1.0, math.nan, *NOTHING], "method": WORD}
    return {"ProjectedODESolver": (sampled, CORRECTED | bad | {"time_grid": TIMES[1:]})}


def _jax() -> dict[str, Row]:
    import diffrax
    import jax.numpy as jnp

    from trimtab.integrations.diffrax import diffeqsolve
    from trimtab.integrations.jax import decision_function

    ball = tt.as_constraint(lambda x: x / jnp.linalg.norm(x, axis=1, keepdims=True), lambda x: jnp.abs(x).max(axis=1))
    term = diffrax.ODETerm(lambda t, y, args: -y)
    good = {"terms": term, "solver": diffrax.Euler(), "times": jnp.linspace(0, 1, 3), "y0": jnp.ones((N, 3))}
    good |= {"constraint": ball, "schedule": tt.Periodic(1)}

    def decided(
        schedule: Any = PRICES.at(2), closing: Any = "free", shape: Any = (N,), defect: Any = None, t: Any = 0
    ) -> Any:
        start, decide = decision_function(schedule, closing)
        return decide(start(shape), jnp.ones(N) if defect is None else defect, t)

    return {
        "diffeqsolve": (
            lambda **own: diffeqsolve(**good | own),
            CORRECTED
            | {"terms": FUNCTION, "solver": FUNCTION, "times": [jnp.zeros(3), jnp.ones(()), "x", 3, None, Thing()]}
            | {"y0": [jnp.ones(()), jnp.ones((0, 3)), jnp.full((N, 3), math.nan), "x", None, 3, Thing()]},
        ),
        "decision_function": (
            decided,
            {"schedule": [tt.Periodic(2), PRICES, *FUNCTION], "closing": WORD, "shape": ["x", (-1,), (1.5,), None, -3]}
            | {"defect": [jnp.ones(N + 1), jnp.ones((N, 1)), "x", [], Thing()], "t": [-1, T, 1.5, "x", None, True]},
        ),
    }  # fmt: skip
