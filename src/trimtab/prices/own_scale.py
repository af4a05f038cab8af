"""A sample's own scale: how large its defects are against what is typical.

Some samples are harder than others: their start and goal lie behind more obstacles, their rotation sits near a mode's
edge. Such a sample's defects are large throughout, and a price meant for everybody would have it spend its budget early
on defects that are nothing special for it. So a price can be multiplied by the sample's own scale, which its defects so
far tell.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from trimtab.core.schedule import Moment

__all__ = ["OwnScale", "last_corrections"]


@dataclass(frozen=True, eq=False)
class OwnScale:
    """What defects are typical, and how far to trust a sample's own.

    Attributes:
        typical: The mean defect at step u of samples last corrected after step v, (T + 1, T), above 0; row 0 is for
            samples never corrected, row v + 1 for step v.
        prior: How many steps of typical defects a sample is taken to begin with, so that its first few do not count
            for much.
    """

    typical: Tensor
    prior: float

    def __post_init__(self) -> None:
        """Refuse numbers no scale could be told from."""
        typical, prior = self.typical, self.prior
        if typical.ndim != 2 or len(typical) != typical.shape[1] + 1 or not typical.is_floating_point():
            raise ValueError(f"typical defects are (T + 1, T) floats: got {tuple(typical.shape)} of {typical.dtype}")
        if not bool(((typical > 0) & (typical < math.inf)).all()):
            raise ValueError("typical defects must be finite and above 0")
        if not (isinstance(prior, int | float) and 0 <= prior < math.inf):
            raise ValueError(f"the prior of a scale is a number of steps, finite and at least 0: got {prior!r}")

    def check_steps(self, n_steps: int) -> None:
        """Refuse prices of another number of steps."""
        if self.typical.shape[1] != n_steps:
            raise ValueError(f"the typical defects are of T = {self.typical.shape[1]} steps, the prices of {n_steps}")

    def along(self, defects: Tensor, projected: Tensor) -> Tensor:
        """The scale at every step of recorded rollouts, (T, n), as `now` would have had it."""
        T = len(defects)
        relative = defects / self.typical[last_corrections(projected), torch.arange(T)[:, None]]
        return (self.prior + relative.cumsum(dim=0)) / (self.prior + torch.arange(1, T + 1)[:, None])

    def now(self, now: Moment) -> Tensor:
        """The scale of each sample in the middle of a rollout, (n,); the running sum is kept in the run's memory."""
        typical = self.by_step[now.t].take(now.last)
        total: Tensor = (now.memory["scale"] if now.t else self.prior) + now.defect / typical
        now.memory["scale"] = total  # a new one, not the old one changed: a copy of the memory must stay as it was
        return total / (self.prior + now.t + 1)

    @cached_property
    def by_step(self) -> Tensor:
        """`typical` with one row a step, (T, T + 1)."""
        return self.typical.T.contiguous()

    def to(self, device: torch.device) -> OwnScale:
        """The same on `device`."""
        return OwnScale(self.typical.to(device), self.prior)


def last_corrections(projected: Tensor) -> Tensor:
    """1 + the step after which each sample was last corrected before each step, 0 for never: (T, n) to (T, n)."""
    steps = torch.arange(1, len(projected) + 1, device=projected.device)
    at = torch.where(projected, steps[:, None], 0).cummax(dim=0).values
    return torch.cat([torch.zeros_like(at[:1]), at[:-1]])
