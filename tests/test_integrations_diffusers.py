"""Real diffusers schedulers and pipelines, with small models of random weights; no mocks, no downloads."""

from __future__ import annotations

import copy
import inspect
import warnings

import pytest
import torch

import trimtab as tt

diffusers = pytest.importorskip("diffusers", reason="needs the diffusers extra")
pytest.importorskip("transformers", reason="needs the diffusers extra")

from trimtab.integrations.diffusers import ProjectionCallback, unwrap, wrap  # noqa: E402
from trimtab.integrations.diffusers_calls import first_call, step_ends  # noqa: E402
from trimtab.integrations.diffusers_clean import clean_prediction  # noqa: E402
from trimtab.integrations.diffusers_history import remembers, undoes  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:__array:DeprecationWarning")  # diffusers with numpy 2

SCHEDULERS = {
    "DDPM": lambda **k: diffusers.DDPMScheduler(clip_sample=False, **k),
    "DDIM": lambda **k: diffusers.DDIMScheduler(clip_sample=False, steps_offset=1, **k),
    "PNDM": lambda **k: diffusers.PNDMScheduler(skip_prk_steps=True, steps_offset=1, **k),
    "PNDM-prk": lambda **k: diffusers.PNDMScheduler(steps_offset=1, **k),
    "Euler": lambda **k: diffusers.EulerDiscreteScheduler(**k),
    "EulerAncestral": lambda **k: diffusers.EulerAncestralDiscreteScheduler(**k),
    "Heun": lambda **k: diffusers.HeunDiscreteScheduler(**k),
    "KDPM2": lambda **k: diffusers.KDPM2DiscreteScheduler(**k),
    "KDPM2Ancestral": lambda **k: diffusers.KDPM2AncestralDiscreteScheduler(**k),
    "LMS": lambda **k: diffusers.LMSDiscreteScheduler(**k),
    "DPMSolverMultistep": lambda **k: diffusers.DPMSolverMultistepScheduler(**k),
    "DPMSolverMultistep-3": lambda **k: diffusers.DPMSolverMultistepScheduler(
        solver_order=3, lower_order_final=False, **k
    ),
    "DPMSolverSinglestep": lambda **k: diffusers.DPMSolverSinglestepScheduler(lower_order_final=True, **k),
    "DEIS": lambda **k: diffusers.DEISMultistepScheduler(**k),
    "UniPC": lambda **k: diffusers.UniPCMultistepScheduler(**k),
    "SASolver": lambda **k: diffusers.SASolverScheduler(**k),
    "LCM": lambda **k: diffusers.LCMScheduler(clip_sample=False, **k),
    "TCD": lambda **k: diffusers.TCDScheduler(clip_sample=False, **k),
    "FlowMatchEuler": lambda **k: diffusers.FlowMatchEulerDiscreteScheduler(**k),
    "FlowMatchHeun": lambda **k: diffusers.FlowMatchHeunDiscreteScheduler(**k),
    "IPNDM": lambda **k: diffusers.IPNDMScheduler(**k),
}
STABLE_DIFFUSION = [s for s in SCHEDULERS if s not in ("FlowMatchEuler", "FlowMatchHeun", "IPNDM", "PNDM-prk")]
MULTISTEP = [
    "PNDM",
    "PNDM-prk",
    "LMS",
    "DPMSolverMultistep",
    "DPMSolverMultistep-3",
    "DEIS",
    "UniPC",
    "SASolver",
    "IPNDM",
]
SEVERAL_CALLS_A_STEP = ["PNDM", "PNDM-prk", "Heun", "KDPM2", "KDPM2Ancestral", "DPMSolverSinglestep", "FlowMatchHeun"]
STEPS = 6


def box(reach=0.5):
    return tt.as_constraint(
        lambda x: x.clamp(-reach, reach), lambda x: (x.abs() - reach).clamp(min=0).flatten(1).amax(dim=1)
    )


