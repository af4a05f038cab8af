"""Rigid motions: a rotation and a translation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from trimtab.constraints.derived import changed
from trimtab.constraints.rotation import improved_rotation, nearest_rotation, rotation_angle, rotation_defect
from trimtab.constraints.states import check_states, checked_answer
from trimtab.core.constraint import Constraint, Improvement, Projection, check_constraint
from trimtab.core.errors import check_number

__all__ = ["SE3", "pose_distance"]


@dataclass(frozen=True, eq=False)
class SE3(Constraint):
    """Poses [A | p]: states (n, 3, 4), A a rotation and p free or in a set of its own.

    Attributes:
        translation: The constraint on p, states (n, 3); None leaves p free.
        alpha: Weight of the translation's defect: what one unit of it counts beside the rotation's, which is
            norm(AᵀA - I) + abs(det A - 1) and no angle.

    Example:
        >>> import torch
        >>> SE3(alpha=2.0).defect(torch.eye(3, 4)[None])
        tensor([0.])
    """

    improves = True

    translation: Constraint | None = None
    alpha: float = 1.0

    def __post_init__(self) -> None:
        """Refuse a weight that is none."""
        if not math.isfinite(check_number(self.alpha, "alpha, a weight,", 0)):
            raise ValueError(f"alpha is a finite weight of at least 0: got {self.alpha!r}")
        if self.translation is not None:
            check_constraint(self.translation, "the constraint on translations")

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]
        """What the constraint on translations wants to know beside the states."""
        return () if self.translation is None else self.translation.needs

    @property
    def defect_is_projection(self) -> bool:  # type: ignore[override]
        """Whether measuring a defect projects the translation."""
        return self.translation is not None and self.translation.defect_is_projection

    @property
    def is_projection(self) -> bool:  # type: ignore[override]
        """Whether the constraint on translations leads onto its set; rotations always do."""
        return self.translation is None or self.translation.is_projection

    def project(self, x: Tensor, **context: Any) -> Tensor | Projection:
        """The nearest rotation, and the projection of the translation where it is constrained, (n, 3, 4)."""
        check_states(x, "SE3", (3, 4))
        rotation = nearest_rotation(x[..., :3])
        if self.translation is None:
            return torch.cat([rotation, x[..., 3:]], dim=-1)
        answer = _projected_place(self.translation, x[..., 3], context)
        pose = torch.cat([rotation, answer.x[..., None]], dim=-1)
        if answer.converged is None and answer.iterations is None:
            return pose
        return Projection(pose, answer.converged, answer.iterations)

    def defect(self, x: Tensor, **context: Any) -> Tensor:
        """Defect of the rotation plus alpha times the defect of the translation, (n, 3, 4) to (n,)."""
        check_states(x, "SE3", (3, 4))
        defect = rotation_defect(x[..., :3])
        if self.translation is None:
            return defect
        of_place: Tensor = self.translation.defect(x[..., 3], **_of_place(context))
        return defect + self.alpha * of_place

    def improve(self, x: Tensor, state: tuple[Tensor, ...] | None = None, **context: Any) -> Improvement:
        """One step of Newton and Schulz for the rotation; the translation is projected. Carries nothing."""
        check_states(x, "SE3", (3, 4))
        rotation, _, done, *_ = improved_rotation(x[..., :3])
        pose = torch.cat([rotation, x[..., 3:]], dim=-1)
        if self.translation is not None:
            answer = _projected_place(self.translation, x[..., 3], context)
            if answer.converged is not None:
                done = done & answer.converged
            pose = torch.cat([rotation, answer.x[..., None]], dim=-1)
        return Improvement(pose, self.defect(pose, **context), done, ())

    def take(self, rows: Tensor) -> Self:
        """The same constraint for some samples."""
        return self if self.translation is None else changed(self, translation=self.translation.take(rows))


def _projected_place(translation: Constraint, place: Tensor, context: dict[str, Any]) -> Projection:
    """Translations projected, (n, 3)."""
    answer = translation.project(place, **_of_place(context))
    return checked_answer(answer, place, f"{type(translation).__name__} of translations")


def _of_place(context: dict[str, Any]) -> dict[str, Any]:
    """What the translation is told; the state before the update is a pose, too."""
    return {name: value[..., 3] if name == "previous" else value for name, value in context.items()}


def pose_distance(a: Tensor, b: Tensor, alpha: float = 1.0) -> Tensor:
    """Angle plus alpha times distance, for poses (…, 3, 4) to (…); rotations are taken to be the nearest ones."""
    angle = rotation_angle(nearest_rotation(a[..., :3]), nearest_rotation(b[..., :3]))
    x, y, z = (a[..., 3] - b[..., 3]).unbind(-1)
    return angle + alpha * (x * x + y * y + z * z).sqrt()
