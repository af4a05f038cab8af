"""Rotations, poses and frames: SO(3), SE(3) and the Stiefel manifold."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from trimtab.constraints.states import Wrapper, check_states, check_sub_answer, row_norm, with_settings
from trimtab.core.checks import check_number, check_type
from trimtab.core.constraint import Constraint, Improvement, Projection, check_constraint

__all__ = ["SE3", "SO3", "Stiefel", "nearest_rotation", "pose_distance", "rotation_angle", "rotation_defect"]

_FEW = 32  # matrices: fewer take an SVD less time than Newton steps


def nearest_rotation(a: Tensor) -> Tensor:
    """Return the rotation nearest to each matrix, argmin over R in SO(3) of norm(R - A) with the Frobenius norm.

    Matrices near rotations take five Newton steps, and the others a singular value decomposition. If several rotations
    are nearest, as for the zero matrix, one of them is returned. No gradient flows through.

    Args:
        a: Matrices, (…, 3, 3); those that are not finite are returned unchanged.

    Returns:
        (…, 3, 3) with R Rᵀ = I and det R = 1, in the dtype of `a`; computed in float64.

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
    matrices = a.detach().reshape(-1, 3, 3).double()
    if len(matrices) < _FEW or float((matrices.square().sum(dim=(1, 2)) - 3).abs().median()) > 1:  # most are far
        return _by_svd(matrices, rotation=True).reshape(a.shape).to(a.dtype)
    found, done = _newton(matrices)
    rest = (~done).nonzero().squeeze(1)
    if len(rest):
        found[rest] = _by_svd(matrices[rest], rotation=True)
    return found.reshape(a.shape).to(a.dtype)


def _newton(a: Tensor) -> tuple[Tensor, Tensor]:
    """Make five Newton steps towards the polar factor, (n, 3, 3), and say which matrices reached a rotation, (n,) bool.

    A step is (X + X⁻ᵀ) / 2, and X⁻ᵀ is the matrix of the cross products of X's columns over its determinant. The
    error e becomes e² / 2: a last step below 1e-8 leaves rounding errors alone. Singular values from 0.5 to 2 take
    five steps; a step keeps the sign of the determinant, so that a reflection never becomes a rotation.
    """
    x = last = a.permute(2, 1, 0).contiguous()  # columns first and samples last: each operation is one pass
    for _ in range(5):
        last, cross = x, torch.linalg.cross(x.roll(-1, 0), x.roll(-2, 0), dim=1)
        x = torch.lerp(x, cross / (x[0] * cross[0]).sum(dim=0), 0.5)
    done = ((x - last).abs().amax(dim=(0, 1)) <= 1e-8) & ((torch.linalg.cross(x[0], x[1], dim=0) * x[2]).sum(dim=0) > 0)
    return x.permute(2, 1, 0), done


def _by_svd(a: Tensor, rotation: bool = False) -> Tensor:
    """Return the polar factor U Vᵀ of matrices A = U S Vᵀ, (…, p, q), or for 3×3 matrices the nearest rotation."""
    finite = a.isfinite().all(dim=-1, keepdim=True).all(dim=-2, keepdim=True)  # others would fail the whole batch
    u, _, vh = torch.linalg.svd(torch.where(finite, a, 0.0).double(), full_matrices=False)
    if rotation:  # a reflection becomes a rotation by turning the direction of the smallest singular value
        u[..., 2] *= _determinant(u @ vh).sign()[..., None]
    return torch.where(finite, (u @ vh).to(a.dtype), a)


def _frame_defect(a: Tensor) -> Tensor:
    """Return norm(AᵀA - I) with the Frobenius norm, (…, p, q) to (…); large matrices are scaled against overflow."""
    scale = a.detach().abs().amax(dim=(-2, -1), keepdim=True).clamp(min=1)
    a, scale = a / scale, scale[..., 0, 0]
    identity = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    gram = a.mT @ a - identity / scale[..., None, None] ** 2
    norm: Tensor = torch.linalg.matrix_norm(gram)
    return norm * scale * scale


def rotation_defect(a: Tensor) -> Tensor:
    """Return norm(AᵀA - I) + abs(det A - 1) with the Frobenius norm, (…, 3, 3) to (…)."""
    scale = a.detach().abs().amax(dim=(-2, -1)).clamp(min=1)  # the determinant of large matrices could overflow
    det = _determinant(a / scale[..., None, None]) * scale * scale * scale
    return _frame_defect(a) + (det - 1).abs()


