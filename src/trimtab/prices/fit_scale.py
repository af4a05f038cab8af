"""Whether samples differ in scale, and how fast that shows: fitted on calibration rollouts."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trimtab.core.record import Rollout
from trimtab.core.view import last_corrections
from trimtab.prices.planned import mean_defects
from trimtab.prices.sample_scale import SampleScale

__all__ = ["fit_sample_scale"]

_PRIORS = (3.0, 10.0, 30.0, 100.0)
_WORTH = 0.9  # of the squared error that predicting by "all samples are alike" makes


def fit_sample_scale(runs: Sequence[Rollout]) -> SampleScale | None:
    """The own scale that predicts the rest of a rollout's defects best; None where samples are much alike.

    Args:
        runs: Records of explored rollouts, all of the same T.
    """
    typical = mean_defects(runs)
    column = typical.mean(dim=0, keepdim=True)
    # a defect that is typically 0 would tell everything
    torch.maximum(typical.clamp_(min=1e-12), 0.01 * column, out=typical)
    defects = torch.cat([run.defects for run in runs], dim=1).cpu().double()
    projected = torch.cat([run.projected for run in runs], dim=1).cpu()
    T = len(defects)
    known = slice(0, max(1, int(0.9 * T)))  # near the end there is little left to predict
    relative = defects / typical[last_corrections(projected), torch.arange(T)[:, None]]
    so_far, steps = relative.cumsum(dim=0), torch.arange(1, T + 1)[:, None]
    to_come = (relative.sum(dim=0) - so_far) / (T - steps).clamp(min=1)

    def error(scale: torch.Tensor | float) -> float:
        return float((to_come - scale)[known].square().mean())

    errors = {prior: error((prior + so_far) / (prior + steps)) for prior in _PRIORS}  # as `SampleScale.along` has it
    best = min(errors, key=lambda prior: errors[prior])
    return SampleScale(typical, best) if errors[best] < _WORTH * error(1.0) else None
