"""A flow-matching model on the sphere: train it, then project its samples on schedule.

A small network learns the velocity of straight lines from points spread over the sphere to points near a spiral on it.
The Euler steps leave the sphere; flow_matching's own solver would project after every one of them. Here its manifold is
the constraint, and a budget of a fifth of the steps is spent where it counts. `target="clean"` projects the point the
flow is heading for instead of the point it is at.

Run it: `python examples/flow_on_sphere.py` (needs `pip install 'trimtab[flows]'`)
"""

from __future__ import annotations

import math

import torch
from flow_matching.utils.manifolds import Sphere
from torch import Tensor, nn

import trimtab as tt
from trimtab.core.metrics import path_error, summary
from trimtab.integrations.flows import FlowSampler, with_target
from trimtab.integrations.manifolds import manifold_constraint

STEPS = 50


class Velocity(nn.Module):
    """A network of x and t, as flow_matching calls them: (n, 3) and a number to (n, 3)."""

    def __init__(self) -> None:
        """Three layers."""
        super().__init__()
        self.net = nn.Sequential(nn.Linear(5, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 3))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """The velocity of x at t."""
        t = t.expand(len(x))
        return self.net(torch.cat([x, t.sin()[:, None], (2 * math.pi * t).cos()[:, None]], dim=1))


def on_sphere(x: Tensor) -> Tensor:
    """(n, 3) to unit vectors, (n, 3)."""
    return x / x.norm(dim=1, keepdim=True)


def spiral(n: int, generator: torch.Generator) -> Tensor:
    """Data: points near a spiral from pole to pole, (n, 3)."""
    height = 1.8 * torch.rand(n, generator=generator) - 0.9
    angle, radius = 6 * height, (1 - height.square()).sqrt()
    x = torch.stack([radius * angle.cos(), radius * angle.sin(), height], dim=1)
    return on_sphere(x + 0.05 * torch.randn(n, 3, generator=generator))


def trained(iterations: int = 1000) -> Velocity:
    """Conditional flow matching along straight lines."""
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
        velocity=trained(), n_steps=STEPS, event=(3,), start_from=lambda noise: on_sphere(noise.normal(-1, (3,)))
    )
    sphere = manifold_constraint(Sphere())
    print(f"{'target':<8}{'schedule':<24}{'projections per sample':>22}{'path error':>20}")
    for target in ("state", "clean"):
        sampler, constraint, samples = with_target(flow, sphere, target)
        price = tt.calibrate(tt.Problem(sampler, constraint, range(1000, 1064)), budget=0.2, objective="path")
        schedules = {
            "terminal": tt.Terminal(),
            "periodic, 20% of steps": tt.Periodic(0.2),
            "adaptive, 20% of steps": price.at(0.2),
            "stepwise": tt.Stepwise(),
        }
        for name, schedule in schedules.items():
            run = tt.rollout(sampler, constraint, schedule, range(256), measure_defects=True)
            assert bool((sphere.defect(samples(run.final)) < 1e-5).all())
            spent = float(run.spent.double().mean())
            print(f"{target:<8}{name:<24}{spent:>22.1f}{summary(path_error(run))!s:>20}")


if __name__ == "__main__":
    main()
