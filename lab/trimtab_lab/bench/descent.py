"""Corrections that are gradient steps on an energy, which count every energy and gradient that they evaluate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch import Tensor

from trimtab.core.arrays import rowwise
from trimtab.core.constraint import Constraint, Improvement, Projection

__all__ = ["Descent", "Meter"]


class Meter:
    """Counts what was evaluated, in gradients; an energy costs `energy` of one."""

    def __init__(self, energy: float) -> None:
        """Start at 0."""
        self.energy, self.spent = energy, 0.0

    def __call__(self) -> float:
        """Return the gradients spent so far, over all samples."""
        return self.spent


@dataclass(frozen=True, eq=False)
class Descent(Constraint):
    """Gradient steps down an energy; the defect is the energy above a floor.

    A gradient comes with the energy at its place, so the defect after some steps is known for free, but for the last
    step, whose fall the gradient tells: nothing is measured that was not asked for.

    Attributes:
        evaluate: `evaluate(x, gradient)` returns energies (n,), and gradients like x if asked for, else None.
        steps: Of one whole correction.
        first: What the first gradient is multiplied by.
        adaptive: Whether later steps follow Barzilai and Borwein; otherwise all are like the first.
        longest: No atom moves farther in one step, in the units of the state.
        floor: The energy at which the defect is 0.
        meter: Counts.
    """

    evaluate: Callable[[Tensor, bool], tuple[Tensor, Tensor | None]]
    steps: int
    first: float
    adaptive: bool = False
    longest: float = float("inf")
    floor: float = 0.0
    meter: Meter = field(default_factory=lambda: Meter(1.0))

    improves = True
    is_projection = False

    def project(self, x: Tensor) -> Projection:
        r"""Return the states after `steps` gradient steps, (n, \*event)."""
        state: tuple[Tensor, ...] | None = None
        defect = torch.zeros(len(x), dtype=torch.float64)
        for _ in range(self.steps):
            x, defect, _, state, _ = self.improve(x, state)
        return Projection(x, None, torch.full((len(x),), self.steps), defect)

    def defect(self, x: Tensor) -> Tensor:
        r"""Return the energy above the floor, (n, \*event) to (n,)."""
        self.meter.spent += self.meter.energy * len(x)
        return (self.evaluate(x, False)[0] - self.floor).clamp(min=0)

    def improve(self, x: Tensor, state: tuple[Tensor, ...] | None = None, **context: Any) -> Improvement:
        """Make one step; the defect is that of the place it left, less the fall that its gradient promises."""
        self.meter.spent += len(x)
        energy, slope = self.evaluate(x, True)
        assert slope is not None
        size = torch.full((len(x),), self.first, dtype=x.dtype)
        if self.adaptive and state is not None:
            moved, turned = (x - state[0]).flatten(1), (slope - state[1]).flatten(1)
            along = (moved * turned).sum(dim=1)
            size = torch.where(along > 0, (moved * moved).sum(dim=1) / along.clamp(min=1e-12), size)
        move = -rowwise(size, x) * slope
        far = move.norm(dim=-1).view(len(x), -1).amax(dim=1).clamp(min=1e-12)
        move = move * rowwise((self.longest / far).clamp(max=1.0), x)
        fall = (slope * move).flatten(1).sum(dim=1).double() / 2  # as down a bowl to its bottom
        defect = (energy + fall - self.floor).clamp(min=0)
        return Improvement(x + move, defect, torch.zeros(len(x), dtype=torch.bool), (x, slope))

    def longer(self, steps: int) -> Self:
        """Return the same descent with another number of steps."""
        return replace(self, steps=steps)
