"""The learned flow between Gaussian noise and operating points: network, training data, training.

The model knows the cheapest operating points for random demand, and nothing of the total demand that a sample is given.
The total demand and its distribution over the buses are independent, so true operating points for a given total can be
drawn as easily as any.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trimtab.core.checks import check_integer, check_positive
from trimtab.core.files import load_tensors, save_tensors
from trimtab.core.noise import Noise, as_seeds
from trimtab_lab.domains.learned import FlowMLP, fit_flow, fresh

from .case import Grid
from .power import cheapest

__all__ = ["Model", "given_demand", "load_model", "operating_points", "shipped_model", "train", "true_points"]

WIDTH, BLOCKS = 384, 3
_KIND = "grid flow"


@dataclass(frozen=True, eq=False)
class Model:
    """A flow, and how states are standardised for it."""

    case: str  # grid it was trained for
    flow: FlowMLP  # flow of standardised states
    mean: Tensor  # mean of every number of a state, (d,) float64
    scale: Tensor  # its standard deviation, at least a tenth of the median one, (d,) float64
    facts: dict[str, Any]  # how it was trained

    def standardise(self, x: Tensor) -> Tensor:
        """Convert states (…, d) from per unit to standard units."""
        return (x - self.mean) / self.scale

    def restore(self, z: Tensor) -> Tensor:
        """Convert states (…, d) from standard units to per unit."""
        return self.mean + self.scale * z

    def velocity(self, z: Tensor, tau: float) -> Tensor:
        """Return the velocity of standardised states, (n, d) float64, at flow time tau."""
        times = torch.full((len(z),), tau, dtype=torch.float32, device=z.device)
        with torch.no_grad():
            found: Tensor = self.flow(z.float(), times)
        return found.to(z)


def save_model(path: str | os.PathLike[str], model: Model) -> None:
    """Write the weights in half precision, mean and scale in double."""
    tensors = {f"flow.{name}": value.half() for name, value in model.flow.state_dict().items()}
    tensors |= {"mean": model.mean, "scale": model.scale}
    save_tensors(path, _KIND, tensors, {"case": model.case, **model.facts})


def load_model(path: str | os.PathLike[str]) -> Model:
    """Read the model that `save_model` wrote."""
    tensors, facts = load_tensors(path, _KIND)
    try:
        mean, scale = tensors.pop("mean"), tensors.pop("scale")
        flow = fresh(lambda: FlowMLP(len(mean), WIDTH, BLOCKS), 0)
        flow.load_state_dict({name.removeprefix("flow."): value.float() for name, value in tensors.items()})
        case = str(facts.pop("case"))
    except (KeyError, RuntimeError) as error:
        raise ValueError(f"{path}: these are not the weights of a grid flow: {error}") from error
    return Model(case, flow.eval().requires_grad_(False), mean, scale, facts)


@cache
def shipped_model(case: str) -> Model:
    """Return the trained model of a case that comes with the package."""
    with as_file(files(__package__) / "weights" / f"{case}.safetensors") as path:
        return load_model(path)


# ------------------------------------------------------------------ data

TOTALS = (0.65, 1.05)  # smallest and largest total demand of the data, as a share of the case's own
GIVEN = (0.7, 1.0)  # the same for the demand that samples are given: inside, so that the model knows both sides
SHARES = 0.2  # standard deviation of the logarithm of a load, before the loads are scaled to the total
POWER_FACTOR = 0.1  # standard deviation of the reactive share of a load, relative to the case's own
_GIVEN_STREAM, _TOTAL_STREAM, _SHARE_STREAM, _FACTOR_STREAM = 11, 12, 13, 14  # the start of a sampler uses stream 0
_TRIES = 20
_FIRST_DATA_SEED = 10**9  # far from the seeds that samples are drawn with
_POINTS = "operating points"


def _draw_demand(grid: Grid, seeds: Tensor, stream: int, shares: tuple[float, float]) -> Tensor:
    total = sum(load.real for load in grid.loads)
    return total * (shares[0] + (shares[1] - shares[0]) * Noise(seeds).uniform(-1, (), stream=stream))


def given_demand(grid: Grid, seeds: Iterable[int] | Tensor) -> Tensor:
    """Return the total demand that each seed is given, (n,) float64, in per unit."""
    return _draw_demand(grid, as_seeds(seeds), _GIVEN_STREAM, GIVEN)


def true_points(grid: Grid, seeds: Iterable[int] | Tensor, demand: Tensor) -> Tensor:
    """Return true operating points with the total demand (n,), one for each seed, (n, d) float64.

    Loads that the grid cannot meet within its limits are drawn again.
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
        f"and a total demand of {float(demand[left[0]]):.3f} per unit; give another total"
    )