def boxes(reach):
    """Each sample its own box; reach is (n,)."""

    def project(x, reach):
        limit = reach.reshape(-1, *([1] * (x.ndim - 1)))
        return torch.minimum(torch.maximum(x, -limit), limit)

    return tt.as_constraint(project, lambda x, reach: (x.flatten(1).abs().amax(dim=1) - reach).clamp(min=0), (reach,))


@pytest.fixture(scope="module")
def conditional_unet():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return diffusers.UNet2DConditionModel(
            sample_size=8,
            in_channels=4,
            out_channels=4,
            layers_per_block=1,
            block_out_channels=(8, 16),
            norm_num_groups=4,
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
            cross_attention_dim=8,
            attention_head_dim=2,
        ).eval()


@pytest.fixture(scope="module")
def vae():
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return diffusers.AutoencoderKL(
            block_out_channels=(8,),
            norm_num_groups=4,
            latent_channels=4,
            sample_size=8,
            down_block_types=("DownEncoderBlock2D",),
            up_block_types=("UpDecoderBlock2D",),
        ).eval()


@pytest.fixture(scope="module")
def unet():
    with torch.random.fork_rng():
        torch.manual_seed(2)
        return diffusers.UNet2DModel(
            sample_size=8,
            in_channels=1,
            out_channels=1,
            layers_per_block=1,
            block_out_channels=(8, 8),
            norm_num_groups=4,
            down_block_types=("DownBlock2D", "DownBlock2D"),
            up_block_types=("UpBlock2D", "UpBlock2D"),
        ).eval()


def quiet(pipe):
    pipe.set_progress_bar_config(disable=True)
    return pipe


@pytest.fixture
def stable(conditional_unet, vae):
    """A Stable Diffusion pipeline without text encoder: prompts come as embeddings."""
    return quiet(
        diffusers.StableDiffusionPipeline(
            vae, None, None, conditional_unet, SCHEDULERS["DDIM"](), None, None, requires_safety_checker=False
        )
    )


EMBEDS = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(5))
LATENTS = torch.randn(4, 4, 8, 8, generator=torch.Generator().manual_seed(6))


def generate(pipe, latents=LATENTS, embeds=EMBEDS, steps=STEPS, **more):
    """Latents of a classifier-free guided run, two images a prompt."""
    if "image" not in more:
        more |= {"height": 8, "width": 8, "latents": latents.clone()}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*(extrapolates from|recomputes the state).*")
        return pipe(
            prompt_embeds=embeds,
            negative_prompt_embeds=torch.zeros_like(embeds),
            num_inference_steps=steps,
            num_images_per_prompt=len(latents) // len(embeds),
            output_type="latent",
            generator=torch.Generator().manual_seed(7),
            **more,
        ).images


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


# ------------------------------------------------------------------ which calls end a step


@pytest.mark.parametrize("name", [s for s in SCHEDULERS if s not in ("UniPC", "SASolver")])
def test_a_call_ends_a_step_if_the_solver_goes_on_from_the_state_it_returned(name):
    prediction = {"prediction_type": "sample"} if name == "DPMSolverSinglestep" else {}
    scheduler = SCHEDULERS[name](**prediction)
    scheduler.set_timesteps(20 if name == "PNDM-prk" else 7)
    x, output = torch.zeros(1, 1, 2, 2), torch.full((1, 1, 2, 2), 0.3)  # the model output is the same everywhere
    ends = None
    for call, t in enumerate(scheduler.timesteps):
        scheduler.scale_model_input(x, t) if hasattr(scheduler, "scale_model_input") else None
        if ends is None:
            ends = step_ends(scheduler, first_call(scheduler, t))
        else:
            moved, still = copy.deepcopy(scheduler), copy.deepcopy(scheduler)
            seeded = (
                {"generator": torch.Generator().manual_seed(0)}
                if "generator" in inspect.signature(scheduler.step).parameters
                else {}
            )
            away = moved.step(output, t, x + 1, **copy.deepcopy(seeded)).prev_sample
            here = still.step(output, t, x, **copy.deepcopy(seeded)).prev_sample
            # a sample-predicting last step to sigma 0 forgets its state altogether
            if not (prediction and call == len(scheduler.timesteps) - 1):
                assert ends[call - 1] == (not torch.allclose(away, here, atol=1e-4)), (name, call)
        x = scheduler.step(output, t, x).prev_sample
    assert len(ends) == len(scheduler.timesteps)
    assert ends[-1]
    assert sum(ends) == {"PNDM-prk": 20, "DPMSolverSinglestep": 4}.get(name, 7)


