"""What of a domain's states is drawn: a point in the plane or in space."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

__all__ = ["View", "view_of"]


@dataclass(frozen=True)
class View:
    r"""How a domain's states become points.

    Attributes:
        label: The domain as tables and figures name it.
        title: What is drawn.
        axes: Names of the two or three coordinates.
        points: (m, \*event) to (m, len(axes)).
    """

    label: str
    title: str
    axes: tuple[str, ...]
    points: Callable[[Tensor], Tensor]


def _first_column(x: Tensor) -> Tensor:
    return x[:, :, 0]


def _last_column(x: Tensor) -> Tensor:
    return x[:, :, -1]


def _rotation(label: str) -> View:
    return View(label, "where the rotation takes the first axis", ("x", "y", "z"), _first_column)


def _pose(label: str) -> View:
    return View(label, "the translation of the pose", ("x", "y", "z"), _last_column)


def _terrain(label: str) -> View:
    return View(label, "the path over the terrain", ("u", "v", "z"), lambda x: x)


_VIEWS = {
    "so3": _rotation("SO(3)"),
    "so3-impulse": _rotation("SO(3)-Impulse"),
    "se3": _pose("SE(3)"),
    "se3-lever": _pose("SE(3)-Lever"),
    "terrain": _terrain("Terrain"),
    "terrain-ridge": _terrain("Terrain-Ridge"),
}


def view_of(domain: str) -> View:
    """The view of a domain; of one that has none, the first two numbers of the state.

    Example:
        >>> view_of("so3").label, view_of("heat-flow").label
        ('SO(3)', 'heat-flow')
    """
    return _VIEWS.get(domain) or View(
        domain, "the first two numbers of the state", ("first", "second"), lambda x: x.flatten(1)[:, :2]
    )
