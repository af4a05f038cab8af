"""What is attacked: a small sampler, a set, prices, and a record of a run."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

import trimtab as tt
from torture.values import N, T


class Walk:
    """A random walk in R^3."""

    n_steps = T

    def start(self, noise: Any) -> torch.Tensor:
        """Somewhere."""
        return noise.normal(-1, (3,))

    def step(self, x: torch.Tensor, t: int, noise: Any) -> torch.Tensor:
        """Nearby."""
        return x + 0.3 * noise.normal(t, (3,))


def ball() -> Any:
    """The unit ball."""
    return tt.as_constraint(
        lambda x: x / x.norm(dim=1, keepdim=True).clamp(min=1), lambda x: (x.norm(dim=1) - 1).clamp(min=0)
    )


def prices() -> Any:
    """A table of prices for T steps and two corrections."""
    values = torch.full((T, 3), 0.2)
    values[:, 0] = torch.inf
    return tt.prices.Thresholds(values)


def whole_run(schedule: Any, **options: Any) -> Any:
    """A rollout of the walk."""
    return tt.rollout(Walk(), ball(), schedule, range(N), **{"measure_defects": True} | options)


def of_problem(function: Callable[..., Any], **changes: Any) -> Any:
    """`calibrate` or `advise` on the walk, with some arguments spoiled."""
    given = {"sampler": Walk(), "constraint": ball(), "seeds": range(1000, 1032)}
    own = {name: changes.pop(name) for name in list(changes) if name in given}
    if next(iter(inspect.signature(function).parameters)) == "sampler":
        return function(**given | own, **changes)
    return function(tt.Problem(**given | own), **changes)


RUN = []


def run_of_walk() -> Any:
    """A record, made once."""
    if not RUN:
        RUN.append(whole_run(tt.Terminal()))
    return RUN[0]
