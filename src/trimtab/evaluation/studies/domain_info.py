"""What a report needs to know of a domain, kept with the run so that no report has to make the domain again."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from trimtab.evaluation.domains.base import Domain, Graph
from trimtab.evaluation.studies.errors import StudyError
from trimtab.evaluation.studies.run_files import RunFiles

__all__ = ["ABOUT", "about", "read_about"]

ABOUT = "domains.json"
"""The file of a run directory that says it, by domain."""

_GRID = 121  # heights along each side of a surface


def about(made: Domain, constraint: Any) -> dict[str, Any]:
    """Name, settings, what is drawn and the ground it is drawn on, as JSON.

    Args:
        made: The domain.
        constraint: Made for any seeds.
    """
    view = made.looks
    return {
        "label": view.label,
        "summary": made.summary,
        "settings": json.loads(json.dumps(dict(made.settings), default=str)),
        "path": {"title": view.title, "labels": list(view.axes)},
        "surface": _surface(constraint, view.ground) if view.ground else None,
        "obstacles": _obstacles(constraint),
        "graph": _graph(view.graph) if view.graph else None,
    }


def _surface(constraint: Any, ground: tuple[tuple[float, float], tuple[float, float]]) -> dict[str, Any] | None:
    """A height field: x (m,), y (m,) and z (m, m) by y and x."""
    height = getattr(constraint, "height", None)
    if height is None:
        return None
    u, v = (torch.linspace(*ends, _GRID, dtype=torch.float64) for ends in ground)
    z = height(u.repeat(_GRID), v.repeat_interleave(_GRID)).reshape(_GRID, _GRID)
    return {"x": _rounded(u), "y": _rounded(v), "z": [_rounded(line) for line in z]}


def _rounded(values: Tensor) -> list[float]:
    return [float(f"{value:.5g}") for value in values.tolist()]


def _obstacles(constraint: Any) -> list[list[float]] | None:
    """The circles [x, y, r] that paths must stay out of; None where there are none."""
    circles = getattr(getattr(constraint, "obstacles", None), "circles", None)
    return None if circles is None else [[round(value, 4) for value in circle] for circle in circles.tolist()]


def _graph(graph: Graph) -> dict[str, Any]:
    """A network: places of nodes [x, y], and edges as pairs of nodes."""
    places = [[float(f"{value:.5g}") for value in place] for place in graph.places]
    return {"places": places, "edges": [list(edge) for edge in graph.edges]}


def read_about(files: RunFiles, domains: Iterable[str]) -> dict[str, dict[str, Any]]:
    """What a run says of its domains, by name; all of them must be there."""
    said = files.read_json(ABOUT)
    for name in domains:
        try:
            wrong = _wrong_in(said[name])
        except (KeyError, TypeError, IndexError) as error:
            wrong = f"{type(error).__name__} {error}"
        if wrong:
            raise StudyError(
                f"{files.path(ABOUT)}: what it says of {name} cannot be used ({wrong}); go on with --resume"
            )
    return dict(said)


def _wrong_in(said: Mapping[str, Any]) -> str:
    """What cannot be used in what a file says of a domain; "" if all can."""
    for part in ("label", "summary"):
        if not isinstance(said[part], str):
            return f"its {part} is no text"
    if not isinstance(said["settings"], dict):
        return "its settings are no object"
    title, labels = said["path"]["title"], said["path"]["labels"]
    if not isinstance(title, str) or not 2 <= len(labels) <= 3 or not all(isinstance(label, str) for label in labels):
        return "its path has no title and two or three labels"
    surface, circles = said["surface"], said["obstacles"]
    if surface is not None:
        across, down = len(surface["x"]), len(surface["y"])
        if [len(line) for line in surface["z"]] != [across] * down or across < 2 or down < 2:
            return "its surface has not one height for each x and y"
        if not _numbers([*surface["x"], *surface["y"], *(z for line in surface["z"] for z in line)]):
            return "its surface has heights that are no numbers"
    if circles is not None and not all(len(circle) == 3 and _numbers(circle) for circle in circles):
        return "its obstacles are not circles [x, y, r]"
    graph = said.get("graph")
    return "" if graph is None or _is_graph(graph) else "its graph has not places [x, y] and edges between them"


def _is_graph(graph: Mapping[str, Any]) -> bool:
    nodes = len(graph["places"])
    placed = all(len(place) == 2 and _numbers(place) for place in graph["places"])
    ends = [end for edge in graph["edges"] for end in edge]
    paired = all(len(edge) == 2 for edge in graph["edges"])
    return placed and paired and all(type(end) is int and 0 <= end < nodes for end in ends)


def _numbers(values: Iterable[Any]) -> bool:
    return all(isinstance(value, int | float) and math.isfinite(value) for value in values)
