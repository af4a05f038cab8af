"""Your own sampler in ten lines, for the command line.

Points walk at random, with a push every 15 steps, and must stay in a disc. In the folder of this file:

    trimtab advise    --sampler my_sampler:make --cost projections
    trimtab calibrate --sampler my_sampler:make
    trimtab compare   --sampler my_sampler:make
"""

from __future__ import annotations

import torch

import trimtab as tt


class Walk:
    """60 steps of a random walk in the plane."""

    n_steps = 60

    def start(self, noise: tt.core.noise.Noise) -> torch.Tensor:
        """Start in the middle, (n, 2)."""
        return torch.zeros_like(noise.start((2,)))

    def step(self, x: torch.Tensor, t: int, noise: tt.core.noise.Noise) -> torch.Tensor:
        """Return the next points, (n, 2): a pull to the middle, noise, and sometimes a push."""
        return 0.95 * x + (1.0 if t % 15 == 9 else 0.15) * noise.normal(t, (2,))


def make(radius: float = 0.5) -> tuple[Walk, tt.Constraint]:
    """Return the walk and the disc that it must stay in."""
    disc = tt.as_constraint(
        lambda x: x * (radius / x.norm(dim=1, keepdim=True)).clamp(max=1),
        lambda x: (x.norm(dim=1) - radius).clamp(min=0),
    )
    return Walk(), disc
