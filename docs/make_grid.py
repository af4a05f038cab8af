"""Write the tables and figures of docs/results/grid.md: schedules and budgets on the power grid.

    python docs/make_grid.py [--case case14 case30] [--parts distributions measures] [--seeds 32] [--many 64]

Every rollout is kept in the work folder, so a run that was stopped continues. Both cases take some seven minutes on
one core; nearly all of it is IPOPT.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any

import torch
from _page import HERE, renew
from matplotlib.figure import Figure
from torch import Tensor

import trimtab as tt
from trimtab.core.files import load_tensors, save_tensors
from trimtab.core.metrics import nepe
from trimtab.core.noise import Noise, as_seeds
from trimtab.core.record import Rollout
from trimtab.core.schedule import Schedule
from trimtab.loop.kept import name_of
from trimtab_lab.distributions import compare_samples, energy_excess
from trimtab_lab.domains import domain
from trimtab_lab.domains.base import Domain
from trimtab_lab.domains.grid.case import Grid
from trimtab_lab.domains.grid.domain import draw_grid, features
from trimtab_lab.domains.grid.model import given_demand, shipped_model, true_points
from trimtab_lab.domains.grid.power import load_grid, loadings
from trimtab_lab.metrics import MeanError
from trimtab_lab.report.formats import Cell, Table
from trimtab_lab.report.style import figure_style, look_of

BUDGETS = (0.1, 0.25, 0.5)
CALIBRATION_SEED, CALIBRATION_SEEDS, TRUTH_SEED = 1_000_000, 32, 2_000_000
METHODS = {  # method and objective
    "planned": ("planned", "path"),
    "adaptive (paper)": ("paper", "path"),
    "adaptive (dp)": ("dp", "path"),
    "adaptive (dp) for the endpoint": ("dp", "endpoint"),
}
DRAWN = {  # the schedule whose look it has; what is priced for the endpoint is dotted and hollow
    "periodic": "periodic",
    "planned": "planned",
    "adaptive (paper)": "adaptive:paper",
    "adaptive (dp)": "adaptive:dp",
    "adaptive (dp) for the endpoint": "adaptive:dp",
}
MEASURES = {"nepe": ("NEPE", 1.0), "endpoint": ("endpoint distance", 1.0), "cost_gap": ("cost gap, %", 100.0)}
PARTS = ("distributions", "measures")
STEPWISE = ("stepwise", 1.0)
Found = dict[tuple[str, float], dict[str, Tensor]]
Row = list[str | int | Cell]
MANY = (("terminal", 0.0), ("periodic", 0.25), ("stepwise", 1.0))  # their distributions are looked at with more samples


def remembered(made: Domain, work: Path) -> Callable[[Schedule], Rollout]:
    """Calibration rollouts by schedule, each run once and kept: several methods ask for the same ones."""
    seeds = range(CALIBRATION_SEED, CALIBRATION_SEED + CALIBRATION_SEEDS)
    problem = made.problem(seeds)

    def run(schedule: Schedule) -> Rollout:
        path = work / f"calibration-{name_of(schedule)}.safetensors"
        if not path.exists():
            problem.rollout(schedule, closing="free", measure_defects=True).save(path)
        return Rollout.load(path)

    return run


def evaluated(
    made: Domain, work: Path, seeds: int, only: Sequence[tuple[str, float]] | None = None
) -> dict[tuple[str, float], dict[str, Tensor]]:
    """Every schedule at every budget: final states, path error, endpoint distance, the domain's own measures, (n,).

    With `only` these alone, and of them the final states.
    """
    problem = made.problem(range(seeds))
    run = remembered(made, work)
    plans: list[tuple[str, float, Callable[[], Schedule]]] = [
        ("stepwise", 1.0, tt.Stepwise),
        ("terminal", 0.0, tt.Terminal),
    ]
    plans += [("periodic", budget, partial(tt.Periodic, budget)) for budget in BUDGETS]
    prices: dict[str, Any] = {}

    def priced(name: str, budget: float) -> Schedule:
        if name not in prices:
            method, objective = METHODS[name]
            prices[name] = tt.calibrate(
                run, max(BUDGETS), method, objective=objective, distance=made.distance, check=False
            )
        made_of: Schedule = prices[name].at(budget)
        return made_of

    plans += [(name, b, partial(priced, name, b)) for name in METHODS for b in BUDGETS]
    found: dict[tuple[str, float], dict[str, Tensor]] = {}
    for name, budget, schedule in plans:
        if only is not None and (name, budget) not in only:
            continue
        path = work / f"{name.replace(' ', '-')}-{budget:g}-{seeds}.safetensors"
        if not path.exists():
            print(f"{made.settings['case']}: {name} at {budget:g}, {seeds} samples", flush=True)
            record = problem.rollout(schedule(), closing="free", measure_defects=True)
            assert made.quality is not None
            kept = {"final": record.final}
            if only is None:
                kept |= {
                    "path": record.residuals.double().sum(dim=0),
                    "failed": (record.failed.sum(dim=0) + record.closing_failed).double(),
                    "projections": (record.spent + record.closing).double(),
                    **made.quality(record.final, problem.constraint),
                }
            save_tensors(path, "grid rollouts", kept, {"schedule": name, "budget": budget})
        found[name, budget] = load_tensors(path, "grid rollouts")[0]
    if only is not None:
        return found
    reference = found["stepwise", 1.0]["final"]
    for content in found.values():
        content["endpoint"] = made.distance(content["final"], reference)
        content["nepe"] = nepe(content["path"], found["stepwise", 1.0]["path"], found["terminal", 0.0]["path"])
    return found


def truth(grid: Grid, work: Path, seeds: int, copies: int = 4, independent: bool = False) -> Tensor:
    """True operating points, (copies n, d), with the demands that the samples were asked for, or with others."""
    path = work / f"{'independent' if independent else 'truth'}-{seeds}.safetensors"
    if not path.exists():
        own = range(TRUTH_SEED, TRUTH_SEED + copies * seeds)
        demand = given_demand(grid, own) if independent else given_demand(grid, range(seeds)).repeat(copies)
        save_tensors(path, "true points", {"points": true_points(grid, own, demand)}, {})
    return load_tensors(path, "true points")[0]["points"]


def mean(values: Tensor, scale: float = 1.0) -> Cell:
    """Mean and standard error."""
    good = scale * values[values.isfinite()]
    return Cell(float(good.mean()), float(good.std() / len(good) ** 0.5))


def table_of(case: str, found: dict[tuple[str, float], dict[str, Tensor]], real: Tensor) -> Table:
    """All measures of all schedules."""
    grid = load_grid(case)
    rows: list[list[str | int | Cell]] = []
    for (name, budget), content in found.items():
        near = compare_samples(
            content["final"][:, 0], real, embed=lambda x: features(grid, x), shift=0.0, called="true points"
        )
        rows.append(
            [
                name,
                f"{budget:g}",
                mean(content["nepe"]),
                mean(content["endpoint"]),
                mean(content["cost_gap"], 100),
                Cell(near.value),
                Cell(near.p),
                f"{float(content['violation'].max()):.0e}",
                int(content["failed"].sum()),
            ]
        )
    n = len(found["stepwise", 1.0]["path"])
    notes = [
        f"{n} samples, each with a total demand of its own; mean ± standard error. Endpoint: distance to the paired "
        "stepwise sample, root mean square in standard deviations. Cost gap: generation cost over the cheapest for the "
        f"same loads. Distribution: energy distance of line loadings and voltages to {len(real)} true operating points "
        "with the same demands; p is the share of relabellings at least as far apart (on the safe side, as demands are "
        "shared). Violation: the largest of any "
        "sample, per unit. The budget counts projections before the closing one.",
        f"Noise floor of the energy distance with so many samples: {near.floor:.4f} (95%: {near.floor_high:.4f}).",
    ]
    columns = ["Schedule", "B/T", "NEPE", "endpoint", "cost gap %", "distribution", "p", "violation", "failed"]
    return Table("grid", f"{case}: all measures", columns, rows, notes)


def kinds_of(case: str, real: Tensor) -> dict[str, Callable[[Tensor], Tensor]]:
    """By name, from states (n, d) to what is compared of them."""
    grid, model = load_grid(case), shipped_model(case)
    seen = features(grid, real)
    unlike = seen.std(dim=0) > 1e-4  # per unit: a voltage that is held has no spread to be measured by
    return {
        "loadings and voltages": lambda x: features(grid, x),
        "loadings": lambda x: loadings(grid, x),
        "loadings and voltages, each in its standard deviation": (
            lambda x: features(grid, x)[:, unlike] / seen.std(dim=0)[unlike]
        ),
        "the whole state": model.standardise,
    }


def distribution(case: str, found: Found, real: Tensor) -> Table:
    """How far the final samples are from true operating points, in four kinds of numbers."""
    kinds = kinds_of(case, real)
    rows: list[Row] = []
    floors: dict[str, str] = {}
    for (name, budget), content in found.items():
        row: Row = [name, f"{budget:g}"]
        for kind, embed in kinds.items():
            near = compare_samples(content["final"][:, 0], real, embed=embed, shift=0.0, called="true points")
            row += [Cell(near.value), Cell(near.p)]
            floors[kind] = f"{kind} {near.floor:.4f} (95%: {near.floor_high:.4f})"
        rows.append(row)
    columns = ["Schedule", "B/T", *(text for kind in kinds for text in (kind, "p"))]
    notes = [
        f"Energy distance, a root, of {len(found[STEPWISE]['final'])} samples to {len(real)} true operating points "
        "with demands of their own, drawn alike. The whole state: all its numbers in units of the model's standard "
        "deviations.",
        f"Noise floors with so many samples: {'; '.join(floors.values())}.",
    ]
    return Table("distribution", f"{case}: final samples as distributions", columns, rows, notes)


def excess(case: str, found: Found, real: Tensor) -> Table:
    """The same without what noise adds: unbiased squares, and how much farther than stepwise samples."""
    rows: list[Row] = []
    for (name, budget), content in found.items():
        row: Row = [name, f"{budget:g}"]
        for embed in kinds_of(case, real).values():
            samples, stepwise = (embed(one["final"][:, 0]) for one in (content, found[STEPWISE]))
            truth = embed(real)
            row.append(_cell(energy_excess(samples, truth)))
            row.append(_cell(energy_excess(samples, truth, less=stepwise)))
        rows.append(row)
    columns = ["Schedule", "B/T"]
    for kind in kinds_of(case, real):
        columns += [kind, "less stepwise's"]
    notes = [
        "Squared energy distance, unbiased: it is 0 on average where nothing differs, and may fall below. ± is the "
        "standard error by leaving out one sample at a time; that of a difference is of paired samples."
    ]
    return Table("excess", f"{case}: the same without the noise floor", columns, rows, notes)


def _cell(found: MeanError) -> Cell:
    return Cell(found.mean, found.se)


def times(made: Domain, n: int = 32) -> Table:
    """Processor time of the parts of a step, per sample."""
    problem = made.problem(range(n))
    noise = Noise(as_seeds(range(n)))
    x = problem.sampler.start(noise)
    rows: list[list[str | int | Cell]] = []
    middle = problem.sampler.n_steps // 2
    problem.constraint.project(x)  # build the program
    for name, part in (
        ("model step", lambda: problem.sampler.step(x, middle, noise)),
        ("defect", lambda: problem.constraint.defect(x)),
        ("projection", lambda: problem.constraint.project(problem.sampler.step(x, middle, noise))),
    ):
        part()
        repeats = 1 if name == "projection" else 20
        begin = process_time()
        for _ in range(repeats):
            part()
        rows.append([name, Cell(1e3 * (process_time() - begin) / (repeats * n))])
    return Table("times", f"{made.settings['case']}: processor milliseconds per sample", ["", "ms"], rows)


def draw_points(case: str, found: dict[tuple[str, float], dict[str, Tensor]], real: Tensor) -> str:
    """One sample's operating point: a true one with its demand, terminal, a quarter of the projections, stepwise."""
    grid = load_grid(case)
    shown = [
        ("a true point", real[0]),
        ("terminal", found["terminal", 0.0]["final"][0, 0]),
        ("adaptive (dp), B/T = 0.25", found["adaptive (dp)", 0.25]["final"][0, 0]),
        ("stepwise", found["stepwise", 1.0]["final"][0, 0]),
    ]
    figure = Figure(figsize=(11, 3.1), layout="constrained")
    axes = figure.subplots(1, len(shown))
    for axis, (name, point) in zip(axes, shown, strict=True):
        lines = draw_grid(axis, grid, point)
        axis.set_title(name, fontsize=9)
    figure.colorbar(lines, ax=axes, label="share of the line's rating", shrink=0.8)
    figure.savefig(HERE / "images" / f"grid-{case}.png", dpi=110)
    words = f"Operating points of {case}: lines by load, circles are loads, squares generation"
    return f"![{words}](../images/grid-{case}.png)\n"


