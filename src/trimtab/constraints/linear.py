"""Sets with flat sides whose projections are exact: affine equalities, boxes, the simplex."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from trimtab.constraints.rows import apply_matrix, row_length
from trimtab.constraints.states import check_states
from trimtab.core.checks import check_positive
from trimtab.core.constraint import Constraint
from trimtab.core.errors import check_type
from trimtab.core.exact_math import sum_rows

__all__ = ["AffineEquality", "Box", "Simplex"]

_FAR = 1e3  # totals: from here on, numbers are taken relative to the largest of their row


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
    b: Tensor = field(metadata={"per_sample": True})

    def __post_init__(self) -> None:
        """Refuse equations that fit together in no way."""
        for name, value in (("A", self.A), ("b", self.b)):
            check_type(value, Tensor, f"AffineEquality's {name}")
        if self.A.ndim != 2 or not self.A.numel() or self.b.ndim not in (1, 2) or self.b.shape[-1] != len(self.A):
            raise ValueError(
                "AffineEquality needs A of shape (m, d) and b of shape (m,) or (n, m): got "
                f"{tuple(self.A.shape)} and {tuple(self.b.shape)}"
            )
        if not bool(self.A.isfinite().all() & self.b.isfinite().all()):
            raise ValueError("AffineEquality needs finite A and b: got NaN or inf")
        self._check_contradictions()

    def _check_contradictions(self) -> None:
        """Refuse equations without a solution, sample by sample: what one asks for says nothing about another."""
        b = self.b.double().reshape(-1, len(self.A))
        left = (b - b @ (self.A.double() @ self._pseudo_inverse).T).abs().amax(dim=1)
        allowed = max(1e-6, 8 * _precision(self.A), 8 * _precision(self.b))
        bad = (left > allowed * (1 + b.abs().amax(dim=1))).nonzero().squeeze(1)
        if len(bad):
            whose = "" if self.b.ndim == 1 else f" for sample {int(bad[0])}"
            raise ValueError(
                f"the equations A y = b contradict each other{whose}: no y is nearer to solving them than "
                f"{float(left[bad[0]]):.2g}; remove or correct rows of A and b"
            )

    @cached_property
    def _pseudo_inverse(self) -> Tensor:
        """(d, m) float64, factored once.

        Rows that depend on each other do so to the precision they were given in: what rounding has left between them,
        at most this share of the largest singular value, is taken for 0 and not for a direction.
        """
        rounding = max(max(self.A.shape) * torch.finfo(torch.float64).eps, min(self.A.shape) * _precision(self.A))
        inverse: Tensor = torch.linalg.pinv(self.A.double(), rtol=rounding)
        return inverse

    def project(self, x: Tensor) -> Tensor:
        r"""The nearest solutions, (n, \*event)."""
        self._check(x)
        flat, back = x.flatten(1), self._pseudo_inverse.to(x)
        for _ in range(2):  # the second pass takes away what the first one rounded
            flat = flat - apply_matrix(back, self._residual(flat))
        return flat.reshape(x.shape)

    def defect(self, x: Tensor) -> Tensor:
        r"""norm(A x - b), (n, \*event) to (n,)."""
        self._check(x)
        return row_length(self._residual(x.flatten(1)))

    def _check(self, x: Tensor) -> None:
        samples = len(self.b) if self.b.ndim == 2 else None
        check_states(x, "AffineEquality", numbers=self.A.shape[1], samples=samples)

    def _residual(self, flat: Tensor) -> Tensor:
        return apply_matrix(self.A.to(flat), flat) - self.b.to(flat)

    def take(self, rows: Tensor) -> Self:
        """The same equations for some samples."""
        if self.b.ndim == 1:
            return self
        taken = type(self).__new__(type(self))  # A is checked and factored already
        taken.__dict__.update(self.__dict__ | {"b": self.b[rows]})
        return taken


@dataclass(frozen=True, eq=False)
class Box(Constraint):
    r"""Coordinates between bounds: argmin over low <= y <= high of norm(y - x).

    Attributes:
        low: A number or (\*event); -inf where there is no bound.
        high: Likewise, at least `low`; inf where there is no bound.

    Example:
        >>> import torch
        >>> Box(0.0, 1.0).project(torch.tensor([[-1.0, 0.5, 3.0]]))
        tensor([[0.0000, 0.5000, 1.0000]])
    """

    low: Tensor | float
    high: Tensor | float

    def __post_init__(self) -> None:
        """Refuse a box with nothing in it."""
        try:
            low, high = torch.as_tensor(self.low), torch.as_tensor(self.high)
            sound = (low < torch.inf).all() & (high > -torch.inf).all()
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(f"the ends of a box are numbers or tensors: got {self.low!r} and {self.high!r}") from error
        if low.ndim and high.ndim and low.shape != high.shape:
            raise ValueError(
                "the ends of a box are numbers, or have the shape of one state, both the same: got low of shape "
                f"{tuple(low.shape)} and high of shape {tuple(high.shape)}"
            )
        if not (low.numel() and high.numel() and bool(sound & (low <= high).all())):
            raise ValueError(
                "a box needs low <= high everywhere, with a finite number between them: got "
                f"low = {self.low}, high = {self.high}"
            )

    def project(self, x: Tensor) -> Tensor:
        r"""The nearest points of the box, (n, \*event)."""
        low, high = self._bounds(x)
        return x.clamp(low, high)

    def defect(self, x: Tensor) -> Tensor:
        r"""The distance to the box, (n, \*event) to (n,)."""
        low, high = self._bounds(x)
        return row_length(((low - x).clamp(min=0) + (x - high).clamp(min=0)).flatten(1))

    def _bounds(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Both bounds like the states, which must have the bounds' shape."""
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
        """Refuse a total that no shares have."""
        check_positive(self.total, "the total of a simplex")

    def project(self, x: Tensor) -> Tensor:
        r"""The nearest points of the simplex, (n, \*event), exactly, by sorting."""
        check_states(x, "Simplex")
        flat = x.flatten(1).double()
        # a total that is lost beside the numbers is not lost beside what they differ by, and that is all that counts
        size = flat.abs().amax(dim=1, keepdim=True)
        flat = flat - torch.where(size > _FAR * self.total, flat.amax(dim=1, keepdim=True), 0.0)
        falling = flat.sort(dim=1, descending=True).values
        excess = falling.cumsum(dim=1) - self.total
        count = torch.arange(1, flat.shape[1] + 1, device=x.device, dtype=flat.dtype)
        positive = (falling * count > excess).sum(dim=1, keepdim=True)  # how many coordinates stay above 0
        level = excess.gather(1, positive.clamp(min=1) - 1) / positive.clamp(min=1)
        return (flat - level).clamp(min=0).to(x.dtype).reshape(x.shape)

    def defect(self, x: Tensor) -> Tensor:
        r"""abs(sum(x) - total) plus the norm of what is below 0, (n, \*event) to (n,)."""
        check_states(x, "Simplex")
        flat = x.flatten(1)
        return (sum_rows(flat) - self.total).abs() + row_length(flat.clamp(max=0))


def _precision(numbers: Tensor) -> float:
    """The relative rounding of numbers that were given in a dtype; whole numbers have none but that of float64."""
    return torch.finfo(numbers.dtype if numbers.is_floating_point() else torch.float64).eps
