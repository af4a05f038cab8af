"""Example rollouts to look at: defects, decisions and the path, for figures and the page."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from trimtab.files import load_tensors, save_tensors
from trimtab.record import Rollout
from trimtab.studies.views import view_of

__all__ = ["Trace"]


@dataclass(frozen=True, eq=False)
class Trace:
    """The first k rollouts of a task.

    Attributes:
        seeds: (k,).
        defects: Of the proposals, (T, k).
        projected: (T, k) bool.
        closing: (k,) bool.
        state_error: Distance to the stepwise rollout after each step, (T, k).
        path: What is drawn of the states, (T + 1, k, 2 or 3), the start first.
    """

    seeds: Tensor
    defects: Tensor
    projected: Tensor
    closing: Tensor
    state_error: Tensor
    path: Tensor

    @classmethod
    def of(cls, domain: str, run: Rollout, state_error: Tensor, k: int) -> Trace:
        """Of the first k rollouts of a run with kept states and known seeds."""
        assert run.states is not None
        assert run.seeds is not None
        points = view_of(domain).points
        return cls(
            seeds=run.seeds[:k],
            defects=run.defects[:, :k].double(),
            projected=run.projected[:, :k],
            closing=run.closing[:k],
            state_error=state_error[:, :k].double(),
            path=torch.stack([points(run.states[:, i]) for i in range(k)], dim=1).double(),
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one safetensors file."""
        save_tensors(path, "trace", {f.name: getattr(self, f.name) for f in fields(self)}, {})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Trace:
        """Read what `save` wrote."""
        tensors, _ = load_tensors(path, "trace")
        return cls(**tensors)
