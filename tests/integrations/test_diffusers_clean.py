"""Projecting the clean sample that a model predicts."""

from __future__ import annotations

import pytest
import torch

import trimtab as tt
from diffusers_cases import SCHEDULERS, SEVERAL_CALLS_A_STEP, STEPS, box, generate, generator_for, run_alone
from trimtab.integrations.diffusers import wrap
from trimtab.integrations.diffusers_schedulers import clean_prediction, first_call

pytestmark = pytest.mark.filterwarnings("ignore:__array:DeprecationWarning")  # diffusers with numpy 2

CLEAN = [s for s in SCHEDULERS if s not in [*SEVERAL_CALLS_A_STEP, "IPNDM"]]
KINDS = ["epsilon", "v_prediction", "sample"]
PREDICTIONS = [  # EulerAncestral does not implement sample prediction
    (name, kind)
    for name in CLEAN
    for kind in KINDS
    if name != "FlowMatchEuler" and (name, kind) != ("EulerAncestral", "sample")
]


def at_call(scheduler, call=2):
    scheduler.set_timesteps(5)
    t = scheduler.timesteps[call]
    if hasattr(scheduler, "set_begin_index"):
        scheduler.set_begin_index(call)
    first_call(scheduler, t)
    return t


def states(seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(3, 1, 2, 2, generator=generator), torch.randn(3, 1, 2, 2, generator=generator)


@pytest.mark.parametrize(("name", "kind"), PREDICTIONS)
def test_model_output_and_clean_sample_belong_together(name, kind):
    scheduler = SCHEDULERS[name](prediction_type=kind)
    relation = clean_prediction(scheduler, at_call(scheduler))
    output, x = states(1)
    torch.testing.assert_close(relation.model_output(relation.clean(output, x), x), output, rtol=1e-4, atol=1e-4)


REPORTING = ["DDPM", "DDIM", "Euler", "EulerAncestral", "LMS"]


@pytest.mark.parametrize(("name", "kind"), [p for p in PREDICTIONS if p[0] in REPORTING])
def test_the_clean_sample_is_the_one_the_scheduler_reports(name, kind):
    scheduler = SCHEDULERS[name](prediction_type=kind)
    t = at_call(scheduler)
    output, x = states(2)
    scheduler.scale_model_input(x, t)
    ours = clean_prediction(scheduler, t).clean(output, x)
    torch.testing.assert_close(ours, scheduler.step(output, t, x).pred_original_sample, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "kind"), [*PREDICTIONS, ("FlowMatchEuler", None)])
def test_projecting_the_clean_sample_is_giving_the_model_a_feasible_prediction(name, kind):
    more = {} if kind is None else {"prediction_type": kind}
    schedule = tt.schedules.Fixed(torch.tensor([True, False]))
    plain = SCHEDULERS[name](**more)
    wrapped = wrap(plain, box(), schedule, target="clean", history="restart")
    output, x = states(3)
    for scheduler in (plain, wrapped):
        scheduler.set_timesteps(2)
    t = plain.timesteps[0]
    first_call(plain, t)
    for scheduler in (plain, wrapped):
        if hasattr(scheduler, "scale_model_input"):
            scheduler.scale_model_input(x, t)
    relation = clean_prediction(plain, t)
    rewritten = relation.model_output(relation.clean(output, x).clamp(-0.5, 0.5), x)
    by_us = wrapped.step(output, t, x, **generator_for(wrapped)).prev_sample
    torch.testing.assert_close(by_us, plain.step(rewritten, t, x, **generator_for(plain)).prev_sample)
    t = wrapped.timesteps[1]
    assert wrapped.step(output, t, by_us, **generator_for(wrapped)).prev_sample.abs().max() <= 0.5
    assert wrapped.rollout.projected[:, 0].tolist() == [True, True]  # the last step closes the run


@pytest.mark.parametrize("name", ["DDIM", "Euler", "DPMSolverMultistep"])
def test_clean_target_in_a_pipeline(stable, name):
    stable.scheduler = SCHEDULERS[name]()
    out = generate(wrap(stable, box(), tt.Stepwise(), target="clean", history="restart"))
    assert out.abs().max() <= 0.5
    assert stable.scheduler.rollout.spent.tolist() == [STEPS] * 4
    stable.scheduler = SCHEDULERS[name]()
    assert not torch.equal(out, generate(wrap(stable, box(), tt.Stepwise(), history="restart")))


def test_clean_target_by_hand_bit_for_bit():
    wrapped = wrap(SCHEDULERS["DDIM"](), box(), tt.Stepwise(), target="clean")
    plain = SCHEDULERS["DDIM"]()
    x = y = torch.linspace(-2, 2, 12).reshape(3, 1, 2, 2)
    for scheduler in (wrapped, plain):
        scheduler.set_timesteps(5)
    for t in plain.timesteps:
        x = wrapped.step(torch.sin(3 * x), t, x).prev_sample
        noise, signal = torch.sin(3 * y), plain.alphas_cumprod[t]
        clean = ((y - (1 - signal).sqrt() * noise) / signal.sqrt()).clamp(-0.5, 0.5)
        last = t == plain.timesteps[-1]
        noise = noise if last else (y - signal.sqrt() * clean) / (1 - signal).sqrt()
        y = plain.step(noise, t, y).prev_sample
        y = y.clamp(-0.5, 0.5) if last else y
    assert torch.equal(x, y)


def test_a_learned_variance_rides_along():
    scheduler = wrap(SCHEDULERS["DDPM"](variance_type="learned_range"), box(), tt.Stepwise(), target="clean")
    scheduler.set_timesteps(3)
    x = torch.ones(2, 1, 4, 4)
    for t in scheduler.timesteps:
        output = torch.cat([0.1 * x, torch.full_like(x, 0.2)], dim=1)
        x = scheduler.step(output, t, x, generator=torch.Generator().manual_seed(0)).prev_sample
    assert x.shape == (2, 1, 4, 4)
    assert x.abs().max() <= 0.5


@pytest.mark.parametrize("name", ["Heun", "PNDM", "DPMSolverSinglestep"])
def test_clean_target_needs_one_call_a_step(name):
    scheduler = wrap(SCHEDULERS[name](), box(), tt.Stepwise(), target="clean")
    with pytest.raises(ValueError, match="every call ends a step"):
        run_alone(scheduler)
