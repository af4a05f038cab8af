"""What projecting on schedule adds to a diffusers pipeline: the wrapped one against the bare one."""

from __future__ import annotations

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
        """A real network, evaluated as often as fills a step: the same work in every step of every round."""

        evaluations = 1

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            for _ in range(self.evaluations):
                out = super().forward(*args, **kwargs)
            return out

        def fill(self, seconds: float) -> None:
            x, times = torch.zeros(BATCH, 3, 16, 16), []
            for _ in range(10):
                begin = process_time()
                self(x, 0)
                times.append(process_time() - begin)
            self.evaluations = max(1, round(seconds / min(times)))

    torch.manual_seed(0)
    blocks = {"down_block_types": ("DownBlock2D",) * 2, "up_block_types": ("UpBlock2D",) * 2}
    sizes = {"block_out_channels": (8, 8), "layers_per_block": 1, "norm_num_groups": 4}
    unet = Network(sample_size=16, in_channels=3, out_channels=3, **blocks, **sizes).eval()
    with torch.no_grad():
        unet.fill(STEP_SECONDS)
    box = tt.as_constraint(lambda x: x.clamp(-1, 1), lambda x: (x.abs() - 1).clamp(min=0).flatten(1).amax(dim=1))
    steps, repeats = (5, 3) if quick else (STEPS, 31)

    def pipeline() -> Any:
        pipe = diffusers.DDIMPipeline(unet, diffusers.DDIMScheduler(clip_sample=False))
        pipe.set_progress_bar_config(disable=True)
        return pipe

    def generate(pipe: Any) -> None:
        generator = torch.Generator().manual_seed(0)
        pipe(batch_size=BATCH, num_inference_steps=steps, generator=generator, output_type="np")

    bare, wrapped = pipeline(), pipeline()
    wrap(wrapped, box, tt.Terminal())
    generate(wrapped)
    prices = tt.thresholds_from_runs([wrapped.scheduler.rollout], budget=0.25)
    wrap(wrapped, box, tt.Adaptive(prices))
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

    inputs = f"DDIM, batch {BATCH}, T = {steps}, B = {prices.budget}, 3 x 16 x 16, cheap projection"
    rows = []
    for claim, against, sides in (
        (CLAIM, "bare pipeline", (lambda: generate(wrapped), lambda: generate(bare))),
        ("the same as a callback", "bare loop", (lambda: loop(callback), lambda: loop(None))),
    ):
        timing = compare(dict(zip(("ours", against), sides, strict=True)), repeats)
        for suffix, seconds in (("", timing), (", processor time", timing.on_the_processor())):
            step = f"{seconds.median(against) / steps * 1e3:.0f} ms a step"
            rows.append(
                seconds.row(claim + suffix, of="ours", over=against, target="<= 1.02", inputs=f"{inputs}, {step}")
            )
    return rows
