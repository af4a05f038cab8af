"""What a budget is: how many corrections, of which kind, a sample or a batch may spend."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from trimtab.core.checks import check_integer, unknown

__all__ = ["Budget", "Cost", "PerBatch", "PerSample", "Unit", "corrections", "most_corrections", "units"]

Budget = int | float | Tensor
"""A whole number counts corrections, a float is a fraction of T, an integer tensor (n,) is a count per sample."""


@dataclass(frozen=True)
class PerSample:
    """A budget that each sample has for itself, as in the paper: a sample never depends on its batch-mates."""

    budget: int | float


@dataclass(frozen=True)
class PerBatch:
    """A budget that the samples of a batch share: `budget` per sample on average, exact in total.

    The samples that need corrections most get more of them, so a sample depends on its batch-mates.

    Attributes:
        budget: Per sample on average: a count, a fraction of T, or a count for each sample, (n,).
        parts: The part of the batch that each sample shares with, (n,) int64 from 0; the whole batch if not given.
        rows: "fixed" if the number of samples that are corrected at each step must be known before the run, as for a
            compiled solver. Only a budget that is learned with can be: `Corrector(constraint, PerBatch(0.25,
            rows="fixed"), n_steps)`.

    Example:
        >>> import trimtab as tt
        >>> domain = tt.domain("so3", n_steps=20)
        >>> price = tt.calibrate(domain.problem(range(1000, 1016)), method="dp", objective="path")
        >>> run = domain.problem(range(8)).rollout(price.at(PerBatch(0.25)))
        >>> int(run.spent.sum()), len(set(run.spent.tolist())) > 1
        (40, True)
    """

    budget: Any
    parts: Tensor | None = field(default=None, compare=False, repr=False)
    rows: Literal["any", "fixed"] = "any"

    def __post_init__(self) -> None:
        """Check the rows."""
        if self.rows not in ("any", "fixed"):
            raise unknown("rows", self.rows, ("any", "fixed"))

    def pools(self, n: int) -> Tensor:
        """Return the pool of each of n samples, (n,) int64; raise for rows='fixed', which only a learner supports."""
        if self.rows == "fixed":
            raise ValueError("rows='fixed' needs a pace that is learned: give the budget itself as the schedule")
        return torch.zeros(n, dtype=torch.int64) if self.parts is None else self.parts


def corrections(budget: Budget | PerBatch | PerSample | None, n_steps: int) -> int | Tensor:
    """Return the budget as a number of corrections, between 0 and `n_steps`.

    Args:
        budget: A count, a fraction of `n_steps` (rounded to the nearest count), or a count for each sample; None is no
            limit.
        n_steps: T, the number of update locations.

    Example:
        >>> corrections(0.25, 100), corrections(7, 100), corrections(1.0, 100)
        (25, 7, 100)
    """
    check_integer(n_steps, "n_steps")
    if isinstance(budget, PerBatch | PerSample):
        budget = budget.budget
    if budget is None:
        return n_steps
    if isinstance(budget, Tensor):
        fits = budget.ndim == 1 and len(budget) > 0
        if not fits or budget.is_floating_point() or budget.is_complex() or budget.dtype == torch.bool:
            raise ValueError(
                "a budget tensor must hold one whole number per sample, of at least one sample, shape (n,): got "
                f"{tuple(budget.shape)} of {budget.dtype}"
            )
        budget = budget.long()  # products with steps would wrap around in a smaller dtype
        if bool(((budget < 0) | (budget > n_steps)).any()):
            raise ValueError(f"budgets must be between 0 and T = {n_steps}: got {budget.tolist()[:8]}")
        return budget
    if isinstance(budget, bool) or not isinstance(budget, int | float | np.integer | np.floating):
        raise ValueError(f"a budget must be a whole number, a fraction of T or an integer tensor: got {budget!r}")
    if isinstance(budget, int | np.integer):
        if not 0 <= budget <= n_steps:
            raise ValueError(f"a budget of {budget} corrections does not fit T = {n_steps} steps: give 0 to {n_steps}")
        return int(budget)
    if not 0.0 <= budget <= 1.0:
        raise ValueError(
            f"a float budget is a fraction of T and must be in [0, 1]: got {budget} (for a count, give a whole number)"
        )
    return int(budget * n_steps + 0.5)


Unit = Literal["projection", "iteration", "second"]
"""What a budget counts."""


class Cost(NamedTuple):
    """What one call of the solver costs, one row in it, and one iteration of a row."""

    call: float = 0.0
    row: float = 0.0
    iteration: float = 0.0


COST: dict[str, Cost] = {"projection": Cost(row=1), "iteration": Cost(iteration=1)}
"""What is paid if a budget counts projections or iterations."""


def units(
    budget: Budget | PerBatch | PerSample | None, n_steps: int, unit: Unit = "projection"
) -> int | float | Tensor:
    """Return the budget as a number of units: as in `corrections`, or a total of iterations or seconds per sample.

    A float counts iterations (or seconds) per step.

    Example:
        >>> units(2.5, 100, "iteration"), units(7, 100, "iteration")
        (250, 7)
    """
    check_integer(n_steps, "n_steps")
    if unit not in get_args(Unit):
        raise unknown("unit", unit, get_args(Unit))
    if unit == "projection":
        return corrections(budget, n_steps)
    if isinstance(budget, PerBatch | PerSample):
        budget = budget.budget
    if budget is None:
        return 2**31 - 1
    if isinstance(budget, Tensor) and unit == "second" and budget.is_floating_point() and budget.ndim == 1:
        return budget.double()
    if isinstance(budget, Tensor):
        most = 0 if budget.is_floating_point() or budget.numel() == 0 else int(budget.max())
        return corrections(budget, max(n_steps, most))
    if isinstance(budget, bool) or not isinstance(budget, int | float | np.integer | np.floating):
        raise ValueError(f"a budget must be a number of {unit}s, or {unit}s per step as a float: got {budget!r}")
    count = budget if isinstance(budget, int | np.integer) else budget * n_steps
    if not 0 <= count < 2**31:
        raise ValueError(f"a budget must be between 0 and 2^31 - 1 {unit}s (T = {n_steps} steps): got {budget!r}")
    return float(count) if unit == "second" else int(count + 0.5)


def most_corrections(budget: Budget, n_steps: int) -> int:
    """Return the largest number of corrections that any sample may spend."""
    return int(torch.as_tensor(corrections(budget, n_steps)).max())
