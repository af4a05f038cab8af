"""How the time of `calibrate` grows with T on a trivial sampler, rollouts included, over how the table grows.

The table has T x B entries with B = T. Times are processor times of one thread.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import torch

import trimtab as tt
from _compare import compare


def whole(method: str, T: int) -> object:
    """All prices of a sampler that costs next to nothing, 64 rollouts."""
    ball = tt.as_constraint(
        project=lambda x: x / x.norm(dim=1, keepdim=True).clamp(min=1),
        defect=lambda x: (x.norm(dim=1) - 1).clamp(min=0),
    )
    noise = 0.2 * torch.randn(T, 64, 2, generator=torch.Generator().manual_seed(0))

    def rollout(schedule: Any) -> Any:
        corrector = tt.Corrector(ball, schedule, n_steps=T)
        x = torch.zeros(64, 2)
        for t in range(T):
            x = corrector(0.98 * x + noise[t], t)
        return corrector.rollout

    return tt.calibrate(rollout, 1.0, method, objective="path", check=False)


def growth(lengths: list[int]) -> list[dict[str, Any]]:
    rows = []
    for method in ("dp", "planned"):
        ways = {f"T = {T}": partial(whole, method, T) for T in lengths}
        timing = compare(ways, 3, warmup=0, one_thread=True)
        for shorter, longer in pairwise(lengths):
            found = timing.ratio(of=f"T = {longer}", over=f"T = {shorter}")
            table = (longer / shorter) ** 2
            seconds = (f"{timing.median(f'T = {T}'):.3g} s at T = {T}" for T in (shorter, longer))
            rows.append(
                {
                    "claim": f"growth of calibrate(method={method!r}), all budgets",
                    "against": "growth of T x B",
                    "ratio": found.ratio / table,
                    "low": found.low / table,
                    "high": found.high / table,
                    "target": "<= 1",
                    "inputs": "64 rollouts of a trivial sampler, which are counted; " + ", ".join(seconds),
                }
            )
    return rows


def run(quick: bool) -> list[dict[str, Any]]:
    return growth([50, 100] if quick else [250, 500, 1000])
