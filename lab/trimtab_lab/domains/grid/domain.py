"""AC operating points of a power grid from a learned flow, with the total demand given.

The flow knows the cheapest operating points of the grid for random demand. The total demand of a sample enters through
the constraint only. The state of the flow is mostly noise at first, but the model's guess of the clean point is an
operating point at all times. Therefore that guess is projected: the state of the sampler is the pair of the clean point
and the noise it implies.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trimtab.constraints.program import NonlinearProgram, casadi
from trimtab.constraints.states import check_states
from trimtab.core.checks import check_integer, check_type
from trimtab.core.constraint import Constraint, Projection
from trimtab.core.noise import Noise, as_seeds
from trimtab_lab.domains.base import Domain, Graph, Problem, View
from trimtab_lab.domains.learned import pair_step

from .case import CASES, Grid
from .model import Model, given_demand, load_model, shipped_model
from .power import PURPOSE, cheapest, conditions, cost, cut_column, load_grid, loadings, parts, violations

__all__ = ["GridFlow", "OperatingLimits", "cost_gap", "draw_grid", "features", "judge", "make"]


@dataclass(frozen=True, eq=False)
class GridFlow:
    """Euler steps of the flow; a state is the pair (clean operating point, noise), (n, 2, d), in per unit."""

    model: Model
    n_steps: int = 50
    dtype: torch.dtype = torch.float64  # power has to balance to more digits than float32 has

    def start(self, noise: Noise) -> Tensor:
        """Draw Gaussian noise; the clean point is the mean of all points until the first step."""
        first = self.model.restore(noise.start(self.model.mean.shape))
        return torch.stack([self.model.mean.expand_as(first), first], dim=1)

    def step(self, x: Tensor, t: int, noise: Noise) -> Tensor:
        """Return the clean point and the noise at the point of the flow between those of `x`."""
        tau = t / self.n_steps
        clean, first = self.model.standardise(x).unbind(dim=1)
        between = torch.lerp(first, clean, tau)
        return self.model.restore(pair_step(between, self.model.velocity(between, tau), tau))


# ------------------------------------------------------------------ constraint


@dataclass(frozen=True)
class StandardConditions:
    """The conditions of a standardised state and the total demand, for `NonlinearProgram`.

    It is compared and hashed by value, so that worker processes, which get copies, build their solver only once.
    """

    grid: Grid
    mean: tuple[float, ...]
    scale: tuple[float, ...]

    def __call__(self, y: Any, p: Any) -> tuple[list[Any], list[Any]]:
        """Return expressions that must be at most 0, and that must be 0."""
        ca = casadi(PURPOSE)
        x = ca.DM(self.mean) + ca.DM(self.scale) * y
        over, balance = conditions(self.grid, x)
        return over, [*balance, ca.sum1(cut_column(self.grid, x).load) - p[0]]


@dataclass(frozen=True, eq=False)
class OperatingLimits(Constraint):
    """States (n, 2, d), the clean operating point and the noise; only the first is constrained.

    `project` moves the operating point to the nearest feasible one with the given demand, where each number counts in
    units of its standard deviation among operating points. `defect` is the root of the summed squares of power
    mismatch, missing demand, overload and violated bounds, in per unit; it needs no solver.
    """

    grid: Grid
    program: NonlinearProgram  # program of standardised states; its parameter is the total demand, (n, 1)
    mean: Tensor  # mean of states, (d,)
    scale: Tensor  # scale of states, (d,)
    demand: Tensor  # total demand that each sample is given, (n,)

    def project(self, x: Tensor) -> Projection:
        """Project the clean points of (n, 2, d), with the outcome of IPOPT for each sample."""
        self._check(x)
        answer = self.program.project((x[:, 0] - self.mean) / self.scale)
        clean = self.mean + self.scale * answer.x
        return Projection(torch.stack([clean, x[:, 1]], dim=1), answer.converged, answer.iterations)

    def defect(self, x: Tensor) -> Tensor:
        """Return the violation of the clean points, (n, 2, d) to (n,)."""
        self._check(x)
        return violations(self.grid, x[:, 0], self.demand).square().sum(dim=1).sqrt()

    def take(self, rows: Tensor) -> OperatingLimits:
        """Return the constraint of some samples, a (k,) index tensor."""
        return replace(self, program=self.program.take(rows), demand=self.demand[rows])

    def _check(self, x: Tensor) -> None:
        check_states(x, "OperatingLimits", (2, len(self.mean)), samples=len(self.demand))


def _limits(grid: Grid, model: Model, demand: Tensor, workers: int) -> OperatingLimits:
    """Return the constraint of samples that are given a total demand, (n,)."""
    stated = StandardConditions(grid, tuple(model.mean.tolist()), tuple(model.scale.tolist()))
    lower, upper = (model.standardise(torch.tensor(bound, dtype=torch.float64)) for bound in (grid.lower, grid.upper))
    program = NonlinearProgram(stated, demand[:, None], workers=workers, bounds=(lower, upper))
    return OperatingLimits(grid, program, model.mean, model.scale, demand)


# ------------------------------------------------------------------ quality and pictures


def cost_gap(grid: Grid, x: Tensor) -> Tensor:
    """Return the cost of states (n, d) above the cheapest for the same loads, as a share, (n,).

    The search for the optimum starts at the state. If the search fails, the gap is 0.
    """
    cut = parts(grid, x)
    best = cheapest(grid, torch.complex(cut.load, cut.load_reactive).numpy(), start=x.numpy())
    assert best.converged is not None
    return torch.where(best.converged, cost(grid, x) / cost(grid, best.x) - 1, 0.0)


def features(grid: Grid, x: Tensor) -> Tensor:
    """Return line loadings and voltages, (n, d) to (n, branches + buses), to compare distributions by.

    Voltages vary by a few hundredths and loadings by tenths, so voltages count ten times.
    """
    return torch.cat([loadings(grid, x), 10 * parts(grid, x).voltage], dim=1)


def judge(x: Tensor, constraint: OperatingLimits) -> dict[str, Tensor]:
    """Return cost gap, largest violation in per unit, and load of the fullest line of final states (n, 2, d)."""
    point = x[:, 0]
    return {
        "cost_gap": cost_gap(constraint.grid, point),
        "violation": violations(constraint.grid, point, constraint.demand).amax(dim=1),
        "fullest_line": loadings(constraint.grid, point).amax(dim=1),
    }


def line_profile(x: Tensor) -> Tensor:
    """Return the number of each line and its load as a share of its rating, (m, 2, d) to (m, lines, 2)."""
    grid = next(grid for case in CASES if (grid := load_grid(case)).dimension == x.shape[-1])
    load = loadings(grid, x[:, 0].double())
    number = torch.arange(1, load.shape[1] + 1, dtype=load.dtype).expand_as(load)
    return torch.stack([number, load], dim=2)


def draw_grid(axes: Any, grid: Grid, x: Tensor) -> Any:
    """Draw an operating point (d,), and return its lines for a colour bar.

    Lines are coloured by load. Circles are loads and squares are generators, by their size.
    """
    from matplotlib.collections import LineCollection

    load, cut = loadings(grid, x[None])[0], parts(grid, x[None])
    ends = [[grid.places[bus] for bus in branch.ends] for branch in grid.branches]
    lines = LineCollection(ends, array=load.numpy(), cmap="viridis_r", clim=(0, 1), linewidths=3, zorder=1)
    axes.add_collection(lines)
    for buses, power, marker, colour in (
        (grid.load_buses, cut.load[0], "o", "#999999"),
        (grid.generator_buses, cut.generation[0], "s", "#D55E00"),
    ):
        sizes = [12 + 300 * max(0.0, float(p)) / float(cut.load.sum()) for p in power]
        x_and_y = zip(*(grid.places[bus] for bus in buses), strict=True)
        axes.scatter(*x_and_y, s=sizes, marker=marker, color=colour, zorder=2, alpha=0.85)
    for bus, place in enumerate(grid.places):
        axes.annotate(str(bus + 1), place, fontsize=7, ha="center", va="center", zorder=3)
    axes.set(xticks=[], yticks=[])
    axes.autoscale()
    axes.margins(0.08)
    return lines


# ------------------------------------------------------------------ the domain


def make(case: str = "case14", n_steps: int = 50, model: str | None = None, workers: int = 1) -> Domain:
    """Return the domain `grid`.

    Args:
        case: The IEEE grid, "case14" or "case30".
        n_steps: The number of Euler steps of the flow, T.
        model: A file of weights from `trimtab train grid`; by default those shipped for the case.
        workers: The number of processes of the projection; 0 is one for each core.
    """
    check_integer(n_steps, "n_steps")
    check_integer(workers, "workers (0 is one for each core)", 0)
    grid = load_grid(check_type(case, str, "case", "give the name of a grid, such as 'case14'"))
    trained = shipped_model(case) if model is None else load_model(Path(model))
    if trained.case != case or len(trained.mean) != grid.dimension:
        raise ValueError(f"{model}: weights for {trained.case}, but the grid is {case}; train for it, or set case")
    sampler = GridFlow(trained, n_steps)

    def distance(a: Tensor, b: Tensor) -> Tensor:
        return ((a - b)[:, 0] / trained.scale).square().mean(dim=1).sqrt()

    def problem(seeds: Iterable[int] | Tensor) -> Problem:
        return Problem(sampler, _limits(grid, trained, given_demand(grid, as_seeds(seeds)), workers), seeds, distance)

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
