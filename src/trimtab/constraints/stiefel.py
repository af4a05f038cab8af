"""Matrices with orthonormal columns."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trimtab.constraints.rows import row_norm, row_product
from trimtab.constraints.states import check_states
from trimtab.core.constraint import Constraint

__all__ = ["Stiefel"]


@dataclass(frozen=True)
class Stiefel(Constraint):
    """Frames: states (n, p, q) with q <= p orthonormal columns, projected to the polar factor, the nearest frame.

    Example:
        >>> import torch
        >>> Stiefel().project(torch.tensor([[[2.0], [0.0]]]))[0].flatten()
        tensor([1., 0.])
    """

    def project(self, x: Tensor) -> Tensor:
        """The nearest frames, (n, p, q)."""
        _check(x)
        u, _, vh = torch.linalg.svd(x.double(), full_matrices=False)
        return row_product(u, vh).to(x.dtype)

    def defect(self, x: Tensor) -> Tensor:
        """norm(XᵀX - I) with the Frobenius norm, (n, p, q) to (n,)."""
        _check(x)
        gram = row_product(x.transpose(1, 2), x)
        return row_norm((gram - torch.eye(x.shape[2], dtype=x.dtype, device=x.device)).flatten(1))

    def take(self, rows: Tensor) -> Stiefel:
        """Itself."""
        return self


def _check(x: Tensor) -> None:
    check_states(x, "Stiefel", ("p", "q"))
    if x.shape[1] < x.shape[2]:
        raise ValueError(f"a frame has shape (n, p, q) with q <= p: got {tuple(x.shape)}")
