"""Sets with closed-form projections: ball, sphere, surface, affine equality, box, simplex."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from trimtab.constraints.states import check_states, row_norm, row_scale
from trimtab.core.arrays import rowwise
from trimtab.core.checks import check_callable, check_floats, check_positive, check_type
from trimtab.core.constraint import Constraint

__all__ = ["AffineEquality", "Ball", "Box", "Simplex", "Sphere", "Surface", "check_planes"]

_FAR = 1e3  # totals: beyond this, a simplex works with differences to the largest number of a row


@dataclass(frozen=True, eq=False)
class _Round(Constraint):
    """A radius and a centre."""

    radius: float = 1.0
    centre: Tensor | None = None

    def __post_init__(self) -> None:
        """Check the radius and the centre."""
        check_positive(self.radius, "a radius")
        if self.centre is not None and not check_floats(self.centre, "a centre").ndim:
            raise ValueError(
                "a centre must have the shape of one state, such as (3,): got a tensor of no dimension, "
                f"{self.centre.item():g}; leave it out for the origin"
            )

    def _away(self, x: Tensor) -> Tensor:
        """Return the way from the centre to x, (n, d)."""
        check_states(x, type(self).__name__, None if self.centre is None else tuple(self.centre.shape))
        return (x if self.centre is None else x - self.centre.to(x)).flatten(1)

    def _on_border(self, x: Tensor, away: Tensor) -> Tensor:
        r"""Return the points of the border in the directions `away` (n, d), (n, \*event)."""
        away = away / row_scale(away)[:, None]
        norm = away.norm(dim=1, keepdim=True)
        point: Tensor = (away * (self.radius / norm.masked_fill(norm == 0, 1.0))).reshape(x.shape)
        return point if self.centre is None else point + self.centre.to(x)


@dataclass(frozen=True, eq=False)
class Sphere(_Round):
    r"""Points at one distance from a centre: argmin over norm(y - centre) = radius of norm(y - x).

    Attributes:
        radius: Above 0.
        centre: (\*event), one for all samples; None is the origin.

    Example:
        >>> import torch
        >>> Sphere(5.0).project(torch.tensor([[0.3, 0.4]]))
        tensor([[3., 4.]])
    """

    def project(self, x: Tensor) -> Tensor:
        r"""Return the nearest points, (n, \*event); the centre itself is moved along the first axis."""
        away = self._away(x)
        first = torch.zeros_like(away).index_fill(1, torch.tensor([0], device=x.device), 1.0)
        return self._on_border(x, torch.where((away == 0).all(dim=1, keepdim=True), first, away))

    def defect(self, x: Tensor) -> Tensor:
        r"""Return abs(norm(x - centre) - radius), (n, \*event) to (n,)."""
        return (row_norm(self._away(x)) - self.radius).abs()


@dataclass(frozen=True, eq=False)
class Ball(_Round):
    r"""Points no farther than a radius from a centre: argmin over norm(y - centre) <= radius of norm(y - x).

    Attributes:
        radius: Above 0.
        centre: (\*event), one for all samples; None is the origin.

    Example:
        >>> import torch
        >>> Ball().project(torch.tensor([[3.0, 4.0], [0.1, 0.2]]))
        tensor([[0.6000, 0.8000],
                [0.1000, 0.2000]])
    """

    def project(self, x: Tensor) -> Tensor:
        r"""Return the nearest points, (n, \*event); points inside stay exactly where they are."""
        away = self._away(x)
        return torch.where(rowwise(row_norm(away) > self.radius, x), self._on_border(x, away), x)

    def defect(self, x: Tensor) -> Tensor:
        r"""Return max(norm(x - centre) - radius, 0), (n, \*event) to (n,)."""
        return (row_norm(self._away(x)) - self.radius).clamp(min=0)


@dataclass(frozen=True)
class Surface(Constraint):
    """Points on a height field: states (n, 3) as u, v, z with z = height(u, v), projected vertically.

    Attributes:
        height: Maps u and v, (n,) each, to z, (n,).

    Example:
        >>> import torch
        >>> Surface(lambda u, v: u * v).project(torch.tensor([[2.0, 3.0, 7.0]]))
        tensor([[2., 3., 6.]])
    """

    height: Callable[[Tensor, Tensor], Tensor]

    def __post_init__(self) -> None:
        """Check that the height is a function."""
        check_callable(self.height, "height", "height(u, v)")

    def project(self, x: Tensor) -> Tensor:
        """Move points straight up or down to the surface, (n, 3) to (n, 3)."""
        check_states(x, "Surface", (3,))
        u, v, _ = x.unbind(1)
        return torch.stack([u, v, self._height(u, v)], dim=1)

    def defect(self, x: Tensor) -> Tensor:
        """Return abs(z - height(u, v)), (n, 3) to (n,)."""
        check_states(x, "Surface", (3,))
        u, v, z = x.unbind(1)
        return (z - self._height(u, v)).abs()

    def _height(self, u: Tensor, v: Tensor) -> Tensor:
        z = self.height(u, v)
        if not isinstance(z, Tensor) or z.shape != u.shape or z.dtype != u.dtype:
            got = f"{z.dtype} of shape {tuple(z.shape)}" if isinstance(z, Tensor) else f"{type(z).__name__}"
            raise ValueError(f"height(u, v) must return one {u.dtype} per sample, shape {tuple(u.shape)}: got {got}")
        return z


def check_planes(owner: str, A: object, b: object) -> None:
    """Check that A is (m, d) and b is (m,) or (n, m)."""
    for name, value in (("A", A), ("b", b)):
        check_type(value, Tensor, f"{owner}'s {name}")
    assert isinstance(A, Tensor)
    assert isinstance(b, Tensor)
    if A.ndim != 2 or not A.numel() or b.ndim not in (1, 2) or b.shape[-1] != len(A):
        raise ValueError(
            f"{owner} needs A of shape (m, d) and b of shape (m,) or (n, m): got {tuple(A.shape)} and {tuple(b.shape)}"
        )


@dataclass(frozen=True, eq=False)
class AffineEquality(Constraint):
    r"""Solutions of linear equations: argmin over A y = b of norm(y - x), with states flattened to d numbers.

    Attributes:
        A: (m, d); rows may depend on each other as long as the equations have a solution.
        b: (m,) for all samples, or (n, m) with one row per sample.

    Example:
        >>> import torch
        >>> AffineEquality(torch.ones(1, 2), torch.ones(1)).project(torch.tensor([[1.0, 1.0]]))
        tensor([[0.5000, 0.5000]])
    """

    A: Tensor
    b: Tensor

    def __post_init__(self) -> None:
        """Check shapes, and that every sample's equations have a solution."""
        check_planes("AffineEquality", self.A, self.b)
        if not bool(self.A.isfinite().all() & self.b.isfinite().all()):
            raise ValueError("AffineEquality needs finite A and b: got NaN or inf")
        b = self.b.double().reshape(-1, len(self.A))
        left = (b - b @ (self.A.double() @ self._pseudo_inverse).T).abs().amax(dim=1)
        allowed = max(1e-6, 8 * _precision(self.A), 8 * _precision(self.b))
        bad = (left > allowed * (1 + b.abs().amax(dim=1))).nonzero().squeeze(1)
        if len(bad):
            whose = "" if self.b.ndim == 1 else f" for sample {int(bad[0])}"
            raise ValueError(
                f"the equations A y = b contradict each other{whose}: no y solves them better than to "
                f"{float(left[bad[0]]):.2g}; remove or correct rows of A and b"
            )

    @cached_property
    def _pseudo_inverse(self) -> Tensor:
        """The pseudo-inverse of A, (d, m) float64.

        Rows that depend on each other do so only to the precision of their dtype: smaller singular values count as 0.
        """
        rounding = max(max(self.A.shape) * torch.finfo(torch.float64).eps, min(self.A.shape) * _precision(self.A))
        inverse: Tensor = torch.linalg.pinv(self.A.double(), rtol=rounding)
        return inverse

    def project(self, x: Tensor) -> Tensor:
        r"""Return the nearest solutions, (n, \*event)."""
        self._check(x)
        flat, inverse = x.flatten(1), self._pseudo_inverse.to(x)
        for _ in range(2):  # the second pass removes the rounding error of the first
            flat = flat - self._residual(flat) @ inverse.T
        return flat.reshape(x.shape)

    def defect(self, x: Tensor) -> Tensor:
        r"""Return norm(A x - b), (n, \*event) to (n,)."""
        self._check(x)
        return row_norm(self._residual(x.flatten(1)))

    def take(self, rows: Tensor) -> Self:
        """Return the same equations for some samples."""
        if self.b.ndim == 1:
            return self
        taken = type(self).__new__(type(self))  # A is checked and factored already
        taken.__dict__.update(self.__dict__ | {"b": self.b[rows]})
        return taken

    def _check(self, x: Tensor) -> None:
        samples = len(self.b) if self.b.ndim == 2 else None
        check_states(x, "AffineEquality", numbers=self.A.shape[1], samples=samples)

    def _residual(self, flat: Tensor) -> Tensor:
        return flat @ self.A.to(flat).T - self.b.to(flat)


