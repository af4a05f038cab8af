"""Your own loop for the command line, with one added line.

In the folder of this file:

    trimtab advise --sampler my_loop:make --cost projections

or `calibrate`, or `compare`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

import trimtab as tt
from trimtab_lab.loops import LoopSampler

STEPS = 40


def sample(correct: Callable[[Tensor, int], Tensor], seeds: Tensor) -> Tensor:
    """Draw a walk with gusts of wind for each seed, (n,) to (n, 2)."""
    generators = [torch.Generator().manual_seed(int(seed)) for seed in seeds]
    x = torch.zeros(len(seeds), 2, dtype=torch.float64)
    for t in range(STEPS):
        push = torch.stack([torch.randn(2, generator=g, dtype=torch.float64) for g in generators])
        x = 0.9 * x + (1.0 if t % 10 == 6 else 0.15) * push
        x = correct(x, t)  # the added line
    return x


def make(radius: float = 0.5) -> tuple[LoopSampler, tt.Constraint]:
    """Return the loop, whose walks must stay in a disc, and the disc."""
    disc = tt.as_constraint(
        lambda x: x * (radius / x.norm(dim=1, keepdim=True)).clamp(max=1),
        lambda x: (x.norm(dim=1) - radius).clamp(min=0),
    )
    return LoopSampler(sample, STEPS), disc
