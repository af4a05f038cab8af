"""Linear inequalities: the nearest point of a polyhedron."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trimtab.constraints.daqp import NearestByDaqp, daqp_is_there
from trimtab.constraints.dual_active_set import nearest_points
from trimtab.constraints.rows import apply_matrix
from trimtab.constraints.states import check_states, host_array, plain_array
from trimtab.core.checks import check_positive
from trimtab.core.constraint import Constraint, Improvement, Projection
from trimtab.core.errors import check_integer, check_type

__all__ = ["HalfSpaces"]


@dataclass(frozen=True, eq=False)
class HalfSpaces(Constraint):
    r"""Points on the right side of planes: argmin over A y <= b of norm(y - x), with states flattened to d numbers.

    A quadratic program, solved for its multipliers by a dual active-set method. On the host DAQP does it sample by
    sample where it is installed (the extra `qp`); elsewhere torch steps through all samples of the batch together, and
    each stops for itself.

    Attributes:
        A: (m, d), no row 0.
        b: (m,) for all samples, or (n, m) with one row per sample.
        tolerance: Largest defect of a state that counts as feasible, relative to its size and the plane's distance.
        max_iterations: After which a sample counts as failed, as it must where the planes leave nothing.

    Example:
        >>> import torch
        >>> corner = HalfSpaces(torch.eye(2), torch.zeros(2))
        >>> corner.project(torch.tensor([[1.0, -1.0], [2.0, 3.0]])).x
        tensor([[ 0., -1.],
                [ 0.,  0.]])
    """

    improves = True

    A: Tensor
    b: Tensor = field(metadata={"per_sample": True})
    tolerance: float = 1e-6
    max_iterations: int = 1000

    def __post_init__(self) -> None:
        """Refuse shapes that are no planes."""
        for name, value in (("A", self.A), ("b", self.b)):
            check_type(value, Tensor, f"HalfSpaces's {name}")
        if self.A.ndim != 2 or not self.A.numel() or self.b.ndim not in (1, 2) or self.b.shape[-1] != len(self.A):
            raise ValueError(
                "HalfSpaces needs A of shape (m, d) and b of shape (m,) or (n, m): got "
                f"{tuple(self.A.shape)} and {tuple(self.b.shape)}"
            )
        if bool((self.A == 0).all(dim=1).any()):
            raise ValueError(f"row {int((self.A == 0).all(dim=1).nonzero()[0])} of A is 0 and no plane; remove it")
        if not bool(self.A.isfinite().all()) or bool(self.b.isnan().any()):
            raise ValueError("HalfSpaces needs a finite A and a b without NaN: got others; remove those planes")
        if bool((self.b == -torch.inf).any()):
            raise ValueError("a plane with b = -inf leaves nothing; with b = inf it is infinitely far away")
        check_positive(self.tolerance, "the tolerance of HalfSpaces")
        check_integer(self.max_iterations, "the max_iterations of HalfSpaces")

    @cached_property
    def _planes(self) -> tuple[Tensor, Tensor, Tensor]:
        """Unit normals (m, d), their Gram matrix (m, m) and their lengths before (m,), float64."""
        A = self.A.double()
        length = A.norm(dim=1)
        normals = (A / length[:, None]).contiguous()
        return normals, normals @ normals.T, length

    @cached_property
    def _offsets(self) -> Tensor:
        """Of the planes along their unit normals, (m,) or (n, m), float64."""
        offsets: Tensor = self.b.double() / self._planes[2]
        return offsets

    @cached_property
    def _daqp(self) -> NearestByDaqp:
        """DAQP, given the unit normals."""
        return NearestByDaqp(host_array(self._planes[0]), self.max_iterations)

    @cached_property
    def _host_offsets(self) -> NDArray[np.float64]:
        """The offsets as DAQP takes them."""
        return np.minimum(host_array(self._offsets), 1e30)

    @cached_property
    def _shape(self) -> tuple[int | None, int]:
        """Of a batch of states, flattened; None for any number of samples."""
        return (len(self.b) if self.b.ndim == 2 else None), self.A.shape[1]

    def project(self, x: Tensor) -> Projection:
        r"""The nearest points of the polyhedron, (n, \*event), with outcomes."""
        with_daqp = daqp_is_there()
        if with_daqp and (points := plain_array(x, self._shape)) is not None:
            y, found, changes = self._by_daqp(points)
            return Projection(torch.from_numpy(y), torch.from_numpy(found), torch.from_numpy(changes))
        self._check(x)
        if with_daqp and x.is_cpu:
            answer, solved, spent = map(torch.from_numpy, self._by_daqp(host_array(x.flatten(1))))
        else:
            answer, spent = self._in_torch(x.flatten(1).double(), self._offsets)
            solved = self._feasible(answer, self._offsets)
        return Projection(answer.to(x.dtype).reshape(x.shape), solved, spent)

    def defect(self, x: Tensor) -> Tensor:
        r"""The distance to the half-space that is violated most, (n, \*event) to (n,)."""
        self._check(x)
        flat = x.flatten(1)
        return (apply_matrix(self._planes[0].to(flat), flat) - self._offsets.to(flat)).amax(dim=1).clamp(min=0)

    def improve(self, x: Tensor, state: tuple[Tensor, ...] | None = None, **context: Any) -> Improvement:
        """One plane: the push along its normal that gains most (Hildreth's method); carries all pushes so far.

        A push may be taken back where its plane turns out to be satisfied without it, so that the point reached in the
        end is the nearest.
        """
        self._check(x)
        flat = x.detach().flatten(1)
        normals, offsets = self._planes[0].to(flat), self._offsets.to(flat)
        pushes = (
            torch.zeros(len(flat), len(normals), dtype=flat.dtype, device=flat.device) if state is None else state[0]
        )
        change = torch.maximum(apply_matrix(normals, flat) - offsets, -pushes)
        which = change.abs().argmax(dim=1, keepdim=True)
        amount = change.gather(1, which)
        flat = flat - amount * normals[which.squeeze(1)]
        y, pushes = flat.reshape(x.shape), pushes.scatter_add(1, which, amount)
        defect = self.defect(y)
        size = 1 + flat.abs().amax(dim=1)
        done = (defect <= self.tolerance * size) & (amount.squeeze(1).abs() <= self.tolerance * size)
        return Improvement(y, defect, done, (pushes,))

    def take(self, rows: Tensor) -> Self:
        """The same planes for some samples."""
        if self.b.ndim == 1:
            return self
        if daqp_is_there() and self.A.is_cpu:
            _ = self._daqp  # made here, all that are taken share it: whoever projects, no solver is set up twice
        taken = type(self).__new__(type(self))  # the planes are checked and normalised already
        taken.__dict__.update(self.__dict__ | {"b": self.b[rows], "_offsets": self._offsets[rows]})
        for of_all_samples in ("_host_offsets", "_shape"):
            taken.__dict__.pop(of_all_samples, None)
        return taken

    def _check(self, x: Tensor) -> None:
        samples, numbers = self._shape
        check_states(x, "HalfSpaces", numbers=numbers, samples=samples)

    def _by_daqp(self, points: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.int64]]:
        """The nearest points, (n, d), whether each was found, and the planes added or removed for it, (n,) both."""
        y, found, changes, missed = self._daqp(points, self._host_offsets)
        if missed:  # no solution, or a hard one: the method in torch has the last word
            b = self._offsets if self._offsets.ndim == 1 else self._offsets[missed]
            again, more = self._in_torch(torch.from_numpy(points[missed]), b)
            y[missed], changes[missed], found[missed] = again, more, self._feasible(again, b)
        return y, found, changes

    def _feasible(self, flat: Tensor, b: Tensor) -> Tensor:
        """Which points are, to the tolerance, on the right side of all planes, (n, d) to (n,)."""
        b = b.to(flat)
        beyond = apply_matrix(self._planes[0].to(flat), flat) - b
        # a plane is judged by its own distance: that another one is far away excuses nothing
        size = torch.maximum(flat.abs().amax(dim=1, keepdim=True), b.abs().masked_fill(b.isinf(), 0.0))
        return flat.isfinite().all(dim=1) & (beyond <= self.tolerance * (1 + size)).all(dim=1)

    def _in_torch(self, flat: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        normals, gram, _ = (part.to(flat.device) for part in self._planes)
        finite = flat.isfinite().all(dim=1, keepdim=True)  # others stay, and are found infeasible
        y, changes = nearest_points(normals, gram, flat.where(finite, 0.0), b.to(flat.device), self.max_iterations)
        return y.where(finite, flat), changes
