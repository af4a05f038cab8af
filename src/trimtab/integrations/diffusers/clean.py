"""The clean sample a diffusers scheduler predicts, and the model output that would predict another one.

At a call with noise level (alpha, sigma), x_t = alpha x_0 + sigma noise, and each kind of model output is linear in
x_0, so that a projected prediction has exactly one model output that stands for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["CleanPrediction", "clean_prediction"]


@dataclass(frozen=True)
class CleanPrediction:
    """How a model output and the clean sample it predicts belong together at one call.

    Attributes:
        kind: What the model predicts: "epsilon", "v_prediction", "sample" or "flow_prediction".
        alpha: Signal level, for states x_t in the scale the scheduler keeps them.
        sigma: Noise level.
        limit: The scheduler's own clipping of predictions.
    """

    kind: str
    alpha: Tensor
    sigma: Tensor
    limit: Callable[[Tensor], Tensor]

    def clean(self, model_output: Tensor, x: Tensor) -> Tensor:
        """The predicted clean sample, (n, *event), as the scheduler would use it."""
        return self.limit(self._clean(model_output, x))

    def _clean(self, model_output: Tensor, x: Tensor) -> Tensor:
        if self.kind == "epsilon":
            return (x - self.sigma * model_output) / self.alpha
        if self.kind == "v_prediction":  # v = a noise - s x_0 with (a, s) = (alpha, sigma) / norm
            norm2 = self.alpha**2 + self.sigma**2
            return (self.alpha * x - self.sigma * norm2.sqrt() * model_output) / norm2
        if self.kind == "flow_prediction":
            return x - self.sigma * model_output
        return model_output

    def model_output(self, clean: Tensor, x: Tensor) -> Tensor:
        """The model output that predicts `clean` at x, (n, *event)."""
        if self.kind == "epsilon":
            return (x - self.alpha * clean) / self.sigma
        if self.kind == "v_prediction":
            norm2 = self.alpha**2 + self.sigma**2
            return (self.alpha * x - norm2 * clean) / (self.sigma * norm2.sqrt())
        if self.kind == "flow_prediction":
            return (x - clean) / self.sigma
        return clean


def clean_prediction(scheduler: Any, timestep: Any) -> CleanPrediction:
    """The relation at this call of the scheduler, before its `step`."""
    if hasattr(scheduler, "_init_step_index") and scheduler.step_index is None:
        scheduler._init_step_index(timestep)
    config = scheduler.config
    kind = getattr(config, "prediction_type", None)
    if _is_flow_match(scheduler):
        sigma = scheduler.sigmas[scheduler.step_index]
        return CleanPrediction("flow_prediction", 1 - sigma, sigma, _limit(scheduler))
    if hasattr(scheduler, "precondition_outputs"):  # EDM: the scheduler mixes state and output in its own way
        kind = None
    elif hasattr(scheduler, "_sigma_to_alpha_sigma_t"):
        sigma = scheduler.sigmas[scheduler.step_index]
        alpha, sigma = scheduler._sigma_to_alpha_sigma_t(sigma)
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
            f"{getattr(config, 'prediction_type', None)!r}) predicts a clean sample; use target='state'"
        )
    return CleanPrediction(kind, alpha, sigma, _limit(scheduler))


def _is_flow_match(scheduler: Any) -> bool:
    return any(cls.__name__ == "FlowMatchEulerDiscreteScheduler" for cls in type(scheduler).__mro__)


def _limit(scheduler: Any) -> Callable[[Tensor], Tensor]:
    """Thresholding or clipping of predictions, as the scheduler is configured."""
    config = scheduler.config
    if getattr(config, "thresholding", False):
        threshold: Callable[[Tensor], Tensor] = scheduler._threshold_sample
        return threshold
    if getattr(config, "clip_sample", False):
        reach = float(getattr(config, "clip_sample_range", 1.0))
        return lambda x: x.clamp(-reach, reach)
    return lambda x: x
