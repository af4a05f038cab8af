"""A diffusers pipeline: a notebook whose cells are marked by `# %%`; the site shows it with its results."""

# %% [markdown]
# # A diffusers pipeline
#
# Project inside a pipeline of diffusers without touching its code: one call to `wrap`. The pipeline here is a real
# `DDIMPipeline` with a small network of random weights, so that nothing is downloaded. Every image must have a mean
# brightness of its own. It needs diffusers: `pip install '.[diffusers]'` in a checkout.

# %%
import torch
from diffusers import DDIMPipeline, DDIMScheduler, UNet2DModel

import trimtab as tt
from trimtab.core.metrics import path_error, summary
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
# `data` belongs to samples: image `i` has the brightness `wanted[i]`, in any batch.

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
# `wrap` hooks into the scheduler, and wrapping again replaces the schedule. The pipeline is called as ever; the record
# of the run is at the scheduler.

# %%


def run(schedule, seed=0):
    wrap(pipe, brightness, schedule, measure_defects=True)  # look at defects even if nobody asks
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
for name, record in {
    "terminal": run(tt.Terminal()),
    "periodic": run(tt.Periodic(0.25)),
    "adaptive": adaptive,
    "stepwise": stepwise,
}.items():
    paid = float(record.paid.double().mean())
    print(f"{name:10s} {paid:5.1f} projections per image, path error {summary(path_error(record))}")

# %% [markdown]
# Every image has its brightness at the end, whatever the schedule.

# %%
print((adaptive.final.mean(dim=(1, 2, 3)) - wanted).abs().max())
