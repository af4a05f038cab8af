"""The paper's metrics (appendix C) beyond those of `trimtab.core.metrics`, and its means with standard errors."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from trimtab.core.metrics import check_paired, distinct_seeds
from trimtab.core.record import Rollout

__all__ = [
    "MeanError",
    "achieved_budget",
    "benefit",
    "gap_closed",
    "improvement",
    "summary",
    "win_rate",
]


def benefit(nepe: Tensor) -> Tensor:
    """Return the share of stepwise correction's benefit that is recovered, (n,)."""
    return 1 - nepe


def improvement(method: Tensor, baseline: Tensor) -> Tensor:
    """Return how much lower `method` is than `baseline`, as a share of it, (n,); NaN where the baseline is 0."""
    check_paired(method=method, baseline=baseline)
    return torch.where(baseline == 0, torch.nan, (baseline - method) / baseline)


def gap_closed(method: Tensor, baseline: Tensor, hindsight: Tensor) -> float:
    """Return the share of the gap between a baseline and the hindsight limit that a method closes, by paired means."""
    check_paired(method=method, baseline=baseline, hindsight=hindsight)
    whole = float((baseline - hindsight).nanmean())
    return float((baseline - method).nanmean()) / whole if whole > 0 else math.nan


def achieved_budget(run: Rollout) -> Tensor:
    """Return B-hat / T, the corrections spent per step, (n,): projections, or iterations if those were counted.

    A closing projection counts if the budget pays for it.
    """
    return run.spent.double() / run.n_steps


@dataclass(frozen=True)
class MeanError:
    """A mean with its standard error over n values."""

    mean: float
    se: float
    n: int

    def __str__(self) -> str:
        """Write it as in the paper's tables."""
        return f"{self.mean:.3f} ± {self.se:.3f}"


def summary(values: Tensor, seeds: Tensor | None = None) -> MeanError:
    """Return mean and standard error of the n values that are not NaN.

    With `seeds`, (n,), each distinct seed counts once: the same seed again is the same sample.

    Example:
        >>> import torch
        >>> found = summary(torch.tensor([1.0, 2.0, 3.0, torch.nan]))
        >>> print(found, "of", found.n)
        2.000 ± 0.577 of 3
    """
    values = values.double()
    values = values if seeds is None else values[distinct_seeds(seeds)]
    values = values[~values.isnan()]
    n = len(values)
    mean = float(values.mean()) if n else math.nan
    return MeanError(mean, float(values.std()) / math.sqrt(n) if n > 1 else math.nan, n)


def win_rate(method: Tensor, baseline: Tensor, seeds: Tensor | None = None) -> MeanError:
    """Return how often `method` is lower than `baseline`, pair by pair, with binomial standard error.

    A tie is not a win; pairs with a degenerate value are left out. With `seeds`, (n,), each distinct seed counts once.
    """
    check_paired(method=method, baseline=baseline)
    if seeds is not None:
        method, baseline = (values[distinct_seeds(seeds)] for values in (method, baseline))
    valid = ~(method.isnan() | baseline.isnan())
    n = int(valid.sum())
    if n == 0:
        return MeanError(math.nan, math.nan, 0)
    p = float((method < baseline)[valid].double().mean())
    return MeanError(p, math.sqrt(p * (1 - p) / n), n)
