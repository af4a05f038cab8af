"""What engines are tried out on, in a module that other processes can import."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

import numpy as np
import torch

import trimtab as tt

STEPS = 12


def inside(x):
    return x.clamp(-0.5, 0.5)


def outside(x):
    return (x.abs() - 0.5).clamp(min=0).amax(dim=1)


def problem(n: int = 16, first: int = 1000) -> tt.Problem:
    return tt.domain("so3", n_steps=STEPS).problem(range(first, first + n))


@dataclass(frozen=True)
class Loop:
    """A loop that is not taken apart, with the same noise in every run."""

    seed: int

    def __call__(self, schedule):
        generator, x = torch.Generator().manual_seed(self.seed), torch.zeros(8, 2, dtype=torch.float64)
        corrector = tt.Corrector(tt.as_constraint(inside, outside), schedule, n_steps=STEPS)
        for t in range(STEPS):
            x = corrector(x + 0.2 * torch.randn(8, 2, generator=generator, dtype=torch.float64), t)
        return corrector.rollout


@dataclass(frozen=True)
class Picky:
    """A loop that fails under some schedules."""

    least: int

    def __call__(self, schedule):
        if schedule.budget < self.least:
            raise OSError(f"a budget of {schedule.budget} is too small")
        return Loop(1)(schedule)


@dataclass(frozen=True)
class Deadly(Loop):
    """A loop that ends its process."""

    def __call__(self, schedule):
        os.kill(os.getpid(), signal.SIGKILL)


def unseeded(schedule):
    corrector = tt.Corrector(tt.as_constraint(inside, outside), schedule, n_steps=STEPS)
    for t in range(STEPS):
        corrector(torch.randn(8, 2), t)
    return corrector.rollout


def returns_states(schedule):
    return unseeded(schedule).final


@dataclass
class State:
    x: torch.Tensor


def tree_loop(kind: str):
    """A loop whose states are a tree of some kind."""
    wrap = {
        "dict": lambda x: {"x": x, "more": [x.numpy()]},
        "numpy": lambda x: x.numpy(),
        "dataclass": State,
    }[kind]
    unwrap = {
        "dict": lambda s: s["x"],
        "numpy": lambda s: torch.from_numpy(np.asarray(s)),
        "dataclass": lambda s: s.x,
    }[kind]

    def run(schedule):
        x = torch.zeros(4, 2, dtype=torch.float64)
        generator = torch.Generator().manual_seed(0)
        constraint = tt.as_constraint(lambda s: wrap(inside(unwrap(s))), lambda s: outside(unwrap(s)))
        corrector = tt.Corrector(constraint, schedule, n_steps=4)
        for t in range(4):
            x = unwrap(corrector(wrap(x + torch.randn(4, 2, generator=generator, dtype=torch.float64)), t))
        return corrector.rollout

    return run