@dataclass(frozen=True, eq=False)
class Box(Constraint):
    r"""Coordinates between bounds: argmin over low <= y <= high of norm(y - x).

    Attributes:
        low: A number or (\*event); -inf for no bound.
        high: Likewise, at least `low`; inf for no bound.

    Example:
        >>> import torch
        >>> Box(0.0, 1.0).project(torch.tensor([[-1.0, 0.5, 3.0]]))
        tensor([[0.0000, 0.5000, 1.0000]])
    """

    low: Tensor | float
    high: Tensor | float

    def __post_init__(self) -> None:
        """Check that the box is not empty."""
        try:
            low, high = torch.as_tensor(self.low), torch.as_tensor(self.high)
            sound = (low < torch.inf).all() & (high > -torch.inf).all()
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(
                f"the bounds of a box must be numbers or tensors: got {self.low!r} and {self.high!r}"
            ) from error
        if low.ndim and high.ndim and low.shape != high.shape:
            raise ValueError(
                "the bounds of a box must be numbers, or both of the shape of one state: got low of shape "
                f"{tuple(low.shape)} and high of shape {tuple(high.shape)}"
            )
        if not (low.numel() and high.numel() and bool(sound & (low <= high).all())):
            raise ValueError(
                "a box needs low <= high everywhere, with a finite number between them: got "
                f"low = {self.low}, high = {self.high}"
            )

    def project(self, x: Tensor) -> Tensor:
        r"""Return the nearest points of the box, (n, \*event)."""
        low, high = self._bounds(x)
        return x.clamp(low, high)

    def defect(self, x: Tensor) -> Tensor:
        r"""Return the distance to the box, (n, \*event) to (n,)."""
        low, high = self._bounds(x)
        return row_norm(((low - x).clamp(min=0) + (x - high).clamp(min=0)).flatten(1))

    def _bounds(self, x: Tensor) -> tuple[Tensor, Tensor]:
        low, high = torch.as_tensor(self.low), torch.as_tensor(self.high)
        for bound in (low, high):
            check_states(x, "Box", tuple(bound.shape) if bound.ndim else None)
        return low.to(x), high.to(x)


