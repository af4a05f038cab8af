"""Project on schedule inside a diffusers pipeline, without touching its code.

The pipeline is a `DDIMPipeline` with a small network of random weights, so nothing is downloaded. The mean brightness
of each image is prescribed. Calibrate once on another seed, and pay for a quarter of the projections.

Run it: `python examples/diffusers_pipeline.py` (needs `pip install 'trimtab[diffusers]'`)
"""

from __future__ import annotations

import torch
from diffusers import DDIMPipeline, DDIMScheduler, UNet2DModel
from torch import Tensor

import trimtab as tt
from trimtab.integrations.diffusers import wrap

STEPS, IMAGES = 40, 8


def with_brightness(x: Tensor, brightness: Tensor) -> Tensor:
    """Return the nearest images with these means, (n, 1, 16, 16) and (n,) to (n, 1, 16, 16)."""
    return x + (brightness - x.mean(dim=(1, 2, 3))).reshape(-1, 1, 1, 1)


def brightness_error(x: Tensor, brightness: Tensor) -> Tensor:
    """Return the distance to the nearest such image, (n,)."""
    return (x.mean(dim=(1, 2, 3)) - brightness).abs() * 16


def pipeline() -> DDIMPipeline:
    """Make a small pipeline with random weights."""
    torch.manual_seed(0)
    blocks = {"down_block_types": ("DownBlock2D",) * 2, "up_block_types": ("UpBlock2D",) * 2}
    sizes = {"block_out_channels": (8, 16), "layers_per_block": 1, "norm_num_groups": 4}
    unet = UNet2DModel(sample_size=16, in_channels=1, out_channels=1, **blocks, **sizes).eval()
    pipe = DDIMPipeline(unet, DDIMScheduler())
    pipe.set_progress_bar_config(disable=True)
    return pipe


def main() -> None:
    """Calibrate the pipeline, then compare schedules."""
    pipe = pipeline()
    constraint = tt.as_constraint(with_brightness, brightness_error, data=(torch.linspace(-0.5, 0.5, IMAGES),))

    def run(schedule: tt.Schedule, seed: int = 0) -> tt.Rollout:
        wrap(pipe, constraint, schedule, measure_defects=True)  # the one line; wrapping again replaces the schedule
        generator = torch.Generator().manual_seed(seed)
        pipe(batch_size=IMAGES, num_inference_steps=STEPS, generator=generator, output_type="np")
        return pipe.scheduler.rollout

    price = tt.calibrate(lambda schedule: run(schedule, seed=1000), budget=0.25, objective="path")
    print(tt.compare(run, {"adaptive": price}, [0.25]))


if __name__ == "__main__":
    main()