@pytest.mark.parametrize("name", ["UniPC", "SASolver"])
def test_some_solvers_recompute_the_state_they_are_given(name):
    scheduler = SCHEDULERS[name](prediction_type="sample")
    assert undoes(scheduler)
    scheduler.set_timesteps(7)
    x = output = torch.full((1, 1, 2, 2), 0.3)
    for t in scheduler.timesteps[:3]:
        x = scheduler.step(output, t, x, **_generator(scheduler)).prev_sample
    t, moved = scheduler.timesteps[3], copy.deepcopy(scheduler)
    away = moved.step(output, t, x + 1, **_generator(scheduler)).prev_sample
    assert torch.allclose(away, scheduler.step(output, t, x, **_generator(scheduler)).prev_sample, atol=1e-5)


def _generator(scheduler):
    takes = "generator" in inspect.signature(scheduler.step).parameters
    return {"generator": torch.Generator().manual_seed(0)} if takes else {}


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
    assert run.spent.tolist() == [run.n_steps if isinstance(schedule, tt.Stepwise) else 0] * 4


@pytest.mark.parametrize("kind", ["DDPM", "DDIM"])
def test_an_unconditional_pipeline_is_the_loop_by_hand_bit_for_bit(unet, kind):
    scheduler = SCHEDULERS[kind]()
    pipe = quiet(getattr(diffusers, f"{kind}Pipeline")(unet, scheduler))
    wrap(pipe, box(), tt.Stepwise())
    out = pipe(batch_size=3, num_inference_steps=STEPS, generator=torch.Generator().manual_seed(3), output_type="np")

    generator = torch.Generator().manual_seed(3)
    scheduler.set_timesteps(STEPS)
    with torch.no_grad():
        x = torch.randn(3, 1, 8, 8, generator=generator)
        for t in scheduler.timesteps:
            x = scheduler.step(unet(x, t).sample, t, x, generator=generator).prev_sample.clamp(-0.5, 0.5)
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


def test_a_pipeline_that_decodes_the_denoised_sample_ends_feasible(conditional_unet, vae):
    unet = diffusers.UNet2DConditionModel.from_config(conditional_unet.config, time_cond_proj_dim=8).eval()
    pipe = quiet(
        diffusers.LatentConsistencyModelPipeline(
            vae, None, None, unet, SCHEDULERS["LCM"](), None, None, requires_safety_checker=False
        )
    )
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


# ------------------------------------------------------------------ the scheduler stays what it was


@pytest.mark.parametrize("name", SCHEDULERS)
def test_class_identity(name, tmp_path):
    plain = SCHEDULERS[name]()
    wrapped = wrap(plain, box(), tt.Stepwise())
    cls = type(plain)
    assert isinstance(wrapped, cls)
    assert (type(wrapped).__name__, type(wrapped).__module__) == (cls.__name__, cls.__module__)
    assert wrapped.config == plain.config
    for method in ("step", "set_timesteps"):
        assert inspect.signature(getattr(wrapped, method)) == inspect.signature(getattr(plain, method))
    wrapped.save_pretrained(tmp_path / "wrapped")
    plain.save_pretrained(tmp_path / "plain")
    file = "scheduler_config.json"
    assert (tmp_path / "wrapped" / file).read_text() == (tmp_path / "plain" / file).read_text()
    assert type(cls.from_pretrained(tmp_path / "wrapped")) is cls
    assert type(unwrap(wrapped)) is cls
    assert "_trimtab_gate" not in vars(plain)


