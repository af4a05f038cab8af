"""Bad arguments for samplers that are not ours: one function for each package, called only where it is installed."""

from __future__ import annotations

import math
import random
from types import SimpleNamespace
from typing import Any

import torch

import trimtab as tt
from torture.spoil import Targets, spoil
from torture.targets_samplers import dtype, times
from torture.things import ball, prices
from torture.values import (
    Bad,
    N,
    T,
    Thing,
    above_zero,
    but_none,
    function,
    later_state,
    level,
    seeds,
    spoiled,
    state,
    steps,
    word,
)

CORRECTED: dict[str, Bad] = {"constraint": function, "schedule": function, "closing": word}
"""What everything that drives a corrector takes."""


def for_azula() -> Targets:
    """`wrap` of a sampler of azula."""
    from azula.denoise import GaussianDenoiser
    from azula.linalg.covariance import IsotropicCovariance
    from azula.noise import VPSchedule
    from azula.sample import zABSampler

    from trimtab.integrations.azula import wrap

    denoiser = GaussianDenoiser(torch.zeros(3), IsotropicCovariance(torch.ones(())), VPSchedule())

    def wrapped(**changes: Any) -> Any:
        given = {
            "sampler": zABSampler(denoiser, steps=T, silent=True),
            "constraint": ball(),
            "schedule": tt.Periodic(2),
        }
        return wrap(**given | changes)

    return {
        **spoil(
            "azula.wrap",
            wrapped,
            sampler=function,
            **CORRECTED,
            seeds=lambda r: but_none(seeds(r)),
        ),
        "azula.wrap state": (lambda v: wrapped()(v), state),
    }


def for_diffusers() -> Targets:
    """`wrap`, `unwrap`, `pipeline_sampler` and the callback."""
    from diffusers import DDIMScheduler

    from trimtab.integrations.diffusers import ProjectionCallback, pipeline_sampler, unwrap, wrap

    def wrapped(**changes: Any) -> Any:
        given = {"thing": DDIMScheduler(clip_sample=False), "constraint": ball(), "schedule": tt.Periodic(2)}
        return wrap(**given | changes)

    def stepped(value: Any) -> None:
        scheduler = wrapped()
        scheduler.set_timesteps(T)
        scheduler.step(torch.zeros(N, 3), scheduler.timesteps[0], value)

    def sampled(**changes: Any) -> Any:
        pipe = SimpleNamespace(scheduler=DDIMScheduler(), device="cpu")
        given: dict[str, Any] = {"pipe": pipe, "call": lambda pipe, generators: None, "n_steps": T}
        return pipeline_sampler(**given | changes)

    def called_back(value: Any) -> None:
        pipe = SimpleNamespace(scheduler=DDIMScheduler())
        pipe.scheduler.set_timesteps(T)
        ProjectionCallback(ball(), tt.Periodic(2)).callback_fn(pipe, 0, pipe.scheduler.timesteps[0], value)

    return {
        **spoil(
            "diffusers.wrap",
            wrapped,
            thing=function,
            target=word,
            history=word,
            **CORRECTED,
        ),
        "diffusers.wrap sample": (stepped, lambda r: spoiled((N, 3), r)),
        "diffusers.unwrap": (unwrap, function),
        **spoil("pipeline_sampler", sampled, pipe=function, call=function, n_steps=steps, history=word),
        "ProjectionCallback constraint": (lambda v: ProjectionCallback(v, tt.Terminal()), function),
        "ProjectionCallback schedule": (lambda v: ProjectionCallback(ball(), v), function),
        "ProjectionCallback latents": (
            called_back,
            lambda r: r.choice([{}, {"latents": state(r)}, {"latents": state(r)}]),
        ),
    }


def for_torchdiffeq() -> Targets:
    """`odeint`, and flows by its methods."""
    from trimtab.integrations.flows import OdeSampler
    from trimtab.integrations.torchdiffeq import odeint

    def solved(**changes: Any) -> Any:
        given: dict[str, Any] = {"func": lambda t, x: -x, "y0": torch.rand(N, 3), "t": torch.linspace(0, 1, T + 1)}
        given |= {"constraint": ball(), "schedule": tt.Periodic(2), "method": "euler"}
        return odeint(**given | changes)

    def flowed(**changes: Any) -> Any:
        given: dict[str, Any] = {"velocity": lambda x, t: -x, "n_steps": T, "event": (3,), "method": "rk4"}
        return tt.rollout(OdeSampler(**given | changes), ball(), tt.Periodic(2), range(N))

    def points(r: random.Random) -> Any:
        even = torch.linspace(0, 1, T + 1)
        wrong = [even[:1], even[:0], torch.zeros(T + 1), even[None], torch.cat([even, even]), even * math.nan]
        return r.choice([*wrong, torch.arange(T + 1), "x", 3, None, [0.0, 1.0], Thing()])

    def options(r: random.Random) -> Any:
        bad = [0.0, -0.1, math.nan, math.inf, "x", [], Thing(), True]
        return r.choice([{"step_size": r.choice(bad)}, {"grid_constructor": but_none(function(r))}, "x", 3, [1]])

    return {
        **spoil("odeint", solved, func=function),
        "odeint func's answer": (lambda v: solved(func=lambda t, x: v), lambda r: but_none(later_state(r))),
        **spoil("odeint", solved, y0=state, t=points),
        "odeint t, adaptive": (lambda v: solved(t=v, method="dopri5"), points),
        **spoil("odeint", solved, constraint=function, schedule=function, method=word),
        "odeint rtol": (lambda v: solved(rtol=v, method="dopri5"), lambda r: r.choice([math.inf, level(r)])),
        "odeint atol": (lambda v: solved(atol=v, method="dopri5"), lambda r: r.choice([math.inf, level(r)])),
        **spoil("odeint", solved, options=options, closing=word),
        **spoil(
            "OdeSampler",
            flowed,
            method=word,
            rtol=lambda r: r.choice([math.inf, level(r)]),
            atol=level,
            times=times,
            dtype=dtype,
        ),
    }