def _determinant(a: Tensor) -> Tensor:
    """Return the determinants of matrices, (…, 3, 3) to (…), without a factorisation."""
    x, y, z = a.unbind(-1)
    det: Tensor = (torch.linalg.cross(x, y) * z).sum(dim=-1)
    return det


def rotation_angle(a: Tensor, b: Tensor) -> Tensor:
    """Return the angle of the rotation from a to b, norm(log(aᵀb)) / √2: rotations (…, 3, 3) to (…) in [0, pi]."""
    r = a.mT @ b
    # atan2 is accurate near 0 and near pi, where arccos of the trace loses half the digits
    x, y, z = r[..., 2, 1] - r[..., 1, 2], r[..., 0, 2] - r[..., 2, 0], r[..., 1, 0] - r[..., 0, 1]
    return torch.atan2((x * x + y * y + z * z).sqrt(), r.diagonal(dim1=-2, dim2=-1).sum(dim=-1) - 1)


def pose_distance(a: Tensor, b: Tensor, alpha: float = 1.0) -> Tensor:
    """Return the angle plus alpha times the distance of poses, (…, 3, 4) to (…); rotations are projected first."""
    angle = rotation_angle(nearest_rotation(a[..., :3]), nearest_rotation(b[..., :3]))
    return angle + alpha * (a[..., 3] - b[..., 3]).square().sum(dim=-1).sqrt()


def _newton_schulz(x: Tensor, far: Tensor) -> Tensor:
    """Make one step towards the polar factor, X (3 I - XᵀX) / 2, (n, p, q); matrices that are `far`, (n,), are scaled.

    Only singular values below √3 converge.
    """
    tiny = torch.finfo(x.dtype).tiny
    largest = torch.where(far, x.abs().amax(dim=(1, 2)), 1.0).clamp(min=tiny)
    x = x / largest[:, None, None]
    gram = x.mT @ x
    size = torch.where(far, torch.linalg.matrix_norm(gram), 1.0).clamp(min=tiny)[:, None, None]
    identity = torch.eye(x.shape[2], dtype=x.dtype, device=x.device)
    return x @ (3 * identity - gram / size) / (2 * size.sqrt())


