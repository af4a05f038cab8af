"""A diffusers pipeline: a notebook whose cells are marked by `# %%`; the site shows it with its results."""

# %% [markdown]
# # A diffusers pipeline
#
# Project inside a diffusers pipeline without a change of its code: one call to `wrap`. The pipeline is a `DDIMPipeline`
# with a small network of random weights, so nothing is downloaded. The mean brightness of each image is prescribed. You
# need diffusers: `pip install '.[diffusers]'` in a checkout.

# %%
import torch
from diffusers import DDIMPipeline, DDIMScheduler, UNet2DModel

import trimtab as tt
from trimtab.integrations.diffusers import wrap

steps, images = 30, 8
torch.manual_seed(0)
unet = UNet2DModel(
    sample_size=16,
    in_channels=1,
    out_channels=1,
    block_out_channels=(8, 16),
    layers_per_block=1,
    norm_num_groups=4,
    down_block_types=("DownBlock2D",) * 2,
    up_block_types=("UpBlock2D",) * 2,
).eval()
pipe = DDIMPipeline(unet, DDIMScheduler())
pipe.set_progress_bar_config(disable=True)

# %% [markdown]
# ## What feasible means
#
# `data` has one row per sample: image `i` gets the brightness `wanted[i]`.

# %%
wanted = torch.linspace(-0.5, 0.5, images)
brightness = tt.as_constraint(
    project=lambda x, mean: x + (mean - x.mean(dim=(1, 2, 3))).reshape(-1, 1, 1, 1),
    defect=lambda x, mean: (x.mean(dim=(1, 2, 3)) - mean).abs() * 16,
    data=(wanted,),
)

# %% [markdown]
# ## The one line
#
# `wrap` hooks into the scheduler; wrapping again replaces the schedule. The pipeline is called as before, and the
# scheduler has the record of the run.

# %%


def run(schedule, seed=0):
    wrap(pipe, brightness, schedule, measure_defects=True)  # measure defects for the record
    pipe(
        batch_size=images,
        num_inference_steps=steps,
        generator=torch.Generator().manual_seed(seed),
        output_type="np",
    )
    return pipe.scheduler.rollout


stepwise = run(tt.Stepwise())
stepwise

# %% [markdown]
# ## Calibrate on another seed, and pay for a quarter

# %%
price = tt.calibrate(lambda schedule: run(schedule, seed=1000), budget=0.5, objective="path")
price

# %%
adaptive = run(price.at(0.25))
adaptive

# %%
tt.compare(run, {"adaptive": price}, [0.25])

# %% [markdown]
# Every image has its brightness at the end, whatever the schedule.

# %%
print((adaptive.final.mean(dim=(1, 2, 3)) - wanted).abs().max())