@dataclass(frozen=True)
class Simplex(Constraint):
    """Shares of a whole: argmin over y >= 0 with sum(y) = total of norm(y - x), with states flattened.

    Attributes:
        total: Above 0.

    Example:
        >>> import torch
        >>> Simplex().project(torch.tensor([[0.9, 0.3, -2.0]]))
        tensor([[0.8000, 0.2000, 0.0000]])
    """

    total: float = 1.0

    def __post_init__(self) -> None:
        """Check the total."""
        check_positive(self.total, "the total of a simplex")

    def project(self, x: Tensor) -> Tensor:
        r"""Return the nearest points of the simplex, (n, \*event), by sorting."""
        check_states(x, "Simplex")
        flat = x.flatten(1).double()
        # the projection depends on differences only; next to large numbers the total itself would be rounded away
        size = flat.abs().amax(dim=1, keepdim=True)
        flat = flat - torch.where(size > _FAR * self.total, flat.amax(dim=1, keepdim=True), 0.0)
        falling = flat.sort(dim=1, descending=True).values
        excess = falling.cumsum(dim=1) - self.total
        count = torch.arange(1, flat.shape[1] + 1, device=x.device, dtype=flat.dtype)
        positive = (falling * count > excess).sum(dim=1, keepdim=True)  # how many coordinates stay above 0
        level = excess.gather(1, positive.clamp(min=1) - 1) / positive.clamp(min=1)
        return (flat - level).clamp(min=0).to(x.dtype).reshape(x.shape)

    def defect(self, x: Tensor) -> Tensor:
        r"""Return abs(sum(x) - total) plus the norm of the negative part, (n, \*event) to (n,)."""
        check_states(x, "Simplex")
        flat = x.flatten(1)
        return (flat.sum(dim=1) - self.total).abs() + row_norm(flat.clamp(max=0))


def _precision(numbers: Tensor) -> float:
    """Return the relative rounding error of numbers in their dtype; integers count as float64."""
    return torch.finfo(numbers.dtype if numbers.is_floating_point() else torch.float64).eps
