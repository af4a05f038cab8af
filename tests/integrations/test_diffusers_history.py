"""Multistep solvers, whose history a projection makes stale."""

from __future__ import annotations

import pytest
import torch

import trimtab as tt
from diffusers_cases import MULTISTEP, SCHEDULERS, box, generator_for
from trimtab.integrations.diffusers import wrap
from trimtab.integrations.diffusers_schedulers import remembers, undoes

pytestmark = pytest.mark.filterwarnings("ignore:__array:DeprecationWarning")  # diffusers with numpy 2


def test_which_schedulers_have_a_history():
    assert [s for s in SCHEDULERS if remembers(SCHEDULERS[s]())] == sorted(MULTISTEP, key=list(SCHEDULERS).index)


@pytest.mark.parametrize("name", MULTISTEP)
def test_restarting_touches_projected_samples_only(name):
    def run(scheduler):
        scheduler.set_timesteps(16)
        x = torch.linspace(-2, 2, 12).reshape(3, 1, 2, 2) * scheduler.init_noise_sigma
        generator = torch.Generator()
        for t in scheduler.timesteps:
            scheduler.scale_model_input(x, t)
            extra = {"generator": generator.manual_seed(int(t))} if generator_for(scheduler) else {}
            x = scheduler.step(torch.sin(3 * x) / 3, t, x, **extra).prev_sample
        return x

    everything = tt.as_constraint(lambda x: x.clone(), lambda x: torch.zeros(len(x)))
    mask = torch.zeros(16, 3, dtype=torch.bool)
    mask[6, 1] = mask[9, 1] = True
    plain = run(SCHEDULERS[name]())
    kept = run(wrap(SCHEDULERS[name](), everything, tt.Terminal()))
    restarted = run(wrap(SCHEDULERS[name](), everything, tt.schedules.Fixed(mask), history="restart"))
    assert torch.equal(kept, plain)
    assert torch.equal(restarted[[0, 2]], plain[[0, 2]])
    assert not torch.allclose(restarted[1], plain[1], rtol=0, atol=1e-6)
    torch.testing.assert_close(restarted[1], plain[1], rtol=0.5, atol=0.5)  # another order, not another equation


@pytest.mark.parametrize(
    "name", ["DPMSolverMultistep", "DPMSolverMultistep-3", "DEIS", "LMS", "PNDM", "IPNDM", "UniPC"]
)
def test_restarting_at_every_step_is_the_first_order_solver(name):
    order_one = {"LMS": {"order": 1}}.get(name, {})
    config = {"solver_order": 1} if "solver_order" in SCHEDULERS[name]().config else {}

    def run(scheduler, forget):
        scheduler.set_timesteps(8)
        x = torch.linspace(-2, 2, 12).reshape(3, 1, 2, 2) * scheduler.init_noise_sigma
        for call, t in enumerate(scheduler.timesteps):
            scheduler.scale_model_input(x, t)
            forget(scheduler, call)
            x = scheduler.step(torch.sin(3 * x) / 3, t, x, **order_one).prev_sample
            x = x if name == "PNDM" and call == 0 else x.clamp(-1, 1)
        return x

    def first_order(scheduler, call):  # by hand, from the outside
        if hasattr(scheduler, "ets") and not (name == "PNDM" and call == 1):
            scheduler.ets = []
        if hasattr(scheduler, "last_sample"):
            scheduler.last_sample = None

    plain = type(SCHEDULERS[name]()).from_config(SCHEDULERS[name]().config, **config)
    if name == "PNDM":
        plain.step = lambda m, t, x: _plms_first_order(plain, m, t, x)
    hand = run(plain, first_order)
    order_one = {}
    wrapped = wrap(SCHEDULERS[name](), box(1.0), tt.Stepwise(), history="restart")
    torch.testing.assert_close(run(wrapped, lambda *_: None), hand, rtol=1e-4, atol=1e-4)


def _plms_first_order(scheduler, output, t, x):
    """PLMS with all remembered outputs equal: plain DDIM steps, but for the first step's two calls."""
    if scheduler.counter > 1:
        scheduler.ets = []
        scheduler.counter += 1
        previous = t - scheduler.config.num_train_timesteps // scheduler.num_inference_steps
        from diffusers.schedulers.scheduling_utils import SchedulerOutput

        return SchedulerOutput(prev_sample=scheduler._get_prev_sample(x, t, previous, output))
    return type(scheduler).step(scheduler, output, t, x)


@pytest.mark.parametrize("name", MULTISTEP)
def test_a_stale_history_is_warned_about_once(name):
    scheduler = wrap(SCHEDULERS[name](), box(), tt.Stepwise())
    scheduler.set_timesteps(16)
    x = torch.ones(1, 1, 2, 2)
    text = "recomputes the state" if undoes(scheduler) else "extrapolates from"

    def run(x):
        for t in scheduler.timesteps:
            scheduler.scale_model_input(x, t)
            x = scheduler.step(torch.zeros_like(x), t, x).prev_sample

    with pytest.warns(UserWarning, match=text) as caught:
        run(x)
    assert sum(issubclass(w.category, UserWarning) for w in caught) == 1
