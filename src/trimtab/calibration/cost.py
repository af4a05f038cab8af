"""What a calibration costs: estimated before it starts, and after how many samples that is paid back."""

from __future__ import annotations

import math
from typing import NamedTuple

from trimtab.core.budget import Budget, corrections
from trimtab.prices.objective import Objective, objective_weights

__all__ = ["CalibrationCost", "calibration_cost"]


class CalibrationCost(NamedTuple):
    """The cost of a calibration.

    Attributes:
        batches: Number of batches.
        rollouts: Number of rollouts in all batches.
        spent: Projections in all batches.
        pays_back_after: Number of samples after which the projections saved, compared with projecting at every step,
            equal `spent`; infinite if none are saved, as with a single step.
        budget: The budget of the samples that save them.
        n_steps: T.
    """

    batches: int
    rollouts: int
    spent: int
    pays_back_after: float
    budget: int
    n_steps: int

    def __str__(self) -> str:
        """Return a one-line summary."""
        batches = "1 batch" if self.batches == 1 else f"{self.batches} batches"
        text = f"about {batches}, {self.rollouts:,} rollouts and {self.spent:,} projections"
        if math.isinf(self.pays_back_after):
            return text
        samples = "1 sample" if self.pays_back_after == 1 else f"{self.pays_back_after:,.0f} samples"
        return f"{text}, paid back after {samples} with {self.budget} of {self.n_steps} projections each"


def calibration_cost(
    method: str,
    n_steps: int,
    samples: int,
    budget: Budget = 1.0,
    *,
    objective: Objective = "endpoint",
    check: bool = True,
) -> CalibrationCost:
    """Estimate what `calibrate` takes with the same arguments.

    Args:
        method: As in `calibrate`.
        n_steps: T.
        samples: Number of calibration seeds.
        budget: The largest budget wanted.
        objective: As in `calibrate`.
        check: Whether the first batch runs twice.

    Example:
        >>> print(calibration_cost("paper", 100, 64, 0.25))
        about 2 batches, 128 rollouts and 128 projections, paid back after 2 samples with 25 of 100 projections each
    """
    T, most = n_steps, int(corrections(budget, n_steps))
    path = set(objective_weights(objective)) == {"path"}
    weights: list[float] = [] if path else [T] * 4  # corrected at every step, or at all but those of a window
    explored = min(T, 1.5 * most) / 2
    parts: dict[str, list[float]] = {
        "paper": [],
        "dp": [explored] * 4 + weights + [most / 2] * 2,
        "planned": [explored] * 3 + weights,
    }
    each = [1.0] * (1 + check) + parts[method]  # a closing projection, and what is spent before
    return with_payback(len(each), samples, round(samples * sum(each)), T, most)


def with_payback(batches: int, samples: int, spent: int, n_steps: int, most: int) -> CalibrationCost:
    """Return the cost of a number of batches, paid back at the largest budget, or at T / 4 if that is all steps."""
    used = most if most < n_steps else max(1, round(n_steps / 4))
    saved = n_steps - used
    after = math.ceil(spent / saved) if saved else math.inf
    return CalibrationCost(batches, batches * samples, spent, after, used, n_steps)
