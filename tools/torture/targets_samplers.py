"""Bad arguments and answers for loops, flows, manifolds, loggers and checks of independence, and for a limit of time."""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Callable
from typing import Any

import torch

import trimtab as tt
from torture.things import Walk, ball
from torture.values import Bad, N, T, Thing, above_zero, but_none, function, level, seeds, state, steps, whole, word
from trimtab.constraints import Ball, TimeLimit
from trimtab.integrations.flows import FlowSampler, with_target
from trimtab.integrations.independence import check_independence, check_rows
from trimtab.integrations.loggers import to_mlflow, to_tensorboard, to_wandb
from trimtab.integrations.loops import LoopSampler
from trimtab.integrations.manifolds import manifold_constraint


def shape(r: random.Random) -> Any:
    """What is no shape of one sample."""
    return r.choice(["x", (-1,), (1.5,), (0,), None, Thing(), ("a",), 3, [None], (True,), {}])


def dtype(r: random.Random) -> Any:
    """What is no dtype of states."""
    return r.choice(["float32", None, 3, float, torch.int64, torch.bool, torch.complex64, Thing(), len])


def times(r: random.Random) -> Any:
    """What are no times of T steps."""
    even = torch.linspace(0, 1, T + 1)
    wrong = [even[:-1], even.flip(0), torch.zeros(T + 1), even[None], even.where(even < 0.5, math.nan), even * math.inf]
    return r.choice([*wrong, torch.arange(T + 1), "x", 3, [0.0, 1.0], Thing(), {}])


def flow(**changes: Any) -> FlowSampler:
    """A flow in R^3, with something spoiled."""
    given: dict[str, Any] = {"velocity": lambda x, t: -x, "n_steps": T, "event": (3,)}
    return FlowSampler(**given | changes)


def flowed(**changes: Any) -> Any:
    """Its rollout."""
    return tt.rollout(flow(**changes), ball(), tt.Periodic(2), range(N))


def loop(**changes: Any) -> Any:
    """The rollout of a loop, with something spoiled."""

    def steps_of(correct: Any, seeds: torch.Tensor) -> None:
        x = torch.zeros(len(seeds), 3)
        for t in range(T):
            x = correct(x + 0.3, t)

    return tt.rollout(LoopSampler(**{"loop": steps_of, "n_steps": T} | changes), ball(), tt.Periodic(2), range(N))


def _proposing(value: Any, t: Any = None) -> Callable[..., None]:
    return lambda correct, seeds: correct(value, t)


def manifold(value: Any, defect: Any = "projection") -> Any:
    """A manifold as a constraint."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return manifold_constraint(value, defect)


class Line:
    """With a projection."""

    def projx(self, x: torch.Tensor) -> torch.Tensor:
        """Onto an axis."""
        return x * torch.tensor([1.0, 0.0, 0.0])


def tolerance(r: random.Random) -> Any:
    """What is no largest difference."""
    return but_none(level(r))


TARGETS: dict[str, tuple[Callable[[Any], Any], Bad]] = {
    "LoopSampler loop": (lambda v: loop(loop=v), function),
    "LoopSampler n_steps": (lambda v: loop(n_steps=v), lambda r: r.choice([steps(r), T + 1, T - 1])),
    "LoopSampler proposal": (lambda v: loop(loop=_proposing(v)), state),
    "LoopSampler t": (lambda v: loop(loop=_proposing(torch.rand(N, 3), v)), lambda r: r.choice([1, -1, "x", 1.5, [], Thing(), math.nan])),
    "FlowSampler velocity": (lambda v: flowed(velocity=v), function),
    "FlowSampler velocity's answer": (lambda v: flowed(velocity=lambda x, t: v), lambda r: but_none(state(r))),
    "FlowSampler n_steps": (lambda v: flowed(n_steps=v), whole),
    "FlowSampler event": (lambda v: flowed(event=v), shape),
    "FlowSampler arguments": (lambda v: flowed(arguments=v), lambda r: but_none(word(r))),
    "FlowSampler times": (lambda v: flowed(times=v), times),
    "FlowSampler batched_time": (lambda v: flowed(batched_time=v), lambda r: r.choice(["x", 3, None, [], Thing()])),
    "FlowSampler start_from": (lambda v: flowed(start_from=v), lambda r: but_none(function(r))),
    "FlowSampler start_from's answer": (lambda v: flowed(start_from=lambda noise: v), state),
    "FlowSampler dtype": (lambda v: flowed(dtype=v), dtype),
    "FlowSampler method": (lambda v: flowed(method=v), word),
    "with_target flow": (lambda v: with_target(v, ball(), "clean"), function),
    "with_target flow's state": (lambda v: with_target(v, ball()), function),
    "with_target constraint": (lambda v: with_target(flow(), v, "clean"), function),
    "with_target target": (lambda v: with_target(flow(), ball(), v), word),
    "manifold_constraint manifold": (manifold, function),
    "manifold_constraint defect": (lambda v: manifold(Line(), v), lambda r: but_none(function(r))),
    "to_tensorboard writer": (to_tensorboard, function),
    "to_tensorboard prefix": (lambda v: to_tensorboard(Logger(), v), lambda r: r.choice([3, None, b"x", [], Thing()])),
    "to_wandb run": (to_wandb, function),
    "to_wandb prefix": (lambda v: to_wandb(Logger(), v), lambda r: r.choice([3, None, b"x", [], Thing()])),
    "to_mlflow mlflow": (to_mlflow, function),
    "to_mlflow prefix": (lambda v: to_mlflow(Logger(), v), lambda r: r.choice([3, None, b"x", [], Thing()])),
    "check_independence thing": (lambda v: check_independence(v, range(N)), function),
    "check_independence seeds": (lambda v: check_independence(Walk(), v), lambda r: r.choice([[3], seeds(r), seeds(r)])),
    "check_independence batch": (lambda v: check_independence(lambda x: x, v), state),
    "check_independence answer": (lambda v: check_independence(lambda x: v, torch.rand(N, 3)), state),
    "check_independence samples": (lambda v: check_independence(Walk(), range(N), samples=v), whole),
    "check_independence tolerance": (lambda v: check_independence(Walk(), range(N), tolerance=v), tolerance),
    "check_rows constraint": (lambda v: check_rows(v, torch.rand(N, 3)), function),
    "check_rows x": (lambda v: check_rows(ball(), v), state),
    "check_rows tolerance": (lambda v: check_rows(ball(), torch.rand(N, 3), tolerance=v), tolerance),
    "TimeLimit constraint": (lambda v: TimeLimit(v, 1.0), lambda r: r.choice([ball(), function(r)])),
    "TimeLimit seconds": (lambda v: TimeLimit(Ball(1.0), v), above_zero),
}  # fmt: skip
"""What needs no other package."""


class Logger:
    """With everything that a logger may have."""

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        """As TensorBoard."""

    def log(self, numbers: dict[str, float]) -> None:
        """As Weights & Biases."""

    def log_metrics(self, numbers: dict[str, float], step: int) -> None:
        """As MLflow."""
