"""The record of a rollout, and its file."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor

from trimtab.core.files import load_tensors, save_tensors

__all__ = ["Rollout"]

_FACTS = ("seconds", "calls", "rows")


@dataclass(frozen=True, eq=False)
class Rollout:
    """One recorded run of a batch of n samples over T steps.

    Attributes:
        final: Final states, feasible, (n, *event).
        defects: Of the proposals, before the decision, (T, n).
        residuals: Of the states kept, after the decision, (T, n); what path error adds up. The closing projection is
            not credited here, so that no schedule gains by leaving the last step to it.
        projected: Which samples were projected after which step, (T, n) bool.
        closing: Which samples needed the closing projection, (n,) bool; apart from the budget.
        failed: Where a projection of the rollout failed, (T, n) bool.
        closing_failed: Where the closing projection failed, (n,) bool.
        iterations: Solver iterations, (T, n), 0 where nothing was projected or nothing was counted.
        seeds: (n,), where known.
        states: Kept states, (T + 1, n, *event) with the initial one first (T where the loop did not show it), or None.
        seconds: Wall clock by kind: update, defect, projection, scheduling.
        calls: Calls by kind: update, defect, projection.
        rows: Samples handled by kind; `rows["projection"]` is the true number of projections, closing, retries and
            residual defects included.
    """

    final: Tensor
    defects: Tensor
    residuals: Tensor
    projected: Tensor
    closing: Tensor
    failed: Tensor
    closing_failed: Tensor
    iterations: Tensor
    seeds: Tensor | None
    states: Tensor | None
    seconds: dict[str, float]
    calls: dict[str, int]
    rows: dict[str, int]

    @property
    def n_steps(self) -> int:
        """T."""
        return len(self.projected)

    @property
    def spent(self) -> Tensor:
        """Corrections spent by each sample, (n,) int64; `spent / n_steps` is the achieved budget."""
        return self.projected.sum(dim=0)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one safetensors file."""
        tensors = {
            f.name: value for f in fields(self) if f.name not in _FACTS and (value := getattr(self, f.name)) is not None
        }
        save_tensors(path, "rollout", tensors, {name: getattr(self, name) for name in _FACTS})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Rollout:
        """Read what `save` wrote; a truncated, foreign or inconsistent file is refused."""
        tensors, facts = load_tensors(path, "rollout")
        wanted = {f.name for f in fields(cls)} - set(_FACTS)
        missing = wanted - {"seeds", "states"} - set(tensors)
        if missing or set(_FACTS) - set(facts):
            raise ValueError(f"{path}: not a whole rollout, {sorted(missing | (set(_FACTS) - set(facts)))} missing")
        for name, shape in _shapes(tensors["projected"].shape).items():
            if name in tensors and tensors[name].shape[: len(shape)] != shape:
                raise ValueError(f"{path}: not a whole rollout, {name} is {tuple(tensors[name].shape)} and not {shape}")
        values: dict[str, Any] = {name: tensors.get(name) for name in wanted} | {name: facts[name] for name in _FACTS}
        return cls(**values)


def _shapes(shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """What tensors of a record of (T, n) decisions begin with."""
    per_sample = dict.fromkeys(("final", "closing", "closing_failed", "seeds"), tuple(shape[1:]))
    return per_sample | dict.fromkeys(("defects", "residuals", "projected", "failed", "iterations"), tuple(shape[:2]))
