"""Operating points: random demand, and the cheapest way to meet it.

How much is asked for in total and how it is shared out among the buses are independent of each other, so that true
operating points for a given total can be drawn as easily as any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from trimtab.core.files import load_tensors, save_tensors
from trimtab.core.noise import Noise, as_seeds
from trimtab.evaluation.domains.grid.case import Grid
from trimtab.evaluation.domains.grid.program import cheapest

__all__ = ["SHARES", "TOTALS", "given_demand", "operating_points", "solved_points", "true_points"]

TOTALS = (0.65, 1.05)
"""Smallest and largest total demand, as a share of the case's own."""

SHARES = 0.2
"""Standard deviation of the logarithm of a load, before the loads are scaled to the total."""

POWER_FACTOR = 0.1
"""Standard deviation of a load's reactive share, relative to the case's own."""

GIVEN = (0.7, 1.0)
"""Smallest and largest total demand that samples are asked for; inside `TOTALS`, so that the model knows both sides."""

_GIVEN_STREAM, _TOTAL_STREAM, _SHARE_STREAM, _FACTOR_STREAM = 11, 12, 13, 14  # a sampler's start uses stream 0
_TRIES = 20
_FIRST_DATA_SEED = 10**9  # far from the seeds samples are drawn with
_KIND = "operating points"


def given_demand(grid: Grid, seeds: Iterable[int] | Tensor) -> Tensor:
    """The total demand each seed asks for, (n,) float64, in per unit."""
    share = Noise(as_seeds(seeds)).uniform(-1, (), stream=_GIVEN_STREAM)
    return _total(grid) * (GIVEN[0] + (GIVEN[1] - GIVEN[0]) * share)


def _total(grid: Grid) -> float:
    return float(sum(load.real for load in grid.loads))


def true_points(grid: Grid, seeds: Iterable[int] | Tensor, demand: Tensor) -> Tensor:
    """True operating points with the total demand given, (n,), one for each seed: (n, d) float64.

    The loads are drawn anew where the grid cannot meet them within its limits.
    """
    noise = Noise(as_seeds(seeds))
    base = torch.tensor(grid.loads, dtype=torch.complex128)
    found = torch.empty(len(noise.seeds), grid.dimension, dtype=torch.float64)
    left = torch.arange(len(noise.seeds))
    for attempt in range(_TRIES):
        draw = noise.take(left)
        loads = base.real * (SHARES * draw.normal(attempt, (len(base),), stream=_SHARE_STREAM)).exp()
        loads *= (demand[left] / loads.sum(dim=1))[:, None]
        factor = 1 + POWER_FACTOR * draw.normal(attempt, (len(base),), stream=_FACTOR_STREAM)
        answer = cheapest(grid, torch.complex(loads, loads * base.imag / base.real * factor).numpy())
        assert answer.converged is not None
        found[left[answer.converged]] = answer.x[answer.converged]
        left = left[~answer.converged]
        if len(left) == 0:
            return found
    raise RuntimeError(
        f"no operating point of {grid.case} found in {_TRIES} draws of the loads for seed {int(noise.seeds[left[0]])} "
        f"and a total demand of {float(demand[left[0]]):.3f} per unit; ask for another total"
    )


def operating_points(grid: Grid, seeds: Iterable[int] | Tensor) -> Tensor:
    """True operating points with random total demand, one for each seed, (n, d) float64."""
    seeds = as_seeds(seeds)
    share = Noise(seeds).uniform(-1, (), stream=_TOTAL_STREAM)
    return true_points(grid, seeds, _total(grid) * (TOTALS[0] + (TOTALS[1] - TOTALS[0]) * share))


def solved_points(
    grid: Grid, count: int, path: Path, progress: Callable[[str], None] = print, chunk: int = 250
) -> Tensor:
    """`count` operating points for training, (count, d) float64, solved once and kept in `path`.

    The file is written after every `chunk`, so that a run that was stopped goes on where it was.
    """
    known = torch.empty(0, grid.dimension, dtype=torch.float64)
    if path.exists():
        tensors, facts = load_tensors(path, _KIND)
        if facts.get("case") != grid.case:
            raise ValueError(f"{path}: operating points of {facts.get('case')}, expected {grid.case}; delete the file")
        known = tensors["points"]
    path.parent.mkdir(parents=True, exist_ok=True)
    while len(known) < count:
        stop = min(count, len(known) + chunk)
        more = operating_points(grid, range(_FIRST_DATA_SEED + len(known), _FIRST_DATA_SEED + stop))
        known = torch.cat([known, more])
        save_tensors(path, _KIND, {"points": known}, {"case": grid.case})
        progress(f"{stop} of {count} operating points solved")
    return known[:count]


def standard(points: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and scale of every number of a state, (d,) each, from points (n, d).

    A number that hardly varies (a voltage at its limit) would weigh without bound, so no scale is below a tenth of the
    median one.
    """
    spread = points.std(dim=0)
    return points.mean(dim=0), spread.clamp(min=0.1 * float(np.median(spread.numpy())))
