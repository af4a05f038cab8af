"""Rotations: the nearest one to any 3×3 matrix, how far from one a matrix is, and the angle between two."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trimtab.constraints.rows import brought_near, frame_defect, remeasured, schulz_factor
from trimtab.constraints.states import check_states
from trimtab.core.constraint import Constraint, Improvement
from trimtab.core.errors import check_type
from trimtab.core.exact_math import arctan2, product

__all__ = [
    "SO3",
    "improved_rotation",
    "multiply",
    "nearest_rotation",
    "rotation_angle",
    "rotation_defect",
    "transpose_multiply",
]

_CHUNK = 8192  # matrices at a time: their intermediate values stay in the cache
_HARD = 1e-16  # squared distance of RᵀR from I up to which one Newton-Schulz step makes it exact
# the entries of a matrix repeated cyclically to 5×5, so that all cofactors are products of shifted views
_CYCLIC = np.array([3 * (i % 3) + j % 3 for i in range(5) for j in range(5)])


def nearest_rotation(a: Tensor) -> Tensor:
    """The rotation nearest to each matrix, argmin over R in SO(3) of norm(R - A) with the Frobenius norm.

    Computed in float64 by a closed form, and from quaternions for the few matrices where that is not accurate: those
    for which the nearest rotation is hardly unique. Where it is not unique, as for 0, it is one
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
    check_type(a, Tensor, "nearest_rotation's matrices")
    if a.shape[-2:] != (3, 3) or not a.is_floating_point():
        raise ValueError(f"nearest_rotation needs floats of shape (…, 3, 3): got {tuple(a.shape)} of {a.dtype}")
    f = a.detach().resolve_neg().reshape(-1, 9)
    f = f if f.dtype in (torch.float32, torch.float64) else f.float()  # numpy has no bfloat16
    if a.device.type == "cpu":
        found, good = _on_cpu(f.numpy())
        rotation, easy = torch.from_numpy(found), torch.from_numpy(good)
    else:
        columns, easy = _closed_form(torch, f.T.double())
        rotation = columns.T.to(f.dtype)
    if not bool(easy.all()):
        hard = (~easy).nonzero().squeeze(1)
        rotation[hard] = _by_quaternion(f[hard].double().reshape(-1, 3, 3)).reshape(-1, 9).to(f.dtype)
    return rotation.to(a.dtype).reshape(a.shape)


def _on_cpu(f: Any) -> tuple[Any, Any]:
    """`_closed_form` in numpy, whose calls cost a third of torch's: in chunks that fit the cache, on all threads.

    Args:
        f: The matrices, (n, 9).

    Returns:
        The rotations, (n, 9), and whether each is accurate, (n,) bool.
    """
    n = len(f)
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

    An error in s changes R by a symmetric factor only, R (I + S), so that one Newton-Schulz step removes it. All
    operations are exactly rounded ones (see `core.steady`): no cosine, no sum of unstated order.

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
    a, b, det = _inner(A, A), _inner(cofactor, cofactor), _inner(A, cofactor) / 3

    # the squared singular values are the roots of the cubic x³ - a x² + b x - det², all real
    spread = xp.abs(a * a - 3 * b) + _SMALLEST
    root = xp.sqrt(spread)
    turn = (a * (2 * spread - 3 * b) + 27 * det * det) / (2 * spread * root)  # the cosine of three times an angle
    cosine = _cosine_of_third(xp, turn.clip(-1.0, 1.0))
    sine = xp.sqrt(3 * xp.abs(1 - cosine * cosine))
    third, root = a / 3, root / 3
    s = xp.sqrt(third + 2 * root * cosine)
    s += xp.sqrt(xp.abs(third + root * (sine - cosine)))  # where rounding leaves a root below 0
    s += xp.copysign(xp.sqrt(xp.abs(third - root * (sine + cosine))), det)

    # the cosine is known to seven digits, and a root of the cubic to half of those where it is 0 or nearly double
    for _ in range(3):  # steps of Newton's method
        k = (s * s - a) / 2
        slope = k * s - det
        s -= (k * k - 2 * det * s - b) / (2 * slope)
    unique = slope > _UNIQUE * a * s
    k = (s * s - a) / 2
    R = (k + a) * A
    cofactor *= s
    R += cofactor
    R -= product(A, product(A.swapaxes(0, 1), A))
    R /= k * s - det
    strain = product(R.swapaxes(0, 1), R)
    for i in range(3):
        strain[i, i] -= 1
    good = unique & (_inner(strain, strain) < _HARD)
    strain *= 0.5
    R -= product(R, strain)
    return R.reshape(9, n), good


