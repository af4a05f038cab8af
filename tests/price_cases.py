"""Small samplers whose best prices are known, for the tests of prices."""

from __future__ import annotations

from dataclasses import dataclass

import torch

import free
import trimtab as tt
from trimtab.core.noise import Noise

CALIBRATION, EVALUATION = range(1000, 1048), range(48)


@dataclass(frozen=True)
class Drift:
    """A defect that grows by a random amount each step and is forgotten at rate kappa; the state is the defect."""

    kappa: float
    n_steps: int = 24

    def start(self, noise: Noise) -> torch.Tensor:
        return torch.zeros(len(noise.seeds), 1, dtype=torch.float64)

    def step(self, x: torch.Tensor, t: int, noise: Noise) -> torch.Tensor:
        return (1 - self.kappa) * x - noise.uniform(t, (1,)).log()


ZERO = tt.as_constraint(torch.zeros_like, lambda x: x[:, 0])


@dataclass(frozen=True)
class Caught:
    """Halfway through each sample gets to a defect of its own, which is back one step after every correction."""

    n_steps: int = 24

    def start(self, noise: Noise) -> torch.Tensor:
        own = -noise.uniform(-1, (1,)).log()
        return torch.cat([torch.zeros_like(own), own], dim=1)

    def step(self, x: torch.Tensor, t: int, noise: Noise) -> torch.Tensor:
        fresh, own = -noise.uniform(t, (1,)).log(), x[:, 1:]
        return torch.cat([fresh if 2 * t < self.n_steps else 0.05 * fresh + own, own], dim=1)


@dataclass(frozen=True)
class Regrown:
    """A defect of each sample's own, to which it grows back over a few steps after every correction."""

    n_steps: int = 50

    def start(self, noise: Noise) -> torch.Tensor:
        own = -noise.uniform(-1, (1,)).log()
        return torch.cat([own, own], dim=1)

    def step(self, x: torch.Tensor, t: int, noise: Noise) -> torch.Tensor:
        now, own = x[:, :1], x[:, 1:]
        return torch.cat([0.5 * (now + own) - 0.05 * noise.uniform(t, (1,)).log(), own], dim=1)


FIRST_ZERO = tt.as_constraint(lambda x: x * torch.tensor([0.0, 1.0], dtype=x.dtype), lambda x: x[:, 0])


def mean_path_error(schedule, sampler, constraint=ZERO, seeds=EVALUATION) -> float:
    return float(free.rollout(sampler, constraint, schedule, seeds).residuals.sum(dim=0).mean())
