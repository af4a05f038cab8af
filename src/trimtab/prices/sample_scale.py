"""A sample's own scale: how large its defects are against what is typical.

Some samples are harder than others: their start and goal lie behind more obstacles, their rotation sits near a mode's
edge. Such a sample's defects are large throughout, and a price meant for everybody would have it spend its budget early
on defects that are nothing special for it. So a price can be multiplied by the sample's own scale, which its defects so
far tell.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from trimtab.core.checks import check_type
from trimtab.core.view import StepView, as_array, last_corrections
from trimtab.prices.resample import resampled_typical

__all__ = ["SampleScale"]


@dataclass(frozen=True, eq=False)
class SampleScale:
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
        typical, prior = check_type(self.typical, Tensor, "typical defects"), self.prior
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

    def now(self, view: StepView) -> Any:
        """The scale of each sample in the middle of a rollout, (n,), an array as in `StepView.arrays`."""
        return view.running_sum(self._relative) / (self.prior + view.steps_measured)

    def _relative(self, t: int, defect: Any, last: Any) -> Any:
        """A step's defects in typical ones; the prior counts with the first step."""
        relative = defect / self._by_step[t].take(last)
        return relative if t else self.prior + relative

    @cached_property
    def by_step(self) -> Tensor:
        """`typical` with one row a step, (T, T + 1)."""
        return self.typical.T.contiguous()

    def resample(self, n_steps: int) -> SampleScale:
        """For another number of steps; the prior stays the same share of the run."""
        return SampleScale(resampled_typical(self.typical, n_steps), self.prior * n_steps / self.typical.shape[1])

    @cached_property
    def _by_step(self) -> Any:
        return as_array(self.by_step)

    def to(self, device: torch.device) -> SampleScale:
        """The same on `device`."""
        return SampleScale(self.typical.to(device), self.prior)

    @staticmethod
    def write(sample_scale: SampleScale | None, tensors: dict[str, Tensor], told: dict[str, Any]) -> None:
        """Add what a file keeps of a scale, if there is one, to its tensors and its JSON."""
        if sample_scale is not None:
            tensors["typical"], told["prior"] = sample_scale.typical, sample_scale.prior

    @classmethod
    def read(cls, tensors: Mapping[str, Tensor], told: dict[str, Any]) -> SampleScale | None:
        """Take out of a file's JSON what `write` added; None if there is no scale."""
        prior = told.pop("prior", None)
        return None if prior is None else cls(tensors["typical"], prior)
