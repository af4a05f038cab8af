"""Measure how much to correct at equal cost in iterations, and write the tables of docs/results/effort.md.

    python docs/make_effort.py                      what is not in docs/results/effort.json yet, then the page
    python docs/make_effort.py --cells linkage      some of it
    python docs/make_effort.py --anew               everything again

The cost of a run is the iterations of its solver, those of the closing projection included; full projection at every
step is 1. Everything that has to be fitted (prices, budgets of whole projections, tau, the place of a window, values of
rules that know no budget) is fitted to a cost on 64 seeds from 1,100,000 on and measured on 256 seeds from 700,000 on;
for domains with a trained model these are 16 and 32. What a run then cost stands beside its error. Seconds are measured
apart. Finished cells are kept in docs/results/effort.json.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from _page import HERE, renew
from _quality_page import RULED
from torch import Tensor

import trimtab as tt
from trimtab.core.files import write_atomically
from trimtab.core.metrics import summary
from trimtab.evaluation.domains import Domain
from trimtab.evaluation.studies.rules import find_rule
from trimtab.schedules import Geometric, Inexact, RandomRamp, windows
from trimtab.schedules.style import figure_style, look_of

CALIBRATION, EVALUATION = 1_100_000, 700_000
STORE = HERE / "results" / "effort.json"
CELLS: dict[str, tuple[str, dict[str, Any], int, int]] = {  # calibration and evaluation seeds
    "linkage": ("linkage", {"kappa": 0.3}, 64, 256),
    "linkage, calm": ("linkage", {"kappa": 0.1, "bursts": 0}, 64, 256),
    "linkage, 1e-3": ("linkage", {"kappa": 0.3, "tolerance": 1e-3}, 64, 256),
    "reaction-flow": ("reaction-flow", {}, 16, 32),
    "pdm": ("pdm", {}, 16, 32),
}
ENDS_ONLY = ("pdm",)  # most of its states are feasible and take no iteration: there is nothing to share out
PLACES = (0.0, 1 / 3, 2 / 3, 1.0)  # of a window, from the earliest to the latest
Make = Callable[[int, int], tt.Schedule]  # of a budget and a number of samples
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
        "whole, evenly": lambda b, n: tt.Periodic(b),
        "whole, dp for path": lambda b, n: path.at(b),
        "whole, default": lambda b, n: default.at(b),
        "whole, geometric": lambda b, n: Geometric(b),
        "whole, random ramp": lambda b, n: RandomRamp(b),
        **{f"window {place}": lambda b, n, place=place: _window(b, T, place) for place in PLACES},
        **{f"whole, {name}": _by_rule(cell, key) for name, key in RULED.items()},
    }
    budgets = [float(round(share * T)) for share in (0.02, 0.06, 0.12, 0.25, 0.4, 0.6, 0.8)]
    costing = {
        name: fitted(
            lambda b, make=make: iterations(_where_calibrated(problem, make(round(b), len(problem)))),  # type: ignore[misc]
            budgets,
        )
        for name, make in whole.items()
    }
    reference = problem.rollout(tt.Stepwise()).final
    each = fitted(lambda k: iterations(problem.rollout(Inexact(k))), [1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 9.0])
    least = iterations(problem.rollout(Inexact(1.0)))
    tau = fitted(
        lambda e: iterations(problem.rollout(_one_tau(e), unit="iteration")), [-2.0, *(k / 2 for k in range(-1, 12))]
    )
    found = []
    for units in wanted:
        counts = {name: max(1, round(costing[name](units))) for name in whole}
        n = len(cell.measuring)
        row: Schedules = {name: (make(counts[name], n), {}) for name, make in whole.items() if "window" not in name}
        placed = [_window(counts[f"window {place}"], T, place) for place in PLACES]
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
    return problem.rollout((lambda view: schedule.decide(view)) if schedule.calibration_seeds else schedule)


def _window(budget: int, n_steps: int, place: float) -> tt.Schedule:
    """The stretch of steps that costs so many projections, at a place between the earliest and the latest."""
    found = windows(budget, n_steps)
    return found[round(place * (len(found) - 1))]


def _by_rule(cell: Cell, key: str) -> Make:
    """A rule that knows no budget, at the value where it spends one on average."""
    rule = find_rule(key, cell.domain.problem, cell.calibrating.seeds, "free")
    return lambda b, n: rule.at(torch.full((n,), b))


def _one_tau(exponent: float) -> Any:
    """Iterate until the defect is below one number, the same at every step."""
    return lambda view: view.defect >= 10.0**-exponent


def measured(cell: Cell, schedule: tt.Schedule, options: dict[str, Any]) -> dict[str, Any]:
    """What a schedule costs and gives, means with their standard errors."""
    run = cell.measuring.rollout(schedule, measure_defects=True, **options)
    on_the_way = run.residuals[:-1].double().sum(dim=0)
    full, terminal = (end.residuals[:-1].double().sum(dim=0) for end in (cell.full, cell.terminal))
    apart = cell.domain.distance(run.final, cell.full.final).double()
    values: dict[str, Tensor] = {
        "NEPE": (on_the_way - full) / (terminal - full).mean(),
        "endpoint": apart,
    }
    if cell.domain.quality is not None:
        values |= {k: v.double() for k, v in cell.domain.quality(run.final, cell.measuring.constraint).items()}
    parts = {name: summary(value) for name, value in values.items()}
    return {
        "cost": iterations(run) / iterations(cell.full),
        "median": float(apart.median()),
        **{name: [part.mean, part.se] for name, part in parts.items()},
    }


def timed(cell: Cell) -> list[dict[str, Any]]:
    """What a run spent in its solver, by its own record, as a share of full projection, beside its iterations."""
    ways: Schedules = {
        "full projection": (tt.Stepwise(), {}),
        "whole, evenly, 50% of the steps": (tt.Periodic(0.5), {}),
        "whole, evenly, 25% of the steps": (tt.Periodic(0.25), {}),
        "two iterations at every step": (Inexact(2), {}),
        "one iteration at every step": (Inexact(1), {}),
        "one iteration, evenly, 25% of the steps": (tt.Periodic(0.25), {"unit": "iteration"}),
        "until below one tau of 0.01": (_one_tau(2.0), {"unit": "iteration"}),
    }
    rows = []
    for way, (schedule, options) in ways.items():
        runs = [cell.measuring.rollout(schedule, measure_defects=True, **options) for _ in range(3)]
        seconds = min(run.seconds["projection"] for run in runs)  # the least is disturbed least
        rows.append({"way": way, "cost": iterations(runs[0]) / iterations(cell.full), "seconds": seconds})
    return [row | {"seconds": row["seconds"] / rows[0]["seconds"]} for row in rows]


def measure(name: str) -> dict[str, Any]:
    """All schedules at all costs."""
    cell = cell_of(name)
    rows = []
    for share, schedules in zip(SHARES, () if name in ENDS_ONLY else schedules_of(cell), strict=name not in ENDS_ONLY):
        for method, (schedule, options) in schedules.items():
            rows.append({"share": share, "method": method, **measured(cell, schedule, options)})
            print(f"  {share:4.0%} {method:26s} cost {rows[-1]['cost']:.2f}", flush=True)
    ends = {"full": measured(cell, tt.Stepwise(), {}), "terminal": measured(cell, tt.Terminal(), {})}
    for k, number in enumerate(("one iteration", "two iterations"), start=1):
        ends[f"{number} at every step"] = measured(cell, Inexact(k), {})
    return {"iterations": iterations(cell.full), "steps": cell.n_steps, "ends": ends, "rows": rows}


SHARES = (0.1, 0.25, 0.5)
BY_PRICE = (
    "whole, dp for path",
    "whole, default",
    "repeat for path",
    "repeat for endpoint",
    "iterations, default",
)
BASELINES = (
    "whole, evenly",
    "whole, last steps",
    "whole, best window",
    "whole, geometric",
    "whole, random ramp",
    "whole, accumulated defect",
    "whole, event with a gap",
    "whole, above noise",
    "whole, until below",
    "one iteration, evenly",
    "inexact at every step",
    "one tau",
)
METHODS = (*BASELINES, *BY_PRICE)
DRAWN = {  # the schedule whose look it has; whole projections are dashed
    "whole, evenly": "periodic",
    "one iteration, evenly": "periodic",
    "whole, default": "raced",
    "iterations, default": "raced",
    "repeat for path": "repeat",
    "one tau": "one tau",
}
Row = dict[str, Any]
MEASURES: dict[str, tuple[Callable[[Row], float], Callable[[Row], str]]] = {
    "NEPE": (lambda row: row["NEPE"][0], lambda row: f"{row['NEPE'][0]:.3f}"),
    "median endpoint": (lambda row: row["median"], lambda row: f"{row['median']:.1e}"),
    "mean endpoint": (
        lambda row: row["endpoint"][0],
        lambda row: f"{row['endpoint'][0]:.2g} ± {row['endpoint'][1]:.1g}",
    ),
}


def table(cells: dict[str, Any]) -> str:
    """Errors at equal cost, one table per domain."""
    shown = {name: cell for name, cell in cells.items() if cell["rows"]}
    return "\n\n".join(f"**{name}**\n\n{_one_table(cell)}" for name, cell in shown.items())


def _one_table(cell: dict[str, Any]) -> str:
    columns = [(share, name) for share in SHARES for name in MEASURES]
    lines = ["| way | " + " | ".join(f"{share:.0%}: {name}" for share, name in columns) + " |"]
    lines.append("|---" * (1 + len(columns)) + "|")
    found = {(row["share"], row["method"]): row for row in cell["rows"]}
    best = {
        (share, name): min(
            (MEASURES[name][0](row) for (s, _), row in found.items() if s == share and not _off(row)), default=None
        )
        for share, name in columns
    }
    for method in METHODS:
        texts = []
        for share, name in columns:
            row = found.get((share, method))
            if row is None:
                texts.append("out of reach")
                continue
            value, text = MEASURES[name]
            shown = f"**{text(row)}**" if not _off(row) and value(row) == best[share, name] else text(row)
            first = name == next(iter(MEASURES))
            texts.append(f"{shown} ({row['cost']:.0%})" if first and _off(row) else shown)
        lines.append(f"| {method} | " + " | ".join(texts) + " |")
    return "\n".join(lines)


def _off(row: Row) -> bool:
    """Return whether a run cost more than 15% more or less than it should; it is then in brackets, and never bold."""
    return bool(abs(row["cost"] - row["share"]) > 0.15 * row["share"])


def ends_table(cells: dict[str, Any]) -> str:
    """What full projection takes, and the simplest ways to take less."""
    lines = [
        "| domain | iterations of full projection, per step | one iteration at every step: cost, NEPE, "
        "endpoint | two iterations at every step | at the end alone: NEPE, endpoint |",
        "|---|---|---|---|---|",
    ]
    for name, cell in cells.items():
        each = [cell["ends"].get(f"{number} at every step") for number in ("one iteration", "two iterations")]
        shown = [
            f"{end['cost']:.0%}, {end['NEPE'][0]:.3f}, {end['endpoint'][0]:.2g}" if end else "not measured"
            for end in each
        ]
        end = cell["ends"]["terminal"]
        shown.append(f"{end['NEPE'][0]:.3f}, {end['endpoint'][0]:.2g}")
        lines.append(f"| {name} | {cell['iterations'] / cell['steps']:.2f} | " + " | ".join(shown) + " |")
    judged = {name: cell["ends"] for name, cell in cells.items() if "length" in cell["ends"]["full"]}
    for name, ends in judged.items():
        told = [f"{end} {row['length'][0]:.3f} ± {row['length'][1]:.3f}" for end, row in ends.items()]
        lines += ["", f"Length of the final trajectories of {name}: {', '.join(told)}."]
    return "\n".join(lines)


def seconds_table(cells: dict[str, Any]) -> str:
    """Iterations and seconds side by side, as shares of those of full projection."""
    timed_ones = {name: cell["timing"] for name, cell in cells.items() if "timing" in cell}
    ways = [row["way"] for row in next(iter(timed_ones.values()))]
    lines = ["| domain | " + " | ".join(ways) + " |", "|---|" + "---|" * len(ways)]
    for name, rows in timed_ones.items():
        shown = [f"{row['cost']:.0%} / {row['seconds']:.0%}" for row in rows]
        lines.append(f"| {name} | " + " | ".join(shown) + " |")
    return "\n".join(lines)


def draw(cells: dict[str, Any]) -> None:
    """The median distance of final states against what was spent."""
    cells = {name: cell for name, cell in cells.items() if cell["rows"]}
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
    parser.add_argument("--anew", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    store = json.loads(STORE.read_text(encoding="utf-8")) if STORE.exists() else {}
    for name in arguments.cells:
        if name in store and not arguments.anew:
            continue
        print(name, flush=True)
        began = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of prices that even spacing beats: the table shows it
            store[name] = measure(name)
        store[name]["seconds"] = round(time.process_time() - began, 1)
        write_atomically(STORE, f"{json.dumps(store, indent=1)}\n".encode())
    for name in arguments.cells:
        if "timing" not in store[name]:
            store[name]["timing"] = timed(cell_of(name))
            write_atomically(STORE, f"{json.dumps(store, indent=1)}\n".encode())
    cells = {name: store[name] for name in CELLS if name in store}
    renew("results/effort.md", "costs", table(cells))
    renew("results/effort.md", "ends", ends_table(cells))
    renew("results/effort.md", "seconds", seconds_table(cells))
    draw(cells)


if __name__ == "__main__":
    main()
