"""What a price is meant to lower: path error itself, or the errors that residuals on the path lead to.

State error and endpoint distance are measured against the paired stepwise rollout, which no schedule can see. But they
come from residuals: a rollout that was feasible throughout would be the stepwise one. So calibration rollouts tell,
by regression, how much a unit of residual at each step adds to them, and the price is computed for the residuals
weighted like that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from trimtab.metrics import Distance, endpoint_distance, state_error
from trimtab.names import unknown
from trimtab.record import Rollout

__all__ = ["OBJECTIVES", "Objective", "as_mix", "describe", "residual_weights"]

Objective = Literal["path", "state", "endpoint"] | Mapping[str, float]
OBJECTIVES = ("path", "state", "endpoint")

_KNOTS = 8  # of the weights as a piecewise linear function of the step


def as_mix(objective: Objective) -> dict[str, float]:
    """The objective as a weighted mix.

    Example:
        >>> as_mix("path"), as_mix({"path": 1, "endpoint": 2})
        ({'path': 1.0}, {'path': 1.0, 'endpoint': 2.0})
    """
    given: Mapping[str, float] = {objective: 1.0} if isinstance(objective, str) else objective
    mix = {name: float(weight) for name, weight in given.items()}
    for name, weight in mix.items():
        if name not in OBJECTIVES:
            raise unknown("objective", name, OBJECTIVES)
        if not 0 <= weight < float("inf"):
            raise ValueError(f"the weight of {name!r} in an objective must be finite and at least 0: got {weight}")
    if sum(mix.values()) <= 0:
        raise ValueError(f"an objective needs a weight above 0: got {dict(mix)}")
    return mix


def describe(objective: Objective) -> str:
    """The objective as a price's file keeps it.

    Example:
        >>> describe({"path": 1, "endpoint": 2})
        '1 path + 2 endpoint'
    """
    mix = as_mix(objective)
    if len(mix) == 1:
        return next(iter(mix))
    return " + ".join(f"{weight:g} {name}" for name, weight in mix.items())


def residual_weights(
    objective: Objective, runs: Sequence[Rollout], stepwise: Rollout | None, distance: Distance | None
) -> Tensor | None:
    """What a unit of residual at each step adds to the objective, (T,); None for path error, where it is 1.

    Args:
        objective: What is to be lowered.
        runs: Explored rollouts, all of the same samples.
        stepwise: The paired stepwise rollout; not needed for path error.
        distance: The domain's rho; not needed for path error.
    """
    mix = as_mix(objective)
    if set(mix) == {"path"}:
        return None
    if stepwise is None or distance is None:
        raise ValueError(f"the objective {describe(objective)!r} needs a distance: calibrate(…, distance=rho)")
    T = runs[0].n_steps
    residuals = torch.cat([run.residuals for run in runs], dim=1).double()
    weights = torch.full((T,), mix.get("path", 0.0), dtype=torch.float64)
    measures = {"endpoint": endpoint_distance, "state": state_error}
    for name in mix.keys() & measures.keys():
        error = torch.cat([measures[name](run, stepwise, distance) for run in runs]).double()
        weights += mix[name] * _sensitivity(residuals, error)
    return weights


def _sensitivity(residuals: Tensor, error: Tensor) -> Tensor:
    """Non-negative weights (T,), piecewise linear in the step, for which weights @ residuals fits the error best."""
    T = len(residuals)
    place = torch.linspace(0, _KNOTS - 1, T, dtype=torch.float64)
    basis = (1 - (place[:, None] - torch.arange(_KNOTS)).abs()).clamp(min=0)  # hat functions, (T, knots)
    x = (basis.T @ residuals).T
    gram, target = x.T @ x, x.T @ error
    gram = gram + 1e-3 * gram.diagonal().mean() * torch.eye(_KNOTS)
    # coordinate descent on a small convex problem: exact minimiser of each coordinate in turn, kept at or above 0
    knots = torch.zeros(_KNOTS, dtype=torch.float64)
    for _ in range(500):
        for k in range(_KNOTS):
            slope = target[k] - gram[k] @ knots + gram[k, k] * knots[k]
            knots[k] = (slope / gram[k, k]).clamp(min=0)
    weights: Tensor = basis @ knots
    return weights + 1e-3 * weights.mean()  # a step that seems to cost nothing still breaks ties
