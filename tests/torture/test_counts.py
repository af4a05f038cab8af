"""A projection that counts its rows, in every integration: what a record says is what was projected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import trimtab as tt

T, N = 8, 5


class Counting(tt.Constraint):
    """The unit ball; it counts the rows it projects."""

    def __init__(self) -> None:
        self.rows = 0

    def project(self, x):
        self.rows += len(x)
        return x / (x**2).sum(1)[:, None].clip(1) ** 0.5

    def defect(self, x):
        return ((x**2).sum(1) ** 0.5 - 1).clip(0)

    def take(self, rows):
        return self


def drift(x: Any, t: Any) -> Any:
    return 1.5 * x


def by_hand(constraint, schedule, **options):
    corrector = tt.Corrector(constraint, schedule, T, **options)
    x = torch.ones(N, 3)
    for t in range(T):
        x = corrector(x * 1.2, t)
    return corrector.rollout


def by_loop(constraint, schedule, **options):
    from trimtab_lab.loops import LoopSampler

    def loop(correct, seeds):
        x = torch.ones(len(seeds), 3)
        for _ in range(T):
            x = correct(x * 1.2)

    return tt.rollout(LoopSampler(loop, T), constraint, schedule, range(N), **options)


def by_flow(constraint, schedule, **options):
    from trimtab.integrations.flows import FlowSampler

    flow = FlowSampler(velocity=drift, n_steps=T, event=(3,), method="heun2")
    return tt.rollout(flow, constraint, schedule, range(N), **options)


def diffusers(name: str) -> Callable[..., Any]:
    def run(constraint, schedule, **options):
        module = pytest.importorskip("diffusers")
        from trimtab.integrations.diffusers import wrap

        plain = getattr(module, name)()
        scheduler = wrap(plain, constraint, schedule, history="restart", **options)
        scheduler.set_timesteps(T)
        x = 3 * torch.ones(N, 3)
        for t in scheduler.timesteps:
            scheduler.scale_model_input(x, t)
            x = (
                scheduler.step(-x, t, x, generator=torch.Generator().manual_seed(0)).prev_sample
                if (name == "DDIMScheduler")
                else scheduler.step(-x, t, x).prev_sample
            )
        return scheduler.rollout

    return run


def by_callback(constraint, schedule, **options):
    module = pytest.importorskip("diffusers")
    from types import SimpleNamespace

    from trimtab.integrations.diffusers import ProjectionCallback

    scheduler = module.DDIMScheduler(clip_sample=False)
    scheduler.set_timesteps(T)
    callback, x = ProjectionCallback(constraint, schedule, **options), 3 * torch.ones(N, 3)
    for i, t in enumerate(scheduler.timesteps):
        x = scheduler.step(-x, t, x).prev_sample
        x = callback(SimpleNamespace(scheduler=scheduler), i, t, {"latents": x})["latents"]
    return callback.rollout


def azula(name: str) -> Callable[..., Any]:
    def run(constraint, schedule, **options):
        sample = pytest.importorskip("azula.sample")
        from azula.denoise import GaussianDenoiser
        from azula.linalg.covariance import IsotropicCovariance
        from azula.noise import VPSchedule

        from trimtab.integrations.azula import wrap

        denoiser = GaussianDenoiser(2 * torch.ones(3), IsotropicCovariance(torch.ones(())), VPSchedule())
        sampler = wrap(getattr(sample, name)(denoiser, steps=T, silent=True), constraint, schedule, **options)
        sampler(3 * torch.ones(N, 3))
        return sampler.rollout

    return run


def torchdiffeq(method: str) -> Callable[..., Any]:
    def run(constraint, schedule, **options):
        pytest.importorskip("torchdiffeq")
        from trimtab.integrations.torchdiffeq import odeint

        times = torch.linspace(0, 1, T + 1)
        return odeint(
            lambda t, x: drift(x, t), torch.ones(N, 3), times, constraint, schedule, method=method, **options
        )[1]

    return run


def flow_matching(method: str) -> Callable[..., Any]:
    def run(constraint, schedule, **options):
        pytest.importorskip("flow_matching")
        from trimtab.integrations.flow_matching import ProjectedODESolver

        solver = ProjectedODESolver(drift, constraint, schedule, **options)
        grid = torch.linspace(0, 1, T + 1)
        solver.sample(torch.ones(N, 3), step_size=None, method=method, time_grid=grid)
        return solver.rollout

    return run


def by_diffrax(constraint, schedule, **options):
    module = pytest.importorskip("diffrax")
    import jax.numpy as jnp

    from trimtab.integrations.diffrax import diffeqsolve

    term = module.ODETerm(lambda t, y, args: drift(y, t))
    return diffeqsolve(
        term, module.Heun(), jnp.linspace(0, 1, T + 1), jnp.ones((N, 3)), constraint, schedule, **options
    )[1]


LOOPS: dict[str, Callable[..., Any]] = {
    "a loop": by_hand,
    "LoopSampler": by_loop,
    "FlowSampler": by_flow,
    "diffusers DDIM": diffusers("DDIMScheduler"),
    "diffusers DPM multistep": diffusers("DPMSolverMultistepScheduler"),
    "diffusers Heun": diffusers("HeunDiscreteScheduler"),
    "diffusers callback": by_callback,
    "azula DDIM": azula("DDIMSampler"),
    "azula multistep": azula("zABSampler"),
    "torchdiffeq rk4": torchdiffeq("rk4"),
    "torchdiffeq dopri5": torchdiffeq("dopri5"),
    "flow_matching midpoint": flow_matching("midpoint"),
    "flow_matching dopri5": flow_matching("dopri5"),
    "diffrax": by_diffrax,
}


def price(budget: int) -> Any:
    table = torch.full((T, T + 1), 0.1)
    table[:, 0] = torch.inf
    return tt.prices.Thresholds(table).at(budget)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of diffusers and JAX
@pytest.mark.parametrize("closing", ["paid", "free", "none"])
@pytest.mark.parametrize("name", LOOPS)
def test_the_rows_projected_are_the_rows_counted(name, closing):
    for schedule, exact in ((tt.Periodic(3), True), (price(3), False), (tt.Stepwise(), False), (tt.Terminal(), False)):
        constraint = Counting()
        run = LOOPS[name](constraint, schedule, closing=closing)
        assert run.n_steps == T
        assert constraint.rows == int(run.projected.sum() + run.closing.sum()) == int(run.paid.sum()), schedule
        if exact:
            assert run.spent.tolist() == [3] * N, schedule
        assert int(run.spent.max()) <= T if isinstance(schedule, tt.Stepwise) else int(run.spent.max()) <= 3, schedule


def test_decisions_inside_jit_spend_what_they_may():
    jax = pytest.importorskip("jax")
    import jax.numpy as jnp

    from trimtab.integrations.jax import decision_function

    for closing in ("paid", "free", "none"):
        start, decide = decision_function(price(3), closing)
        state, spent = start((N,)), jnp.zeros(N, int)
        for t in range(T):
            mask, state = jax.jit(decide)(state, jnp.full(N, 0.5), t)
            spent = spent + mask
        assert spent.tolist() == [3] * N
