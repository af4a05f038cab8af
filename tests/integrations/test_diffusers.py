"""Wrapped pipelines, and callbacks, against loops written by hand."""

from __future__ import annotations

import inspect

import pytest
import torch

import trimtab as tt
from cases import allowance
from diffusers_cases import (
    EMBEDS,
    LATENTS,
    SCHEDULERS,
    STABLE_DIFFUSION,
    STEPS,
    box,
    boxes,
    conditional_unet,
    diffusers,
    generate,
    quiet,
    run_alone,
    stable_pipeline,
    unet,
    vae,
)
from trimtab.integrations.diffusers import ProjectionCallback, wrap

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:__array:DeprecationWarning"),
]  # diffusers with numpy 2


def by_hand(pipe, scheduler, project, every_step):
    """The same run as a plain loop with the projection written into it."""
    generator = torch.Generator().manual_seed(7)
    extra = {"generator": generator} if "generator" in inspect.signature(scheduler.step).parameters else {}
    extra |= {"eta": 0.0} if "eta" in inspect.signature(scheduler.step).parameters else {}
    scheduler.set_timesteps(STEPS)
    x = LATENTS * scheduler.init_noise_sigma
    text = EMBEDS.repeat_interleave(2, dim=0)
    text = torch.cat([torch.zeros_like(text), text])
    calls = 0
    with torch.no_grad():
        for t in scheduler.timesteps:
            noise, wanted = pipe.unet(
                scheduler.scale_model_input(torch.cat([x, x]), t), t, encoder_hidden_states=text
            ).sample.chunk(2)
            x = scheduler.step(noise + 7.5 * (wanted - noise), t, x, **extra).prev_sample
            calls += 1
            last = calls == len(scheduler.timesteps)
            inside = {
                "HeunDiscreteScheduler": calls % 2 == 1,
                "KDPM2DiscreteScheduler": calls % 2 == 1,
                "KDPM2AncestralDiscreteScheduler": calls % 2 == 1,
                "PNDMScheduler": calls == 1,
                "DPMSolverSinglestepScheduler": calls in (1, 3),  # orders 1, 2, 1, 2, 1, 1
            }.get(type(scheduler).__name__, False)
            if last or (every_step and not inside):
                x = project(x)
    return x


# ------------------------------------------------------------------ bit for bit the loop by hand


@pytest.mark.parametrize("schedule", [tt.Terminal(), tt.Stepwise()], ids=["terminal", "stepwise"])
@pytest.mark.parametrize("name", STABLE_DIFFUSION)
def test_a_wrapped_pipeline_is_the_loop_by_hand_bit_for_bit(stable, name, schedule):
    stable.scheduler = SCHEDULERS[name]()
    wrap(stable, box(), schedule)
    out = generate(stable)
    hand = by_hand(stable, SCHEDULERS[name](), box().project, isinstance(schedule, tt.Stepwise))
    assert torch.equal(out, hand)
    assert out.abs().max() <= 0.5
    run = stable.scheduler.rollout
    assert torch.equal(run.final, out)
    assert run.spent.tolist() == [run.n_steps if isinstance(schedule, tt.Stepwise) else 1] * 4  # the closing one


@pytest.mark.parametrize("kind", ["DDPM", "DDIM"])
def test_an_unconditional_pipeline_is_the_loop_by_hand_bit_for_bit(kind):
    scheduler = SCHEDULERS[kind]()
    pipe = quiet(getattr(diffusers, f"{kind}Pipeline")(unet(), scheduler))
    wrap(pipe, box(), tt.Stepwise())
    out = pipe(batch_size=3, num_inference_steps=STEPS, generator=torch.Generator().manual_seed(3), output_type="np")

    generator = torch.Generator().manual_seed(3)
    scheduler.set_timesteps(STEPS)
    with torch.no_grad():
        x = torch.randn(3, 1, 8, 8, generator=generator)
        for t in scheduler.timesteps:
            x = scheduler.step(unet()(x, t).sample, t, x, generator=generator).prev_sample.clamp(-0.5, 0.5)
    assert torch.equal(pipe.scheduler.rollout.final, x)
    assert torch.equal(torch.from_numpy(out.images), (x / 2 + 0.5).clamp(0, 1).permute(0, 2, 3, 1))


