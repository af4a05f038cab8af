"""Small samplers whose best prices are known, for the tests of prices."""

from __future__ import annotations

from dataclasses import dataclass

import torch

import free
import trimtab as tt
from trimtab.core.noise import Noise
from trimtab.prices.program import IterationSteps
from trimtab.prices.transitions import NODES

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


@dataclass(frozen=True, eq=False)
class SetUp(tt.Constraint):
    """A constraint whose solver is set up at a cost before its first iteration of a step."""

    solver: tt.Constraint
    units: int

    improves = True

    def project(self, x, *args, **context):
        answer = self.solver.project(x)
        return answer._replace(iterations=answer.iterations + self.units * (answer.iterations > 0))

    def defect(self, x, *args, **context):
        return self.solver.defect(x)

    def improve(self, x, state, **context):
        cost = torch.full((len(x),), 1 + self.units * (state is None))
        return self.solver.improve(x, state)._replace(cost=cost)


def mean_path_error(schedule, sampler, constraint=ZERO, seeds=EVALUATION) -> float:
    return float(free.rollout(sampler, constraint, schedule, seeds).residuals.sum(dim=0).mean())


def contraction(share: float, n_steps: int) -> IterationSteps:
    """Each iteration leaves a share of the defect, and each step adds one level to what was left."""
    nodes = torch.arange(NODES, dtype=torch.float64)
    at = torch.arange(NODES)
    improved, following = torch.zeros(2, NODES, NODES, dtype=torch.float64)
    improved[at, (at * share).long()] = 1.0
    following[at, (at + 1).clamp(max=NODES - 1)] = 1.0
    start = torch.zeros(NODES, dtype=torch.float64)
    start[3] = 1.0
    return IterationSteps(
        nodes.expand(n_steps, NODES), improved.expand(n_steps, -1, -1), following.expand(n_steps - 1, -1, -1), start
    )