def for_flow_matching() -> Targets:
    """Its solver, with projections."""
    from trimtab.integrations.flow_matching import ProjectedODESolver

    def solver(**changes: Any) -> Any:
        given: dict[str, Any] = {"velocity_model": lambda x, t: -x, "constraint": ball(), "schedule": tt.Periodic(2)}
        return ProjectedODESolver(**given | changes)

    def sampled(**changes: Any) -> Any:
        given: dict[str, Any] = {"x_init": torch.rand(N, 3), "step_size": 0.1}
        return solver().sample(**given | changes)

    return {
        **spoil("ProjectedODESolver", solver, velocity_model=function, **CORRECTED),
        **spoil(
            "ProjectedODESolver.sample",
            sampled,
            x_init=state,
            step_size=lambda r: but_none(above_zero(r)),
            method=word,
            time_grid=lambda r: but_none(_grid(r)),
            enable_grad=lambda r: r.choice([True, "x", 3]),
        ),
    }


def _grid(r: random.Random) -> Any:
    wrong = [torch.zeros(2), torch.ones(()), torch.rand(2, 2), torch.tensor([0.0, math.nan]), torch.tensor([0.0])]
    return r.choice([*wrong, "x", 3, [0.0, 1.0], Thing()])


def for_jax() -> Targets:
    """Decisions as pure functions."""
    import jax.numpy as jnp

    from trimtab.integrations.jax import decision_function

    start, decide = decision_function(prices().at(2), "free")

    def defect(r: random.Random) -> Any:
        odd = ["x", None, [], Thing(), {}, len]
        return r.choice([jnp.ones(N + 1), jnp.ones((N, 1)), jnp.ones(()), jnp.ones(N, complex), *odd])

    return {
        "decision_function schedule": (decision_function, lambda r: r.choice([tt.Periodic(2), prices(), function(r)])),
        "decision_function closing": (lambda v: decision_function(prices().at(2), v), lambda r: but_none(word(r))),
        "decision_function budget": (
            lambda v: decision_function(prices().at(v)),
            lambda r: r.choice([torch.ones(N).long(), T + 1, -1, math.nan, "x"]),
        ),
        "decision_function start": (start, lambda r: r.choice(["x", (-1,), (1.5,), None, Thing(), ("a",), {}, -3])),
        "decision_function state": (lambda v: decide(v, jnp.ones(N), 0), function),
        "decision_function defect": (lambda v: decide(start((N,)), v, 0), defect),
        "decision_function t": (
            lambda v: decide(start((N,)), jnp.ones(N), v),
            lambda r: r.choice([-1, T, T + r.randint(1, 99), 1.5, "x", None, [], Thing(), True, math.nan]),
        ),
    }


def for_diffrax() -> Targets:
    """Its solvers, step by step."""
    import diffrax
    import jax.numpy as jnp

    from trimtab.integrations.diffrax import diffeqsolve

    sphere = tt.as_constraint(
        lambda x: x / jnp.linalg.norm(x, axis=1, keepdims=True), lambda x: jnp.abs(jnp.linalg.norm(x, axis=1) - 1)
    )

    def solved(**changes: Any) -> Any:
        given: dict[str, Any] = {"terms": diffrax.ODETerm(lambda t, y, args: -y), "solver": diffrax.Euler()}
        given |= {"times": jnp.linspace(0, 1, 3), "y0": jnp.ones((N, 3)), "constraint": sphere}
        return diffeqsolve(**given | {"schedule": tt.Periodic(1)} | changes)

    def points(r: random.Random) -> Any:
        wrong = [
            jnp.zeros(3),
            jnp.ones(()),
            jnp.ones((2, 2)),
            jnp.array([0.0, math.nan]),
            jnp.array([0.0]),
            jnp.arange(0),
        ]
        return r.choice([*wrong, jnp.array([0.0, 1.0, 0.5]), "x", 3, None, Thing(), ["a", "b"]])

    def states(r: random.Random) -> Any:
        wrong = [jnp.ones(()), jnp.ones((0, 3)), jnp.ones((N, 3), int), jnp.full((N, 3), math.nan), jnp.ones((N, 0))]
        return r.choice([*wrong, "x", None, 3, [], {}, Thing(), len])

    return {
        **spoil(
            "diffeqsolve",
            solved,
            terms=function,
            solver=function,
            times=points,
            y0=states,
            **CORRECTED,
            seeds=lambda r: but_none(seeds(r)),
            groups=lambda r: r.choice(["x", 3, Thing(), torch.ones(N + 1).long()]),
        ),
    }
