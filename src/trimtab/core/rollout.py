"""Run a sampler with corrections on schedule."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import torch
from torch import Tensor

from trimtab.core.constraint import Constraint
from trimtab.core.corrector import Corrector
from trimtab.core.noise import Noise, as_seeds
from trimtab.core.record import Rollout

__all__ = ["Sampler", "rollout"]


class Sampler(Protocol):
    """Proposes the next state from the current one.

    Two more attributes are optional: `dtype` is the dtype of its noise, float64 by default; `take(rows)` returns the
    sampler of some of the samples, for samplers whose data differs from sample to sample.
    """

    @property
    def n_steps(self) -> int:
        """T, the number of update locations at which a projection could be applied."""
        ...

    def start(self, noise: Noise) -> Any:
        """Return initial states, (n, *event)."""
        ...

    def step(self, x: Any, t: int, noise: Noise) -> Any:
        """Return the proposals of update t, (n, *event)."""
        ...


def rollout(
    sampler: Sampler,
    constraint: Constraint,
    schedule: Any,
    seeds: Iterable[int] | Tensor,
    *,
    device: torch.device | str | None = None,
    **options: Any,
) -> Rollout:
    """Run a sampler with corrections on schedule.

    Args:
        sampler: Proposes; noise is float64 unless the sampler has a `dtype` of its own.
        constraint: Projects and measures defects.
        schedule: Decides; a schedule, any function of a `StepView`, a budget or a `trimtab.prices.Learner`.
        seeds: One per sample; its noise depends on nothing else.
        device: Where to run.
        **options: As in `Corrector`: `closing`, `groups`, `on_failure`, `keep_states`, `unit`, `measure_defects`,
            `on_step`.

    Example:
        >>> import trimtab as tt
        >>> problem = tt.domain("so3").problem(range(4))
        >>> run = tt.rollout(problem.sampler, problem.constraint, tt.Periodic(0.25), range(4))
        >>> run.projected.sum(dim=0).tolist() == [run.n_steps // 4] * 4
        True
    """
    check_sampler(sampler)
    seeds = as_seeds(seeds, device)
    noise = noise_of(sampler, seeds)
    with torch.no_grad(), Corrector(constraint, schedule, sampler.n_steps, seeds=seeds, **options) as corrector:
        x = sampler.start(noise)
        corrector.begin(x)
        for t in range(sampler.n_steps):
            x = corrector(sampler.step(x, t, noise), t)
    return corrector.rollout


def check_sampler(sampler: object) -> None:
    """Raise if an object is not a sampler."""
    for name in ("n_steps", "start", "step"):
        if not hasattr(sampler, name):
            raise TypeError(
                f"a sampler has n_steps, start(noise) and step(x, t, noise); {type(sampler).__name__} has no {name} "
                "(it comes first, then the constraint; a loop of your own can call a Corrector instead)"
            )


def noise_of(sampler: Any, seeds: Tensor) -> Noise:
    """Return the noise of samples in the dtype that their sampler asks for."""
    return Noise(seeds, getattr(sampler, "dtype", torch.float64))


def take_rows(sampler: Any, rows: Tensor) -> Any:
    """Return the sampler of some of the samples: itself, unless it has `take(rows)` for data per sample."""
    take = getattr(sampler, "take", None)
    return sampler if take is None else take(rows)
