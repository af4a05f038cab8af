"""The values that describe a domain: `Domain`, and how its states are drawn, `View`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor

from trimtab.core.arrays import numbers_of
from trimtab.core.checks import check_callable, check_type
from trimtab.core.metrics import Distance
from trimtab.loop.rollout import Problem
from trimtab_lab.files import plain_name

__all__ = ["Domain", "Graph", "Problem", "View", "synthetic"]


def _first_two(x: Any) -> Tensor:
    return numbers_of(x)[:, :2]


@dataclass(frozen=True)
class Graph:
    """A network that states are drawn on."""

    places: tuple[tuple[float, float], ...]  # x and y of each node in the drawing
    edges: tuple[tuple[int, int], ...]  # two nodes of each edge


@dataclass(frozen=True)
class View:
    r"""How the states of a domain become points in the plane or in space.

    Attributes:
        label: The name of the domain in tables and figures.
        title: What is drawn.
        axes: The names of the two or three coordinates.
        points: Maps states (m, \*event) to points (m, len(axes)), or to curves (m, w, len(axes)) if `final`.
        final: True if one state is a whole curve (a trajectory, a profile). Figures then draw the final state, and
            otherwise the sequence of states.
        ground: The ranges of the first two coordinates over which the surface under the states is drawn.
        graph: A network with one edge for each point of a curve. The edges are coloured by the second coordinate, a
            share of the capacity of the edge.
    """

    label: str
    title: str = "the first two numbers of the state"
    axes: tuple[str, ...] = ("first", "second")
    points: Callable[[Any], Tensor] = _first_two
    final: bool = False
    ground: tuple[tuple[float, float], tuple[float, float]] | None = None
    graph: Graph | None = None

    def __post_init__(self) -> None:
        """Check the types of label, title, points and axes."""
        check_type(self.label, str, "the label of a view")
        check_type(self.title, str, "the title of a view")
        check_callable(self.points, "the points of a view", "points(states)")
        axes = self.axes
        if not isinstance(axes, tuple) or len(axes) not in (2, 3) or not all(isinstance(axis, str) for axis in axes):
            raise ValueError(f"the axes of a view must be the names of two or three coordinates: got {axes!r:.60}")


@dataclass(frozen=True)
class Domain:
    """A family of problems, one for each seed, and the distance between their states.

    Attributes:
        name: The name that `domain(name)` knows it by; it becomes part of file names.
        summary: One sentence.
        problem: `problem(seeds)` returns sampler, constraint and seeds as a `Problem`. Data that differ from sample to
            sample, such as start and goal, depend on the seed of the sample only.
        distance: `distance(a, b)` of states (n, *event) returns (n,); the states may be off the constraint set.
        settings: The parameters that it was made with, JSON values only.
        quality: `quality(final, constraint)` returns numbers by name, (n,) each, for the final states (n, *event).
            Studies record them next to the path metrics. None if there is no quality.
        view: How its states are drawn; None lets `looks` choose.
    """

    name: str
    summary: str
    problem: Callable[[Iterable[int] | Tensor], Problem]
    distance: Distance
    settings: Mapping[str, Any] = field(default_factory=dict)
    quality: Callable[[Tensor, Any], dict[str, Tensor]] | None = None
    view: View | None = None

    def __post_init__(self) -> None:
        """Check the types of all parts."""
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
        """Return the view; without one, a view of the first two numbers of the state."""
        return self.view or View(self.name)


def synthetic(name: str, sampler: Any, constraint: Any, distance: Distance, view: View) -> Domain:
    """Return the domain of a synthetic sampler, whose fields are the settings."""
    problem = partial(Problem, sampler, constraint, distance=distance)
    return Domain(name, sampler.summary, problem, distance, sampler.settings(), view=view)
