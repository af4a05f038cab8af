"""Which calls of a diffusers scheduler's `step` end a step, and which call of a run this is.

A call that does not end a step returns a point at which the solver only wants the model evaluated: it goes back to
the state before. Projecting such a point would be work thrown away, or would bend the solver's formula.
"""

from __future__ import annotations

import copy
import inspect
from typing import Any

import torch

__all__ = ["check_scheduler", "first_call", "step_ends"]


def check_scheduler(scheduler: Any) -> None:
    """Explain why a scheduler cannot be gated, if so."""
    name = type(scheduler).__name__
    for method in ("step", "set_timesteps"):
        if not callable(getattr(scheduler, method, None)):
            raise ValueError(
                f"{name} has no {method} to hook into; write the loop yourself and call trimtab.Corrector in it"
            )
    if _steps_tokens(scheduler):
        raise ValueError(
            f"{name} steps integer tokens, which have no distance to a feasible set and no projection; wrap takes "
            "schedulers of floating-point states"
        )
    if hasattr(scheduler, "undo_step"):
        raise ValueError(
            f"{name} also goes backwards (undo_step), so that its steps cannot be counted ahead; write the loop "
            "yourself and call trimtab.Corrector in it"
        )
    order = getattr(scheduler, "order", 1)
    if order > 1 and not _predicts_then_corrects(scheduler):
        raise ValueError(
            f"{name} needs {order} calls per step and does not say which of them ends one; use another scheduler, or "
            "write the loop yourself and call trimtab.Corrector at the ends of its steps"
        )


def first_call(scheduler: Any, timestep: Any) -> int | None:
    """The position in `scheduler.timesteps` of a run's first call, which is not 0 in image-to-image pipelines.

    None if the timestep is not among them: such a step belongs to no run.
    """
    if hasattr(scheduler, "_init_step_index"):
        probe = copy.copy(scheduler)  # asking must not change what its `step` does (HeliosScheduler's never asks)
        if probe.step_index is None:
            try:
                probe._init_step_index(timestep)
            except (IndexError, ValueError):
                return None
        return int(probe.step_index)
    timesteps = scheduler.timesteps
    if timesteps is None:  # not set up yet, as its `step` will say
        return None
    now = torch.as_tensor(timestep).flatten()[:1].to(timesteps.device)
    found = (timesteps == now).nonzero()
    return int(found[0]) if len(found) else None


def step_ends(scheduler: Any, first: int = 0) -> list[bool]:
    """For each remaining call, whether it ends a step; the last one always does.

    Args:
        scheduler: After `set_timesteps`.
        first: The position of the run's first call.
    """
    n = max(1, len(scheduler.timesteps) - _names_its_end(scheduler) - first)
    ends = [True] * n
    if _predicts_then_corrects(scheduler):
        ends = [call % 2 == 1 for call in range(n)]
    elif hasattr(scheduler, "prk_timesteps"):  # PNDM: Runge-Kutta steps of four calls, or a first step of two
        warm_up = 0 if scheduler.config.skip_prk_steps else len(scheduler.prk_timesteps)
        ends = [call % 4 == 3 if call < warm_up else call > 0 for call in range(n)]
    elif hasattr(scheduler, "order_list"):  # DPMSolverSinglestep: blocks of calls of order 1, 2, 3
        orders = [*scheduler.order_list, 1]
        ends = [orders[first + call + 1] == 1 for call in range(n)]
    return [*ends[:-1], True]


def _names_its_end(scheduler: Any) -> bool:
    """Whether the last of the timesteps is where the run ends, and no call is made at it."""
    return any(cls.__name__ in ("SCMScheduler", "DDPMWuerstchenScheduler") for cls in type(scheduler).__mro__)


def _steps_tokens(scheduler: Any) -> bool:
    """Whether the scheduler declares its states to be integers."""
    sample = inspect.signature(scheduler.step).parameters.get("sample")
    return sample is not None and "LongTensor" in str(sample.annotation)


def _predicts_then_corrects(scheduler: Any) -> bool:
    """Whether calls alternate between a trial point and a step (Heun, KDPM2, …)."""
    return hasattr(type(scheduler), "state_in_first_order")
