"""Linear inequalities: the nearest point of a polyhedron, by a dual active-set method."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib import import_module
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from trimtab.constraints.sets import check_planes
from trimtab.constraints.states import check_states, host_array, with_settings
from trimtab.core.checks import check_integer, check_positive
from trimtab.core.constraint import Constraint, Improvement, Projection

__all__ = ["HalfSpaces"]

_PARALLEL = 1e-10  # squared sine of the angle below which a normal lies in the span of others


@dataclass(frozen=True, eq=False)
class HalfSpaces(Constraint):
    r"""Points on the right side of planes: argmin over A y <= b of norm(y - x), with states flattened to d numbers.

    This quadratic program is solved for its multipliers by a dual active-set method: in torch for all samples together,
    or on a CPU by DAQP sample by sample if it is installed (the extra `qp`), which is faster.

    Attributes:
        A: (m, d), no row 0.
        b: (m,) for all samples, or (n, m) with one row per sample.
        tolerance: Largest defect of a feasible state, relative to its size and the plane's distance.
        max_iterations: Planes added or removed per sample at most; a sample that needs more has failed, as it must if
            the polyhedron is empty.

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
        """Check the planes and the settings."""
        check_planes("HalfSpaces", self.A, self.b)
        if bool((self.A == 0).all(dim=1).any()):
            raise ValueError(f"row {int((self.A == 0).all(dim=1).nonzero()[0])} of A is 0 and no plane; remove it")
        if not bool(self.A.isfinite().all()) or bool(self.b.isnan().any()):
            raise ValueError("HalfSpaces needs a finite A and a b without NaN; remove the other planes")
        if bool((self.b == -torch.inf).any()):
            raise ValueError("a plane with b = -inf leaves no point; use b = inf for a plane that is infinitely far")
        check_positive(self.tolerance, "the tolerance of HalfSpaces")
        check_integer(self.max_iterations, "the max_iterations of HalfSpaces")

    def project(self, x: Tensor) -> Projection:
        r"""Return the nearest points of the polyhedron, (n, \*event), with outcomes."""
        self._check(x)
        flat = x.detach().flatten(1).double()
        finite = flat.isfinite().all(dim=1, keepdim=True)  # other states are returned as they are, as failed
        start = flat.where(finite, 0.0)
        normals, b = self._planes(flat)
        y, iterations = _nearest(normals, b, start, self.max_iterations)
        y = y.where(finite, flat)
        # each plane is judged by its own distance: one that is far away must not loosen the tolerance of the others
        size = torch.maximum(y.abs().amax(dim=1, keepdim=True), b.abs().masked_fill(b.isinf(), 0.0))
        feasible = (y @ normals.T - b <= self.tolerance * (1 + size)).all(dim=1)
        return Projection(y.to(x.dtype).reshape(x.shape), feasible & finite.squeeze(1), iterations)

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


@cache
def _daqp() -> Any:
    """Return the module DAQP, or None if it is not installed."""
    try:
        return import_module("daqp")
    except ImportError:
        return None


def _nearest(normals: Tensor, b: Tensor, x: Tensor, max_iterations: int) -> tuple[Tensor, Tensor]:
    """Return the nearest points, (n, d), and the planes added or removed for each, (n,)."""
    if x.is_cpu and _daqp() is not None:
        return _nearest_by_daqp(normals, b, x, max_iterations)
    multipliers, iterations = _multipliers(normals, x @ normals.T - b, max_iterations)
    return x - multipliers @ normals, iterations


def _nearest_by_daqp(normals: Tensor, b: Tensor, x: Tensor, max_iterations: int) -> tuple[Tensor, Tensor]:
    """Solve sample by sample; those that DAQP does not solve, as if the polyhedron is empty, are solved in torch."""
    (m, d), model = normals.shape, _daqp().Model()
    model.settings = {**model.settings, "primal_tol": 1e-12, "iter_limit": max_iterations}
    offsets, inactive = host_array(b.clamp(max=1e30)), np.zeros(m, dtype=np.intc)
    model.setup(np.eye(d), np.zeros(d), host_array(normals), np.full(m, 1e30), np.full(m, -1e30), inactive)
    linear, y = host_array(-x), host_array(x).copy()
    iterations, missed = np.zeros(len(y), dtype=np.int64), []
    for i in range(len(y)):
        # no plane is active at first, so that an answer does not depend on the sample before
        model.update(f=linear[i], bupper=offsets[i] if b.ndim == 2 else offsets, sense=inactive)
        y[i], value, flag, facts = model.solve()
        iterations[i] = facts["iterations"] - 1
        if flag <= 0 or not np.isfinite(value):
            missed.append(i)
    nearest, spent = torch.from_numpy(y), torch.from_numpy(iterations)
    if missed:
        own = b[missed] if b.ndim == 2 else b
        multipliers, spent[missed] = _multipliers(normals, x[missed] @ normals.T - own, max_iterations)
        nearest[missed] = x[missed] - multipliers @ normals
    return nearest, spent


