"""Write into docs/results/pdm.md whether the state decides where obstacle maps differ from sample to sample.

    python docs/make_maps.py [--seeds 64]

The trajectories of the shipped model in eight maps: the model knows the 16 circles that all have, and map k has k more
that only the constraint knows. A sample's map is its seed modulo 8. Takes about two minutes.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from typing import Any

import torch
from _page import renew
from torch import Tensor

import trimtab as tt
from trimtab.core.budget import PerBatch
from trimtab.core.constraint import Constraint, Projection
from trimtab.core.metrics import endpoint_distance, path_error
from trimtab.core.noise import as_seeds
from trimtab.schedules import Fixed
from trimtab_lab.domains.base import Problem
from trimtab_lab.domains.pdm.domain import AnnealedLangevin, path_distance
from trimtab_lab.domains.pdm.model import load_model
from trimtab_lab.domains.pdm.planner import extra_circles, shipped_map, start_goal_pairs
from trimtab_lab.obstacles import AvoidObstacles, Obstacles
from trimtab_lab.report.formats import Cell, Table
from trimtab_lab.studies.summary import relative_improvement

MAPS, BUDGET, INNER, CALIBRATION = 8, 0.25, 8, 1_000_000


@dataclass(frozen=True, eq=False)
class ManyMaps(Constraint):
    """Trajectories free of the obstacles of a map of their own."""

    maps: tuple[Obstacles, ...]
    which: Tensor  # (n,), the map of each sample
    starts: Tensor  # (n, 2)
    goals: Tensor  # (n, 2)

    def defect(self, x: Tensor) -> Tensor:
        """Return the penetration summed over segments and obstacles, (n, 4, w) to (n,)."""
        found = x.new_zeros(len(x))
        for rows, avoid in self._by_map():
            found[rows] = avoid.defect(x[rows])
        return found

    def project(self, x: Tensor) -> Projection:
        """Return the nearest free trajectories found, (n, 4, w)."""
        y, residual = x.clone(), x.new_zeros(len(x))
        converged, iterations = torch.zeros(len(x), dtype=torch.bool), torch.zeros(len(x), dtype=torch.int64)
        for rows, avoid in self._by_map():
            y[rows], converged[rows], iterations[rows], residual[rows] = avoid.project(x[rows])
        return Projection(y, converged, iterations, residual)

    def take(self, rows: Tensor) -> ManyMaps:
        """Return the constraint of some samples, a (k,) index tensor."""
        return replace(self, which=self.which[rows], starts=self.starts[rows], goals=self.goals[rows])

    def _by_map(self) -> list[tuple[Tensor, AvoidObstacles]]:
        parts = ((k, (self.which == k).nonzero().squeeze(1)) for k in self.which.unique().tolist())
        return [(rows, AvoidObstacles(self.maps[k], self.starts[rows], self.goals[rows])) for k, rows in parts]


def problem(seeds: range, first_level: int) -> Problem:
    """Return the samples of some seeds, corrected from a noise level on."""
    chart, each = shipped_map(), as_seeds(seeds)
    charts = [torch.cat([chart, extra_circles(chart, seed=k, count=k)]) if k else chart for k in range(MAPS)]
    which = each % MAPS
    starts, goals = torch.empty(2, len(each), 2)
    for k in range(MAPS):
        rows = (which == k).nonzero().squeeze(1)
        if len(rows):
            starts[rows], goals[rows] = (ends.float() for ends in start_goal_pairs(each[rows], charts[k]))
    sampler = AnnealedLangevin(load_model(), starts, goals, chart, INNER, eligible_from=first_level)  # type: ignore[arg-type]
    maps = tuple(Obstacles(circles.float()) for circles in charts)
    return Problem(sampler, ManyMaps(maps, which, starts, goals), each, path_distance)


def rows_of(first_level: int, seeds: int) -> tuple[list[list[Any]], str]:
    """Return one row for each schedule, and how many samples hold the path error."""
    here, held_out = problem(range(seeds), first_level), problem(range(CALIBRATION, CALIBRATION + seeds), first_level)
    T = here.sampler.n_steps
    prices = {
        method: tt.calibrate(held_out, BUDGET, method, objective="path", closing="free", check=False)
        for method in ("paper", "dp", "planned")
    }
    share = round(BUDGET * T)
    schedules = {
        "terminal": tt.Terminal(),
        "stepwise": tt.Stepwise(),
        "periodic": tt.Periodic(BUDGET),
        "first steps": Fixed(range(share)),
        "last steps": Fixed(range(T - share, T)),
        "planned": prices["planned"].at(BUDGET),
        "adaptive (paper)": prices["paper"].at(BUDGET),
        "adaptive (dp)": prices["dp"].at(BUDGET),
        "adaptive (dp), shared": prices["dp"].at(PerBatch(share)),
    }
    runs = {name: here.rollout(each, closing="free", measure_defects=True) for name, each in schedules.items()}
    ends = [path_error(runs[name]).double() for name in ("stepwise", "terminal")]
    # the mean over samples of the path error, normalised once: half of the samples have next to none of their own
    error = {name: path_error(run).double() - ends[0] for name, run in runs.items()}
    rows: list[list[Any]] = []
    for name, run in runs.items():
        share_left = relative_improvement(error[name], error["terminal"])
        gain = relative_improvement(error[name], error["periodic"])
        end = endpoint_distance(run, runs["stepwise"], path_distance)
        known = name not in ("terminal", "stepwise")
        rows.append(
            [
                f"level {first_level}",
                name,
                Cell(1 - share_left.mean, share_left.se),
                Cell(gain.mean, gain.se, "percent") if known and name != "periodic" else "n/a",
                Cell(float(end.mean()), float(end.std() / len(end) ** 0.5)),
                Cell(float(run.all_iterations.double().mean())),
            ]
        )
    held = error["terminal"].sort(descending=True).values.cumsum(0) / error["terminal"].sum()
    few = f"From level {first_level}, {int((held < 0.95).sum()) + 1} of {seeds} samples hold 95% of it if left alone."
    return rows, few


def main() -> None:
    """Run and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=64)
    seeds = parser.parse_args().seeds
    torch.set_num_threads(1)
    columns = [
        "from",
        "Schedule",
        "excess path error",
        "improvement over periodic",
        "distance to stepwise",
        "iterations",
    ]
    note = (
        f"{seeds} samples in {MAPS} maps, {INNER} updates a level, B/T = {BUDGET}; mean ± standard error. Excess path "
        "error is the mean over samples, 0 for stepwise and 1 for terminal correction. 'Shared' is one budget for all."
    )
    (early, all_levels), (late, from_six) = rows_of(0, seeds), rows_of(6, seeds)
    table = Table("maps", "Maps that differ by sample", columns, early + late, [note, f"{all_levels} {from_six}"])
    renew("results/pdm.md", "maps", table.markdown().replace("## ", "### "))


if __name__ == "__main__":
    main()
