"""Round sets: the sphere and the ball."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trimtab.constraints.rows import row_length, row_norm, scaled
from trimtab.constraints.states import check_states
from trimtab.core.arrays import rowwise
from trimtab.core.checks import check_floats, check_positive
from trimtab.core.constraint import Constraint

__all__ = ["Ball", "Sphere"]


@dataclass(frozen=True, eq=False)
class Sphere(Constraint):
    r"""Points at one distance from a centre: argmin over norm(y - centre) = radius of norm(y - x).

    Attributes:
        radius: Above 0.
        centre: (\*event), one for all; None is the origin.

    Example:
        >>> import torch
        >>> Sphere(5.0).project(torch.tensor([[0.3, 0.4]]))
        tensor([[3., 4.]])
    """

    radius: float = 1.0
    centre: Tensor | None = None

    def __post_init__(self) -> None:
        """Refuse a radius no sphere has."""
        _check(self.radius, self.centre)

    def project(self, x: Tensor) -> Tensor:
        r"""The nearest points, (n, \*event); from the centre itself, all being equally near, along the first axis."""
        away, _ = scaled(_from_centre(x, self.centre))  # the direction is all that counts
        norm = row_norm(away)
        here = norm == 0
        away[:, 0] = torch.where(here, 1.0, away[:, 0])
        return _to_state(away * (self.radius / norm.masked_fill(here, 1.0))[:, None], x, self.centre)

    def defect(self, x: Tensor) -> Tensor:
        r"""abs(norm(x - centre) - radius), (n, \*event) to (n,)."""
        return (row_length(_from_centre(x, self.centre)) - self.radius).abs()


@dataclass(frozen=True, eq=False)
class Ball(Constraint):
    r"""Points no farther than a radius from a centre: argmin over norm(y - centre) <= radius of norm(y - x).

    Attributes:
        radius: Above 0.
        centre: (\*event), one for all; None is the origin.

    Example:
        >>> import torch
        >>> Ball().project(torch.tensor([[3.0, 4.0], [0.1, 0.2]]))
        tensor([[0.6000, 0.8000],
                [0.1000, 0.2000]])
    """

    radius: float = 1.0
    centre: Tensor | None = None

    def __post_init__(self) -> None:
        """Refuse a radius no ball has."""
        _check(self.radius, self.centre)

    def project(self, x: Tensor) -> Tensor:
        r"""The nearest points, (n, \*event)."""
        away, scale = scaled(_from_centre(x, self.centre))
        norm = row_norm(away)
        outside = norm > self.radius * scale
        nearest = _to_state(away * (self.radius / norm.masked_fill(~outside, 1.0))[:, None], x, self.centre)
        return torch.where(rowwise(outside, x), nearest, x)  # points inside stay, to the last bit

    def defect(self, x: Tensor) -> Tensor:
        r"""max(norm(x - centre) - radius, 0), (n, \*event) to (n,)."""
        return (row_length(_from_centre(x, self.centre)) - self.radius).clamp(min=0)


def _from_centre(x: Tensor, centre: Tensor | None) -> Tensor:
    check_states(x, "a ball or sphere", None if centre is None else tuple(centre.shape))
    return (x if centre is None else x - centre.to(x)).flatten(1)


def _to_state(away: Tensor, x: Tensor, centre: Tensor | None) -> Tensor:
    away = away.reshape(x.shape)
    return away if centre is None else away + centre.to(x)


def _check(radius: float, centre: Tensor | None) -> None:
    check_positive(radius, "a radius")
    if centre is not None and not check_floats(centre, "a centre").ndim:
        raise ValueError(
            f"a centre has the shape of one state, such as (3,): got a tensor of no dimension, {centre.item():g}; "
            "leave it out for the origin"
        )
