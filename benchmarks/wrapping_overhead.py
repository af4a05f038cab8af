"""What projecting on schedule adds to a diffusers pipeline: the wrapped one against the bare one, step by step.

Both run in turn. The time of each step is taken by itself, since what else a machine does falls on single steps: its
median over the rounds is what that step takes, and these add up to a run.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Mapping
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import trimtab as tt
from _compare import skipped

BATCH, STEPS, STEP_SECONDS, TARGET = 4, 25, 20e-3, "<= 1.02"
CLAIM = "wrapping a diffusers pipeline"
CLOCKS = ("wall clock", "processor time")


def now() -> tuple[float, float]:
    """By the clock on the wall, and by the time this process had the processor for."""
    return perf_counter(), process_time()


def by_step(ways: Mapping[str, Callable[[], object]], ticks: list[tuple[float, float]], rounds: int) -> dict[str, Any]:
    """Seconds of each step of each way, (rounds, steps, clocks); a step ticks when it begins."""
    taken: dict[str, list[NDArray[Any]]] = {name: [] for name in ways}
    order = list(ways)
    gc.disable()  # a collection would fall on whichever happens to run
    try:
        for i in range(-1, rounds):
            order.reverse()
            for name in order:
                ticks.clear()
                ways[name]()
                if i >= 0:
                    taken[name].append(np.diff([*ticks, now()], axis=0))
            gc.collect()
    finally:
        gc.enable()
    return {name: np.stack(each) for name, each in taken.items()}


def ratio(ours: NDArray[Any], bare: NDArray[Any]) -> tuple[float, float, float]:
    """Of the sums of typical steps, (rounds, steps) each, with a 95% interval bootstrapped over rounds."""

    def typical(rows: Any) -> float:
        return float(np.median(ours[rows], axis=0).sum() / np.median(bare[rows], axis=0).sum())

    random = np.random.default_rng(0)
    again = [typical(random.integers(len(ours), size=len(ours))) for _ in range(500)]
    return typical(slice(None)), *np.quantile(again, [0.025, 0.975]).tolist()


def run(quick: bool) -> list[dict[str, Any]]:
    try:
        import diffusers

        from trimtab.integrations.diffusers import ProjectionCallback, wrap
    except ImportError as error:
        return [skipped(CLAIM, "bare pipeline", str(error))]

    ticks: list[tuple[float, float]] = []

    class Network(diffusers.UNet2DModel):
        """A real network, evaluated as often as fills a step: the same work in every step of every round."""

        evaluations = 1

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            ticks.append(now())
            for _ in range(self.evaluations):
                out = super().forward(*args, **kwargs)
            return out

    torch.manual_seed(0)
    blocks = {"down_block_types": ("DownBlock2D",) * 2, "up_block_types": ("UpBlock2D",) * 2}
    sizes = {"block_out_channels": (8, 8), "layers_per_block": 1, "norm_num_groups": 4}
    unet = Network(sample_size=16, in_channels=3, out_channels=3, **blocks, **sizes).eval()
    with torch.no_grad():
        alone = by_step({"one": lambda: unet(torch.zeros(BATCH, 3, 16, 16), 0)}, ticks, 20)["one"]
    unet.evaluations = math.ceil(STEP_SECONDS / alone[..., 1].min())
    box = tt.as_constraint(lambda x: x.clamp(-1, 1), lambda x: (x.abs() - 1).clamp(min=0).flatten(1).amax(dim=1))
    steps, rounds = (5, 3) if quick else (STEPS, 31)

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
    for claim, against, ours, theirs in (
        (CLAIM, "bare pipeline", lambda: generate(wrapped), lambda: generate(bare)),
        ("the same as a callback", "bare loop", lambda: loop(callback), lambda: loop(None)),
    ):
        taken = by_step({"ours": ours, "bare": theirs}, ticks, rounds)
        for clock, name in enumerate(CLOCKS):
            found, low, high = ratio(taken["ours"][..., clock], taken["bare"][..., clock])
            step, with_ours = (float(np.median(taken[way][..., clock], axis=0).mean()) for way in ("bare", "ours"))
            times = f"{step * 1e3:.1f} ms a step, and {(with_ours - step) * 1e6:.0f} µs more wrapped"
            rows.append(
                {
                    "claim": f"{claim}, {name}",
                    "against": against,
                    "ratio": found,
                    "low": low,
                    "high": high,
                    "target": TARGET,
                    "inputs": f"{inputs}; {times}",
                }
            )
    return rows