def draw_measures(case: str, found: dict[tuple[str, float], dict[str, Cell]]) -> str:
    """NEPE, endpoint and cost gap against budget."""
    with figure_style() as plt:
        figure, axes = plt.subplots(1, 3, figsize=(10, 3), layout="constrained")
        for axis, (key, (label, _)) in zip(axes, MEASURES.items(), strict=True):
            for name, schedule in DRAWN.items():
                ends = [(0.0, "terminal"), *((b, name) for b in BUDGETS), (1.0, "stepwise")]
                cells = [found[which, b][key] for b, which in ends]
                look = look_of(schedule)
                hollow = {"ls": ":", "markerfacecolor": "white"} if name.endswith("endpoint") else {"ls": look.dashes}
                axis.errorbar(
                    [b for b, _ in ends],
                    [cell.mean for cell in cells],
                    [cell.se for cell in cells],
                    color=look.colour,
                    label=name,
                    marker=look.marker,
                    capsize=2,
                    **hollow,
                )
            axis.set(xlabel="B/T", ylabel=label)
            axis.set_ylim(bottom=0)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=len(DRAWN))
        figure.savefig(HERE / "images" / f"grid-{case}-measures.png", dpi=110)
    return f"![NEPE, endpoint distance and cost gap against budget on {case}](../images/grid-{case}-measures.png)\n"


