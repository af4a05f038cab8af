"""Sums over a row that come out the same, to the last bit, whatever batch the row is in."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from trimtab.core.exact_math import sum_rows

__all__ = [
    "apply_matrix",
    "brought_near",
    "combine_columns",
    "combine_rows",
    "frame_defect",
    "remeasured",
    "row_dot",
    "row_length",
    "row_norm",
    "row_product",
    "scaled",
    "schulz_factor",
]


def row_norm(x: Tensor) -> Tensor:
    """The Euclidean norm of each row, (n, d) to (n,)."""
    return sum_rows(x * x).sqrt()


def row_length(x: Tensor) -> Tensor:
    """`row_norm` of rows of any size, those whose squares would overflow or vanish included, (n, d) to (n,)."""
    smaller, scale = scaled(x)
    return row_norm(smaller) / scale


def scaled(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows whose squares can be summed, (n, d), and the powers of 2 that they were multiplied with, (n,).

    That is 1 for all but very large and very small rows, so that the others keep their bits.
    """
    large, down, small, up = _EXTREMES[x.dtype]
    size = x.detach().abs().amax(dim=1)
    scale = torch.ones_like(size).masked_fill_(size > large, down).masked_fill_(size < small, up)
    return x * scale[:, None], scale


# above the first of these numbers rows are multiplied with the second, below the third with the fourth
_EXTREMES = {
    torch.float64: (2.0**300, 2.0**-600, 2.0**-300, 2.0**700),
    torch.float32: (2.0**40, 2.0**-80, 2.0**-40, 2.0**90),
}


def brought_near(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Matrices whose products XᵀX have squares that can be summed, (n, p, q), and which were not so before, (n,) bool.

    Those are multiplied with a power of 2, so that their largest number is about 1; the others keep their bits.
    """
    size, near = matrices.detach().abs().amax(dim=(1, 2)), _NEAR[matrices.dtype]
    extreme = ~((size >= 1 / near) & (size <= near))  # NaN is
    size = size.clamp(min=torch.finfo(size.dtype).tiny)
    scale = torch.where(extreme, torch.frexp(size).mantissa / size, 1.0)
    return matrices * scale[:, None, None], extreme


_NEAR = {torch.float64: 2.0**240, torch.float32: 2.0**25}


def remeasured(defect: Tensor, matrices: Tensor, measure: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Defects, (n,), of which those that overflowed though their matrices are finite are measured another way.

    Args:
        defect: As the plain formula has it; what is finite keeps its bits.
        matrices: (n, p, q).
        measure: Defects, (m,), of matrices s X: called with X, (m, p, q), whose largest number is from 1 to 2, and the
            powers of 2 s, (m,).
    """
    if not defect.is_cpu:  # on an accelerator a look at numbers would be waited for
        return defect
    try:
        if math.isfinite(float(defect.detach().sum())):  # the cheapest look at all of them
            return defect
    except RuntimeError:  # inside of torch.func.vmap nothing can depend on numbers
        return defect
    size = matrices.detach().abs().amax(dim=(1, 2))
    rows = (size.isfinite() & ~defect.isfinite()).nonzero().squeeze(1)
    scale = size[rows] / (2 * torch.frexp(size[rows]).mantissa)
    return defect.index_copy(0, rows, measure(matrices[rows] / scale[:, None, None], scale))


def frame_defect(matrices: Tensor, scale: Tensor) -> Tensor:
    """norm(s² XᵀX - I) with the Frobenius norm, (n, p, q) and (n,) to (n,), finite wherever it can be."""
    identity = torch.eye(matrices.shape[2], dtype=matrices.dtype, device=matrices.device)
    gram = row_product(matrices.transpose(1, 2), matrices) - identity / scale[:, None, None] / scale[:, None, None]
    return row_norm(gram.flatten(1)) * scale * scale


def apply_matrix(matrix: Tensor, x: Tensor) -> Tensor:
    """The matrix times each row, (m, d) and (n, d) to (n, m); a plain product rounds differently in other batches.

    So do the sum of numbers that do not lie in one piece, and a sum that is the only one, which threads share where it
    is long: that row is therefore made two.
    """
    if len(x) == len(matrix) == 1:
        return apply_matrix(matrix, x.expand(2, -1))[:1]
    return (x[:, None, :] * matrix).contiguous().sum(dim=2)


def row_product(a: Tensor, b: Tensor) -> Tensor:
    """The matrix product in each row, (n, i, j) and (n, j, k) to (n, i, k).

    A batch of one takes another route through the libraries, with other rounding; it is therefore made two.
    """
    if len(a) == 1:
        return torch.bmm(a.expand(2, -1, -1), b.expand(2, -1, -1))[:1]
    return torch.bmm(a, b)


def schulz_factor(gram: Tensor, far: Tensor, size: Tensor) -> Tensor:
    """What a step of Newton and Schulz multiplies matrices X by, (3 I - XᵀX / s) / (2 √s), (n, q, q).

    Args:
        gram: XᵀX, (n, q, q).
        far: Which are too large to converge as they are, (n,) bool; s is 1 for all others.
        size: The norm of `gram`, (n,), which is s for those.
    """
    scale = torch.where(far, size, 1.0).clamp(min=torch.finfo(gram.dtype).tiny)[:, None, None]
    identity = torch.eye(gram.shape[2], dtype=gram.dtype, device=gram.device)
    return (3 * identity - gram / scale) / (2 * scale.sqrt())


def combine_rows(weights: Tensor, matrix: Tensor) -> Tensor:
    """The rows of each sample's matrix, weighted and summed, (n, q) and (n, q, d) to (n, d).

    As a row times a matrix: the same as a product with its transpose, and several times faster.
    """
    return row_product(weights.unsqueeze(1), matrix).squeeze(1)


def combine_columns(matrix: Tensor, weights: Tensor) -> Tensor:
    """The columns of each sample's matrix, weighted and summed, (n, q, d) and (n, d) to (n, q); see `combine_rows`."""
    return row_product(weights.unsqueeze(1), matrix.transpose(1, 2)).squeeze(1)


def row_dot(a: Tensor, b: Tensor) -> Tensor:
    """The inner product of each pair of rows, (n, d) twice to (n,).

    Along rows that lie in one piece a sum has the same order in every batch; across others it has not. For a single row
    see `apply_matrix`.
    """
    if len(a) == 1:
        return row_dot(a.expand(2, -1), b.expand(2, -1))[:1]
    return (a.contiguous() * b.contiguous()).sum(dim=1)
