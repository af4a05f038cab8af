"""What must be known about a diffusers scheduler to correct its states.

- Which calls of `step` end a step. The other calls return a point at which the solver only evaluates the model and
  then goes back; a projection of such a point would be wasted, or would bend the solver's formula.
- Which model outputs of earlier steps it uses, and how to drop them for projected samples.
- How a model output relates to the clean sample it predicts.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "UNDOING",
    "CleanPrediction",
    "check_scheduler",
    "clean_prediction",
    "first_call",
    "forget_rows",
    "remembers",
    "step_ends",
    "undoes",
]

UNDOING = ("multistep_uni_c_bh_update", "stochastic_adams_moulton_update")
"""Methods (UniPC, SASolver) that compute the current state again from the previous one, which undoes a projection."""


# ------------------------------------------------------------------ calls and steps


def check_scheduler(scheduler: Any) -> None:
    """Raise an error that says why a scheduler cannot be wrapped, if it cannot."""
    name = type(scheduler).__name__
    for method in ("step", "set_timesteps"):
        if not callable(getattr(scheduler, method, None)):
            raise ValueError(
                f"{name} has no {method} to hook into; write the loop yourself and call trimtab.Corrector in it"
            )
    sample = inspect.signature(scheduler.step).parameters.get("sample")
    if sample is not None and "LongTensor" in str(sample.annotation):
        raise ValueError(
            f"{name} steps integer tokens, which have no distance to a feasible set and no projection; wrap needs a "
            "scheduler of floating-point states"
        )
    if hasattr(scheduler, "undo_step"):
        raise ValueError(
            f"{name} also goes backwards (undo_step), so its steps cannot be counted in advance; write the loop "
            "yourself and call trimtab.Corrector in it"
        )
    order = getattr(scheduler, "order", 1)
    if order > 1 and not _alternates(scheduler):
        raise ValueError(
            f"{name} needs {order} calls per step and does not say which of them ends one; use another scheduler, or "
            "write the loop yourself and call trimtab.Corrector at the ends of its steps"
        )


def first_call(scheduler: Any, timestep: Any) -> int | None:
    """Return the index of a run's first timestep in `scheduler.timesteps`: above 0 in image-to-image pipelines.

    Return None if the timestep is not among them; a step there is not part of a run.
    """
    if hasattr(scheduler, "_init_step_index"):
        probe = copy.copy(scheduler)  # the scheduler itself must not change
        if probe.step_index is None:
            try:
                probe._init_step_index(timestep)
            except (IndexError, ValueError):
                return None
        return int(probe.step_index)
    timesteps = scheduler.timesteps
    if timesteps is None:  # set_timesteps was not called; `step` will say so
        return None
    now = torch.as_tensor(timestep).flatten()[:1].to(timesteps.device)
    found = (timesteps == now).nonzero()
    return int(found[0]) if len(found) else None


def step_ends(scheduler: Any, first: int = 0) -> list[bool]:
    """Return, for each call from the run's first one on, whether it ends a step; the last call always does."""
    # the last timestep of these two is where the run ends, and `step` is not called there
    named_end = any(cls.__name__ in ("SCMScheduler", "DDPMWuerstchenScheduler") for cls in type(scheduler).__mro__)
    n = max(1, len(scheduler.timesteps) - named_end - first)
    ends = [True] * n
    if _alternates(scheduler):
        ends = [call % 2 == 1 for call in range(n)]
    elif hasattr(scheduler, "prk_timesteps"):  # PNDM: Runge-Kutta steps of four calls, or a first step of two
        warm_up = 0 if scheduler.config.skip_prk_steps else len(scheduler.prk_timesteps)
        ends = [call % 4 == 3 if call < warm_up else call > 0 for call in range(n)]
    elif hasattr(scheduler, "order_list"):  # DPMSolverSinglestep: blocks of calls of order 1, 2, 3
        orders = [*scheduler.order_list, 1]
        ends = [orders[first + call + 1] == 1 for call in range(n)]
    return [*ends[:-1], True]


def _alternates(scheduler: Any) -> bool:
    """Return whether every second call ends a step (Heun, KDPM2, …)."""
    return hasattr(type(scheduler), "state_in_first_order")


# ------------------------------------------------------------------ history


def remembers(scheduler: Any) -> bool:
    """Return whether the next step uses model outputs of earlier steps."""
    if hasattr(scheduler, "order_list"):  # DPMSolverSinglestep starts each block without history
        return False
    if undoes(scheduler):
        return True
    if hasattr(scheduler, "model_outputs"):
        return int(getattr(scheduler.config, "solver_order", 1)) > 1
    return hasattr(scheduler, "ets") or hasattr(scheduler, "derivatives")


def undoes(scheduler: Any) -> bool:
    """Return whether the next step computes again the state it is given."""
    return any(hasattr(scheduler, name) for name in UNDOING)


