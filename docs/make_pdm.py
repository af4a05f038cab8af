"""Write the tables and figures of docs/pdm.md from finished runs of the trajectory sampler.

    trimtab reproduce --only pdm --preset paper --out runs/own
    PUBLIC="--only pdm --seeds 32 --calibration-seeds 64 --checkpoint FILE --circles MAP.json"
    trimtab reproduce $PUBLIC --out runs/all
    trimtab reproduce $PUBLIC --eligible-from 6 --out runs/six
    python docs/make_pdm.py --own runs/own --all runs/all --six runs/six

Each part is replaced only if its run is given.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from _page import HERE, renew

import trimtab as tt
from trimtab.price_file import load_price
from trimtab.record import Rollout
from trimtab.report.style import label_of
from trimtab.report.table import Cell, Table
from trimtab.scale import last_corrections
from trimtab.studies.config import Study, budget_name
from trimtab.studies.rows import read_timing
from trimtab.studies.schedules import KEYS
from trimtab.studies.tasks import made_domain

RUNS = {
    "own": "a run of the shipped model",
    "all": "a run of a public checkpoint with all noise levels eligible",
    "six": "a run of a public checkpoint from noise level 6 on",
}
FIGURES = {
    "nepe": "NEPE against budget",
    "trajectories": "Trajectories under each schedule, collisions in red, with a raster of projections",
}
PROTOTYPE = {  # of the same checkpoint, at B/T = 0.25 on 32 seeds, by another implementation
    "all": {"periodic": "0.525", "adaptive:paper": "0.441"},
    "six": {"periodic": "0.250", "adaptive:paper": "0.420"},
}
Row = list[str | int | Cell]


def by_budget(summary: Mapping[str, Any]) -> Table:
    """NEPE of every schedule at some budgets of the grid."""
    schedules = summary["domains"]["pdm"]["schedules"]
    shown = [b for b in schedules["periodic"] if b in ("0.05", "0.10", "0.25", "0.50", "0.75")]
    rows: list[Row] = []
    for key in schedules:
        if key not in ("terminal", "stepwise"):
            values = [schedules[key][budget]["nepe"] for budget in shown]
            rows.append([label_of(key), *(Cell(value["mean"], value["se"]) for value in values)])
    return Table("nepe", "NEPE by budget", ["Schedule", *(f"B/T = {budget}" for budget in shown)], rows)


def beside(part: str, summary: Mapping[str, Any]) -> list[Table]:
    """What an earlier implementation measured on the same checkpoint, beside this run."""
    if part not in PROTOTYPE:
        return []
    at = budget_name(summary["config"]["table_budget"])
    found = summary["domains"]["pdm"]["schedules"]
    rows: list[Row] = []
    for key, before in PROTOTYPE[part].items():
        value = found[key][at]["nepe"]
        rows.append([label_of(key), Cell(value["mean"], value["se"]), before])
    title = f"NEPE at B/T = {at} beside an earlier prototype on the same checkpoint"
    return [Table("prototype", title, ["Schedule", "here", "prototype, 32 seeds"], rows)]


# ------------------------------------------------------------------ why


def lasting(run: Path, study: Study) -> Table:
    """How long a correction lasts, by noise level: from the calibration rollouts that were corrected at random."""
    record = Rollout.load(run / "work" / "pdm.explored.safetensors")
    sampler = made_domain("pdm", origin=study.origin("pdm")).problem([0]).sampler
    defects, projected = record.defects.double(), record.projected
    steps = torch.arange(record.n_steps)[:, None]
    last = last_corrections(projected)
    gap = torch.where(last > 0, steps + 1 - last, 0)  # updates since the last correction, 0 if there was none
    free = defects[:, : study.calibration_seeds].mean(dim=1)
    rows: list[Row] = []
    for level in sorted({sampler.level(t) for t in range(record.n_steps)}):
        here = torch.tensor([sampler.level(t) == level for t in range(record.n_steps)])
        back: list[Cell] = []
        for low, high in ((1, 1), (4, 6), (16, 24)):
            some = (gap >= low) & (gap <= high) & here[:, None]
            share = (defects * some).sum() / (free[:, None] * some).sum()
            back.append(Cell(float(share) if bool(some.any()) else None))
        sigma = sampler.model.settings.sigmas[level]
        rows.append([level, Cell(sigma), Cell(float(free[here].mean())), *back])
    return Table(
        "lasting",
        "How much of an uncorrected rollout's defect is back after a correction",
        ["level", "noise", "defect, uncorrected", "after 1 update", "after 4 to 6", "after 16 to 24"],
        rows,
        [
            "Calibration rollouts corrected at random times: their mean defect so many updates after the last "
            "correction, over that of uncorrected rollouts at the same updates. Near 1 a correction is lost at once; "
            "near 0 it lasts."
        ],
    )


def spending(run: Path, study: Study, summary: Mapping[str, Any]) -> Table:
    """When the schedules spend their budget: evaluation rollouts at the table's budget once more."""
    seeds = range(study.seeds)
    problem = made_domain("pdm", origin=study.origin("pdm")).problem(seeds)
    T = problem.sampler.n_steps
    rows: list[Row] = []
    for key in summary["domains"]["pdm"]["schedules"]:
        method = KEYS[key].calibration
        if method is None:
            continue
        price = load_price(run / "thresholds" / f"pdm.calibration-{method}.safetensors")
        ran = tt.rollout(problem.sampler, problem.constraint, price.at(study.table_budget), seeds)
        spent = ran.projected.double().cumsum(dim=0) / ran.spent
        by = [spent[round(share * T) - 1] for share in (0.25, 0.5, 0.75, 0.9)]
        rows.append([label_of(key), *(Cell(float(x.mean()), float(x.std() / len(x) ** 0.5)) for x in by)])
    return Table(
        "spending",
        f"Share of the budget spent by then, at B/T = {budget_name(study.table_budget)}",
        ["Schedule", "0.25 T", "0.5 T", "0.75 T", "0.9 T"],
        rows,
        ["Mean ± standard error over the evaluation seeds. Even spacing has spent 0.25, 0.5, 0.75 and 0.9."],
    )