_SMALLEST = 1e-200  # keeps 0 / 0 away where all singular values are equal
_UNIQUE = 1e-4  # share of its size below which the denominator, the product of s_i + s_j, is called 0


def _inner(a: Any, b: Any) -> Any:
    """The sum of the products of entries, (3, 3, n) twice to (n,)."""
    products = a * b
    rows = products[0] + products[1] + products[2]
    return rows[0] + rows[1] + rows[2]


def _cosine_of_third(xp: Any, x: Any) -> Any:
    """cos(arccos(x) / 3) for x in [-1, 1], in [1/2, 1], to about 1e-6 (n,).

    As a function of the cosine of the half angle, sqrt((1 + x) / 2), it is smooth up to both ends; a polynomial through
    its values at Chebyshev points is enough, as Newton's method follows.
    """
    half = xp.sqrt((1 + x) / 2)
    value = _THIRD[-1] * half + _THIRD[-2]
    for coefficient in _THIRD[-3::-1]:
        value *= half
        value += coefficient
    return value


_THIRD = (
    0.500000026,
    0.577346917,
    -0.111038511,
    0.0528414091,
    -0.0302353976,
    0.0160472804,
    -0.00608934568,
    0.00112763624,
)


def _by_quaternion(a: Tensor) -> Tensor:
    """Nearest rotations of matrices for which they are hardly unique, (n, 3, 3).

    The rotation by the unit quaternion q has tr(RᵀA) = qᵀ N q with a symmetric 4×4 matrix N whose entries are sums of
    those of A, so the nearest one is the eigenvector of the largest eigenvalue. Jacobi's method finds it by exactly
    rounded operations, in a fixed number of sweeps: no row waits for another one to converge.
    """
    size = a.abs().amax(dim=(1, 2), keepdim=True)
    (xx, xy, xz), (yx, yy, yz), (zx, zy, zz) = (a / torch.where(size == 0, 1.0, size)).permute(1, 2, 0)
    entries = [xx + yy + zz, zy - yz, xz - zx, yx - xy, xx - yy - zz, xy + yx, zx + xz]
    entries += [yy - xx - zz, yz + zy, zz - xx - yy]
    N = torch.stack(entries)[torch.tensor(_SYMMETRIC)]
    V = torch.eye(4, dtype=a.dtype, device=a.device)[..., None].repeat(1, 1, len(a))
    for p, q in _PAIRS * _SWEEPS:
        cross = N[p, q]
        slope = (N[q, q] - N[p, p]) / torch.where(cross == 0, 1.0, 2 * cross)
        t = torch.copysign(1 / (slope.abs() + (slope * slope + 1).sqrt()), slope)
        t = torch.where(cross == 0, 0.0, t)
        c = 1 / (t * t + 1).sqrt()
        s = t * c
        N[p], N[q] = c * N[p] - s * N[q], s * N[p] + c * N[q]
        N[:, p], N[:, q] = c * N[:, p] - s * N[:, q], s * N[:, p] + c * N[:, q]
        V[:, p], V[:, q] = c * V[:, p] - s * V[:, q], s * V[:, p] + c * V[:, q]
    best = N.diagonal(dim1=0, dim2=1).argmax(dim=1)
    w, x, y, z = V[:, best, torch.arange(len(a), device=a.device)]
    ww, wx, wy, wz, xx, xy, xz, yy, yz, zz = w * w, w * x, w * y, w * z, x * x, x * y, x * z, y * y, y * z, z * z
    rows = [ww + xx - yy - zz, 2 * (xy - wz), 2 * (xz + wy)]
    rows += [2 * (xy + wz), ww - xx + yy - zz, 2 * (yz - wx)]
    rows += [2 * (xz - wy), 2 * (yz + wx), ww - xx - yy + zz]
    rotation: Tensor = torch.stack(rows) / (ww + xx + yy + zz)
    return rotation.T.reshape(-1, 3, 3)


_SYMMETRIC = ((0, 1, 2, 3), (1, 4, 5, 6), (2, 5, 7, 8), (3, 6, 8, 9))
_PAIRS = ((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3))
_SWEEPS = 8  # convergence is quadratic: five do for random matrices, and N is exact to the last bits long before eight


def multiply(a: Tensor, b: Tensor) -> Tensor:
    """The product of matrices, (…, i, 3) and (…, 3, k) to (…, i, k), written out as a sum of three.

    A batched product may round differently in batches of different size (see `core.steady`), and a sample must not
    notice its batch-mates.
    """
    return a[..., :, 0:1] * b[..., 0:1, :] + a[..., :, 1:2] * b[..., 1:2, :] + a[..., :, 2:3] * b[..., 2:3, :]


