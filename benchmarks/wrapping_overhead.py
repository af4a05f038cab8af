"""What projecting on schedule adds to a diffusers pipeline: wrapped against bare, in processor time of one thread."""

from __future__ import annotations

from functools import partial
from time import process_time
from typing import Any

import torch

import trimtab as tt
from _compare import compare, skipped

BATCH, STEPS, STEP_SECONDS = 4, 25, 20e-3
CLAIM = "wrapping a diffusers pipeline"


def run(quick: bool) -> list[dict[str, Any]]:
    try:
        import diffusers

        from trimtab.integrations.diffusers import ProjectionCallback, wrap
    except ImportError as error:
        return [skipped(CLAIM, "bare pipeline", str(error))]

    class Network(diffusers.UNet2DModel):
        """A real network, evaluated as often as a step of the wanted length needs."""

        evaluations = 1

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            for _ in range(self.evaluations):
                out = super().forward(*args, **kwargs)
            return out

    torch.manual_seed(0)
    torch.set_num_threads(1)
    blocks = {"down_block_types": ("DownBlock2D",) * 2, "up_block_types": ("UpBlock2D",) * 2}
    sizes = {"block_out_channels": (8, 8), "layers_per_block": 1, "norm_num_groups": 4}
    unet = Network(sample_size=16, in_channels=3, out_channels=3, **blocks, **sizes).eval()
    with torch.no_grad():
        begin = process_time()
        for _ in range(10):
            unet(torch.zeros(BATCH, 3, 16, 16), 0)
        unet.evaluations = 1 if quick else max(1, round(STEP_SECONDS / ((process_time() - begin) / 10)))
    box = tt.as_constraint(lambda x: x.clamp(-1, 1), lambda x: (x.abs() - 1).clamp(min=0).flatten(1).amax(dim=1))
    steps = 5 if quick else STEPS

    def pipeline() -> Any:
        pipe = diffusers.DDIMPipeline(unet, diffusers.DDIMScheduler(clip_sample=False))
        pipe.set_progress_bar_config(disable=True)
        return pipe

    def generate(pipe: Any) -> None:
        generator = torch.Generator().manual_seed(0)
        pipe(batch_size=BATCH, num_inference_steps=steps, generator=generator, output_type="np")

    def loop(pipe: Any, callback: ProjectionCallback | None) -> None:
        """Run the loop of the pipeline; DDIMPipeline itself takes no callbacks."""
        x = torch.randn(BATCH, 3, 16, 16, generator=torch.Generator().manual_seed(0))
        pipe.scheduler.set_timesteps(steps)
        with torch.no_grad():
            for i, t in enumerate(pipe.scheduler.timesteps):
                x = pipe.scheduler.step(unet(x, t).sample, t, x).prev_sample
                if callback is not None:
                    x = callback(pipe, i, t, {"latents": x})["latents"]

    bare, wrapped = pipeline(), pipeline()
    wrap(wrapped, box, tt.Terminal(), measure_defects=True)
    generate(wrapped)
    prices = tt.prices.paper_prices([wrapped.scheduler.rollout], budget=0.25)
    wrap(wrapped, box, prices.at(prices.budget))
    callback = ProjectionCallback(box, prices.at(prices.budget))
    ways = {
        "ours": partial(generate, wrapped),
        "bare pipeline": partial(generate, bare),
        "ours, callback": partial(loop, bare, callback),
        "bare loop": partial(loop, bare, None),
    }
    timing = compare(ways, 2 if quick else 21, one_thread=True)
    inputs = f"DDIM, batch {BATCH}, T = {steps}, B = {prices.budget}, 3 x 16 x 16, cheap projection"
    return [
        timing.row(CLAIM, of="ours", over="bare pipeline", target="<= 1.02", inputs=inputs),
        timing.row("the same as a callback", of="ours, callback", over="bare loop", target="<= 1.02", inputs=inputs),
    ]
