"""A diffusers pipeline as a sampler of rollouts and calibration."""

from __future__ import annotations

import warnings

import pytest
import torch

import free
import trimtab as tt
from diffusers_cases import EMBEDS, SCHEDULERS, STEPS, box, diffusers, quiet, unet
from trimtab.integrations.diffusers import wrap
from trimtab_lab.pipelines import pipeline_sampler

pytestmark = pytest.mark.filterwarnings("ignore:__array:DeprecationWarning")  # diffusers with numpy 2


@pytest.mark.parametrize("name", ["DDIM", "Heun", "PNDM", "UniPC"])
@pytest.mark.parametrize("history", ["keep", "restart"])
def test_a_pipeline_as_a_sampler_is_the_wrapped_pipeline(stable, name, history):
    def call(pipe, generators):
        embeds = EMBEDS[:1].repeat(len(generators), 1, 1)
        more = {"height": 8, "width": 8, "guidance_scale": 1.0, "output_type": "latent", "num_inference_steps": STEPS}
        return pipe(prompt_embeds=embeds, generator=generators, **more).images

    stable.scheduler = plain = SCHEDULERS[name]()
    sampler = pipeline_sampler(stable, call, STEPS, history=history)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*(extrapolates from|recomputes the state).*")
        run = free.rollout(sampler, box(), tt.Periodic(3), range(2))
        assert stable.scheduler is plain
        wrap(stable, box(), tt.Periodic(3), history=history)
        final = call(stable, [torch.Generator().manual_seed(seed) for seed in range(2)])
    assert torch.equal(run.final, final)
    assert torch.equal(run.projected, stable.scheduler.rollout.projected)


def test_a_pipeline_that_projects_goes_on_doing_so_after_it_was_a_sampler():
    pipe = wrap(quiet(diffusers.DDIMPipeline(unet(), SCHEDULERS["DDIM"]())), box(), tt.Stepwise())
    projecting = pipe.scheduler

    def call(pipe, generators):
        pipe(batch_size=len(generators), generator=generators, num_inference_steps=STEPS, output_type="np")

    free.rollout(pipeline_sampler(pipe, call, STEPS), box(), tt.Terminal(), range(2))
    assert pipe.scheduler is projecting
    call(pipe, [torch.Generator().manual_seed(0)])
    assert projecting.rollout.spent.tolist() == [STEPS]


def test_a_pipeline_can_be_calibrated_like_any_sampler():
    pipe = quiet(diffusers.DDIMPipeline(unet(), SCHEDULERS["DDIM"]()))

    def call(pipe, generators):
        pipe(batch_size=len(generators), generator=generators, num_inference_steps=STEPS, output_type="np")

    price = free.calibrate(
        tt.Problem(pipeline_sampler(pipe, call, STEPS), box(), range(8)), budget=0.5, method="planned", objective="path"
    )
    run = free.rollout(pipeline_sampler(pipe, call, STEPS), box(), price.at(2), range(100, 104))
    assert run.spent.tolist() == [2] * 4
    assert run.final.abs().max() <= 0.5
