"""Rotations: the nearest one to any 3×3 matrix, how far from one a matrix is, and the angle between two."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["SO3", "multiply", "nearest_rotation", "rotation_angle", "rotation_defect", "transpose_multiply"]


def nearest_rotation(a: Tensor) -> Tensor:
    """The rotation nearest to each matrix in the Frobenius norm.

    Args:
        a: Any finite matrices, (…, 3, 3).

    Returns:
        (…, 3, 3) with R Rᵀ = I and det R = 1.
    """
    u, _, vh = torch.linalg.svd(a)
    sign = torch.linalg.det(multiply(u, vh)).round()
    u = torch.cat([u[..., :2], u[..., 2:] * sign[..., None, None]], dim=-1)
    return multiply(u, vh)


def multiply(a: Tensor, b: Tensor) -> Tensor:
    """a b for small matrices, (…, i, 3) and (…, 3, k) to (…, i, k).

    Written out as sums of products: a batched matrix product may round differently in batches of different size,
    and a sample must not notice its batch-mates.
    """
    return a[..., :, 0:1] * b[..., 0:1, :] + a[..., :, 1:2] * b[..., 1:2, :] + a[..., :, 2:3] * b[..., 2:3, :]


def transpose_multiply(a: Tensor, b: Tensor) -> Tensor:
    """aᵀ b, (…, 3, i) and (…, 3, k) to (…, i, k); as `multiply`."""
    return multiply(a.transpose(-1, -2), b)


def rotation_defect(a: Tensor) -> Tensor:
    """norm(AᵀA - I) + abs(det A - 1) with the Frobenius norm, (…, 3, 3) to (…)."""
    x, y, z = a.unbind(-1)
    # the six entries of AᵀA - I that differ, from products of columns
    xx, yy, zz = _dot(x, x) - 1, _dot(y, y) - 1, _dot(z, z) - 1
    xy, xz, yz = _dot(x, y), _dot(x, z), _dot(y, z)
    squares = xx * xx + yy * yy + zz * zz + 2 * (xy * xy + xz * xz + yz * yz)
    return squares.sqrt() + (_dot(torch.linalg.cross(x, y), z) - 1).abs()


def rotation_angle(a: Tensor, b: Tensor) -> Tensor:
    """The angle of the rotation from a to b, norm(log(aᵀb)) / √2, for rotations (…, 3, 3) to (…) in [0, pi]."""
    r = transpose_multiply(a, b)
    # atan2 of sine and cosine keeps its accuracy near 0 and near pi, where arccos of the trace loses half the digits
    x, y, z = r[..., 2, 1] - r[..., 1, 2], r[..., 0, 2] - r[..., 2, 0], r[..., 1, 0] - r[..., 0, 1]
    sine = (x * x + y * y + z * z).sqrt()
    return torch.atan2(sine, r[..., 0, 0] + r[..., 1, 1] + r[..., 2, 2] - 1)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return a[..., 0] * b[..., 0] + a[..., 1] * b[..., 1] + a[..., 2] * b[..., 2]


@dataclass(frozen=True)
class SO3:
    """Rotation matrices: states (n, 3, 3), polar projection, orthogonality and determinant defect.

    Example:
        >>> import torch
        >>> SO3().project(2 * torch.eye(3)[None])[0].diagonal()
        tensor([1., 1., 1.])
    """

    def project(self, x: Tensor) -> Tensor:
        """The nearest rotations, (n, 3, 3) to (n, 3, 3)."""
        return nearest_rotation(x)

    def defect(self, x: Tensor) -> Tensor:
        """norm(AᵀA - I) + abs(det A - 1), (n, 3, 3) to (n,)."""
        return rotation_defect(x)

    def take(self, rows: Tensor) -> SO3:
        """Itself: there is no data belonging to a sample."""
        return self
