"""A sampler, a constraint and the seeds they were made for, in one value."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from trimtab.core.checks import check_callable
from trimtab.core.constraint import Constraint, check_constraint
from trimtab.core.groups import as_groups
from trimtab.core.metrics import Distance, euclidean
from trimtab.core.noise import as_seeds
from trimtab.core.record import Rollout
from trimtab.core.rollout import Sampler, check_sampler, rollout, take_rows

__all__ = ["Problem"]


@dataclass(frozen=True, eq=False)
class Problem:
    """What is sampled: a sampler and a constraint, and the seeds they were made for.

    Attributes:
        sampler: Proposes.
        constraint: Projects and measures defects.
        seeds: One per sample, (n,); a range or a list will do.
        distance: A function of two states, (n, *event) each, to (n,); Euclidean by default.
        groups: One label per sample, if samples are decided on together.

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
    groups: Any = None

    def __post_init__(self) -> None:
        """Check the parts, and read seeds and groups."""
        check_sampler(self.sampler)
        check_constraint(self.constraint)
        check_callable(self.distance, "the distance of a problem", "distance(a, b)")
        object.__setattr__(self, "seeds", as_seeds(self.seeds))
        groups = as_groups(self.groups)
        if groups is not None and len(groups.labels) != len(self.seeds):
            raise ValueError(
                f"{len(groups.labels)} group labels were given for {len(self.seeds)} seeds; give each sample one label"
            )
        object.__setattr__(self, "groups", groups)

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
        groups = {} if self.groups is None else {"groups": self.groups}
        return rollout(self.sampler, self.constraint, schedule, self.seeds, **groups, **options)

    def take(self, rows: Tensor) -> Problem:
        """Return the same problem for some of its samples, a (k,) index tensor."""
        groups = None if self.groups is None else self.groups.take(rows)
        return replace(
            self,
            sampler=take_rows(self.sampler, rows),
            constraint=self.constraint.take(rows),
            seeds=self.seeds[rows],
            groups=groups,
        )

    def halves(self) -> tuple[Problem, Problem]:
        """Return two problems of half the samples each, with groups kept whole."""
        deciders = torch.arange(len(self)) if self.groups is None else self.groups.of_row.cpu()
        count = len(self) if self.groups is None else self.groups.n
        return tuple(  # type: ignore[return-value]
            self.take(part.nonzero().squeeze(1)) for part in (deciders < count // 2, deciders >= count // 2)
        )
