"""Project on schedule inside a diffusers pipeline, without touching its code.

The pipeline is a real `DDIMPipeline`; its network is small and has random weights, so that nothing is downloaded.
Every image must have a brightness of its own: the mean of image i is prescribed. Calibrate once on other seeds, and pay
for a quarter of the projections.

Run it: `python examples/diffusers_pipeline.py` (needs `pip install 'trimtab[diffusers]'`)
"""

from __future__ import annotations

import torch
from diffusers import DDIMPipeline, DDIMScheduler, UNet2DModel
from torch import Tensor

import trimtab as tt
from trimtab.core.metrics import path_error, summary
from trimtab.integrations.diffusers import wrap

STEPS, IMAGES = 40, 8


def with_brightness(x: Tensor, brightness: Tensor) -> Tensor:
    """The nearest images with these means: (n, 1, 16, 16) and (n,) to (n, 1, 16, 16)."""
    return x + (brightness - x.mean(dim=(1, 2, 3))).reshape(-1, 1, 1, 1)


def brightness_error(x: Tensor, brightness: Tensor) -> Tensor:
    """Distance to the nearest such image, (n,)."""
    return (x.mean(dim=(1, 2, 3)) - brightness).abs() * 16


def pipeline() -> DDIMPipeline:
    """A small pipeline with random weights."""
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
        # The one line; wrapping again replaces the schedule. Defects are measured for the sake of the table below.
        wrap(pipe, constraint, schedule, measure_defects=True)
        generator = torch.Generator().manual_seed(seed)
        pipe(batch_size=IMAGES, num_inference_steps=STEPS, generator=generator, output_type="np")
        return pipe.scheduler.rollout

    price = tt.calibrate(lambda schedule: run(schedule, seed=1000), budget=0.25, objective="path")
    schedules = {
        "terminal": tt.Terminal(),
        "periodic, 25% of steps": tt.Periodic(0.25),
        "adaptive, 25% of steps": price.at(0.25),
        "stepwise": tt.Stepwise(),
    }
    print(f"{'schedule':<24}{'projections per image':>22}{'path error':>20}")
    for name, schedule in schedules.items():
        record = run(schedule)
        assert bool((constraint.defect(record.final) < 1e-3).all())
        print(f"{name:<24}{float(record.spent.double().mean()):>22.1f}{summary(path_error(record))!s:>20}")


if __name__ == "__main__":
    main()