def test_a_wrapped_pipeline_saves_and_loads_as_the_plain_one(stable, tmp_path):
    wrap(stable, box(), tt.Stepwise())
    generate(stable)
    stable.save_pretrained(tmp_path)
    loaded = quiet(diffusers.StableDiffusionPipeline.from_pretrained(tmp_path, text_encoder=None, tokenizer=None))
    assert type(loaded.scheduler) is diffusers.DDIMScheduler
    assert torch.equal(generate(loaded), generate(unwrap(stable)))


def run_alone(scheduler, x=None, calls=None, model=lambda x: 0.1 * x):
    """The rest of a run with a toy model; `calls` of it."""
    if x is None:
        scheduler.set_timesteps(5)
        x = torch.linspace(-2, 2, 12).reshape(3, 1, 2, 2) * scheduler.init_noise_sigma
        rest = scheduler.timesteps
    else:
        rest = scheduler.timesteps[scheduler.step_index :]
    for t in rest[:calls]:
        x = scheduler.step(model(scheduler.scale_model_input(x, t)), t, x).prev_sample
    return x


def test_a_copy_made_in_mid_run_goes_on_by_itself():
    constraint = box()
    scheduler = wrap(SCHEDULERS["Euler"](), constraint, tt.Periodic(2))
    x = run_alone(scheduler, calls=3)
    twin = copy.deepcopy(scheduler)
    assert twin._trimtab_gate.corrector.constraint is constraint
    final = run_alone(twin, x)
    assert torch.equal(twin.rollout.final, final)
    assert torch.equal(run_alone(scheduler, x), final)
    assert scheduler.rollout.spent.tolist() == [2, 2, 2]


def test_rebuilt_from_its_config_a_scheduler_still_projects():
    scheduler = wrap(SCHEDULERS["Euler"](), box(), tt.Stepwise())
    run_alone(scheduler)
    again = type(scheduler).from_config(scheduler.config)
    assert run_alone(again).abs().max() <= 0.5
    assert again.rollout.spent.tolist() == [5, 5, 5]


def test_a_pipeline_that_rebuilds_a_plain_scheduler_is_found_out(unet):
    scheduler = wrap(SCHEDULERS["DDIM"](), box(), tt.Stepwise())
    pipe = quiet(diffusers.DDIMPipeline(unet, scheduler))
    pipe(num_inference_steps=2, generator=torch.Generator().manual_seed(0), output_type="np")
    with pytest.raises(RuntimeError, match="Wrap the pipeline after it is built"):
        _ = scheduler.rollout


def test_wrapping_again_replaces_and_runs_do_not_leak_into_each_other(stable):
    wrap(stable, box(0.1), tt.Stepwise())
    generate(stable)
    wrap(stable, box(), tt.Periodic(3))
    first = generate(stable)
    assert torch.equal(generate(stable), first)
    assert stable.scheduler.rollout.spent.tolist() == [3] * 4
    generate(stable, steps=4)
    assert stable.scheduler.rollout.n_steps == 4
    assert type(unwrap(stable).scheduler) is diffusers.DDIMScheduler


def test_a_run_that_stops_early_is_reported():
    scheduler = wrap(SCHEDULERS["Euler"](), box(), tt.Stepwise())
    run_alone(scheduler, calls=3)
    with pytest.warns(RuntimeWarning, match="stopped after 3 of 5 calls"):
        scheduler.set_timesteps(5)


# ------------------------------------------------------------------ samples stay apart


