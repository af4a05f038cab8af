"""Linear inequalities: the nearest point of a polyhedron, for a whole batch at once."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trimtab.constraints.rows import apply_matrix
from trimtab.core.constraint import Projection
from trimtab.core.native import compiled_function

__all__ = ["HalfSpaces"]


@dataclass(frozen=True, eq=False)
class HalfSpaces:
    r"""Points on the right side of planes: argmin over A y <= b of norm(y - x), with states flattened to d numbers.

    A quadratic program, solved for its multipliers by a dual active-set method. On the host it is compiled from C where
    there is a compiler (see `native`); elsewhere torch steps through all samples of the batch together, and each stops
    for itself: the same steps, with other rounding.

    Attributes:
        A: (m, d), no row 0.
        b: (m,) for all samples, or (n, m) with one row a sample.
        tolerance: Largest defect of a state that counts as feasible, relative to the size of the problem.
        max_iterations: After which a sample counts as failed, as it must where the planes leave nothing.

    Example:
        >>> import torch
        >>> corner = HalfSpaces(torch.eye(2), torch.zeros(2))
        >>> corner.project(torch.tensor([[1.0, -1.0], [2.0, 3.0]])).x
        tensor([[ 0., -1.],
                [ 0.,  0.]])
    """

    A: Tensor
    b: Tensor = field(metadata={"per_sample": True})
    tolerance: float = 1e-6
    max_iterations: int = 1000

    def __post_init__(self) -> None:
        """Refuse shapes that are no planes."""
        if self.A.ndim != 2 or self.b.ndim not in (1, 2) or self.b.shape[-1] != len(self.A):
            raise ValueError(
                "HalfSpaces needs A of shape (m, d) and b of shape (m,) or (n, m): got "
                f"{tuple(self.A.shape)} and {tuple(self.b.shape)}"
            )
        if bool((self.A == 0).all(dim=1).any()):
            raise ValueError(f"row {int((self.A == 0).all(dim=1).nonzero()[0])} of A is 0 and no plane; remove it")

    @cached_property
    def _planes(self) -> tuple[Tensor, Tensor, Tensor]:
        """Unit normals (m, d), their Gram matrix (m, m) and their lengths before (m,), float64."""
        A = self.A.double()
        length = A.norm(dim=1)
        normals = (A / length[:, None]).contiguous()  # the compiled solver reads it row by row
        return normals, normals @ normals.T, length

    @cached_property
    def _offsets(self) -> Tensor:
        """Of the planes along their unit normals, (m,) or (n, m), float64."""
        offsets: Tensor = self.b.double() / self._planes[2]
        return offsets

    def project(self, x: Tensor) -> Projection:
        r"""The nearest points of the polyhedron, (n, \*event), with outcomes."""
        flat = x.flatten(1).double()
        normals, gram, _ = (part.to(x.device) for part in self._planes)
        b = self._offsets.to(x.device)
        solve = _nearest_compiled if x.device.type == "cpu" and compiled_solver() else _nearest
        nearest, iterations = solve(normals, gram, flat, b, self.max_iterations)
        y = nearest.to(x.dtype).reshape(x.shape)
        residual = self.defect(y)
        size = 1 + torch.maximum(flat.abs().amax(dim=1), b.abs().amax(dim=-1))
        return Projection(y, residual <= self.tolerance * size.to(residual), iterations, residual)

    def defect(self, x: Tensor) -> Tensor:
        r"""The distance to the half-space that is violated most, (n, \*event) to (n,)."""
        flat = x.flatten(1)
        return (apply_matrix(self._planes[0].to(flat), flat) - self._offsets.to(flat)).amax(dim=1).clamp(min=0)

    def take(self, rows: Tensor) -> HalfSpaces:
        """The same planes for some samples."""
        if self.b.ndim == 1:
            return self
        taken = HalfSpaces.__new__(HalfSpaces)  # the planes are checked and normalised already
        taken.__dict__.update(self.__dict__ | {"b": self.b[rows], "_offsets": self._offsets[rows]})
        return taken


# ------------------------------------------------------------------ compiled


class _Planes(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("planes", "dimension", "touching", "iterations")),
        ("parallel", ctypes.c_double),
        *((name, ctypes.c_void_p) for name in ("normals", "gram")),
    ]


@lru_cache(maxsize=1)
def compiled_solver() -> Any:
    """The compiled function, or None where it cannot be had or is not wanted."""
    pointer = ctypes.c_void_p
    arguments = [ctypes.c_int64, pointer, pointer, pointer, ctypes.c_int64, pointer, pointer]
    return compiled_function(Path(__file__).with_name("halfspaces.c"), "nearest_points", arguments)


def _nearest_compiled(
    normals: Tensor, gram: Tensor, x: Tensor, b: Tensor, max_iterations: int
) -> tuple[Tensor, Tensor]:
    """As `_nearest`."""
    x, b = x.detach().contiguous(), b.contiguous()
    y, iterations = torch.empty_like(x), torch.empty(len(x), dtype=torch.int64)
    m, d = normals.shape
    planes = _Planes(m, d, min(m, d), max_iterations, _PARALLEL, normals.data_ptr(), gram.data_ptr())
    stride = m if b.ndim == 2 else 0
    failed = compiled_solver()(
        len(x), ctypes.byref(planes), x.data_ptr(), b.data_ptr(), stride, y.data_ptr(), iterations.data_ptr()
    )
    if failed:
        raise MemoryError(f"no memory for a projection with {m} planes in {d} dimensions")
    return y, iterations


# ------------------------------------------------------------------ in torch


def _nearest(normals: Tensor, gram: Tensor, x: Tensor, b: Tensor, max_iterations: int) -> tuple[Tensor, Tensor]:
    """The nearest points, (n, d), and the planes added or removed on the way, (n,).

    Args:
        normals: Of length 1, (m, d).
        gram: Their inner products, (m, m).
        x: (n, d).
        b: (m,) or (n, m).
        max_iterations: Planes added or removed a row at the most.
    """
    beyond = apply_matrix(normals, x) - b
    multipliers, iterations = _multipliers(gram, beyond, min(normals.shape), max_iterations)
    return x - apply_matrix(normals.T.contiguous(), multipliers), iterations


def _multipliers(gram: Tensor, beyond: Tensor, size: int, max_iterations: int) -> tuple[Tensor, Tensor]:
    """Multipliers z >= 0 with G z - beyond >= 0 and z (G z - beyond) = 0 for each row: a dual active-set method.

    Planes that are violated most are added one at a time to the set of touching planes of a row; where a multiplier
    would become negative, its plane leaves first. The normals of a set are independent at all times, so that parallel
    or superfluous planes do no harm. The inverse of a set's Gram matrix is kept up to date by one outer product.

    Args:
        gram: Inner products of the planes' unit normals, (m, m).
        beyond: How far each point is beyond each plane, (n, m).
        size: How many planes may touch at once.
        max_iterations: Planes added or removed a row at the most.

    Returns:
        z, (n, m), and the planes added or removed, (n,). Rows that have no solution keep what they had.
    """
    n, m = beyond.shape
    z = torch.zeros_like(beyond)
    iterations = torch.zeros(n, dtype=torch.int64, device=beyond.device)
    limit = 1e-11 * (1 + beyond.abs().amax(dim=1))
    rows = (beyond.amax(dim=1) > limit).nonzero().squeeze(1)  # all others are inside already
    k = len(rows)
    plane = torch.zeros(k, size, dtype=torch.int64, device=beyond.device)  # which plane is in which place of a set
    used = torch.zeros(k, size, dtype=torch.bool, device=beyond.device)
    u, inverse = beyond.new_zeros(k, size), beyond.new_zeros(k, size, size)
    entering, share = torch.zeros(k, dtype=torch.int64, device=beyond.device), beyond.new_zeros(k)
    choosing = torch.ones(k, dtype=torch.bool, device=beyond.device)

    for _ in range(max_iterations):
        full = torch.zeros(len(rows), m, dtype=beyond.dtype, device=beyond.device).scatter_add_(1, plane, u)
        full.scatter_add_(1, entering[:, None], share[:, None])
        z[rows] = full
        violation = beyond[rows] - apply_matrix(gram, full)
        worst, candidate = violation.max(dim=1)
        going = (~choosing | (worst > limit[rows])).nonzero().squeeze(1)
        if len(going) < len(rows):
            rows, plane, used, u, inverse = (part[going] for part in (rows, plane, used, u, inverse))
            entering, share, choosing = (part[going] for part in (entering, share, choosing))
            violation, candidate = violation[going], candidate[going]
        if len(rows) == 0:
            break
        iterations[rows] += 1
        entering = torch.where(choosing, candidate, entering)
        here = violation.gather(1, entering[:, None]).squeeze(1)

        # moving along the entering plane's normal, less its part in the span of the touching ones
        inner = gram[entering[:, None], plane] * used
        rate = (inverse * inner[:, None, :]).sum(dim=2)
        length = 1 - (inner * rate).sum(dim=1)
        independent = (length > _PARALLEL) & ~used.all(dim=1)
        reach = torch.where(independent, here / length.clamp(min=_PARALLEL), torch.inf)
        ratio = torch.where(used & (rate > 1e-13), u.clamp(min=0) / rate.clamp(min=1e-13), torch.inf)
        block, leaving = ratio.min(dim=1)
        step = torch.minimum(reach, block)
        stuck = step.isinf()  # neither can it move nor can a plane leave: the planes leave nothing
        step = torch.where(stuck, 0.0, step)
        u = u - step[:, None] * rate
        share = share + step

        enters, leaves = ~stuck & (reach <= block), ~stuck & (reach > block)
        free = used.int().argmin(dim=1)  # the first place not in use
        at_free = _one_hot(free, size) & enters[:, None]
        outer = torch.where(at_free, -1.0, rate) * enters[:, None]
        inverse = inverse + outer[:, :, None] * (outer / length.clamp(min=_PARALLEL)[:, None])[:, None, :]
        plane, u = torch.where(at_free, entering[:, None], plane), torch.where(at_free, share[:, None], u)

        at_leaving = _one_hot(leaving, size) & leaves[:, None]
        column = inverse.gather(2, leaving[:, None, None].expand(-1, size, 1)).squeeze(2)
        pivot = column.gather(1, leaving[:, None])
        column = column * leaves[:, None]
        inverse = inverse - column[:, :, None] * (column / torch.where(leaves[:, None], pivot, 1.0))[:, None, :]
        gone = at_leaving[:, :, None] | at_leaving[:, None, :]
        inverse, u = inverse.masked_fill(gone, 0.0), u.masked_fill(at_leaving, 0.0)
        used = (used | at_free) & ~at_leaving
        share, choosing = torch.where(enters, 0.0, share), enters
        keep = (~stuck).nonzero().squeeze(1)
        if len(keep) < len(rows):
            rows, plane, used, u, inverse = (part[keep] for part in (rows, plane, used, u, inverse))
            entering, share, choosing = (part[keep] for part in (entering, share, choosing))
    return z, iterations


_PARALLEL = 1e-10  # squared sine of the angle below which a normal lies in the span of others


def _one_hot(index: Tensor, size: int) -> Tensor:
    return index[:, None] == torch.arange(size, device=index.device)
