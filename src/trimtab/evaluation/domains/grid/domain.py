"""AC operating points of a power grid from a learned flow, with the total demand given.

The flow knows the cheapest operating points of the grid for random demand. A sample's own total demand enters through
the constraint only. As the guess of the clean point is an operating point at all times and the state of the flow is
mostly noise at first, it is the clean point that is projected: the state of the sampler is the pair of that guess and
the noise it implies. The next point of the flow is between the two, so an uncorrected step is exactly Euler's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from trimtab.core.errors import check_integer, check_type
from trimtab.core.noise import Noise, as_seeds
from trimtab.evaluation.domains.base import Domain, Graph, Problem, View, renamed
from trimtab.evaluation.domains.grid.constraint import limits
from trimtab.evaluation.domains.grid.data import given_demand
from trimtab.evaluation.domains.grid.model import Model, load_model, shipped_model
from trimtab.evaluation.domains.grid.quality import judge
from trimtab.evaluation.domains.grid.rated import load_grid
from trimtab.evaluation.domains.grid.view import line_profile

__all__ = ["GridFlow", "make"]


@dataclass(frozen=True, eq=False)
class GridFlow:
    """Euler steps of the flow; a state is the pair (clean operating point, noise), (n, 2, d), in per unit."""

    model: Model
    n_steps: int = 50
    dtype: torch.dtype = torch.float64  # power has to balance to more digits than float32 has

    def start(self, noise: Noise) -> Tensor:
        """Gaussian noise; the clean point is the mean of all until the first step replaces it."""
        first = self.model.restore(noise.normal(-1, self.model.mean.shape))
        return torch.stack([self.model.mean.expand_as(first), first], dim=1)

    def step(self, x: Tensor, t: int, noise: Noise) -> Tensor:
        """The model's clean point and noise at the point of the flow between those of `x`."""
        tau = t / self.n_steps
        clean, first = self.model.standardise(x).unbind(dim=1)
        between = torch.lerp(first, clean, tau)
        velocity = self.model.velocity(between, tau)
        return self.model.restore(torch.stack([between + (1 - tau) * velocity, between - tau * velocity], dim=1))


def make(
    case: str = "case14", n_steps: int = 50, model: str | None = None, workers: int = 1, *, steps: int | None = None
) -> Domain:
    """The domain `grid`.

    Args:
        case: The IEEE grid, "case14" or "case30".
        n_steps: T, Euler steps of the flow.
        model: Weights of `trimtab train-grid`; those shipped for the case by default.
        workers: Processes of the projection; 0 is one a core.
        steps: What `n_steps` was called before version 0.2.
    """
    n_steps = check_integer(renamed(n_steps, steps, "n_steps", "steps"), "n_steps")
    check_integer(workers, "workers (0 is one a core)", 0)
    grid = load_grid(check_type(case, str, "case", "give the name of a grid, such as 'case14'"))
    trained = shipped_model(case) if model is None else load_model(Path(model))
    if trained.case != case or len(trained.mean) != grid.dimension:
        raise ValueError(f"{model}: weights for {trained.case}, but the grid is {case}; train for it, or name it")
    sampler = GridFlow(trained, n_steps)

    def distance(a: Tensor, b: Tensor) -> Tensor:
        return ((a - b)[:, 0] / trained.scale).square().mean(dim=1).sqrt()

    def problem(seeds: Iterable[int] | Tensor) -> Problem:
        return Problem(sampler, limits(grid, trained, given_demand(grid, as_seeds(seeds)), workers), seeds, distance)

    return Domain(
        name="grid",
        summary=f"AC operating points of a power grid ({case}) from a learned flow, with the total demand given",
        problem=problem,
        distance=distance,
        settings={"case": case, "n_steps": n_steps} | ({} if model is None else {"model": model}),
        quality=judge,
        view=View(
            "Power grid",
            "the loads of the grid's lines at the final operating point",
            ("line", "share of its rating"),
            line_profile,
            final=True,
            graph=Graph(grid.places, tuple(branch.ends for branch in grid.branches)),
        ),
    )
