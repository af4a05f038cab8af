"""Samplers, problems (a sampler, a constraint and seeds), and how to run them with corrections on schedule."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from trimtab.core.checks import check_callable
from trimtab.core.constraint import Constraint, check_constraint
from trimtab.core.metrics import Distance, euclidean
from trimtab.core.noise import Noise, as_seeds
from trimtab.core.record import Rollout
from trimtab.loop.corrector import Corrector

__all__ = ["Problem", "Sampler", "rollout"]


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
    distance: Distance = euclidean,
    **options: Any,
) -> Rollout:
    """Run a sampler with corrections on schedule.

    Args:
        sampler: Proposes; noise is float64 unless the sampler has a `dtype` of its own.
        constraint: Projects and measures defects.
        schedule: Decides; a schedule, any function of a `StepView`, a budget or a `trimtab.prices.Learner`.
        seeds: One per sample; its noise depends on nothing else.
        device: Where to run.
        distance: What is near to full projection, a function of two states to (n,), for a learner that tries twins.
        **options: As in `Corrector`: `closing`, `on_failure`, `keep_states`, `unit`, `measure_defects`,
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

    def run(schedule: Any, options: dict[str, Any]) -> Corrector:
        noise = noise_of(sampler, seeds)
        with torch.no_grad(), Corrector(constraint, schedule, sampler.n_steps, seeds=seeds, **options) as corrector:
            x = sampler.start(noise)
            corrector.begin(x)
            for t in range(sampler.n_steps):
                x = corrector(sampler.step(x, t, noise), t)
        return corrector

    corrector = run(schedule, options)
    learner, plain = (
        corrector.learner,
        {name: value for name, value in options.items() if name in ("closing", "on_failure")},
    )
    if learner is not None and learner.wants_twins:
        learner.try_out(lambda twin: run(twin, plain).rollout, len(seeds), distance)
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


@dataclass(frozen=True, eq=False)
class Problem:
    """What is sampled: a sampler and a constraint, and the seeds they were made for.

    Attributes:
        sampler: Proposes.
        constraint: Projects and measures defects.
        seeds: One per sample, (n,); a range or a list will do.
        distance: A function of two states, (n, *event) each, to (n,); Euclidean by default.

    Example:
        >>> import trimtab as tt
        >>> problem = tt.domain("so3").problem(range(4))
        >>> problem.n_steps, problem.rollout(tt.Periodic(0.25)).spent.tolist()
        (100, [25, 25, 25, 25])
    """

    sampler: Sampler
    constraint: Constraint
    seeds: Any
    distance: Distance = euclidean

    def __post_init__(self) -> None:
        """Check the parts, and read the seeds."""
        check_sampler(self.sampler)
        check_constraint(self.constraint)
        check_callable(self.distance, "the distance of a problem", "distance(a, b)")
        object.__setattr__(self, "seeds", as_seeds(self.seeds))

    def __repr__(self) -> str:
        """Return a one-line summary."""
        sampler, constraint = type(self.sampler).__name__, type(self.constraint).__name__
        return f"Problem({sampler}, {constraint.lstrip('_')}, T={self.n_steps}, {len(self)} seeds)"

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.seeds)

    @property
    def n_steps(self) -> int:
        """T."""
        return self.sampler.n_steps

    def rollout(self, schedule: Any, **options: Any) -> Rollout:
        """Run it on a schedule or a budget; options are those of `Corrector`."""
        return rollout(self.sampler, self.constraint, schedule, self.seeds, distance=self.distance, **options)

    def take(self, rows: Tensor) -> Problem:
        """Return the same problem for some of its samples, a (k,) index tensor."""
        parts = {"sampler": take_rows(self.sampler, rows), "constraint": self.constraint.take(rows)}
        return replace(self, **parts, seeds=self.seeds[rows])

    def halves(self) -> tuple[Problem, Problem]:
        """Return two problems of half the samples each."""
        middle, rows = len(self) // 2, torch.arange(len(self))
        return self.take(rows[:middle]), self.take(rows[middle:])