def transpose_multiply(a: Tensor, b: Tensor) -> Tensor:
    """aᵀ b, (…, 3, i) and (…, 3, k) to (…, i, k); as `multiply`."""
    return multiply(a.transpose(-1, -2), b)


def rotation_defect(a: Tensor) -> Tensor:
    """norm(AᵀA - I) + abs(det A - 1) with the Frobenius norm, (…, 3, 3) to (…)."""
    if a.ndim != 3:
        return rotation_defect(a.reshape(-1, 3, 3)).reshape(a.shape[:-2])
    if len(a) > _CHUNK and a.is_cpu:
        return torch.cat([rotation_defect(part) for part in torch.split(a, _CHUNK)])
    rows = a.movedim((-2, -1), (0, 1)).contiguous()  # the batch last, where the sums run fast
    x, y, z = rows.unbind(1)
    # the six entries of AᵀA - I that differ, from products of columns; all at once, since small batches are all calls
    products = torch.stack([x, y, z, x, x, y]) * torch.stack([x, y, z, y, z, z])
    gram = products[:, 0] + products[:, 1] + products[:, 2]
    gram[:3] -= 1
    xx, yy, zz, xy, xz, yz = (gram * gram).unbind(0)
    squares = xx + yy + zz + 2 * (xy + xz + yz)
    cyclic = torch.cat([rows, rows[:2]])
    volume = (cyclic[1:4, 0] * cyclic[2:5, 1] - cyclic[2:5, 0] * cyclic[1:4, 1]) * z
    return remeasured(squares.sqrt() + (volume[0] + volume[1] + volume[2] - 1).abs(), a, _large_defect)


def _large_defect(a: Tensor, scale: Tensor) -> Tensor:
    """`rotation_defect` of s A, (n, 3, 3) and (n,) to (n,), finite wherever it can be."""
    x, y, z = a.unbind(2)
    volume = (torch.linalg.cross(x, y) * z).unbind(1)
    det: Tensor = (volume[0] + volume[1] + volume[2]) * scale * scale * scale
    return frame_defect(a, scale) + (det - 1).abs()


def rotation_angle(a: Tensor, b: Tensor) -> Tensor:
    """The angle of the rotation from a to b, norm(log(aᵀb)) / √2: rotations (…, 3, 3) to (…) in [0, pi]."""
    r = transpose_multiply(a, b)
    # atan2 keeps its accuracy near 0 and near pi, where arccos of the trace loses half the digits
    x, y, z = r[..., 2, 1] - r[..., 1, 2], r[..., 0, 2] - r[..., 2, 0], r[..., 1, 0] - r[..., 0, 1]
    sine = (x * x + y * y + z * z).sqrt()
    angle: Tensor = arctan2(sine, r[..., 0, 0] + r[..., 1, 1] + r[..., 2, 2] - 1)
    return angle


def improved_rotation(a: Tensor) -> Improvement:
    """One step of Newton and Schulz towards the nearest rotations, (n, 3, 3).

    The step keeps the sign of the determinant, so that matrices that are mirrored, or nearly singular and therefore
    slow, are projected at once.
    """
    a, extreme = brought_near(a.contiguous())  # the order of sums depends on how numbers lie in memory
    gram = transpose_multiply(a, a)
    size = gram.flatten(1).norm(dim=1)
    y = multiply(a, schulz_factor(gram, extreme | (rotation_defect(a) >= 1), size))
    mirrored = torch.linalg.det(a) <= 1e-3 * size**1.5
    if bool(mirrored.any()):
        y = torch.where(mirrored[:, None, None], nearest_rotation(a), y)
    defect = rotation_defect(y)
    return Improvement(y, defect, defect <= 64 * torch.finfo(a.dtype).eps, ())


@dataclass(frozen=True)
class SO3(Constraint):
    """Rotation matrices: states (n, 3, 3), polar projection, orthogonality and determinant defect.

    Example:
        >>> import torch
        >>> SO3().project(2 * torch.eye(3)[None])[0].diagonal()
        tensor([1., 1., 1.])
    """

    improves = True

    def project(self, x: Tensor) -> Tensor:
        """The nearest rotations, (n, 3, 3) to (n, 3, 3)."""
        check_states(x, "SO3", (3, 3))
        return nearest_rotation(x)

    def defect(self, x: Tensor) -> Tensor:
        """norm(AᵀA - I) + abs(det A - 1), (n, 3, 3) to (n,)."""
        check_states(x, "SO3", (3, 3))
        return rotation_defect(x)

    def improve(self, x: Tensor, state: tuple[Tensor, ...] | None = None, **context: Any) -> Improvement:
        """One step of Newton and Schulz; matrices that it leads to no rotation are projected. Carries nothing."""
        check_states(x, "SO3", (3, 3))
        return improved_rotation(x)
