"""What a case of a constraint is, for the laws."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from trimtab.core.constraint import Constraint

N = 9


@dataclass(frozen=True)
class Case:
    """A constraint for N samples, the shape of their states, and how exact its projection is.

    Attributes:
        make: The constraint.
        event: Shape of a state.
        tolerance: Largest defect after projection in float64; float32 is allowed the same number of its own digits.
        nearest: Whether the projection is the nearest point, and not just a feasible one.
        draw: Makes states of (seed, scale), (N, *event) float64, where not any numbers will do.
    """

    make: Callable[[], Constraint]
    event: tuple[int, ...]
    tolerance: float = 1e-13
    nearest: bool = True
    draw: Callable[[int, float], Tensor] | None = None


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