def test_without_corrections_the_pipeline_is_untouched_but_for_its_end(stable):
    everything = tt.as_constraint(lambda x: x, lambda x: torch.zeros(len(x)))
    plain = generate(stable)
    assert torch.equal(generate(wrap(stable, everything, tt.Stepwise())), plain)


@pytest.mark.parametrize("return_dict", [True, False])
def test_tuples_and_dataclasses(return_dict):
    scheduler = wrap(SCHEDULERS["Euler"](), box(), tt.Stepwise())
    scheduler.set_timesteps(2)
    x = torch.ones(2, 1, 2, 2) * scheduler.init_noise_sigma
    for t in scheduler.timesteps:
        scheduler.scale_model_input(x, t)
        answer = scheduler.step(torch.zeros_like(x), t, x, return_dict=return_dict)
        x = answer[0]
        if return_dict:
            assert answer.prev_sample is answer["prev_sample"] is x
        else:
            assert isinstance(answer, tuple)
        assert x.max() == 0.5
    assert answer[1] is not x  # the prediction is another thing than the state


def test_a_pipeline_that_decodes_the_denoised_sample_ends_feasible():
    network = diffusers.UNet2DConditionModel.from_config(conditional_unet().config, time_cond_proj_dim=8).eval()
    pipe = stable_pipeline("LatentConsistencyModelPipeline", SCHEDULERS["LCM"](), network)
    wrap(pipe, box(0.1), tt.Terminal())
    more = {"height": 8, "width": 8, "output_type": "latent", "generator": torch.Generator().manual_seed(0)}
    assert pipe(prompt_embeds=EMBEDS, num_inference_steps=3, **more).images.abs().max() <= 0.1


@pytest.mark.parametrize("name", ["DDIM", "Euler", "Heun", "PNDM", "DPMSolverMultistep"])
@pytest.mark.parametrize("way", ["wrap", "callback"])
def test_image_to_image_counts_the_steps_it_makes(stable, name, way):
    components = stable.components | {
        "scheduler": SCHEDULERS[name](**{} if name in ("DDIM", "PNDM") else {"steps_offset": 1})
    }
    pipe = quiet(diffusers.StableDiffusionImg2ImgPipeline(**components, requires_safety_checker=False))
    image = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    more = {"image": image, "latents": LATENTS[:2], "strength": 0.5, "steps": 10}
    if way == "wrap":
        wrap(pipe, box(), tt.Stepwise())
        out, run = generate(pipe, **more), pipe.scheduler.rollout
    else:
        callback = ProjectionCallback(box(), tt.Stepwise())
        out = generate(pipe, callback_on_step_end=callback, **more)
        run = callback.rollout
    assert out.abs().max() <= 0.5
    assert run.n_steps == 5


# ------------------------------------------------------------------ samples stay apart


