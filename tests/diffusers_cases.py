"""Real diffusers schedulers and pipelines, with small models of random weights; no mocks, no downloads."""

from __future__ import annotations

import inspect
import warnings
from functools import cache

import pytest
import torch

import trimtab as tt

diffusers = pytest.importorskip("diffusers", reason="needs the diffusers extra")
pytest.importorskip("transformers", reason="needs the diffusers extra")

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


# ------------------------------------------------------------------ models and pipelines


def _built(seed, make):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return make().eval()


@cache
def unet():
    """Of images, (n, 1, 8, 8)."""
    blocks = {"down_block_types": ("DownBlock2D",) * 2, "up_block_types": ("UpBlock2D",) * 2}
    sizes = {"block_out_channels": (8, 8), "layers_per_block": 1, "norm_num_groups": 4}
    return _built(2, lambda: diffusers.UNet2DModel(8, 1, 1, **blocks, **sizes))


@cache
def conditional_unet():
    """Of latents, (n, 4, 8, 8), given embeddings, (n, 4, 8)."""
    blocks = {
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
    }
    sizes = {"block_out_channels": (8, 16), "layers_per_block": 1, "norm_num_groups": 4}
    attention = {"cross_attention_dim": 8, "attention_head_dim": 2}
    return _built(0, lambda: diffusers.UNet2DConditionModel(8, 4, 4, **blocks, **sizes, **attention))


@cache
def vae():
    sizes = {"block_out_channels": (8,), "norm_num_groups": 4, "latent_channels": 4, "sample_size": 8}
    return _built(1, lambda: diffusers.AutoencoderKL(**sizes))


def quiet(pipe):
    pipe.set_progress_bar_config(disable=True)
    return pipe


def stable_pipeline(kind="StableDiffusionPipeline", scheduler=None, network=None):
    """A pipeline of the Stable Diffusion family without text encoder: prompts come as embeddings."""
    parts = (vae(), None, None, network or conditional_unet(), scheduler or SCHEDULERS["DDIM"](), None, None)
    return quiet(getattr(diffusers, kind)(*parts, requires_safety_checker=False))


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


def generator_for(scheduler):
    """A seeded generator as an argument of `step`, for schedulers that take one."""
    takes = "generator" in inspect.signature(scheduler.step).parameters
    return {"generator": torch.Generator().manual_seed(0)} if takes else {}
