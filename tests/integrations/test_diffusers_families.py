"""Pipelines of other families: packed latents, flow prediction, runs that stop early on purpose."""

from __future__ import annotations

import pytest
import torch

import trimtab as tt
from diffusers_cases import box, diffusers, quiet, vae
from trimtab.integrations.diffusers import ProjectionCallback, wrap

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # diffusers and transformers have much to say

SEEDED = {"num_inference_steps": 5, "output_type": "latent"}


def numbers(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def flux():
    """Latents are packed, (n, 16, 16); the noise schedule depends on their number."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = diffusers.FluxTransformer2DModel(
            patch_size=1,
            in_channels=16,
            num_layers=1,
            num_single_layers=1,
            attention_head_dim=16,
            num_attention_heads=2,
            joint_attention_dim=8,
            pooled_projection_dim=8,
            axes_dims_rope=[4, 4, 8],
        ).eval()
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True)
    return quiet(diffusers.FluxPipeline(scheduler, vae(), None, None, None, None, network))


def run_flux(pipe, **more):
    embeds = {"prompt_embeds": numbers(2, 4, 8), "pooled_prompt_embeds": numbers(2, 8)}
    return pipe(height=8, width=8, generator=torch.Generator().manual_seed(1), **embeds, **SEEDED, **more).images


def test_flux_wrapped_and_called_back():
    pipe = wrap(flux(), box(0.2), tt.Periodic(2))
    wrapped = run_flux(pipe)
    assert wrapped.ndim == 3
    assert wrapped.abs().max() <= 0.2
    assert pipe.scheduler.rollout.spent.tolist() == [2, 2]
    callback = ProjectionCallback(box(0.2), tt.Periodic(2))
    assert torch.equal(run_flux(flux(), callback_on_step_end=callback), wrapped)
    clean = run_flux(wrap(flux(), box(0.2), tt.Stepwise(), target="clean"))
    assert clean.abs().max() <= 0.2
    assert not torch.equal(clean, run_flux(wrap(flux(), box(0.2), tt.Stepwise())))


def stable_xl():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = diffusers.UNet2DConditionModel(
            sample_size=8,
            block_out_channels=(8, 16),
            layers_per_block=1,
            norm_num_groups=4,
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
            attention_head_dim=2,
            cross_attention_dim=8,
            addition_embed_type="text_time",
            addition_time_embed_dim=8,
            projection_class_embeddings_input_dim=56,
        ).eval()
    scheduler = diffusers.EulerDiscreteScheduler()
    return quiet(diffusers.StableDiffusionXLPipeline(vae(), None, None, None, None, network, scheduler))


def run_xl(pipe, **more):
    embeds = {"prompt_embeds": numbers(2, 4, 8), "pooled_prompt_embeds": numbers(2, 8)}
    embeds |= {f"negative_{name}": torch.zeros_like(value) for name, value in embeds.items()}
    return pipe(height=8, width=8, generator=torch.Generator().manual_seed(1), **embeds, **SEEDED, **more).images


def test_a_run_that_stops_early_on_purpose_ends_feasible_with_the_callback():
    pipe = wrap(stable_xl(), box(0.2), tt.Periodic(2))
    assert run_xl(pipe).abs().max() <= 0.2
    callback = ProjectionCallback(box(0.2), tt.Stepwise())
    assert run_xl(stable_xl(), callback_on_step_end=callback, denoising_end=0.5).abs().max() <= 0.2
    assert callback.rollout.n_steps == 2
    half = wrap(stable_xl(), box(0.2), tt.Stepwise())
    run_xl(half, denoising_end=0.5)
    with pytest.warns(RuntimeWarning, match="stops early on purpose needs ProjectionCallback"):
        half.scheduler.set_timesteps(5)
