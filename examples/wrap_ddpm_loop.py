"""Project on schedule inside a DDPM loop that you wrote yourself.

The loop below is ancestral sampling as in any tutorial. One line is new: `x = corrector(x, t)`. The "network" is the
noise a perfect model would predict for eight clusters on a ring, so that nothing has to be trained; samples must stay
out of a disc that covers two of the clusters.

Run it: `python examples/wrap_ddpm_loop.py`
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

import trimtab as tt
from trimtab.core.metrics import path_error, summary

T = 100
SIGNAL = torch.cumprod(1 - torch.linspace(1e-3, 0.08, T), dim=0)  # how much of the data is left after k + 1 noisings
ANGLES = torch.arange(8) * (2 * math.pi / 8)
CLUSTERS = torch.stack([ANGLES.cos(), ANGLES.sin()], dim=1)
DISC, RADIUS = torch.tensor([0.9, 0.4]), 0.6


def predicted_noise(x: Tensor, k: int) -> Tensor:
    """What a perfect network says at noise level k: (n, 2) to (n, 2)."""
    signal = SIGNAL[k]
    offsets = x[:, None] - signal.sqrt() * CLUSTERS
    spread = signal * 0.05**2 + 1 - signal
    weights = torch.softmax(-offsets.square().sum(dim=2) / (2 * spread), dim=1)
    return (1 - signal).sqrt() * (weights[:, :, None] * offsets).sum(dim=1) / spread


def sample(corrector: tt.Corrector, seed: int, n: int) -> Tensor:
    """Ancestral sampling, (n, 2)."""
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
    """The nearest points outside the disc, (n, 2)."""
    away = x - DISC
    distance = away.norm(dim=1, keepdim=True).clamp(min=1e-9)
    return torch.where(distance < RADIUS, DISC + away / distance * RADIUS, x)


def depth(x: Tensor) -> Tensor:
    """How deep in the disc, (n,)."""
    return (RADIUS - (x - DISC).norm(dim=1)).clamp(min=0)


def main() -> None:
    """Calibrate the loop, then compare schedules."""
    constraint = tt.as_constraint(out_of_disc, depth)

    def run(schedule: tt.Schedule, seed: int = 0, n: int = 256) -> tt.Rollout:
        corrector = tt.Corrector(constraint, schedule, n_steps=T, measure_defects=True)
        with corrector:  # complains if the loop calls it too few or too many times
            sample(corrector, seed, n)
        return corrector.rollout

    price = tt.calibrate(lambda schedule: run(schedule, seed=1000), budget=0.25, objective="path")
    schedules = {
        "terminal": tt.Terminal(),
        "periodic, 10% of steps": tt.Periodic(0.1),
        "adaptive, 10% of steps": price.at(0.1),
        "stepwise": tt.Stepwise(),
    }
    print(f"{'schedule':<24}{'projections per sample':>22}{'path error':>20}")
    for name, schedule in schedules.items():
        record = run(schedule)
        assert bool((depth(record.final) < 1e-5).all())  # every run ends feasible
        print(f"{name:<24}{float(record.spent.double().mean()):>22.1f}{summary(path_error(record))!s:>20}")


if __name__ == "__main__":
    main()
