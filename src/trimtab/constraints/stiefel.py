"""Matrices with orthonormal columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trimtab.constraints.rows import brought_near, frame_defect, remeasured, row_norm, row_product, schulz_factor
from trimtab.constraints.states import check_states
from trimtab.core.arrays import rowwise
from trimtab.core.constraint import Constraint, Improvement

__all__ = ["Stiefel", "newton_schulz"]

_DONE = 32  # times the last place


@dataclass(frozen=True)
class Stiefel(Constraint):
    """Frames: states (n, p, q) with q <= p orthonormal columns, projected to the polar factor, the nearest frame.

    Example:
        >>> import torch
        >>> Stiefel().project(torch.tensor([[[2.0], [0.0]]]))[0].flatten()
        tensor([1., 0.])
    """

    improves = True

    def project(self, x: Tensor) -> Tensor:
        """The nearest frames, (n, p, q); what is not finite stays as it is, since it must not fail the others."""
        _check(x)
        finite = rowwise(x.flatten(1).isfinite().all(dim=1), x)
        u, _, vh = torch.linalg.svd(x.where(finite, 0.0).double(), full_matrices=False)
        return row_product(u, vh).to(x.dtype).where(finite, x)

    def defect(self, x: Tensor) -> Tensor:
        """norm(XᵀX - I) with the Frobenius norm, (n, p, q) to (n,)."""
        _check(x)
        gram = row_product(x.transpose(1, 2), x)
        defect = row_norm((gram - torch.eye(x.shape[2], dtype=x.dtype, device=x.device)).flatten(1))
        return remeasured(defect, x, frame_defect)

    def improve(self, x: Tensor, state: tuple[Tensor, ...] | None = None, **context: Any) -> Improvement:
        """One step of Newton and Schulz towards the polar factor, X (3 I - XᵀX) / 2; carries nothing."""
        _check(x)
        y = newton_schulz(x)
        defect = self.defect(y)
        return Improvement(y, defect, defect <= _DONE * torch.finfo(x.dtype).eps * x.shape[2], ())


def newton_schulz(x: Tensor) -> Tensor:
    """One step towards the nearest frames, (n, p, q); what is too large to converge is made smaller first."""
    x, extreme = brought_near(x)
    gram = row_product(x.transpose(1, 2), x)
    identity = torch.eye(x.shape[2], dtype=x.dtype, device=x.device)
    far = extreme | (row_norm((gram - identity).flatten(1)) >= 1)  # within 1, every singular value is below √2
    return row_product(x, schulz_factor(gram, far, row_norm(gram.flatten(1))))


def _check(x: Tensor) -> None:
    check_states(x, "Stiefel", ("p", "q"))
    if x.shape[1] < x.shape[2]:
        raise ValueError(f"a frame has shape (n, p, q) with q <= p: got {tuple(x.shape)}")