@pytest.mark.parametrize("name", ["DDIM", "Heun", "PNDM", "UniPC", "DPMSolverMultistep"])
@pytest.mark.parametrize("history", ["keep", "restart"])
def test_guidance_and_images_per_prompt_keep_samples_apart(stable, name, history):
    reach = torch.tensor([0.3, 30.0, 0.6, 1.5])
    thresholds = tt.prices.Thresholds(torch.full((STEPS, 7), 2.0).index_fill(1, torch.tensor([0]), torch.inf))

    def images(rows, corrected=True):
        stable.scheduler = SCHEDULERS[name]()
        if corrected:
            wrap(stable, boxes(reach[rows]), tt.prices.Adaptive(thresholds), history=history)
        embeds = EMBEDS if len(rows) == 4 else EMBEDS[rows[0] // 2, None]
        out = generate(stable, LATENTS[rows], embeds)
        return out, stable.scheduler.rollout.projected if corrected else None

    # the network's kernels depend on the batch size, so that the bare pipeline's own images are not the same either
    bare, _ = images([0, 1, 2, 3], corrected=False)
    allowed = allowance(bare, torch.cat([images([i], corrected=False)[0] for i in range(4)]))
    together, projected = images([0, 1, 2, 3])
    assert (projected != projected[:, :1]).any()  # samples do decide differently
    assert (together.flatten(1).abs().amax(dim=1) <= reach).all()
    for i in range(4):
        alone, chosen = images([i])
        assert torch.equal(chosen[:, 0], projected[:, i])
        assert (alone[0] - together[i]).abs().max() <= allowed
    assert (together[0] - together[2]).abs().max() > 10 * allowed  # it tells samples apart


def test_a_pipeline_that_steps_every_image_twice_keeps_them_apart_too():
    sizes = {"num_attention_heads": 2, "attention_head_dim": 4, "num_layers": 1, "norm_num_groups": 4}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = diffusers.DiTTransformer2DModel(
            in_channels=4, out_channels=8, sample_size=8, patch_size=2, num_embeds_ada_norm=1000, **sizes
        ).eval()
    pipe = quiet(diffusers.DiTPipeline(network, vae(), SCHEDULERS["DDIM"]()))
    reach = torch.tensor([0.3, 0.6])
    wrap(pipe, boxes(reach.repeat(2)), tt.Periodic(2))
    pipe([1, 2], num_inference_steps=4, generator=torch.Generator().manual_seed(0), output_type="np")
    run = pipe.scheduler.rollout
    assert torch.equal(run.final[:2], run.final[2:])
    torch.testing.assert_close(run.final.flatten(1).abs().amax(dim=1), reach.repeat(2))
    assert run.spent.tolist() == [2] * 4


# ------------------------------------------------------------------ the callback


@pytest.mark.parametrize("name", ["DDIM", "Heun", "PNDM", "LCM", "DPMSolverSinglestep", "UniPC"])
def test_the_callback_does_what_the_wrapper_does(stable, name):
    stable.scheduler = SCHEDULERS[name]()
    callback = ProjectionCallback(box(), tt.Periodic(0.5))
    ours = generate(stable, callback_on_step_end=callback)
    stable.scheduler = SCHEDULERS[name]()
    wrap(stable, box(), tt.Periodic(0.5))
    assert torch.equal(ours, generate(stable))
    assert torch.equal(callback.rollout.projected, stable.scheduler.rollout.projected)


def test_callbacks_compose(stable):
    from diffusers.callbacks import MultiPipelineCallbacks, PipelineCallback

    class Count(PipelineCallback):
        tensor_inputs = ("prompt_embeds",)
        seen = 0

        def callback_fn(self, pipeline, step_index, timestep, callback_kwargs):
            self.seen += 1
            assert callback_kwargs["prompt_embeds"].shape[0] == 8
            assert callback_kwargs["latents"].abs().max() <= 0.5
            return callback_kwargs

    count, callback = Count(), ProjectionCallback(box(), tt.Stepwise())
    alone = generate(stable, callback_on_step_end=callback)
    both = generate(stable, callback_on_step_end=MultiPipelineCallbacks([callback, count]))
    assert torch.equal(alone, both)
    assert count.seen == STEPS


def test_a_callback_without_latents_is_explained(stable):
    callback = ProjectionCallback(box(), tt.Stepwise())
    with pytest.raises(ValueError, match="did not pass its latents"):
        callback(stable, 0, torch.tensor(1), {})
    with pytest.raises(RuntimeError, match="but not for step 0"):
        callback(stable, 3, torch.tensor(1), {"latents": LATENTS})


# ------------------------------------------------------------------ calibration, dtypes, bad use


def test_calibrating_from_a_pipeline(stable):
    wrap(stable, box(), tt.Terminal(), measure_defects=True)
    generate(stable)
    prices = tt.prices.paper_prices([stable.scheduler.rollout], budget=0.5)
    assert (prices.n_steps, prices.budget) == (STEPS, 3)
    wrap(stable, box(), tt.prices.Adaptive(prices))
    generate(stable)
    assert (stable.scheduler.rollout.spent <= 3).all()
    with pytest.raises(ValueError, match=f"calibrated for T = {STEPS} steps and cannot be used for T = 9"):
        generate(stable, steps=9)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_defects_of_half_precision_latents_are_float32(dtype):
    scheduler = wrap(SCHEDULERS["DDIM"](), box(), tt.Stepwise())
    scheduler.set_timesteps(3)
    x = torch.ones(2, 1, 2, 2, dtype=dtype)
    for t in scheduler.timesteps:
        x = scheduler.step(torch.zeros_like(x), t, x).prev_sample
    assert x.dtype == dtype
    assert scheduler.rollout.defects.dtype == torch.promote_types(dtype, torch.float32)


def test_bad_use_is_explained(stable):
    with pytest.raises(ValueError, match="target must be one of 'state', 'clean': got 'x0'"):
        wrap(stable, box(), tt.Stepwise(), target="x0")
    with pytest.raises(ValueError, match="history must be one of"):
        wrap(stable, box(), tt.Stepwise(), history="forget")
    with pytest.raises(ValueError, match="goes backwards"):
        wrap(diffusers.RePaintScheduler(), box(), tt.Stepwise())

    class Decoder(diffusers.DiffusionPipeline):
        def __init__(self, vae):
            super().__init__()
            self.register_modules(vae=vae)

    with pytest.raises(ValueError, match=r"Decoder has no scheduler to hook into \(its components: vae\)"):
        wrap(Decoder(stable.vae), box(), tt.Stepwise())
    with pytest.raises(ValueError, match="has no step to hook into"):
        wrap(torch.nn.Linear(1, 1), box(), tt.Stepwise())

    class Bare:
        project = staticmethod(lambda x: x)
        defect = staticmethod(lambda x: torch.zeros(len(x)))

    with pytest.raises(TypeError, match=r"derive from trimtab\.Constraint: got Bare"):
        wrap(stable, Bare(), tt.Stepwise())
    scheduler = wrap(SCHEDULERS["DDIM"](), box(), tt.Stepwise())
    scheduler.set_timesteps(5)
    with pytest.warns(RuntimeWarning, match=r"timestep 3 is not one of the 5 timesteps.*is not corrected"):
        scheduler.step(LATENTS, 3, LATENTS)
    scheduler.step(LATENTS, 3, LATENTS)  # said once
    churned = wrap(SCHEDULERS["Euler"](), box(), tt.Stepwise(), target="clean")
    churned.set_timesteps(5)
    churned.scale_model_input(LATENTS, churned.timesteps[0])
    with pytest.raises(ValueError, match="s_churn"):
        churned.step(LATENTS, churned.timesteps[0], LATENTS, s_churn=1.0)
    edm = wrap(diffusers.EDMEulerScheduler(), box(), tt.Stepwise(), target="clean")
    edm.set_timesteps(5)
    with pytest.raises(ValueError, match="does not know how EDMEulerScheduler"):
        edm.step(LATENTS, edm.timesteps[0], LATENTS)


@pytest.mark.parametrize("name", ["Euler", "DPMSolverMultistep", "DEIS"])
def test_a_constraint_may_ask_for_the_noise_level_and_the_state_before(name):
    asked = []

    def project(x, timestep, sigma, previous):
        asked.append((float(timestep), float(sigma)))
        assert previous.shape == x.shape
        return x

    needs = ("timestep", "sigma", "previous")
    needy = tt.as_constraint(project, lambda x, timestep, sigma, previous: x.flatten(1)[:, 0] * 0, needs=needs)
    scheduler = wrap(SCHEDULERS[name](), needy, tt.Stepwise(), history="restart")
    run_alone(scheduler)
    assert [timestep for timestep, _ in asked] == pytest.approx(scheduler.timesteps.tolist())
    assert [sigma for _, sigma in asked] == pytest.approx(scheduler.sigmas[1:].tolist())
