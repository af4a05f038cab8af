"""What a run keeps for its figures and its page: example rollouts, and facts about its domains."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from trimtab.core.arrays import pick
from trimtab.core.files import load_tensors, tensor_bytes
from trimtab.core.record import Rollout
from trimtab_lab.domains import View
from trimtab_lab.domains.base import Domain
from trimtab_lab.studies.config import StudyError
from trimtab_lab.studies.store import RunFiles

__all__ = ["ABOUT", "Trace", "about", "read_about"]

ABOUT = "domains.json"
"""The file of a run directory with the facts about its domains."""

_SNAPSHOTS = 20  # states kept during a rollout, at most, if a state is itself a path
_GRID = 121  # heights along each side of a surface


@dataclass(frozen=True, eq=False)
class Trace:
    """The first k rollouts of a task.

    Attributes:
        seeds: (k,).
        defects: Defects of the proposals, (T, k).
        projected: (T, k) bool.
        closing: (k,) bool.
        state_error: Distance to the stepwise rollout after each step, (T, k).
        path: Points of the states, (T + 1, k, 2 or 3), the start first; if a state is itself a path, the final one,
            (w, k, 2 or 3).
        along: If a state is itself a path, states kept during the rollout, (s, w, k, 2 or 3), the last one before the
            closing projection; else None.
    """

    seeds: Tensor
    defects: Tensor
    projected: Tensor
    closing: Tensor
    state_error: Tensor
    path: Tensor
    along: Tensor | None = None

    @classmethod
    def of(cls, view: View, run: Rollout, state_error: Tensor, k: int) -> Trace:
        """Take the first k rollouts of a run with kept states and known seeds; `state_error` is theirs, (T, k)."""
        assert run.states is not None
        assert run.seeds is not None
        along = None
        if view.final:
            path = view.points(pick(run.final, slice(k))).transpose(0, 1)
            steps = sorted({-(-run.n_steps * i // _SNAPSHOTS) for i in range(1, _SNAPSHOTS + 1)})
            along = torch.stack([view.points(pick(run.states, (t, slice(k)))).transpose(0, 1) for t in steps])
        else:
            path = torch.stack([view.points(pick(run.states, (slice(None), i))) for i in range(k)], dim=1)
        return cls(
            seeds=run.seeds[:k],
            defects=run.defects[:, :k].double(),
            projected=run.projected[:, :k],
            closing=run.closing[:k],
            state_error=state_error.double(),
            path=path.double(),
            along=None if along is None else along.double(),
        )

    def as_bytes(self) -> bytes:
        """Return the bytes of one safetensors file."""
        tensors = {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}
        return tensor_bytes("trace", tensors, {})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Trace:
        """Read what `as_bytes` made; raise a ValueError for any other file."""
        tensors, _ = load_tensors(path, "trace")
        names = {f.name for f in fields(cls)}
        if not names - {"along"} <= set(tensors) <= names:
            raise ValueError(f"{path}: holds {sorted(tensors)}, expected {sorted(names)}; continue with --resume")
        return cls(**tensors)


# ------------------------------------------------------------------ facts about domains


def about(made: Domain, constraint: Any) -> dict[str, Any]:
    """Return a domain's label, settings, what is drawn, and the ground it is drawn on, as JSON.

    Args:
        made: The domain.
        constraint: Made for any seeds.
    """
    view = made.looks
    circles = getattr(getattr(constraint, "obstacles", None), "circles", None)
    graph = view.graph and {
        "places": [_rounded(place) for place in view.graph.places],
        "edges": [list(edge) for edge in view.graph.edges],
    }
    return {
        "label": view.label,
        "summary": made.summary,
        "settings": json.loads(json.dumps(dict(made.settings), default=str)),
        "path": {"title": view.title, "labels": list(view.axes)},
        "surface": _surface(constraint, view.ground) if view.ground else None,
        "obstacles": None if circles is None else [[round(v, 4) for v in circle] for circle in circles.tolist()],
        "graph": graph,
    }


def _surface(constraint: Any, ground: tuple[tuple[float, float], tuple[float, float]]) -> dict[str, Any] | None:
    """Return a height field: x (m,), y (m,) and z (m, m) by y and x."""
    height = getattr(constraint, "height", None)
    if height is None:
        return None
    u, v = (torch.linspace(*ends, _GRID, dtype=torch.float64) for ends in ground)
    z = height(u.repeat(_GRID), v.repeat_interleave(_GRID)).reshape(_GRID, _GRID)
    return {"x": _rounded(u.tolist()), "y": _rounded(v.tolist()), "z": [_rounded(line) for line in z.tolist()]}


def _rounded(values: Iterable[float]) -> list[float]:
    return [float(f"{value:.5g}") for value in values]


def read_about(files: RunFiles, domains: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return a run's facts about its domains, by name."""
    facts = files.read_json(ABOUT)
    wanted = {"label", "summary", "settings", "path", "surface", "obstacles"}
    for name in domains:
        if not isinstance(facts, dict) or not isinstance(facts.get(name), dict) or not wanted <= set(facts[name]):
            raise StudyError(f"{files.path(ABOUT)}: has no facts about {name}; continue with --resume")
    return dict(facts)