def operating_points(grid: Grid, seeds: Iterable[int] | Tensor) -> Tensor:
    """Return true operating points with random total demand, one for each seed, (n, d) float64."""
    seeds = as_seeds(seeds)
    return true_points(grid, seeds, _draw_demand(grid, seeds, _TOTAL_STREAM, TOTALS))


def solved_points(
    grid: Grid, count: int, path: Path, progress: Callable[[str], None] = print, chunk: int = 250
) -> Tensor:
    """Return `count` operating points for training, (count, d) float64, solved once and kept in `path`.

    The file is written after every `chunk` points, so that a run that was stopped continues from there.
    """
    known = torch.empty(0, grid.dimension, dtype=torch.float64)
    if path.exists():
        tensors, facts = load_tensors(path, _POINTS)
        if facts.get("case") != grid.case:
            raise ValueError(f"{path}: operating points of {facts.get('case')}, expected {grid.case}; delete the file")
        known = tensors["points"]
    path.parent.mkdir(parents=True, exist_ok=True)
    while len(known) < count:
        stop = min(count, len(known) + chunk)
        more = operating_points(grid, range(_FIRST_DATA_SEED + len(known), _FIRST_DATA_SEED + stop))
        known = torch.cat([known, more])
        save_tensors(path, _POINTS, {"points": known}, {"case": grid.case})
        progress(f"{stop} of {count} operating points solved")
    return known[:count]


def standard(points: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and scale of every number of a state, (d,) each, from points (n, d).

    The weight of a number that hardly varies (a voltage at its limit) would have no bound, so no scale is below a tenth
    of the median one.
    """
    spread = points.std(dim=0)
    return points.mean(dim=0), spread.clamp(min=0.1 * float(spread.quantile(0.5)))


# ------------------------------------------------------------------ training


def train(
    grid: Grid,  # grid
    folder: Path,  # folder of all files
    *,
    points: int = 2500,  # number of operating points to learn from
    held_out: int = 300,  # number of further points that only measure the loss
    steps: int = 4000,  # number of optimiser steps
    batch: int = 256,  # number of points in a step
    rate: float = 1e-3,  # largest learning rate; it rises for 3% of the steps and falls along a cosine
    seed: int = 0,  # seed of initial weights and batches
    checkpoint_every: int = 250,  # number of steps between checkpoints
    progress: Callable[[str], None] = print,  # called with a line of text
) -> Path:
    """Solve operating points, train on them, and write `CASE.safetensors` into `folder`; return its path.

    A run that was stopped continues where it was.
    """
    recipe = {"points": points, "held_out": held_out, "steps": steps, "batch": batch, "rate": rate, "seed": seed}
    for name, least in {"points": 2, "held_out": 1, "steps": 1, "batch": 1}.items():
        check_integer(recipe[name], name, least)
    check_positive(rate, "rate")
    folder.mkdir(parents=True, exist_ok=True)
    out, checkpoint, kept = (folder / f"{grid.case}{end}.safetensors" for end in ("", ".training", ".points"))
    solved = solved_points(grid, points + held_out, kept, progress)
    mean, scale = standard(solved[:points])
    scaled = ((solved - mean) / scale).float()
    averaged, loss = fit_flow(
        lambda: FlowMLP(grid.dimension, WIDTH, BLOCKS),
        scaled[:points],
        checkpoint,
        recipe,
        held_out=scaled[points:],
        average=0.998,
        weight_decay=1e-2,
        every=checkpoint_every,
        progress=progress,
    )
    save_model(out, Model(grid.case, averaged, mean, scale, recipe | {"held_out_loss": loss}))
    checkpoint.unlink(missing_ok=True)
    progress(f"wrote {out}")
    return out
