"""What a domain is."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from trimtab.core.arrays import numbers_of
from trimtab.core.errors import check_callable, check_type
from trimtab.core.files import plain_name
from trimtab.core.metrics import Distance
from trimtab.core.problem import Problem

__all__ = ["Domain", "Graph", "Problem", "View", "renamed"]


def renamed(value: int, old_value: int | None, name: str, old_name: str) -> int:
    """The value of a setting that had another name, which works with a warning until version 0.3."""
    if old_value is None:
        return value
    warnings.warn(
        f"the setting {old_name} is called {name} now, as everywhere; {old_name} goes with version 0.3",
        DeprecationWarning,
        stacklevel=4,
    )
    return old_value


def _first_two(x: Any) -> Tensor:
    return numbers_of(x)[:, :2]


@dataclass(frozen=True)
class Graph:
    """A network that states are drawn on.

    Attributes:
        places: Where each node is drawn, x and y.
        edges: The two nodes of each edge.
    """

    places: tuple[tuple[float, float], ...]
    edges: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class View:
    r"""How a domain's states become points: in the plane or in space, or the final state as a whole.

    Attributes:
        label: The domain as tables and figures name it.
        title: What is drawn.
        axes: Names of the two or three coordinates.
        points: (m, \*event) to (m, len(axes)); of a whole state, to (m, w, len(axes)).
        final: Whether a state is a path of its own (a trajectory, a profile): the final one is drawn then, and not
            how the states follow each other.
        ground: The ranges of the first two coordinates over which the surface is drawn that the states lie on.
        graph: A network whose edges, one for each point of a whole state, are coloured by the second coordinate, a
            share of what the edge can carry.
    """

    label: str
    title: str = "the first two numbers of the state"
    axes: tuple[str, ...] = ("first", "second")
    points: Callable[[Any], Tensor] = _first_two
    final: bool = False
    ground: tuple[tuple[float, float], tuple[float, float]] | None = None
    graph: Graph | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be drawn."""
        check_type(self.label, str, "the label of a view")
        check_type(self.title, str, "the title of a view")
        check_callable(self.points, "the points of a view", "points(states)")
        axes = self.axes
        if not isinstance(axes, tuple) or len(axes) not in (2, 3) or not all(isinstance(axis, str) for axis in axes):
            raise ValueError(f"the axes of a view are the names of two or three coordinates: got {axes!r:.60}")


@dataclass(frozen=True)
class Domain:
    """A family of problems, one for each seed, and the distance between their states.

    Attributes:
        name: The key it is known by.
        summary: One sentence.
        problem: `problem(seeds)` makes sampler and constraint; data that differs from sample to sample (start, goal)
            depends on the sample's seed only.
        distance: rho, (n, *event) twice to (n,); states that are off the constraint set are allowed.
        settings: The parameters it was made with, JSON only.
        quality: Judges final states (n, *event), given the constraint they were made for: numbers by name, (n,) each,
            which studies keep beside the path metrics. None where there is nothing more to say.
        view: What of its states is drawn, and its name in figures; None where `looks` may choose.
    """

    name: str
    summary: str
    problem: Callable[[Iterable[int] | Tensor], Problem]
    distance: Distance
    settings: Mapping[str, Any] = field(default_factory=dict)
    quality: Callable[[Tensor, Any], dict[str, Tensor]] | None = None
    view: View | None = None

    def __post_init__(self) -> None:
        """Refuse what is no domain; its name becomes part of file names."""
        plain_name(self.name, "the name of a domain")
        check_type(self.summary, str, "the summary of a domain")
        check_callable(self.problem, "problem", "problem(seeds)")
        check_callable(self.distance, "distance", "distance(a, b)")
        check_type(self.settings, Mapping, "the settings of a domain")  # type: ignore[type-abstract]
        if self.quality is not None:
            check_callable(self.quality, "quality", "quality(final, constraint)")
        if self.view is not None:
            check_type(self.view, View, "the view of a domain")

    @property
    def looks(self) -> View:
        """The view; of a domain that has none, the first two numbers of the state under its own name."""
        return self.view or View(self.name)