def _multipliers(normals: Tensor, beyond: Tensor, max_iterations: int) -> tuple[Tensor, Tensor]:
    """Find z >= 0, (n, m), with G z - beyond >= 0 and z (G z - beyond) = 0, where G is the normals' Gram matrix.

    The plane that is violated most is added to a row's set of touching planes; if a multiplier would become negative,
    its plane leaves first. The normals of a set are always independent, so that parallel or superfluous planes do no
    harm. The inverse of a set's Gram matrix is updated by one outer product.

    `beyond`, (n, m), is how far each point is beyond each plane. Returns z and the planes added or removed, (n,); rows
    without a solution keep their last values.
    """
    gram, size, device = normals @ normals.T, min(normals.shape), beyond.device
    z, iterations = torch.zeros_like(beyond), torch.zeros(len(beyond), dtype=torch.int64, device=device)
    limit = 1e-11 * (1 + beyond.abs().masked_fill(beyond.isinf(), 0.0).amax(dim=1))
    rows = (beyond.amax(dim=1) > limit).nonzero().squeeze(1)  # the k rows that are not inside already
    k, places = len(rows), torch.arange(size, device=device)
    plane = torch.zeros(k, size, dtype=torch.int64, device=device)  # which plane is in which place of a row's set
    used = torch.zeros(k, size, dtype=torch.bool, device=device)  # which places are in use
    u, inverse = beyond.new_zeros(k, size), beyond.new_zeros(k, size, size)  # multipliers, and the inverse Gram matrix
    entering, share = torch.zeros_like(rows), beyond.new_zeros(k)  # the plane that is being added, its multiplier
    choosing = torch.ones(k, dtype=torch.bool, device=device)  # whether the next plane has to be chosen
    stuck = torch.zeros_like(choosing)  # whether the row has no solution
    for _ in range(max_iterations):
        full = beyond.new_zeros(len(rows), len(gram)).scatter_add_(1, plane, u)
        z[rows] = full.scatter_add_(1, entering[:, None], share[:, None])
        violation = beyond[rows] - full @ gram
        worst, candidate = violation.max(dim=1)
        active = (~stuck & (~choosing | (worst > limit[rows]))).nonzero().squeeze(1)
        if len(active) == 0:
            break
        rows, plane, used, u, inverse = (part[active] for part in (rows, plane, used, u, inverse))
        entering, share, choosing = (part[active] for part in (entering, share, choosing))
        iterations[rows] += 1
        entering = torch.where(choosing, candidate[active], entering)
        here = violation[active].gather(1, entering[:, None]).squeeze(1)

        # move along the entering plane's normal, less its part in the span of the touching normals
        inner = gram[entering[:, None], plane] * used
        rate = (inverse @ inner[:, :, None]).squeeze(2)
        length = 1 - (inner * rate).sum(dim=1)
        independent = (length > _PARALLEL) & ~used.all(dim=1)
        length = length.clamp(min=_PARALLEL)
        reach = torch.where(independent, here / length, torch.inf)
        ratio = torch.where(used & (rate > 1e-13), u.clamp(min=0) / rate.clamp(min=1e-13), torch.inf)
        block, leaving = ratio.min(dim=1)
        step = torch.minimum(reach, block)
        stuck = step.isinf()  # the point cannot move and no plane can leave: the polyhedron is empty
        step = torch.where(stuck, 0.0, step)
        enters, leaves = ~stuck & (reach <= block), ~stuck & (reach > block)
        u, share = u - step[:, None] * rate, share + step

        free = used.int().argmin(dim=1)  # the first place not in use
        at_free = (free[:, None] == places) & enters[:, None]
        outer = torch.where(at_free, -1.0, rate) * enters[:, None]
        inverse = inverse + outer[:, :, None] * (outer / length[:, None])[:, None, :]
        plane, u = torch.where(at_free, entering[:, None], plane), torch.where(at_free, share[:, None], u)

        at_leaving = (leaving[:, None] == places) & leaves[:, None]
        column = inverse.gather(2, leaving[:, None, None].expand(-1, size, 1)).squeeze(2) * leaves[:, None]
        pivot = torch.where(leaves, column.gather(1, leaving[:, None]).squeeze(1), 1.0)
        inverse = inverse - column[:, :, None] * (column / pivot[:, None])[:, None, :]
        inverse = inverse.masked_fill(at_leaving[:, :, None] | at_leaving[:, None, :], 0.0)
        u, used = u.masked_fill(at_leaving, 0.0), (used | at_free) & ~at_leaving
        share, choosing = torch.where(enters, 0.0, share), enters
    return z, iterations
