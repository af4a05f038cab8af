"""What a price is meant to lower: path error itself, or the errors that residuals lead to.

State error and endpoint distance are measured against the paired stepwise rollout, which no schedule can see. But they
come from residuals, and how much a unit of residual at each step adds to them can be measured: each sample of a
calibration batch is corrected at all steps but those of one short window and compared with its stepwise twin, so that
the whole difference is due to that window. The price is then computed for residuals with these weights. (A regression
over rollouts corrected at random does not work: the errors of many windows add up with random signs.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from trimtab.core.checks import check_number, unknown
from trimtab.core.metrics import Distance, endpoint_distance, state_error
from trimtab.core.noise import uniform_numbers
from trimtab.core.record import Rollout
from trimtab.core.schedule import Schedule
from trimtab.core.view import StepView

Name = Literal["path", "state", "endpoint"]
Objective = Name | Mapping[str, float]
OBJECTIVES: tuple[Name, ...] = get_args(Name)

_WINDOW = 0.05  # of the steps: long enough for residuals to grow as they do between corrections
_BANDWIDTH = 0.12  # of the steps, over which weights are smoothed
_PLACES = 1 << 34  # a stream of noise


def objective_weights(objective: Objective) -> dict[str, float]:
    """Return the objective as weights above 0 by name.

    Example:
        >>> objective_weights("path"), objective_weights({"path": 1, "endpoint": 2, "state": 0})
        ({'path': 1.0}, {'path': 1.0, 'endpoint': 2.0})
    """
    if not isinstance(objective, str | Mapping):
        raise TypeError(f"an objective must be a name or a mix of them, as in {{'path': 1.0}}: got {objective!r:.60}")
    given: Mapping[str, float] = {objective: 1.0} if isinstance(objective, str) else objective
    mix: dict[str, float] = {}
    for name, weight in given.items():
        if name not in OBJECTIVES:
            raise unknown("objective", name, OBJECTIVES)
        mix[name] = check_number(weight, f"the weight of {name!r} in an objective")
        if not 0 <= mix[name] < float("inf"):
            raise ValueError(f"the weight of {name!r} in an objective must be finite and at least 0: got {weight}")
    if sum(mix.values()) <= 0:
        raise ValueError(f"an objective needs a weight above 0: got {dict(mix)}")
    return {name: weight for name, weight in mix.items() if weight > 0}


def describe(objective: Objective) -> str:
    """Return the objective as text: its name if it has a single part, or a sum such as "1 path + 2 endpoint"."""
    mix = objective_weights(objective)
    return next(iter(mix)) if len(mix) == 1 else " + ".join(f"{weight:g} {name}" for name, weight in mix.items())


@dataclass(frozen=True, eq=False)
class SkipWindow(Schedule):
    """Project at every step but those of one window per sample.

    Attributes:
        first: The window's first step, (n,).
        length: Of the window.
    """

    first: Tensor
    length: int
    budget: float = 1.0

    def decide(self, view: StepView) -> Tensor:
        """Return which samples are outside of their window, (n,) bool."""
        return (view.t < self.first) | (view.t >= self.first + self.length)

    def to(self, device: torch.device) -> SkipWindow:
        """Return the same schedule on `device`."""
        return SkipWindow(self.first.to(device), self.length)


def window_schedules(n_steps: int, n: int, batches: int = 3) -> list[SkipWindow]:
    """Return one schedule per batch; its n windows start at a random place in each n-th of the steps."""
    length = max(1, round(_WINDOW * n_steps))
    places = uniform_numbers(torch.arange(batches), range(1), (n,), _PLACES)[0]
    first = ((torch.arange(n) + places) / n * (n_steps - length + 1)).long()
    return [SkipWindow(some, length) for some in first]


def residual_weights(
    objective: Objective,
    run: Callable[[Schedule], Rollout],
    distance: Distance,
    stepwise: Callable[[], Rollout],
    batches: int = 3,
) -> Tensor | None:
    """Return what a unit of residual at each step adds to the objective, (T,); None for path error, where it is 1.

    `run` runs a batch under a schedule, `stepwise` returns the batch corrected at every step, and `batches` is how many
    are run with a window skipped.
    """
    mix = objective_weights(objective)
    if set(mix) == {"path"}:
        return None
    reference = stepwise()
    T, n = reference.defects.shape
    schedules = window_schedules(T, n, batches)
    runs = [run(schedule) for schedule in schedules]
    added = torch.cat([skipped.residuals.sum(dim=0) - reference.residuals.sum(dim=0) for skipped in runs])
    middle = torch.cat([schedule.first + (schedule.length - 1) / 2 for schedule in schedules])

    weights = torch.full((T,), mix.get("path", 0.0), dtype=torch.float64)
    measures = {"endpoint": endpoint_distance, "state": state_error}
    for name in mix.keys() & measures.keys():
        errors = [measures[name](skipped, reference, distance) for skipped in runs]
        error = finite(torch.cat(errors).cpu().double(), f"the distance of the objective {name!r}")
        weights += mix[name] * smooth_ratio(middle, added.cpu().double(), error, T)
    return weights


def finite(costs: Tensor, what: str) -> Tensor:
    """Return the costs, (m,); raise if one is infinite, since it would decide every mean."""
    known = costs.isfinite()
    if not bool(known.all()):
        raise ValueError(
            f"{what} is infinite for {int((~known).sum())} of {len(known)} samples, so that no mean over them tells "
            "schedules apart; give a large number instead"
        )
    return costs


def smooth_ratio(steps: Tensor, causes: Tensor, effects: Tensor, n_steps: int) -> Tensor:
    """Return the effect per unit of cause as a smooth function of the step, (T,), as far from constant as is known.

    Rare large effects can make a ratio look as if it varied over the steps. The part of its variation that its standard
    error explains is removed, which leaves a constant if nothing is known. The ratio is 1 if there is no cause, for
    example if the sampler is feasible without corrections. `steps`, `causes` and `effects` are (m,).
    """
    at = torch.arange(n_steps, dtype=torch.float64)
    kernel = (-0.5 * ((at[:, None] - steps) / (_BANDWIDTH * n_steps)) ** 2).exp()
    total = kernel @ causes
    # if corrections remove nothing, rounding alone may make a cause, of either sign
    if not bool((total.clamp(min=0).square() > 0).all()) or float(causes.sum()) <= 0:
        return torch.ones_like(at)
    ratio = kernel @ effects / total
    variance = (kernel**2 * (effects - ratio[:, None] * causes) ** 2).sum(dim=1) / total**2
    middle = effects.sum() / causes.sum()
    spread = ((ratio - middle) ** 2).mean().clamp(min=1e-300)
    trust = (1 - variance.mean() / spread).clamp(min=0)
    weights: Tensor = middle + trust * (ratio - middle)
    return weights.clamp(min=1e-3 * middle)  # a step that seems to cost nothing still breaks ties
