"""Which calls of a diffusers scheduler's `step` end a step, and which call of a run this is.

A call that does not end a step returns a point at which the solver only wants the model evaluated: it goes back to
the state before. Projecting such a point would be work thrown away, or would bend the solver's formula.
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["first_call", "refuse_unusable", "step_ends"]


def refuse_unusable(scheduler: Any) -> None:
    """Explain why a scheduler cannot be gated, if so."""
    name = type(scheduler).__name__
    for method in ("step", "set_timesteps"):
        if not callable(getattr(scheduler, method, None)):
            raise ValueError(
                f"{name} has no {method} to hook into; write the loop yourself and call trimtab.Corrector in it"
            )
    if hasattr(scheduler, "undo_step"):
        raise ValueError(
            f"{name} also goes backwards (undo_step), so that its steps cannot be counted ahead; write the loop "
            "yourself and call trimtab.Corrector in it"
        )
    order = getattr(scheduler, "order", 1)
    if order > 1 and not _predicts_then_corrects(scheduler):
        raise ValueError(
            f"{name} needs {order} calls a step and does not say which of them ends one; use another scheduler, or "
            "write the loop yourself and call trimtab.Corrector at the ends of its steps"
        )


def first_call(scheduler: Any, timestep: Any) -> int:
    """The position in `scheduler.timesteps` of a run's first call, which is not 0 in image-to-image pipelines."""
    if hasattr(scheduler, "_init_step_index"):
        if scheduler.step_index is None:
            scheduler._init_step_index(timestep)
        return int(scheduler.step_index)
    timesteps = scheduler.timesteps
    now = torch.as_tensor(timestep).flatten()[:1].to(timesteps.device)
    found = (timesteps == now).nonzero()
    if len(found) == 0:
        raise ValueError(
            f"timestep {now.item():g} is not one of the {len(timesteps)} timesteps of {type(scheduler).__name__}; "
            "were they changed by hand after set_timesteps?"
        )
    return int(found[0])


def step_ends(scheduler: Any, first: int = 0) -> list[bool]:
    """For each remaining call, whether it ends a step; the last one always does.

    Args:
        scheduler: After `set_timesteps`.
        first: The position of the run's first call.
    """
    n = len(scheduler.timesteps) - first
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


def _predicts_then_corrects(scheduler: Any) -> bool:
    """Whether calls alternate between a trial point and a step (Heun, KDPM2, …)."""
    return hasattr(type(scheduler), "state_in_first_order")
