"""Example rollouts to look at: defects, decisions and the path, for figures and the page."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from trimtab.core.arrays import pick
from trimtab.core.files import load_tensors, tensor_bytes
from trimtab.core.record import Rollout
from trimtab.evaluation.domains import View

__all__ = ["Trace"]

SNAPSHOTS = 20
"""States kept on the way, at most, where a state is a path of its own."""


@dataclass(frozen=True, eq=False)
class Trace:
    """The first k rollouts of a task.

    Attributes:
        seeds: (k,).
        defects: Of the proposals, (T, k).
        projected: (T, k) bool.
        closing: (k,) bool.
        state_error: Distance to the stepwise rollout after each step, (T, k).
        path: What is drawn of the states, (T + 1, k, 2 or 3), the start first; where a state is a path of its own, the
            final one, (w, k, 2 or 3).
        along: Where a state is a path of its own, states kept on the way, (s, w, k, 2 or 3), the last one before the
            closing projection; else None.
        iterations: Made at each step, (T, k), where a budget counts those; else None.
        residuals: What they left of the defects, (T, k); None where a step that corrects projects.
    """

    seeds: Tensor
    defects: Tensor
    projected: Tensor
    closing: Tensor
    state_error: Tensor
    path: Tensor
    along: Tensor | None = None
    iterations: Tensor | None = None
    residuals: Tensor | None = None

    @classmethod
    def of(cls, view: View, run: Rollout, state_error: Tensor, k: int) -> Trace:
        """Of the first k rollouts of a run with kept states and known seeds."""
        assert run.states is not None
        assert run.seeds is not None
        along = None
        if view.final:
            path = view.points(pick(run.final, slice(k))).transpose(0, 1)
            steps = sorted({-(-run.n_steps * i // SNAPSHOTS) for i in range(1, SNAPSHOTS + 1)})
            along = torch.stack([view.points(pick(run.states, (t, slice(k)))).transpose(0, 1) for t in steps])
        else:
            path = torch.stack([view.points(pick(run.states, (slice(None), i))) for i in range(k)], dim=1)
        return cls(
            seeds=run.seeds[:k],
            defects=run.defects[:, :k].double(),
            projected=run.projected[:, :k],
            closing=run.closing[:k],
            state_error=state_error[:, :k].double(),
            path=path.double(),
            along=None if along is None else along.double(),
            iterations=run.iterations[:, :k] if run.unit == "iteration" else None,
            residuals=run.residuals[:, :k].double() if run.unit == "iteration" else None,
        )

    def as_bytes(self) -> bytes:
        """As one safetensors file."""
        tensors = {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}
        return tensor_bytes("trace", tensors, {})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Trace:
        """Read what `as_bytes` made; a file that is no trace is a ValueError."""
        tensors, _ = load_tensors(path, "trace")
        names = {f.name for f in fields(cls)}
        if not names - {"along", "iterations", "residuals"} <= set(tensors) <= names:
            raise ValueError(f"{path}: holds {sorted(tensors)}, expected {sorted(names)}; go on with --resume")
        trace = cls(**tensors)
        steps, k = trace.defects.shape if trace.defects.ndim == 2 else (0, 0)
        shapes = {"seeds": (k,), "projected": (steps, k), "closing": (k,), "state_error": (steps, k)}
        shapes |= {name: (steps, k) for name in ("iterations", "residuals") if name in tensors}
        if not k or any(getattr(trace, name).shape != shape for name, shape in shapes.items()) or trace.path.ndim != 3:
            raise ValueError(f"{path}: its tensors do not fit each other; go on with --resume")
        return trace
