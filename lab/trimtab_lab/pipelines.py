"""Diffusers pipelines as samplers, for studies and the command line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from trimtab.core.checks import check_callable, check_integer
from trimtab.integrations.diffusers import History, correcting, unwrap
from trimtab.integrations.loops import Correct
from trimtab_lab.loops import LoopSampler

__all__ = ["pipeline_sampler"]


def pipeline_sampler(
    pipe: Any, call: Callable[[Any, list[torch.Generator]], Any], n_steps: int, *, history: History = "keep"
) -> LoopSampler:
    """Make a sampler of a pipeline, so that rollouts, studies and the command line take it. States are projected.

    Args:
        pipe: The pipeline; its scheduler is replaced while it runs.
        call: `call(pipe, generators)` runs it once with one generator per sample, for example
            `pipe(batch_size=len(generators), generator=generators, num_inference_steps=…)`.
        n_steps: T, the number of steps it makes.
        history: What a multistep scheduler does with model outputs from before a projection; see `wrap`.
    """
    check_callable(call, "call", "call(pipe, generators)")
    check_integer(n_steps, "n_steps")
    if getattr(pipe, "scheduler", None) is None:
        raise TypeError(f"pipeline_sampler takes a pipeline with a scheduler: got {type(pipe).__name__}")
    plain = unwrap(pipe.scheduler)
    correcting(plain, lambda x: x, history=history)  # raises now, not in a run

    def loop(correct: Correct, seeds: Tensor) -> None:
        original = pipe.scheduler
        pipe.scheduler = correcting(plain, correct, history=history)
        try:
            call(pipe, [torch.Generator(pipe.device).manual_seed(int(seed)) for seed in seeds])
        finally:
            pipe.scheduler = original

    return LoopSampler(loop, n_steps)
