"""Linear inequalities: the nearest point of a polyhedron, by DAQP."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from trimtab.constraints.sets import check_planes
from trimtab.constraints.states import check_states, host_array, with_settings
from trimtab.core.checks import check_integer, check_positive, missing_extra
from trimtab.core.constraint import Constraint, Improvement, Projection

__all__ = ["HalfSpaces"]

_FAR = 1e30  # what DAQP takes for an infinite bound


@dataclass(frozen=True, eq=False)
class HalfSpaces(Constraint):
    r"""Points x with A x <= b: argmin over A y <= b of norm(y - x), with states flattened to d numbers.

    DAQP solves this quadratic program, a dual active-set method, on the CPU and sample by sample (the extra `qp`).

    Attributes:
        A: (m, d); no row may be all zeros.
        b: (m,) for all samples, or (n, m) with one row per sample.
        tolerance: Largest defect of a feasible state, relative to its size and the plane's distance.
        max_iterations: Planes added or removed per sample at most; a sample that needs more has failed.

    Example:
        >>> import torch
        >>> corner = HalfSpaces(torch.eye(2), torch.zeros(2))
        >>> corner.project(torch.tensor([[1.0, -1.0], [2.0, 3.0]])).x
        tensor([[ 0., -1.],
                [ 0.,  0.]])
    """

    improves = True

    A: Tensor
    b: Tensor
    tolerance: float = 1e-6
    max_iterations: int = 1000

    def __post_init__(self) -> None:
        """Check the planes and the settings."""
        check_planes("HalfSpaces", self.A, self.b)
        if bool((self.A == 0).all(dim=1).any()):
            raise ValueError(f"row {int((self.A == 0).all(dim=1).nonzero()[0])} of A is 0, not a plane; remove it")
        if not bool(self.A.isfinite().all()) or bool(self.b.isnan().any()):
            raise ValueError("HalfSpaces needs a finite A and a b without NaN; remove the planes with NaN or inf")
        if bool((self.b == -torch.inf).any()):
            raise ValueError("a plane with b = -inf leaves no point; use b = inf for a plane that is infinitely far")
        check_positive(self.tolerance, "the tolerance of HalfSpaces")
        check_integer(self.max_iterations, "the max_iterations of HalfSpaces")

    def project(self, x: Tensor) -> Projection:
        r"""Return the nearest points of the polyhedron, (n, \*event), with outcomes.

        A sample has failed if its state is not finite or its polyhedron is empty; its state stays as it is.
        """
        self._check(x)
        flat = x.detach().flatten(1).double()
        normals, b = self._planes(flat)
        y, iterations = _nearest(normals, b, flat, self.max_iterations)
        # each plane is judged by its own distance: one that is far away must not loosen the tolerance of the others
        size = torch.maximum(y.abs().amax(dim=1, keepdim=True), b.abs().masked_fill(b.isinf(), 0.0))
        feasible = (y @ normals.T - b <= self.tolerance * (1 + size)).all(dim=1)
        return Projection(y.to(x.dtype).reshape(x.shape), feasible & y.isfinite().all(dim=1), iterations)

    def defect(self, x: Tensor) -> Tensor:
        r"""Return the distance to the half-space that is violated most, (n, \*event) to (n,)."""
        self._check(x)
        flat = x.flatten(1)
        normals, b = self._planes(flat)
        return (flat @ normals.T - b).amax(dim=1).clamp(min=0)

    def improve(self, x: Tensor, state: tuple[Tensor, ...] | None = None, **context: Any) -> Improvement:
        """Make the push along one plane's normal that gains most (Hildreth's method); carries all pushes so far.

        A push is taken back if its plane turns out to be satisfied without it; so the limit is the nearest point.
        """
        self._check(x)
        flat = x.detach().flatten(1)
        normals, b = self._planes(flat)
        pushes = flat.new_zeros(len(flat), len(normals)) if state is None else state[0]
        change = torch.maximum(flat @ normals.T - b, -pushes)
        which = change.abs().argmax(dim=1, keepdim=True)
        amount = change.gather(1, which)
        flat = flat - amount * normals[which.squeeze(1)]
        y, pushes = flat.reshape(x.shape), pushes.scatter_add(1, which, amount)
        defect = self.defect(y)
        allowed = self.tolerance * (1 + flat.abs().amax(dim=1))
        return Improvement(y, defect, (defect <= allowed) & (amount.squeeze(1).abs() <= allowed), (pushes,))

    def take(self, rows: Tensor) -> Self:
        """Return the same planes for some samples."""
        return self if self.b.ndim == 1 else with_settings(self, b=self.b[rows])

    @cached_property
    def _unit_normals(self) -> tuple[Tensor, Tensor]:
        """The normals with length 1, (m, d), and their lengths before, (m,), float64."""
        A = self.A.double()
        length = A.norm(dim=1)
        return A / length[:, None], length

    def _planes(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return unit normals, (m, d), and offsets along them, (m,) or (n, m), like the states."""
        normals, length = self._unit_normals
        return normals.to(like), (self.b.double() / length).to(like)

    def _check(self, x: Tensor) -> None:
        samples = len(self.b) if self.b.ndim == 2 else None
        check_states(x, "HalfSpaces", numbers=self.A.shape[1], samples=samples)


def _nearest(normals: Tensor, b: Tensor, x: Tensor, max_iterations: int) -> tuple[Tensor, Tensor]:
    """Return the nearest points, (n, d), and the planes added or removed for each, (n,); unsolved rows keep x."""
    try:
        import daqp
    except ImportError as error:
        raise missing_extra("daqp", "qp", "the projection of HalfSpaces") from error
    (m, d), model = normals.shape, daqp.Model()
    model.settings = {**model.settings, "primal_tol": 1e-12, "iter_limit": max_iterations}
    offsets, inactive = host_array(b.clamp(max=_FAR)), np.zeros(m, dtype=np.intc)
    model.setup(np.eye(d), np.zeros(d), host_array(normals), np.full(m, _FAR), np.full(m, -_FAR), inactive)
    y = host_array(x).copy()
    iterations = np.zeros(len(y), dtype=np.int64)
    for i in np.flatnonzero(np.isfinite(y).all(axis=1)):
        # no plane is active at first, so that an answer does not depend on the sample before
        model.update(f=-y[i], bupper=offsets[i] if b.ndim == 2 else offsets, sense=inactive)
        nearest, value, flag, facts = model.solve()
        iterations[i] = facts["iterations"] - 1
        if flag > 0 and np.isfinite(value):
            y[i] = nearest
    return torch.from_numpy(y).to(x), torch.from_numpy(iterations).to(x.device)
