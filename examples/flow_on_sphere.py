"""A flow-matching model on the sphere: train it, then project its samples on schedule.

A small network learns the velocity of straight lines from points on the sphere to points near a spiral on it. Euler
steps leave the sphere; flow_matching's own solver would project after each of them. Here its manifold is the
constraint, with a budget of a fifth of the steps. `target="clean"` projects the point that the flow is heading for.

Run it: `python examples/flow_on_sphere.py` (needs `pip install 'trimtab[flows]'`)
"""

from __future__ import annotations

import math

import torch
from flow_matching.utils.manifolds import Sphere
from torch import Tensor, nn

import trimtab as tt
from trimtab.integrations.flows import FlowSampler, with_target
from trimtab.integrations.manifolds import manifold_constraint

STEPS = 50


class Velocity(nn.Module):
    """A network of x and t, as flow_matching calls them: (n, 3) and a number to (n, 3)."""

    def __init__(self) -> None:
        """Make three layers."""
        super().__init__()
        self.net = nn.Sequential(nn.Linear(5, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 3))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """Return the velocity of x at t."""
        t = t.expand(len(x))
        return self.net(torch.cat([x, t.sin()[:, None], (2 * math.pi * t).cos()[:, None]], dim=1))


def on_sphere(x: Tensor) -> Tensor:
    """Scale to unit vectors, (n, 3)."""
    return x / x.norm(dim=1, keepdim=True)


def spiral(n: int, generator: torch.Generator) -> Tensor:
    """Draw data: points near a spiral from pole to pole, (n, 3)."""
    height = 1.8 * torch.rand(n, generator=generator) - 0.9
    angle, radius = 6 * height, (1 - height.square()).sqrt()
    x = torch.stack([radius * angle.cos(), radius * angle.sin(), height], dim=1)
    return on_sphere(x + 0.05 * torch.randn(n, 3, generator=generator))


def trained(iterations: int = 1000) -> Velocity:
    """Train by flow matching along straight lines."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    model = Velocity()
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(iterations):
        begin, end = on_sphere(torch.randn(256, 3, generator=generator)), spiral(256, generator)
        t = torch.rand(256, generator=generator)
        x = begin + t[:, None] * (end - begin)
        loss = (model(x, t) - (end - begin)).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return model.eval()


def main() -> None:
    """Train, calibrate, compare."""
    flow = FlowSampler(
        velocity=trained(), n_steps=STEPS, event=(3,), start_from=lambda noise: on_sphere(noise.start((3,)))
    )
    sphere = manifold_constraint(Sphere())
    for target in ("state", "clean"):
        sampler, constraint, _ = with_target(flow, sphere, target)
        held_out, fresh = (tt.Problem(sampler, constraint, seeds) for seeds in (range(1000, 1064), range(256)))
        price = tt.calibrate(held_out, budget=0.2, objective="path")
        print(f"target: {target}")
        print(tt.compare(fresh, {"adaptive": price}, [0.2]))


if __name__ == "__main__":
    main()
