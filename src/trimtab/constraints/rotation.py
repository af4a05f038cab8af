"""Rotations: the nearest one to any 3×3 matrix, how far from one a matrix is, and the angle between two."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trimtab.constraints.states import check_states
from trimtab.core.constraint import Constraint

__all__ = ["SO3", "multiply", "nearest_rotation", "rotation_angle", "rotation_defect", "transpose_multiply"]

_CHUNK = 8192  # matrices at a time: their intermediate values stay in the cache
_HARD = 1e-16  # squared distance of RᵀR from I up to which one Newton-Schulz step makes it exact
# the entries of a matrix repeated cyclically to 5×5, so that all cofactors are products of shifted views
_CYCLIC = np.array([3 * (i % 3) + j % 3 for i in range(5) for j in range(5)])


def nearest_rotation(a: Tensor) -> Tensor:
    """The rotation nearest to each matrix, argmin over R in SO(3) of norm(R - A) with the Frobenius norm.

    Computed in float64 by a closed form, and by a singular value decomposition for the few matrices where that is
    not accurate: those for which the nearest rotation is hardly unique. Where it is not unique, as for 0, it is one
    of the nearest. No gradient flows through.

    Args:
        a: Any finite matrices, (…, 3, 3).

    Returns:
        (…, 3, 3) with R Rᵀ = I and det R = 1, in the dtype of `a`.

    Example:
        >>> import torch
        >>> nearest_rotation(torch.diag(torch.tensor([3.0, 2.0, -1.0])))
        tensor([[1., 0., 0.],
                [0., 1., 0.],
                [0., 0., 1.]])
    """
    if a.shape[-2:] != (3, 3) or not a.is_floating_point():
        raise ValueError(f"nearest_rotation needs floats of shape (…, 3, 3): got {tuple(a.shape)} of {a.dtype}")
    f = a.detach().reshape(-1, 9)
    f = f if f.dtype in (torch.float32, torch.float64) else f.float()  # numpy has no bfloat16
    if a.device.type == "cpu":
        found, good = _on_cpu(f.numpy())
        rotation, easy = torch.from_numpy(found), torch.from_numpy(good)
    else:
        columns, easy = _closed_form(torch, f.T.double())
        rotation = columns.T.to(f.dtype)
    if not bool(easy.all()):
        hard = (~easy).nonzero().squeeze(1)
        rotation[hard] = _by_svd(f[hard].double().reshape(-1, 3, 3)).reshape(-1, 9).to(f.dtype)
    return rotation.to(a.dtype).reshape(a.shape)


def _on_cpu(f: Any) -> tuple[Any, Any]:
    """`_closed_form` in numpy, whose calls cost a third of torch's: in chunks that fit the cache, on all threads.

    Args:
        f: The matrices, (n, 9).

    Returns:
        The rotations, (n, 9), and whether each is accurate, (n,) bool.
    """
    n = len(f)
    if n == 1:  # sums over a single column are added up in another order
        rotation, easy = _on_cpu(np.repeat(f, 2, axis=0))
        return rotation[:1], easy[:1]
    rotation, easy = np.empty_like(f), np.empty(n, dtype=bool)

    def solve(low: int, high: int) -> None:
        with np.errstate(all="ignore"):  # 0, inf and the like end as rows that are not easy
            columns, easy[low:high] = _closed_form(np, np.array(f[low:high].T, dtype=np.float64, order="C"))
        rotation[low:high] = columns.T

    if n <= _CHUNK:
        solve(0, n)
    else:
        count = -(-n // _CHUNK)
        edges = [n * i // count for i in range(count + 1)]
        with ThreadPoolExecutor(min(torch.get_num_threads(), count)) as pool:
            list(pool.map(solve, edges[:-1], edges[1:]))
    return rotation, easy


def _closed_form(xp: Any, f: Any) -> tuple[Any, Any]:
    """Rotations from singular values, for numpy arrays or torch tensors of float64.

    With a = norm(A)², s the sum of the singular values (the smallest counted negative where det A < 0) and
    k = (s² - a) / 2, the nearest rotation is

        R = ((k + a) A + s cof(A) - A AᵀA) / (k s - det A).

    An error in s changes R by a symmetric factor only, R (I + S), so that one Newton-Schulz step removes it.

    Args:
        xp: The module numpy or torch.
        f: The matrices, (9, n).

    Returns:
        The rotations, (9, n), and whether each is accurate, (n,) bool.
    """
    n = f.shape[1]
    cyclic = f[_CYCLIC].reshape(5, 5, n)
    A = cyclic[:3, :3]
    cofactor = cyclic[1:4, 1:4] * cyclic[2:5, 2:5]
    cofactor -= cyclic[1:4, 2:5] * cyclic[2:5, 1:4]
    a, b, det = xp.einsum(_INNER, A, A), xp.einsum(_INNER, cofactor, cofactor), xp.einsum(_INNER, A, cofactor) / 3

    # the squared singular values are the roots of the cubic x³ - a x² + b x - det², all real
    spread = xp.abs(a * a - 3 * b) + _SMALLEST
    root = xp.sqrt(spread)
    turn = xp.arccos(xp.clip((a * (2 * spread - 3 * b) + 27 * det * det) / (2 * spread * root), -1, 1)) / 3
    third, root = a / 3, root * (2 / 3)
    s = xp.sqrt(third + root * xp.cos(turn))
    s += xp.sqrt(xp.abs(third + root * xp.cos(turn - _THIRD)))  # where rounding leaves a root below 0
    s += xp.copysign(xp.sqrt(xp.abs(third + root * xp.cos(turn + _THIRD))), det)

    # a root of the cubic is known to half the digits only where it is 0 or nearly double: one step of Newton's method
    k = (s * s - a) / 2
    slope = k * s - det
    unique = slope > _UNIQUE * a * s
    s -= (k * k - 2 * det * s - b) / (2 * slope)
    k = (s * s - a) / 2
    R = (k + a) * A
    cofactor *= s
    R += cofactor
    R -= xp.einsum("ijn,jkn->ikn", A, xp.einsum("jin,jkn->ikn", A, A))
    R /= k * s - det
    strain = xp.einsum("jin,jkn->ikn", R, R)
    for i in range(3):
        strain[i, i] -= 1
    good = unique & (xp.einsum(_INNER, strain, strain) < _HARD)
    strain *= 0.5
    R -= xp.einsum("ijn,jkn->ikn", R, strain)
    return R.reshape(9, n), good


_SMALLEST = 1e-200  # keeps 0 / 0 away where all singular values are equal
_UNIQUE = 1e-4  # share of its size below which the denominator, the product of s_i + s_j, is called 0
_THIRD = 2 * math.pi / 3
_INNER = "ijn,ijn->n"
_CACHED = 8192  # matrices whose intermediate results stay in a processor's cache


def _by_svd(a: Tensor) -> Tensor:
    """Nearest rotations from singular vectors, (n, 3, 3)."""
    u, _, vh = torch.linalg.svd(a)
    flip = torch.linalg.det(u) * torch.linalg.det(vh) < 0
    u = torch.cat([u[..., :2], torch.where(flip[:, None, None], -u[..., 2:], u[..., 2:])], dim=2)
    return multiply(u, vh)


def multiply(a: Tensor, b: Tensor) -> Tensor:
    """The product of matrices, (…, i, 3) and (…, 3, k) to (…, i, k), written out as a sum of three.

    A batched product may round differently in batches of different size, and a sample must not notice its
    batch-mates.
    """
    return a[..., :, 0:1] * b[..., 0:1, :] + a[..., :, 1:2] * b[..., 1:2, :] + a[..., :, 2:3] * b[..., 2:3, :]


def transpose_multiply(a: Tensor, b: Tensor) -> Tensor:
    """aᵀ b, (…, 3, i) and (…, 3, k) to (…, i, k); as `multiply`."""
    return multiply(a.transpose(-1, -2), b)


def rotation_defect(a: Tensor) -> Tensor:
    """norm(AᵀA - I) + abs(det A - 1) with the Frobenius norm, (…, 3, 3) to (…)."""
    if a.ndim > 3:
        return rotation_defect(a.reshape(-1, 3, 3)).reshape(a.shape[:-2])
    if a.ndim == 3 and len(a) > _CACHED and a.is_cpu:
        return torch.cat([rotation_defect(part) for part in torch.split(a, _CACHED)])
    x, y, z = a.movedim((-2, -1), (0, 1)).contiguous().unbind(1)  # columns; the batch last, where the sums run fast
    # the six entries of AᵀA - I that differ, from products of columns; all at once, since small batches are all calls
    products = torch.stack([x, y, z, x, x, y]) * torch.stack([x, y, z, y, z, z])
    gram = products[:, 0] + products[:, 1] + products[:, 2]
    gram[:3] -= 1
    xx, yy, zz, xy, xz, yz = (gram * gram).unbind(0)
    squares = xx + yy + zz + 2 * (xy + xz + yz)
    volume: Tensor = torch.linalg.cross(x, y, dim=0) * z
    return squares.sqrt() + (volume[0] + volume[1] + volume[2] - 1).abs()


def rotation_angle(a: Tensor, b: Tensor) -> Tensor:
    """The angle of the rotation from a to b, norm(log(aᵀb)) / √2: rotations (…, 3, 3) to (…) in [0, pi]."""
    r = transpose_multiply(a, b)
    # atan2 keeps its accuracy near 0 and near pi, where arccos of the trace loses half the digits
    x, y, z = r[..., 2, 1] - r[..., 1, 2], r[..., 0, 2] - r[..., 2, 0], r[..., 1, 0] - r[..., 0, 1]
    sine = (x * x + y * y + z * z).sqrt()
    return torch.atan2(sine, r[..., 0, 0] + r[..., 1, 1] + r[..., 2, 2] - 1)


@dataclass(frozen=True)
class SO3(Constraint):
    """Rotation matrices: states (n, 3, 3), polar projection, orthogonality and determinant defect.

    Example:
        >>> import torch
        >>> SO3().project(2 * torch.eye(3)[None])[0].diagonal()
        tensor([1., 1., 1.])
    """

    def project(self, x: Tensor) -> Tensor:
        """The nearest rotations, (n, 3, 3) to (n, 3, 3)."""
        check_states(x, "SO3", (3, 3))
        return nearest_rotation(x)

    def defect(self, x: Tensor) -> Tensor:
        """norm(AᵀA - I) + abs(det A - 1), (n, 3, 3) to (n,)."""
        check_states(x, "SO3", (3, 3))
        return rotation_defect(x)

    def take(self, rows: Tensor) -> SO3:
        """Itself: there is no data belonging to a sample."""
        return self
