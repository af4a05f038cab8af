"""Samplers whose start is expensive, run many times on the same seeds: each seed is started once."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

import trimtab as tt
from trimtab.core.noise import Noise
from trimtab.core.rollout import take_rows

__all__ = ["Remembered", "remembered"]

_STARTS: dict[str, dict[int, Tensor]] = {}  # by name and seed; not in the sampler, whose fingerprint would change


@dataclass(frozen=True, eq=False)
class Remembered:
    """A sampler that starts each seed once.

    Attributes:
        inner: The sampler.
        name: Of its starts: those of one name must be of one model and its settings.
    """

    inner: Any = field(metadata={"per_sample": True})
    name: str

    @property
    def n_steps(self) -> int:
        """T."""
        return int(self.inner.n_steps)

    @property
    def dtype(self) -> torch.dtype:
        """Of the noise."""
        return getattr(self.inner, "dtype", torch.float64)

    def level(self, t: int) -> int:
        """Noise level of update location `t`."""
        return int(self.inner.level(t))

    def start(self, noise: Noise) -> Tensor:
        """As the sampler starts, (n, *event)."""
        known, seeds = _STARTS.setdefault(self.name, {}), noise.seeds.tolist()
        first = {seed: row for row, seed in reversed(list(enumerate(seeds))) if seed not in known}
        if first:
            rows = torch.tensor(list(first.values()))
            known.update(zip(first, take_rows(self.inner, rows).start(noise.take(rows)), strict=True))
        return torch.stack([known[seed] for seed in seeds])

    def step(self, x: Tensor, t: int, noise: Noise) -> Tensor:
        """As the sampler steps."""
        out: Tensor = self.inner.step(x, t, noise)
        return out

    def take(self, rows: Tensor) -> Remembered:
        """Of some samples."""
        return replace(self, inner=take_rows(self.inner, rows))


def remembered(problem: tt.Problem, name: str) -> tt.Problem:
    """The same problem, starting each seed once among all problems of that name."""
    return replace(problem, sampler=Remembered(problem.sampler, name))
