"""What projecting on schedule adds to a diffusers pipeline: the wrapped one against the bare one."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import torch

import trimtab as tt
from _compare import compare, skipped

BATCH, STEPS, STEP_SECONDS = 8, 10, 20e-3
CLAIM = "wrapping a diffusers pipeline"


def run(quick: bool) -> list[dict[str, Any]]:
    try:
        import diffusers

        from trimtab.integrations.diffusers import ProjectionCallback, wrap
    except ImportError as error:
        return [skipped(CLAIM, "bare pipeline", str(error))]

    class SlowUNet(diffusers.UNet2DModel):
        """A real network that takes 20 ms for an evaluation, on any machine that can do it faster."""

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            until = perf_counter() + STEP_SECONDS
            out = super().forward(*args, **kwargs)
            while perf_counter() < until:
                pass
            return out

    torch.manual_seed(0)
    unet = SlowUNet(
        sample_size=16,
        in_channels=3,
        out_channels=3,
        layers_per_block=1,
        block_out_channels=(8, 8),
        norm_num_groups=4,
        down_block_types=("DownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "UpBlock2D"),
    ).eval()
    box = tt.as_constraint(lambda x: x.clamp(-1, 1), lambda x: (x.abs() - 1).clamp(min=0).flatten(1).amax(dim=1))
    steps, repeats = (5, 3) if quick else (STEPS, 61)  # many short rounds: what else runs falls on few of them
    more = {"batch_size": BATCH, "num_inference_steps": steps, "output_type": "np"}

    def pipeline() -> Any:
        pipe = diffusers.DDIMPipeline(unet, diffusers.DDIMScheduler(clip_sample=False))
        pipe.set_progress_bar_config(disable=True)
        return pipe

    def generate(pipe: Any) -> None:
        pipe(generator=torch.Generator().manual_seed(0), **more)

    bare, watched, wrapped = pipeline(), pipeline(), pipeline()
    wrap(watched, box, tt.Terminal())
    generate(watched)
    prices = tt.thresholds_from_runs([watched.scheduler.rollout], budget=0.25)
    wrap(wrapped, box, tt.Adaptive(prices))
    timing = compare({"ours": lambda: generate(wrapped), "bare pipeline": lambda: generate(bare)}, repeats)
    inputs = f"DDIM, batch {BATCH}, T = {steps}, B = {prices.budget}, 3 x 16 x 16, cheap projection, 20 ms step"
    rows = [timing.row(CLAIM, of="ours", over="bare pipeline", target="<= 1.02", inputs=inputs)]

    callback = ProjectionCallback(box, tt.Adaptive(prices))

    def loop(callback: ProjectionCallback | None) -> None:
        """The pipeline's loop (DDIMPipeline itself has no hook for callbacks)."""
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(BATCH, 3, 16, 16, generator=generator)
        bare.scheduler.set_timesteps(steps)
        with torch.no_grad():
            for i, t in enumerate(bare.scheduler.timesteps):
                x = bare.scheduler.step(unet(x, t).sample, t, x, generator=generator).prev_sample
                if callback is not None:
                    x = callback(bare, i, t, {"latents": x})["latents"]

    timing = compare({"ours": lambda: loop(callback), "bare loop": lambda: loop(None)}, repeats)
    return [*rows, timing.row("the same as a callback", of="ours", over="bare loop", target="<= 1.02", inputs=inputs)]