# ------------------------------------------------------------------ the page


def said_of(run: Path, summary: Mapping[str, Any]) -> str:
    """What was run, and what it took."""
    config, found = summary["config"], summary["domains"]["pdm"]
    settings = config["samplers"].get("pdm", {}).get("settings", {})
    timing = [task for task in read_timing(run) if task.get("rows_defect")]
    look, step = (
        sum(t[f"seconds_{kind}"] for t in timing) / sum(t[f"rows_{kind}"] for t in timing)
        for kind in ("defect", "update")
    )
    return (
        f"Preset `{config['preset']}`: {config['seeds']} evaluation seeds, each with a start and goal of its own, "
        f"{config['calibration_seeds']} calibration seeds, levels from {settings.get('eligible_from', 0)} on, "
        f"T = {found['n_steps']}, {found['failures']} projections failed. The run took "
        f"{summary['seconds'] / 60:.0f} minutes. Looking at a defect took {look / step:.1%} of an update's time "
        f"({1e3 * look:.3f} of {1e3 * step:.2f} ms a sample)."
    )


def content_of(part: str, run: Path) -> str:
    """The tables and figures of a run."""
    summary = json.loads((run / "summary.json").read_text())
    study = Study.from_facts({name: value for name, value in summary["config"].items() if name != "code"})
    made: Sequence[Table] = (by_budget(summary), *beside(part, summary))
    why = (lasting(run, study), spending(run, study, summary))
    stored = [(run / "tables" / f"{name}.md").read_text() for name in ("table2", "quality-pdm", "cost")]
    whole = "\n".join([*(t.markdown() for t in made), *stored, *(t.markdown() for t in why)])
    for name in FIGURES:
        shutil.copyfile(run / "figures" / f"{name}.png", HERE / "images" / f"pdm-{part}-{name}.png")
    pictures = "".join(f"\n![{words}](images/pdm-{part}-{name}.png)\n" for name, words in FIGURES.items())
    return said_of(run, summary) + "\n\n" + whole.replace("## ", "### ") + pictures


def main() -> None:
    """Replace the parts whose runs are given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, words in RUNS.items():
        parser.add_argument(f"--{name}", type=Path, help=words)
    arguments = parser.parse_args()
    for name in RUNS:
        run: Path | None = getattr(arguments, name)
        if run is not None:
            renew("pdm.md", name, content_of(name, run))


if __name__ == "__main__":
    main()
