"""Project on schedule inside a DDPM loop that you wrote yourself.

The loop is ancestral sampling as in any tutorial, with one new line: `x = corrector(x, t)`. The "network" is the noise
that a perfect model predicts for eight clusters on a ring, so nothing has to be trained; samples must stay out of a
disc that covers two of the clusters.

Run it: `python examples/wrap_ddpm_loop.py`
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

import trimtab as tt

T = 100
SIGNAL = torch.cumprod(1 - torch.linspace(1e-3, 0.08, T), dim=0)  # the share of the data after k + 1 noise steps
ANGLES = torch.arange(8) * (2 * math.pi / 8)
CLUSTERS = torch.stack([ANGLES.cos(), ANGLES.sin()], dim=1)
DISC, RADIUS = torch.tensor([0.9, 0.4]), 0.6


def predicted_noise(x: Tensor, k: int) -> Tensor:
    """Return the noise that a perfect network predicts at noise level k, (n, 2) to (n, 2)."""
    signal = SIGNAL[k]
    offsets = x[:, None] - signal.sqrt() * CLUSTERS
    spread = signal * 0.05**2 + 1 - signal
    weights = torch.softmax(-offsets.square().sum(dim=2) / (2 * spread), dim=1)
    return (1 - signal).sqrt() * (weights[:, :, None] * offsets).sum(dim=1) / spread


def sample(corrector: tt.Corrector, seed: int, n: int) -> Tensor:
    """Draw samples, (n, 2)."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 2, generator=generator)
    for t, k in enumerate(reversed(range(T))):
        before = SIGNAL[k - 1] if k > 0 else torch.ones(())
        keep = SIGNAL[k] / before
        mean = (x - (1 - keep) / (1 - SIGNAL[k]).sqrt() * predicted_noise(x, k)) / keep.sqrt()
        spread = ((1 - keep) * (1 - before) / (1 - SIGNAL[k])).sqrt()
        x = mean + spread * torch.randn(n, 2, generator=generator)
        x = corrector(x, t)  # the new line
    return x


def out_of_disc(x: Tensor) -> Tensor:
    """Return the nearest points outside the disc, (n, 2)."""
    away = x - DISC
    distance = away.norm(dim=1, keepdim=True).clamp(min=1e-9)
    return torch.where(distance < RADIUS, DISC + away / distance * RADIUS, x)


def depth(x: Tensor) -> Tensor:
    """Return how deep points are in the disc, (n,)."""
    return (RADIUS - (x - DISC).norm(dim=1)).clamp(min=0)


def main() -> None:
    """Calibrate the loop on one seed and compare schedules on another."""
    constraint = tt.as_constraint(out_of_disc, depth)

    def run(schedule: tt.Schedule, seed: int = 0) -> tt.Rollout:
        corrector = tt.Corrector(constraint, schedule, n_steps=T, measure_defects=True)
        with corrector:  # raises an error if the loop calls it too few or too many times
            sample(corrector, seed, n=256)
        return corrector.rollout

    price = tt.calibrate(lambda schedule: run(schedule, seed=1000), budget=0.1, objective="path")
    print(tt.compare(run, {"adaptive": price}, [0.1]))


if __name__ == "__main__":
    main()
