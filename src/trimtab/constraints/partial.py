"""Corrections that do not end on a feasible set: a few iterations of a solver, or a few steps down an energy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from trimtab.constraints.states import Wrapper, check_states, with_settings
from trimtab.core.arrays import rowwise
from trimtab.core.checks import check_bool, check_callable, check_integer, check_number, check_positive
from trimtab.core.constraint import Constraint, Improvement, Projection, check_constraint

__all__ = ["EnergyDescent", "FewIterations"]


@dataclass(frozen=True, eq=False)
class FewIterations(Wrapper):
    """Another constraint whose `project` stops after a few iterations of its solver.

    The result is nearer to the feasible set, but in general not on it; `is_projection` is therefore False, and no
    sample counts as failed.

    Attributes:
        constraint: A constraint that has iterations (`improves`).
        iterations: Iterations per sample at most.

    Example:
        >>> import torch
        >>> from trimtab.constraints import NonlinearEquality
        >>> circle = NonlinearEquality(lambda y: (y * y).sum()[None] - 1)
        >>> FewIterations(circle, 1).project(torch.tensor([[0.0, 2.0]])).x
        tensor([[0.0000, 1.2500]])
    """

    improves = True
    is_projection = False

    constraint: Constraint
    iterations: int = 1

    def __post_init__(self) -> None:
        """Check that the constraint has iterations."""
        check_integer(self.iterations, "the iterations of FewIterations")
        if not check_constraint(self.constraint, "the constraint of FewIterations").improves:
            raise ValueError(f"{type(self.constraint).__name__} has no iterations: its improves is False")

    def _parts(self) -> tuple[Constraint, ...]:
        return (self.constraint,)

    def project(self, x: Any, **context: Any) -> Projection:
        r"""Return the states after a few iterations, (n, \*event); rows that are done earlier stop earlier."""
        defect = self.constraint.defect(x, **context)
        y, state, done, spent = x, None, defect == 0, torch.zeros_like(defect, dtype=torch.int64)
        for _ in range(self.iterations):
            if bool(done.all()):
                break
            new = self.constraint.improve(y, state, **context)
            y, state = torch.where(rowwise(done, x), y, new.x), new.state
            spent += torch.where(done, 0, 1 if new.cost is None else new.cost)
            defect, done = torch.where(done, defect, new.defect), done | new.done
        return Projection(y, None, spent, defect)

    def defect(self, x: Any, **context: Any) -> Tensor:
        r"""Return the defect of the constraint, (n, \*event) to (n,)."""
        defect: Tensor = self.constraint.defect(x, **context)
        return defect

    def improve(self, x: Any, state: tuple[Tensor, ...] | None = None, **context: Any) -> Improvement:
        """Make one iteration of the constraint's solver."""
        return self.constraint.improve(x, state, **context)

    def take(self, rows: Tensor) -> Self:
        """Return the same constraint for some samples."""
        return with_settings(self, constraint=self.constraint.take(rows))


@dataclass(frozen=True, eq=False)
class EnergyDescent(Constraint):
    r"""A few gradient steps on a differentiable energy, such as a clash or bond potential.

    The defect is the energy above its floor. The steps lower it and end on no set, so that `is_projection` is False:
    compare schedules by a quality of the final samples, not by their distance to correcting at every step.

    Attributes:
        energy: Maps states (n, \*event) to (n,), in torch operations; each row must depend on its own sample only.
        steps: Gradient steps of one correction.
        step_size: What the gradient is multiplied by in each step; small enough that the energy falls.
        floor: The energy at and below which the defect is 0 and a sample is done.
        measure_after: Whether the energy is measured once more after the last step. If not, the residual is what the
            last gradient saw, one step earlier: it costs nothing, where an energy costs 60% of a gradient.

    Example:
        >>> import torch
        >>> pull = EnergyDescent(lambda x: (x * x).sum(dim=1), steps=2, step_size=0.25)
        >>> pull.project(torch.tensor([[4.0, 0.0]])).x, pull.defect(torch.tensor([[4.0, 0.0]]))
        (tensor([[1., 0.]]), tensor([16.]))
    """

    improves = True
    is_projection = False

    energy: Callable[[Tensor], Tensor]
    steps: int
    step_size: float
    floor: float = 0.0
    measure_after: bool = True

    def __post_init__(self) -> None:
        """Check the settings."""
        check_bool(self.measure_after, "measure_after")
        check_callable(self.energy, "energy", "energy(x)")
        check_integer(self.steps, "steps")
        check_positive(self.step_size, "step_size")
        check_number(self.floor, "floor")

    def project(self, x: Tensor) -> Projection:
        r"""Return the states after `steps` gradient steps, (n, \*event); samples at the floor stay."""
        y, spent = x, torch.zeros(len(x), dtype=torch.int64, device=x.device)
        for _ in range(self.steps):
            y, seen = self._descend(y)
            spent += seen > 0
        return Projection(y, None, spent, self.defect(y).detach() if self.measure_after else seen)

    def defect(self, x: Tensor) -> Tensor:
        r"""Return the energy above its floor, (n, \*event) to (n,)."""
        return (self._energy(x) - self.floor).clamp(min=0)

    def improve(self, x: Tensor, state: tuple[Tensor, ...] | None = None, **context: Any) -> Improvement:
        """Make one gradient step; samples at the floor stay. Carries no state."""
        y, seen = self._descend(x)
        defect = self.defect(y).detach() if self.measure_after else seen
        return Improvement(y, defect, defect <= 0, ())

    def _descend(self, x: Tensor) -> tuple[Tensor, Tensor]:
        r"""Return states after a gradient step, (n, \*event), and their defects before it, (n,)."""
        with torch.inference_mode(False), torch.enable_grad():
            place = (x.clone() if x.is_inference() else x.detach()).requires_grad_()
            energy = self._energy(place)
            (slope,) = torch.autograd.grad(energy.sum(), place)
        seen, here = (energy.detach() - self.floor).clamp(min=0), x.detach()
        return torch.where(rowwise(seen > 0, x), here - self.step_size * slope, here), seen

    def _energy(self, x: Tensor) -> Tensor:
        check_states(x, "EnergyDescent")
        energy = self.energy(x)
        if not isinstance(energy, Tensor) or energy.shape != x.shape[:1]:
            got = tuple(energy.shape) if isinstance(energy, Tensor) else type(energy).__name__
            raise ValueError(f"energy(x) must return one number per sample, shape {tuple(x.shape[:1])}: got {got}")
        return energy