@pytest.mark.parametrize("name", ["DDIM", "Heun", "PNDM", "UniPC", "DPMSolverMultistep"])
@pytest.mark.parametrize("history", ["keep", "restart"])
def test_guidance_and_images_per_prompt_keep_samples_apart(stable, name, history):
    reach = torch.tensor([0.3, 30.0, 0.6, 1.5])
    thresholds = tt.Thresholds(torch.full((STEPS, 7), 2.0).index_fill(1, torch.tensor([0]), torch.inf))

    def images(rows):
        stable.scheduler = SCHEDULERS[name]()
        wrap(stable, boxes(reach[rows]), tt.Adaptive(thresholds), history=history)
        embeds = EMBEDS if len(rows) == 4 else EMBEDS[rows[0] // 2, None]
        out = generate(stable, LATENTS[rows], embeds)
        return out, stable.scheduler.rollout.projected

    together, projected = images([0, 1, 2, 3])
    assert (projected != projected[:, :1]).any()  # samples do decide differently
    assert (together.flatten(1).abs().amax(dim=1) <= reach).all()
    for i in range(4):
        alone, chosen = images([i])
        assert torch.equal(chosen[:, 0], projected[:, i])
        torch.testing.assert_close(alone[0], together[i], rtol=0, atol=1e-4)  # float32; a batch of one rounds otherwise


# ------------------------------------------------------------------ multistep histories


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
            extra = {"generator": generator.manual_seed(int(t))} if _generator(scheduler) else {}
            x = scheduler.step(torch.sin(3 * x) / 3, t, x, **extra).prev_sample
        return x

    everything = tt.as_constraint(lambda x: x.clone(), lambda x: torch.zeros(len(x)))
    mask = torch.zeros(16, 3, dtype=torch.bool)
    mask[6, 1] = mask[9, 1] = True
    plain = run(SCHEDULERS[name]())
    kept = run(wrap(SCHEDULERS[name](), everything, tt.Terminal()))
    restarted = run(wrap(SCHEDULERS[name](), everything, tt.Fixed(mask), history="restart"))
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


# ------------------------------------------------------------------ the predicted clean sample

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
    schedule = tt.Fixed(torch.tensor([True, False]))
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
    by_us = wrapped.step(output, t, x, **_generator(wrapped)).prev_sample
    torch.testing.assert_close(by_us, plain.step(rewritten, t, x, **_generator(plain)).prev_sample)
    t = wrapped.timesteps[1]
    assert wrapped.step(output, t, by_us, **_generator(wrapped)).prev_sample.abs().max() <= 0.5
    assert wrapped.rollout.projected[:, 0].tolist() == [True, False]


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
    with pytest.raises(ValueError, match="did not hand its latents"):
        callback(stable, 0, torch.tensor(1), {})
    with pytest.raises(RuntimeError, match="whose first step it did not show"):
        callback(stable, 3, torch.tensor(1), {"latents": LATENTS})


# ------------------------------------------------------------------ calibration, dtypes, bad use


def test_calibrating_from_a_pipeline(stable):
    wrap(stable, box(), tt.Terminal())
    generate(stable)
    prices = tt.thresholds_from_runs([stable.scheduler.rollout], budget=0.5)
    assert (prices.n_steps, prices.budget) == (STEPS, 3)
    wrap(stable, box(), tt.Adaptive(prices))
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

    with pytest.raises(ValueError, match="Bare has no take"):
        wrap(stable, Bare(), tt.Stepwise())
    scheduler = wrap(SCHEDULERS["DDIM"](), box(), tt.Stepwise())
    scheduler.set_timesteps(5)
    with pytest.raises(ValueError, match="timestep 3 is not one of the 5 timesteps"):
        scheduler.step(LATENTS, 3, LATENTS)
    churned = wrap(SCHEDULERS["Euler"](), box(), tt.Stepwise(), target="clean")
    churned.set_timesteps(5)
    churned.scale_model_input(LATENTS, churned.timesteps[0])
    with pytest.raises(ValueError, match="s_churn"):
        churned.step(LATENTS, churned.timesteps[0], LATENTS, s_churn=1.0)
    edm = wrap(diffusers.EDMEulerScheduler(), box(), tt.Stepwise(), target="clean")
    edm.set_timesteps(5)
    with pytest.raises(ValueError, match="does not know how EDMEulerScheduler"):
        edm.step(LATENTS, edm.timesteps[0], LATENTS)