def forget_rows(scheduler: Any, rows: Tensor, model_output: Tensor, timestep: Any, sample: Tensor) -> None:
    """Drop the history of the samples `rows`, (n,) bool, before a `step`.

    Earlier model outputs belong to the path before the projection. Replacing them by the newest output makes the next
    step of these samples a first-order step, as at the start of a run; other samples keep their order.
    """
    if hasattr(scheduler, "model_outputs"):
        name, newest = "model_outputs", scheduler.convert_model_output(model_output, sample=sample)
    elif hasattr(scheduler, "derivatives"):  # LMS
        relation = clean_prediction(scheduler, timestep)
        name, newest = "derivatives", (sample - relation.clean(model_output, sample)) / relation.sigma
    elif hasattr(scheduler, "ets"):
        name, newest = "ets", model_output
        if not hasattr(scheduler, "prk_timesteps"):  # IPNDM stores a mixture with the state
            index = scheduler.step_index
            newest = sample * scheduler.betas[index] + model_output * scheduler.alphas[index]
    else:
        return
    mask = rows.reshape(-1, *([1] * (newest.ndim - 1)))
    kept = [old if old is None else torch.where(mask, newest.to(old.dtype), old) for old in getattr(scheduler, name)]
    setattr(scheduler, name, kept)


# ------------------------------------------------------------------ clean samples


@dataclass(frozen=True)
class CleanPrediction:
    """The linear relation between a model output and the clean sample it predicts, x_t = alpha x_0 + sigma noise."""

    kind: str  # "epsilon", "v_prediction", "sample" or "flow_prediction"
    alpha: Tensor
    sigma: Tensor
    limit: Callable[[Tensor], Tensor]  # the scheduler's own clipping

    def clean(self, model_output: Tensor, x: Tensor) -> Tensor:
        """Return the predicted clean sample, (n, *event), clipped as the scheduler clips it."""
        if self.kind == "epsilon":
            clean = (x - self.sigma * model_output) / self.alpha
        elif self.kind == "v_prediction":  # v = a noise - s x_0 with (a, s) = (alpha, sigma) / norm
            norm2 = self.alpha**2 + self.sigma**2
            clean = (self.alpha * x - self.sigma * norm2.sqrt() * model_output) / norm2
        elif self.kind == "flow_prediction":
            clean = x - self.sigma * model_output
        else:
            clean = model_output
        return self.limit(clean)

    def model_output(self, clean: Tensor, x: Tensor) -> Tensor:
        """Return the model output that predicts `clean` at x, (n, *event)."""
        if self.kind == "epsilon":
            return (x - self.alpha * clean) / self.sigma
        if self.kind == "v_prediction":
            norm2 = self.alpha**2 + self.sigma**2
            return (self.alpha * x - norm2 * clean) / (self.sigma * norm2.sqrt())
        if self.kind == "flow_prediction":
            return (x - clean) / self.sigma
        return clean


def clean_prediction(scheduler: Any, timestep: Any) -> CleanPrediction:
    """Return the relation that holds at the call of `step` that comes next."""
    if hasattr(scheduler, "_init_step_index") and scheduler.step_index is None:
        scheduler._init_step_index(timestep)
    kind = getattr(scheduler.config, "prediction_type", None)
    if any(cls.__name__ == "FlowMatchEulerDiscreteScheduler" for cls in type(scheduler).__mro__):
        kind, sigma = "flow_prediction", scheduler.sigmas[scheduler.step_index]
        alpha = 1 - sigma
    elif hasattr(scheduler, "precondition_outputs"):  # EDM mixes state and output in another way
        kind = None
    elif hasattr(scheduler, "_sigma_to_alpha_sigma_t"):
        alpha, sigma = scheduler._sigma_to_alpha_sigma_t(scheduler.sigmas[scheduler.step_index])
    elif hasattr(scheduler, "is_scale_input_called") and hasattr(scheduler, "sigmas"):
        sigma = scheduler.sigmas[scheduler.step_index]
        alpha = torch.ones_like(sigma)
    elif hasattr(scheduler, "alphas_cumprod") and not hasattr(scheduler, "sigmas"):
        signal = scheduler.alphas_cumprod[int(torch.as_tensor(timestep).flatten()[0])]
        alpha, sigma = signal.sqrt(), (1 - signal).sqrt()
    else:
        kind = None
    kind = "sample" if kind == "original_sample" else kind
    if kind not in ("epsilon", "v_prediction", "sample", "flow_prediction"):
        raise ValueError(
            f"target='clean' does not know how {type(scheduler).__name__} (prediction_type "
            f"{getattr(scheduler.config, 'prediction_type', None)!r}) predicts a clean sample; use target='state'"
        )
    return CleanPrediction(kind, alpha, sigma, _limit(scheduler))


def _limit(scheduler: Any) -> Callable[[Tensor], Tensor]:
    config = scheduler.config
    if getattr(config, "thresholding", False):
        threshold: Callable[[Tensor], Tensor] = scheduler._threshold_sample
        return threshold
    if getattr(config, "clip_sample", False):
        reach = float(getattr(config, "clip_sample_range", 1.0))
        return lambda x: x.clamp(-reach, reach)
    return lambda x: x