def main() -> None:
    """Replace the parts of the page that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", nargs="+", default=["case14", "case30"])
    parser.add_argument("--seeds", type=int, default=32, help="samples")
    parser.add_argument("--many", type=int, default=64, help="samples whose distribution is looked at closely")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--work", type=Path, default=Path("runs") / "grid-docs")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for case in arguments.case:
        work = arguments.work / case
        work.mkdir(parents=True, exist_ok=True)
        made, grid = domain("grid", case=case), load_grid(case)
        if "distributions" in arguments.parts:
            more = evaluated(made, work, arguments.many, MANY)
            real = truth(grid, work, arguments.many, independent=True)
            tables = [distribution(case, more, real), excess(case, more, real)]
            renew("results/grid.md", f"{case} distributions", _text(tables))
        if "measures" in arguments.parts:
            found, real = evaluated(made, work, arguments.seeds), truth(grid, work, arguments.seeds)
            facts = json.dumps(_model_facts(case))
            cells = {
                which: {key: mean(content[key], scale) for key, (_, scale) in MEASURES.items()}
                for which, content in found.items()
            }
            pictures = draw_points(case, found, real) + "\n" + draw_measures(case, cells)
            text = _text([table_of(case, found, real), times(made)])
            renew("results/grid.md", case, f"{text}\n{pictures}\n<!-- the model: {facts} -->")


def _text(tables: Sequence[Table]) -> str:
    return "\n".join(table.markdown().replace("## ", "### ") for table in tables)


def _model_facts(case: str) -> dict[str, Any]:
    return {name: value for name, value in shipped_model(case).facts.items() if name != "version"}


if __name__ == "__main__":
    main()
