"""Measure how much to correct at equal cost in iterations, and write the tables of docs/results/effort.md.

    python docs/make_effort.py                      what is not in docs/results/effort.json yet, then the page
    python docs/make_effort.py --cells linkage      some of it
    python docs/make_effort.py --again              everything again

The cost of a run is the iterations of its solver, those of the closing projection included; full projection at every
step is 1. Everything that has to be fitted (prices, budgets of whole projections, tau, the place of a window) is fitted
to a cost on seeds from 1,100,000 on and measured on seeds from 700,000 on. What a run then cost stands beside its
error. Finished cells are kept in docs/results/effort.json.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from _page import HERE, renew
from torch import Tensor

import trimtab as tt
from trimtab.core import statistics
from trimtab.core.files import write_atomically
from trimtab.schedules import Inexact, windows
from trimtab_lab.domains import Domain
from trimtab_lab.report.style import figure_style, look_of

CALIBRATION, EVALUATION = 1_100_000, 700_000
STORE = HERE / "results" / "effort.json"
CELLS: dict[str, tuple[str, dict[str, Any], int, int]] = {  # calibration and evaluation seeds
    "linkage": ("linkage", {"kappa": 0.3}, 32, 64),
    "linkage, calm": ("linkage", {"kappa": 0.1, "bursts": 0}, 32, 64),
    "reaction-flow": ("reaction-flow", {"n_steps": 50}, 16, 32),
}
PLACES = (0.0, 0.5, 1.0)  # of a window, from the earliest to the latest
Make = Callable[[int], tt.Schedule]  # of a budget
Schedules = dict[str, tuple[tt.Schedule, dict[str, Any]]]


@dataclass(frozen=True)
class Cell:
    """A domain, its calibration problem, and full projection on it."""

    domain: Domain
    calibrating: tt.Problem
    measuring: tt.Problem
    full: tt.Rollout
    terminal: tt.Rollout
    cost: float  # iterations per sample of full projection, on the calibration seeds

    @property
    def n_steps(self) -> int:
        """T."""
        return self.calibrating.n_steps


def cell_of(name: str) -> Cell:
    """Run the ends of a cell."""
    kind, settings, few, many = CELLS[name]
    domain = tt.domain(kind, **settings)
    calibrating = domain.problem(range(CALIBRATION, CALIBRATION + few))
    measuring = domain.problem(range(EVALUATION, EVALUATION + many))
    full, terminal = (measuring.rollout(s, measure_defects=True) for s in (tt.Stepwise(), tt.Terminal()))
    return Cell(domain, calibrating, measuring, full, terminal, iterations(calibrating.rollout(tt.Stepwise())))


def iterations(run: tt.Rollout) -> float:
    """Per sample."""
    return float(run.all_iterations.double().mean())


def fitted(cost_of: Callable[[float], float], tried: list[float]) -> Callable[[float], float]:
    """The argument at which a rising cost is as wanted: read off between those tried."""
    costs = np.maximum.accumulate([cost_of(value) for value in tried])
    return lambda wanted: float(np.interp(wanted, costs, tried))


def schedules_of(cell: Cell) -> list[Schedules]:
    """For each share of the cost, all schedules by name with the options of their rollouts."""
    problem, T = cell.calibrating, cell.n_steps
    wanted = [share * cell.cost for share in SHARES]
    most = max(2, int(wanted[-1]) + 1)
    path = tt.calibrate(problem, 1.0, "dp", objective="path")
    default = tt.calibrate(problem, 1.0)
    repeat = {o: tt.calibrate(problem, most, "dp", unit="iteration", objective=o) for o in ("path", "endpoint")}
    raced = tt.calibrate(problem, most, unit="iteration")
    print(f"  the race in iterations: {raced}", flush=True)
    whole: dict[str, Make] = {
        "whole, evenly": tt.Periodic,
        "whole, dp for path": path.at,
        "whole, default": default.at,
        **{f"window {place}": partial(_window, T, place) for place in PLACES},
    }
    budgets = [float(round(share * T)) for share in (0.03, 0.1, 0.25, 0.45, 0.7)]

    def costing_of(make: Make) -> Callable[[float], float]:
        return fitted(lambda b: iterations(_where_calibrated(problem, make(round(b)))), budgets)

    costing = {name: costing_of(make) for name, make in whole.items()}
    reference = problem.rollout(tt.Stepwise()).final
    each = fitted(lambda k: iterations(problem.rollout(Inexact(k))), [1.0, 1.5, 2.0, 3.0, 5.0])
    least = iterations(problem.rollout(Inexact(1.0)))
    tau = fitted(
        lambda e: iterations(problem.rollout(_one_tau(e), unit="iteration")), [-2.0, -0.5, 0.5, 1.5, 2.5, 3.5, 5.0]
    )
    found = []
    for units in wanted:
        counts = {name: max(1, round(costing[name](units))) for name in whole}
        row: Schedules = {name: (make(counts[name]), {}) for name, make in whole.items() if "window" not in name}
        placed = [_window(T, place, counts[f"window {place}"]) for place in PLACES]
        ends = [problem.distance(problem.rollout(window).final, reference).mean() for window in placed]
        row["whole, last steps"] = placed[-1], {}
        row["whole, best window"] = placed[int(torch.stack(ends).argmin())], {}
        row["one iteration, evenly"] = tt.Periodic(min(T, max(1, int(units)))), {"unit": "iteration"}
        if units >= least:  # for less there is no iteration at every step
            row["inexact at every step"] = Inexact(each(units)), {}
        row["one tau"] = _one_tau(tau(units)), {"unit": "iteration"}
        row |= {
            f"repeat for {o}": (price.at(max(price.closing_reserve, int(units))), {}) for o, price in repeat.items()
        }
        row["iterations, default"] = raced.at(max(raced.closing_reserve, int(units))), {}
        found.append(row)
    return found


def _where_calibrated(problem: tt.Problem, schedule: tt.Schedule) -> tt.Rollout:
    """A schedule on the seeds it was calibrated on, where its cost is fitted; nothing is reported of it."""
    return problem.rollout(schedule.decide if schedule.calibration_seeds else schedule)


def _window(n_steps: int, place: float, budget: int) -> tt.Schedule:
    """The stretch of steps that costs so many projections, at a place between the earliest and the latest."""
    found = windows(budget, n_steps)
    return found[round(place * (len(found) - 1))]


def _one_tau(exponent: float) -> Any:
    """Iterate until the defect is below one number, the same at every step."""
    return lambda view: view.defect >= 10.0**-exponent


def measured(cell: Cell, schedule: tt.Schedule, options: dict[str, Any]) -> tuple[dict[str, Any], Tensor]:
    """Return what a schedule costs and gives, and the endpoint distances that pairs are made of, (n,)."""
    run = cell.measuring.rollout(schedule, measure_defects=True, **options)
    on_the_way = run.residuals[:-1].double().sum(dim=0)
    full, terminal = (end.residuals[:-1].double().sum(dim=0) for end in (cell.full, cell.terminal))
    apart = cell.domain.distance(run.final, cell.full.final).double()
    facts = {
        "cost": iterations(run) / iterations(cell.full),
        "NEPE": float((on_the_way - full).mean() / (terminal - full).mean()),
        "mean": float(apart.mean()),
        "median": float(apart.median()),
    }
    return facts, apart


def measure(name: str) -> dict[str, Any]:
    """Return all schedules at all costs; distances are compared with those of whole projections, evenly."""
    cell = cell_of(name)
    rows = []
    for share, schedules in zip(SHARES, schedules_of(cell), strict=True):
        found = {method: measured(cell, schedule, options) for method, (schedule, options) in schedules.items()}
        even = found[EVEN][1]
        for method, (facts, apart) in found.items():
            against = statistics.ratio(apart, even).facts()
            rows.append({"share": share, "method": method, **facts, "against": against})
            print(f"  {share:4.0%} {method:26s} cost {facts['cost']:.2f}", flush=True)
    ends = {"terminal": measured(cell, tt.Terminal(), {})[0]}
    for k, number in enumerate(("one iteration", "two iterations"), start=1):
        ends[f"{number} at every step"] = measured(cell, Inexact(k), {})[0]
    about = {"n": len(cell.measuring), "iterations": iterations(cell.full), "steps": cell.n_steps}
    return about | {"ends": ends, "rows": rows}


SHARES = (0.1, 0.25, 0.5)
EVEN = "whole, evenly"
METHODS = (
    EVEN,
    "whole, last steps",
    "whole, best window",
    "one iteration, evenly",
    "inexact at every step",
    "one tau",
    "whole, dp for path",
    "whole, default",
    "repeat for path",
    "repeat for endpoint",
    "iterations, default",
)
DRAWN = {  # the schedule whose look it has; whole projections are dashed
    "whole, evenly": "periodic",
    "one iteration, evenly": "periodic",
    "whole, default": "raced",
    "iterations, default": "raced",
    "repeat for path": "repeat",
    "one tau": "one tau",
}


def table(cells: dict[str, Any]) -> str:
    """Return errors at equal cost, one table per domain."""
    return "\n\n".join(f"**{name}**, {cell['n']} samples\n\n{_one_table(cell)}" for name, cell in cells.items())


def _one_table(cell: dict[str, Any]) -> str:
    columns = ("cost", "NEPE", "median endpoint", "endpoint against whole, evenly")
    lines = ["| way | " + " | ".join(f"{share:.0%}: {name}" for share in SHARES for name in columns) + " |"]
    lines.append("|---" * (1 + len(SHARES) * len(columns)) + "|")
    found = {(row["share"], row["method"]): row for row in cell["rows"]}
    for method in METHODS:
        texts = []
        for share in SHARES:
            row = found.get((share, method))
            if row is None:
                texts += ["out of reach", "", "", ""]
                continue
            texts += [f"{row['cost']:.1%}", f"{row['NEPE']:.3f}", f"{row['median']:.1e}", _against(row["against"])]
        lines.append(f"| {method} | " + " | ".join(texts) + " |")
    return "\n".join(lines)


def _against(ratio: dict[str, Any]) -> str:
    """Return a ratio of paired means with its 95% interval; bold if that is below 1."""
    if ratio["low"] is None:
        return f"{ratio['mean']:.2f} (undecided)"
    text = f"{ratio['mean']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})"
    return f"**{text}**" if ratio["high"] < 1 else text


def ends_table(cells: dict[str, Any]) -> str:
    """Return what full projection takes, and the simplest ways to take less."""
    ways = ("one iteration at every step", "two iterations at every step", "terminal")
    lines = [
        "| domain | iterations of full projection, per step | "
        + " | ".join(f"{way}: cost, NEPE, endpoint" for way in ways)
        + " |",
        "|---" * (2 + len(ways)) + "|",
    ]
    for name, cell in cells.items():
        ends = [cell["ends"][way] for way in ways]
        shown = [f"{end['cost']:.0%}, {end['NEPE']:.3f}, {end['mean']:.2g}" for end in ends]
        lines.append(f"| {name} | {cell['iterations'] / cell['steps']:.2f} | " + " | ".join(shown) + " |")
    return "\n".join(lines)


def draw(cells: dict[str, Any]) -> None:
    """The median distance of final states against what was spent."""
    with figure_style() as plt:
        figure, axes = plt.subplots(1, len(cells), figsize=(2.7 * len(cells), 3.4), squeeze=False, layout="constrained")
        for axis, (name, cell) in zip(axes[0], cells.items(), strict=True):
            for method, key in DRAWN.items():
                rows = [row for row in cell["rows"] if row["method"] == method]
                look, dashes = look_of(key), "--" if method.startswith("whole") else "-"
                costs, ends = [row["cost"] for row in rows], [row["median"] for row in rows]
                axis.plot(costs, ends, ls=dashes, color=look.colour, marker=look.marker, label=method)
            axis.set(title=name, xlabel="iterations, share of full", yscale="log")
        axes[0][0].set_ylabel("median endpoint distance")
        handles, labels = axes[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
        figure.savefig(HERE / "images" / "effort.svg", metadata={"Date": None})


def main() -> None:
    """Measure what is missing, and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", nargs="+", choices=CELLS, default=list(CELLS))
    parser.add_argument("--again", action="store_true", help="measure again what is in docs/results/effort.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    store = json.loads(STORE.read_text(encoding="utf-8")) if STORE.exists() else {}
    for name in arguments.cells:
        if name in store and not arguments.again:
            continue
        print(name, flush=True)
        began = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of prices that even spacing beats: the table shows it
            store[name] = measure(name)
        store[name]["seconds"] = round(time.process_time() - began, 1)
        write_atomically(STORE, f"{json.dumps(store, indent=1)}\n".encode())
    cells = {name: store[name] for name in CELLS if name in store}
    renew("results/effort.md", "costs", table(cells))
    renew("results/effort.md", "ends", ends_table(cells))
    draw(cells)


if __name__ == "__main__":
    main()
