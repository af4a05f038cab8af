"""What a domain is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from trimtab.core.metrics import Distance
from trimtab.core.problem import Problem

__all__ = ["Domain", "Problem"]


@dataclass(frozen=True)
class Domain:
    """A family of problems, one for each seed, and the distance between their states.

    Attributes:
        name: The key it is known by.
        summary: One sentence.
        problem: `problem(seeds)` makes sampler and constraint; data that differs from sample to sample (start, goal)
            depends on the sample's seed only.
        distance: rho, (n, *event) twice to (n,); states that are off the constraint set are allowed.
        settings: The parameters it was made with, JSON only.
        quality: Judges final states (n, *event), given the constraint they were made for: numbers by name, (n,) each,
            which studies keep beside the path metrics. None where there is nothing more to say.
    """

    name: str
    summary: str
    problem: Callable[[Iterable[int] | Tensor], Problem]
    distance: Distance
    settings: Mapping[str, Any] = field(default_factory=dict)
    quality: Callable[[Tensor, Any], dict[str, Tensor]] | None = None