def _improve_rotation(a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Make one Newton-Schulz step towards the nearest rotations, (n, 3, 3): matrices, defects and done, (n,) both.

    The step keeps the sign of the determinant and is slow for singular matrices; those and reflections are projected.
    """
    y = _newton_schulz(a, rotation_defect(a) >= 1)
    unit = a / row_norm(a.flatten(1)).clamp(min=torch.finfo(a.dtype).tiny)[:, None, None]
    mirrored = torch.linalg.det(unit) <= 1e-3 * torch.linalg.matrix_norm(unit.mT @ unit) ** 1.5
    if bool(mirrored.any()):
        y = torch.where(mirrored[:, None, None], nearest_rotation(a), y)
    defect = rotation_defect(y)
    return y, defect, defect <= 64 * torch.finfo(a.dtype).eps


@dataclass(frozen=True)
class SO3(Constraint):
    """Rotation matrices: states (n, 3, 3), projected to the nearest rotation.

    Example:
        >>> import torch
        >>> SO3().project(2 * torch.eye(3)[None])[0].diagonal()
        tensor([1., 1., 1.])
    """

    improves = True
    counts_iterations = False  # a closed form

    def project(self, x: Tensor) -> Tensor:
        """Return the nearest rotations, (n, 3, 3) to (n, 3, 3)."""
        check_states(x, "SO3", (3, 3))
        return nearest_rotation(x)

    def defect(self, x: Tensor) -> Tensor:
        """Return norm(AᵀA - I) + abs(det A - 1), (n, 3, 3) to (n,)."""
        check_states(x, "SO3", (3, 3))
        return rotation_defect(x)

    def improve(self, x: Tensor, state: tuple[Tensor, ...] | None = None, **context: Any) -> Improvement:
        """Make one Newton-Schulz step; reflections and nearly singular matrices are projected. Carries no state."""
        check_states(x, "SO3", (3, 3))
        return Improvement(*_improve_rotation(x), ())


@dataclass(frozen=True, eq=False)
class SE3(Wrapper):
    """Poses [A | p]: states (n, 3, 4), A a rotation and p free or in another set.

    Attributes:
        translation: The constraint on p, states (n, 3); None leaves p free.
        alpha: Weight of the translation's defect relative to the rotation's, norm(AᵀA - I) + abs(det A - 1).

    Example:
        >>> import torch
        >>> SE3(alpha=2.0).defect(torch.eye(3, 4)[None])
        tensor([0.])
    """

    improves = True
    counts_iterations = False  # a closed form

    translation: Constraint | None = None
    alpha: float = 1.0

    def __post_init__(self) -> None:
        """Check the weight and the constraint on translations."""
        if not math.isfinite(check_number(self.alpha, "alpha, a weight,", 0)):
            raise ValueError(f"alpha must be a finite number of at least 0: got {self.alpha!r}")
        if self.translation is not None:
            check_constraint(self.translation, "the constraint on translations")

    def _parts(self) -> tuple[Constraint, ...]:
        return () if self.translation is None else (self.translation,)

    def project(self, x: Tensor, **context: Any) -> Tensor | Projection:
        """Return the nearest rotation and the projected translation, (n, 3, 4)."""
        check_states(x, "SE3", (3, 4))
        rotation = nearest_rotation(x[..., :3])
        if self.translation is None:
            return torch.cat([rotation, x[..., 3:]], dim=-1)
        answer = self._project_place(x, context)
        pose = torch.cat([rotation, answer.x[..., None]], dim=-1)
        if answer.converged is None and answer.iterations is None:
            return pose
        return Projection(pose, answer.converged, answer.iterations)

    def defect(self, x: Tensor, **context: Any) -> Tensor:
        """Return the rotation's defect plus alpha times the translation's, (n, 3, 4) to (n,)."""
        check_states(x, "SE3", (3, 4))
        defect = rotation_defect(x[..., :3])
        if self.translation is None:
            return defect
        of_place: Tensor = self.translation.defect(x[..., 3], **_place_context(context))
        return defect + self.alpha * of_place

    def improve(self, x: Tensor, state: tuple[Tensor, ...] | None = None, **context: Any) -> Improvement:
        """Make one Newton-Schulz step for the rotation and project the translation. Carries no state."""
        check_states(x, "SE3", (3, 4))
        rotation, _, done = _improve_rotation(x[..., :3])
        place = x[..., 3]
        if self.translation is not None:
            answer = self._project_place(x, context)
            place, done = answer.x, done if answer.converged is None else done & answer.converged
        pose = torch.cat([rotation, place[..., None]], dim=-1)
        return Improvement(pose, self.defect(pose, **context), done, ())

    def take(self, rows: Tensor) -> Self:
        """Return the same constraint for some samples."""
        return self if self.translation is None else with_settings(self, translation=self.translation.take(rows))

    def _project_place(self, x: Tensor, context: dict[str, Any]) -> Projection:
        assert self.translation is not None
        answer = self.translation.project(x[..., 3], **_place_context(context))
        return check_sub_answer(answer, x[..., 3], f"{type(self.translation).__name__} of translations")


def _place_context(context: dict[str, Any]) -> dict[str, Any]:
    """Return the context of translations: the previous state is a pose, too."""
    return {name: value[..., 3] if name == "previous" else value for name, value in context.items()}


@dataclass(frozen=True)
class Stiefel(Constraint):
    """Frames: states (n, p, q) with q <= p orthonormal columns, projected to the polar factor, the nearest frame.

    Example:
        >>> import torch
        >>> Stiefel().project(torch.tensor([[[2.0], [0.0]]]))[0].flatten()
        tensor([1., 0.])
    """

    improves = True
    counts_iterations = False  # a closed form

    def project(self, x: Tensor) -> Tensor:
        """Return the nearest frames, (n, p, q); states that are not finite are returned unchanged."""
        self._check(x)
        return _by_svd(x)

    def defect(self, x: Tensor) -> Tensor:
        """Return norm(XᵀX - I) with the Frobenius norm, (n, p, q) to (n,)."""
        self._check(x)
        return _frame_defect(x)

    def improve(self, x: Tensor, state: tuple[Tensor, ...] | None = None, **context: Any) -> Improvement:
        """Make one Newton-Schulz step towards the polar factor, X (3 I - XᵀX) / 2. Carries no state."""
        self._check(x)
        y = _newton_schulz(x, _frame_defect(x) >= 1)  # closer than 1, all singular values are below √2
        defect = _frame_defect(y)
        return Improvement(y, defect, defect <= 32 * torch.finfo(x.dtype).eps * x.shape[2], ())

    def _check(self, x: Tensor) -> None:
        check_states(x, "Stiefel", ("p", "q"))
        if x.shape[1] < x.shape[2]:
            raise ValueError(f"frames must have shape (n, p, q) with q <= p: got {tuple(x.shape)}")
