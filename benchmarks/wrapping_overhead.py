"""What projecting on schedule adds to a diffusers pipeline: the wrapped one against the bare one, step by step.

Both run at once, in two threads of which one waits: after each step the turn goes to the other. So the same step of
both is made within a few hundredths of a second, and what else the machine does drops out of the difference.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Sequence
from threading import Semaphore, Thread, current_thread
from time import perf_counter, thread_time
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import trimtab as tt
from _compare import skipped

BATCH, STEPS, STEP_SECONDS, TARGET = 4, 25, 20e-3, "<= 1.02"
CLAIM = "wrapping a diffusers pipeline"
CLOCKS = ("wall clock", "processor time")


class Turns:
    """Lets two threads make their steps in turn, and takes their times."""

    def __init__(self) -> None:
        """Nobody's turn."""
        self.free = {name: Semaphore(0) for name in ("ours", "bare")}
        self.ticks: dict[str, list[tuple[float, float]]] = {}

    def next_step(self) -> None:
        """Called where a step begins: it is the other's turn, and then ours."""
        name = current_thread().name
        if name not in self.ticks:
            return  # nobody to wait for
        self._tick(name)
        self.free["bare" if name == "ours" else "ours"].release()
        self.free[name].acquire()
        self._tick(name)

    def times(self, ours: Callable[[], object], bare: Callable[[], object], first: str) -> NDArray[Any]:
        """Seconds of both by step and clock, (2, steps + 1, 2); what comes before the first step is one too."""
        self.ticks = {"ours": [], "bare": []}
        threads = [Thread(target=self._work, args=(way,), name=name) for name, way in (("ours", ours), ("bare", bare))]
        for thread in threads:
            thread.start()
        self.free[first].release()
        for thread in threads:
            thread.join()
        for gate in self.free.values():
            while gate.acquire(blocking=False):
                pass
        taken = [np.diff(np.reshape(self.ticks[name], (-1, 2, 2)), axis=1)[:, 0] for name in ("ours", "bare")]
        self.ticks = {}
        return np.stack(taken)

    def _work(self, way: Callable[[], object]) -> None:
        name = current_thread().name
        self.free[name].acquire()
        self._tick(name)
        way()
        self._tick(name)
        self.free["bare" if name == "ours" else "ours"].release()

    def _tick(self, name: str) -> None:
        self.ticks[name].append((perf_counter(), thread_time()))


def added(taken: Sequence[NDArray[Any]]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Seconds a run takes bare, and seconds more that ours takes, by clock, (2,): typical steps, added up."""
    ours, bare = np.stack(taken, axis=1)
    return np.median(bare, axis=0).sum(axis=0), np.median(ours - bare, axis=0).sum(axis=0)


def seconds(way: Callable[[], object], rounds: int = 20) -> list[float]:
    """Processor time of each call."""
    ticks = [thread_time()]
    for _ in range(rounds):
        way()
        ticks.append(thread_time())
    return np.diff(ticks).tolist()


def run(quick: bool) -> list[dict[str, Any]]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # with a pool for each of the two, they would be in each other's way while waiting
    try:
        return rows_on_one_thread(quick)
    finally:
        torch.set_num_threads(threads)


def rows_on_one_thread(quick: bool) -> list[dict[str, Any]]:
    try:
        import diffusers

        from trimtab.integrations.diffusers import ProjectionCallback, wrap
    except ImportError as error:
        return [skipped(CLAIM, "bare pipeline", str(error))]

    turns = Turns()

    class Network(diffusers.UNet2DModel):
        """A real network, evaluated as often as fills a step: the same work in every step of every round."""

        evaluations = 1

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            turns.next_step()
            for _ in range(self.evaluations):
                out = super().forward(*args, **kwargs)
            return out

    torch.manual_seed(0)
    blocks = {"down_block_types": ("DownBlock2D",) * 2, "up_block_types": ("UpBlock2D",) * 2}
    sizes = {"block_out_channels": (8, 8), "layers_per_block": 1, "norm_num_groups": 4}
    unet = Network(sample_size=16, in_channels=3, out_channels=3, **blocks, **sizes).eval()
    with torch.no_grad():
        unet.evaluations = math.ceil(STEP_SECONDS / min(seconds(lambda: unet(torch.zeros(BATCH, 3, 16, 16), 0))))
    box = tt.as_constraint(lambda x: x.clamp(-1, 1), lambda x: (x.abs() - 1).clamp(min=0).flatten(1).amax(dim=1))
    steps, rounds = (5, 3) if quick else (STEPS, 81)

    def pipeline() -> Any:
        pipe = diffusers.DDIMPipeline(unet, diffusers.DDIMScheduler(clip_sample=False))
        pipe.set_progress_bar_config(disable=True)
        return pipe

    def generate(pipe: Any) -> None:
        generator = torch.Generator().manual_seed(0)
        pipe(batch_size=BATCH, num_inference_steps=steps, generator=generator, output_type="np")

    bare, wrapped = pipeline(), pipeline()
    wrap(wrapped, box, tt.Terminal(), measure_defects=True)
    generate(wrapped)
    prices = tt.prices.paper_prices([wrapped.scheduler.rollout], budget=0.25)
    wrap(wrapped, box, tt.prices.Adaptive(prices))
    callback = ProjectionCallback(box, tt.prices.Adaptive(prices))

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
        taken = []
        for i in range(-1, rounds):
            gc.collect()
            gc.disable()  # a collection would fall on whichever happens to run
            both = turns.times(ours, theirs, first=("ours", "bare")[i % 2])
            gc.enable()
            if i >= 0:
                taken.append(both)
            else:  # taking turns, an evaluation takes longer than alone
                unet.evaluations = max(1, round(unet.evaluations * STEP_SECONDS * (steps + 1) / both[1, :, 0].sum()))
        bare_run, more = added(taken)
        random = np.random.default_rng(0)
        again = [added([taken[k] for k in random.integers(rounds, size=rounds)]) for _ in range(500)]
        low, high = np.quantile([1 + extra / whole for whole, extra in again], [0.025, 0.975], axis=0)
        for clock, name in enumerate(CLOCKS):
            step = f"{bare_run[clock] / steps * 1e3:.1f} ms per step, and {more[clock] / steps * 1e6:.0f} µs more"
            rows.append(
                {
                    "claim": f"{claim}, {name}",
                    "against": against,
                    "ratio": float(1 + more[clock] / bare_run[clock]),
                    "low": float(low[clock]),
                    "high": float(high[clock]),
                    "target": TARGET,
                    "inputs": f"{inputs}; {step}",
                }
            )
    return rows
