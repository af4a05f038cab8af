"""What a multistep scheduler remembers, which a projection makes stale, and how to start a sample's history anew.

A multistep solver extrapolates from model outputs at earlier states. After a projection these belong to another path.
Giving a projected sample its newest model output for all the older ones turns the next step into a first-order one
for that sample alone, as at the beginning of a run; its batch-mates keep their order.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trimtab.integrations.diffusers.clean import clean_prediction

__all__ = ["UNDOING", "forget_rows", "remembers", "undoes"]

UNDOING = ("multistep_uni_c_bh_update", "stochastic_adams_moulton_update")
"""Methods (UniPC, SASolver) that recompute the present state from the one before, and so undo a projection."""


def remembers(scheduler: Any) -> bool:
    """Whether the scheduler's next step uses model outputs of earlier steps."""
    if hasattr(scheduler, "order_list"):  # DPMSolverSinglestep forgets at the end of each block
        return False
    if undoes(scheduler):
        return True
    if hasattr(scheduler, "model_outputs"):
        return int(getattr(scheduler.config, "solver_order", 1)) > 1
    return hasattr(scheduler, "ets") or hasattr(scheduler, "derivatives")


def undoes(scheduler: Any) -> bool:
    """Whether the scheduler's next step would recompute the state it is given."""
    return any(hasattr(scheduler, name) for name in UNDOING)


def forget_rows(scheduler: Any, rows: Tensor, model_output: Tensor, timestep: Any, sample: Tensor) -> None:
    """Before a `step`, make the samples `rows`, (n,) bool, forget their earlier model outputs."""
    if hasattr(scheduler, "model_outputs"):
        newest = scheduler.convert_model_output(model_output, sample=sample)
        scheduler.model_outputs = [_replaced(old, rows, newest) for old in scheduler.model_outputs]
    elif hasattr(scheduler, "derivatives"):  # LMS
        relation = clean_prediction(scheduler, timestep)
        newest = (sample - relation.clean(model_output, sample)) / relation.sigma
        scheduler.derivatives = [_replaced(old, rows, newest) for old in scheduler.derivatives]
    elif hasattr(scheduler, "ets"):
        newest = model_output
        if not hasattr(scheduler, "prk_timesteps"):  # IPNDM mixes the state in before it remembers
            index = scheduler.step_index
            newest = sample * scheduler.betas[index] + model_output * scheduler.alphas[index]
        scheduler.ets = [_replaced(old, rows, newest) for old in scheduler.ets]


def _replaced(old: Tensor | None, rows: Tensor, new: Tensor) -> Tensor | None:
    if old is None:
        return None
    return torch.where(rows.reshape(-1, *([1] * (old.ndim - 1))), new.to(old.dtype), old)
