"""The scale of a sample: how large its defects are compared with typical ones.

Some samples are harder than others, and all their defects are large. A price that is meant for everybody would make
such a sample spend its budget early, on defects that are nothing special for it. A price can therefore be multiplied by
the sample's scale, which is estimated from its defects so far.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from trimtab.core.view import StepView, last_corrections

_PRIORS = (3.0, 10.0, 30.0, 100.0)
_WORTH = 0.9  # a scale is used if its squared error is below this share of that of "all samples are alike"


class Traced(Protocol):
    """What prices are learned from: a `Rollout`, or the traces of several."""

    @property
    def defects(self) -> Tensor:
        """The defects of the proposals, (T, n)."""
        ...

    @property
    def residuals(self) -> Tensor:
        """The defects of the states after the decisions, (T, n)."""
        ...

    @property
    def projected(self) -> Tensor:
        """Which samples were corrected, (T, n) bool."""
        ...


class Seen(NamedTuple):
    """Traces of some samples, (T, n) each."""

    defects: Tensor
    residuals: Tensor
    projected: Tensor


@dataclass(frozen=True, eq=False)
class SampleScale:
    """The typical defects, and how far to trust those of one sample.

    Attributes:
        typical: Mean defect at step u of samples last corrected after step v, (T + 1, T), above 0. Row 0 is for samples
            that were never corrected, row v + 1 for step v.
        prior: Number of typical steps that every sample is assumed to start with. It damps the first few defects.
    """

    typical: Tensor
    prior: float

    def along(self, defects: Tensor, projected: Tensor) -> Tensor:
        """Return the scale at every step of recorded rollouts, (T, n), as `now` gave it at that step."""
        T = len(defects)
        relative = defects / self.typical[last_corrections(projected), torch.arange(T)[:, None]]
        return (self.prior + relative.cumsum(dim=0)) / (self.prior + torch.arange(1, T + 1)[:, None])

    def now(self, view: StepView) -> Any:
        """Return the scale of each sample during a rollout, (n,)."""
        return view.running_sum(self._relative) / (self.prior + view.t + 1)

    def _relative(self, t: int, defect: Any, last: Any) -> Any:
        """Return the defects of step t divided by typical ones, (n,). The prior is added at the first step."""
        relative = defect / self._by_step[t].take(last)
        return relative if t else self.prior + relative

    @cached_property
    def _by_step(self) -> Tensor:
        return self.typical.T.contiguous()

    def to(self, device: torch.device) -> SampleScale:
        """Return the same scale on `device`."""
        return SampleScale(self.typical.to(device), self.prior)


def fit_sample_scale(runs: Sequence[Traced]) -> SampleScale | None:
    """Return the scale that predicts the later defects of a rollout best; None if all samples are much alike.

    Args:
        runs: Explored rollouts, all of the same T.
    """
    typical = mean_defects(runs)
    # a typical defect of 0 would make every small defect look huge
    typical = torch.maximum(typical.clamp(min=1e-12), 0.01 * typical.mean(dim=0, keepdim=True))
    defects, projected = _side_by_side(runs)
    T = len(defects)
    relative = defects / typical[last_corrections(projected), torch.arange(T)[:, None]]
    so_far, steps = relative.cumsum(dim=0), torch.arange(1, T + 1)[:, None]
    to_come = (relative.sum(dim=0) - so_far) / (T - steps).clamp(min=1)
    known = slice(0, max(1, int(0.9 * T)))  # near the end there is little left to predict

    def error(scale: Tensor | float) -> float:
        return float((to_come - scale)[known].square().mean())

    errors = {prior: error((prior + so_far) / (prior + steps)) for prior in _PRIORS}
    best = min(errors, key=lambda prior: errors[prior])
    return SampleScale(typical, best) if errors[best] < _WORTH * error(1.0) else None


def mean_defects(runs: Sequence[Traced]) -> Tensor:
    """Return the mean defect at step u of samples last corrected after step v, (T + 1, T).

    Row 0 is "never corrected" and row v + 1 is step v; only u > v is meaningful. Cells with few samples borrow from
    neighbouring steps and from gaps of similar length.
    """
    defects, projected = _side_by_side(runs)
    T = len(defects)
    steps = torch.arange(T)
    last = last_corrections(projected)
    gap = steps[:, None] + 1 - last  # updates since the last correction
    scale = defects.mean(dim=1).clamp(min=1e-300)
    relative = defects / scale[:, None]

    # samples that were never corrected count as well: few others show such long gaps
    total, count = torch.zeros(2, T, T + 1, dtype=torch.float64)  # by step and gap
    cell = (steps[:, None] * (T + 1) + gap).flatten()
    total.view(-1).index_add_(0, cell, relative.flatten())
    count.view(-1).index_add_(0, cell, torch.ones_like(relative.flatten()))
    mean = smoothed_means(total, count)

    never = last == 0
    alone, many = torch.where(never, relative, 0.0).sum(dim=1), never.sum(dim=1)
    out = torch.zeros(T + 1, T, dtype=torch.float64)
    # late steps that nobody reached uncorrected take the mean of an equally long gap
    out[0] = torch.where(many > 0, alone / many.clamp(min=1), mean[steps, steps + 1])
    u, v = torch.tril_indices(T, T, -1)
    out[v + 1, u] = mean[u, u - v]
    return out * scale


def smoothed_means(total: Tensor, count: Tensor) -> Tensor:
    """Return means over (step, gap) cells, smoothed over neighbouring steps and over gaps of similar length."""
    T = len(total)
    steps = torch.arange(T, dtype=torch.float64)
    gaps = torch.arange(T + 1, dtype=torch.float64).clamp(min=0.5).log()

    def kernel(x: Tensor, width: float) -> Tensor:
        return (-0.5 * ((x[:, None] - x) / width) ** 2).exp()

    def smooth(cells: Tensor) -> Tensor:
        near = kernel(steps, max(2.0, T / 10)) @ cells @ kernel(gaps, 0.2)
        # the wide kernels decide only where the narrow ones have seen next to nothing
        return near + 1e-3 * (kernel(steps, T / 4) @ cells @ kernel(gaps, 0.5))

    return smooth(total) / smooth(count).clamp(min=1e-300)


def _side_by_side(runs: Sequence[Traced]) -> tuple[Tensor, Tensor]:
    defects = torch.cat([run.defects for run in runs], dim=1).cpu().double()
    return defects, torch.cat([run.projected for run in runs], dim=1).cpu()
