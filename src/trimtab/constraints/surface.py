"""Surfaces that are the graph of a height field."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from trimtab.constraints.states import check_states
from trimtab.core.constraint import Constraint
from trimtab.core.errors import check_callable

__all__ = ["Surface"]


@dataclass(frozen=True)
class Surface(Constraint):
    """Points on a height field: states (n, 3) as u, v, z with z = height(u, v), projected vertically.

    Attributes:
        height: u and v, (n,) each, to z, (n,).

    Example:
        >>> import torch
        >>> Surface(lambda u, v: u * v).project(torch.tensor([[2.0, 3.0, 7.0]]))
        tensor([[2., 3., 6.]])
    """

    height: Callable[[Tensor, Tensor], Tensor]

    def __post_init__(self) -> None:
        """Refuse what is no height field."""
        check_callable(self.height, "height", "height(u, v)")

    def project(self, x: Tensor) -> Tensor:
        """Straight up or down to the surface, (n, 3) to (n, 3)."""
        check_states(x, "Surface", (3,))
        u, v, _ = x.unbind(1)
        return torch.stack([u, v, self._height(u, v)], dim=1)

    def defect(self, x: Tensor) -> Tensor:
        """abs(z - height(u, v)), (n, 3) to (n,)."""
        check_states(x, "Surface", (3,))
        u, v, z = x.unbind(1)
        return (z - self._height(u, v)).abs()

    def _height(self, u: Tensor, v: Tensor) -> Tensor:
        z = self.height(u, v)
        if not isinstance(z, Tensor) or z.shape != u.shape or z.dtype != u.dtype:
            got = f"{z.dtype} of shape {tuple(z.shape)}" if isinstance(z, Tensor) else f"{type(z).__name__}"
            raise ValueError(f"height(u, v) must give one {u.dtype} per sample, shape {tuple(u.shape)}: got {got}")
        return z
