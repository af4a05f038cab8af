"""What of a domain's states is drawn: a point in the plane or in space, or the final state as a whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["View", "view_of"]


@dataclass(frozen=True)
class View:
    r"""How a domain's states become points.

    Attributes:
        label: The domain as tables and figures name it.
        title: What is drawn.
        axes: Names of the two or three coordinates.
        points: (m, \*event) to (m, len(axes)); of a whole state, to (m, w, len(axes)).
        final: Whether a state is a path of its own (a trajectory, a profile): the final one is drawn then, and not
            how the states follow each other.
    """

    label: str
    title: str
    axes: tuple[str, ...]
    points: Callable[[Tensor], Tensor]
    final: bool = False


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


def _positions(x: Tensor) -> Tensor:
    return x[:, :2].transpose(1, 2)


def _loadings(x: Tensor) -> Tensor:
    from trimtab.domains.grid.view import line_profile  # which needs the extra `grid`

    return line_profile(x)


def _last_profile(x: Tensor) -> Tensor:
    field = x[:, 0] if x.ndim == 4 else x  # the clean field, where states are pairs of it and the noise
    cells = field.shape[-1]
    places = ((torch.arange(cells, dtype=x.dtype) + 0.5) / cells).expand(len(x), cells)
    return torch.stack([places, field[:, -1]], dim=2)


_VIEWS = {
    "so3": _rotation("SO(3)"),
    "so3-impulse": _rotation("SO(3)-Impulse"),
    "se3": _pose("SE(3)"),
    "se3-lever": _pose("SE(3)-Lever"),
    "terrain": _terrain("Terrain"),
    "terrain-ridge": _terrain("Terrain-Ridge"),
    "pdm": View("PDM", "the final trajectory among the obstacles", ("x", "y"), _positions, final=True),
    "reaction-flow": View(
        "Reaction-Flow", "the final field at its last moment, along x", ("x", "u"), _last_profile, final=True
    ),
    "grid": View("Grid", "the load of every line of the final point", ("line", "loading"), _loadings, final=True),
}


def view_of(domain: str) -> View:
    """The view of a domain; of one that has none, the first two numbers of the state.

    Example:
        >>> view_of("so3").label, view_of("my-sampler").label
        ('SO(3)', 'my-sampler')
    """
    return _VIEWS.get(domain) or View(
        domain, "the first two numbers of the state", ("first", "second"), lambda x: x.flatten(1)[:, :2]
    )
