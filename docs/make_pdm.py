"""Write the tables and figures of docs/pdm.md from finished runs of the trajectory sampler.

    trimtab reproduce --only pdm --preset paper --eligible-from 0 --out runs/own
    PUBLIC="--only pdm --seeds 32 --calibration-seeds 64 --checkpoint FILE --circles MAP.json"
    trimtab reproduce $PUBLIC --eligible-from 0 --out runs/all
    trimtab reproduce $PUBLIC --out runs/six
    python docs/make_pdm.py --own runs/own --all runs/all --six runs/six

Each part is replaced only if its run is given. The parts on final trajectories, scores and readings of Table 2 are
written by docs/make_pdm_readings.py.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, NamedTuple

import torch

import trimtab as tt
from _page import HERE, renew
from trimtab.core.budget import corrections
from trimtab.core.noise import as_seeds
from trimtab.core.record import Rollout
from trimtab.core.view import last_corrections
from trimtab.evaluation.report.formats import Cell, Table
from trimtab.evaluation.studies.config import Study, budget_name
from trimtab.evaluation.studies.rows import read_timing
from trimtab.evaluation.studies.schedules import STUDY_SCHEDULES, ScheduleInputs
from trimtab.evaluation.studies.store import read_run
from trimtab.evaluation.studies.tasks import made_domain
from trimtab.prices.price import load
from trimtab.schedules.style import label_of

RUNS = {
    "own": "the shipped model, all levels eligible",
    "all": "a public checkpoint, all levels eligible",
    "six": "a public checkpoint, from noise level 6 on",
}
FIGURES = {
    "nepe": "NEPE against budget",
    "trajectories": "Trajectories under each schedule, collisions in red, with a raster of projections",
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


class Again(NamedTuple):
    """A record, and the processor and wall clock seconds it took."""

    record: Rollout
    seconds: float
    clock: float


def run_again(run: Path, study: Study, summary: Mapping[str, Any]) -> dict[str, Again]:
    """The evaluation rollouts at the table's budget once more, in this process alone."""
    seeds = range(study.seeds)
    problem = made_domain("pdm", origin=study.origin("pdm")).problem(seeds)
    found = {}
    for key in summary["domains"]["pdm"]["schedules"]:
        entry = STUDY_SCHEDULES[key]
        method = entry.calibration
        price = None if method is None else load(run / "thresholds" / f"pdm.calibration-{method}.safetensors")
        budget = (
            STUDY_SCHEDULES[key].only_budget if STUDY_SCHEDULES[key].only_budget is not None else study.table_budget
        )
        count = int(corrections(budget, problem.sampler.n_steps))
        schedule = STUDY_SCHEDULES[key].build(
            ScheduleInputs(problem, as_seeds(seeds), price), torch.full((len(seeds),), count)
        )
        begin, clock = process_time(), perf_counter()
        record = tt.rollout(problem.sampler, problem.constraint, schedule, seeds)
        found[key] = Again(record, process_time() - begin, perf_counter() - clock)
    return found


def spending(again: Mapping[str, Again], at: str) -> Table:
    """When the schedules spend their budget."""
    rows: list[Row] = []
    for key, (record, _, _) in again.items():
        if STUDY_SCHEDULES[key].calibration is not None:
            spent = record.projected.double().cumsum(dim=0) / record.spent
            by = [spent[round(share * record.n_steps) - 1] for share in (0.25, 0.5, 0.75, 0.9)]
            rows.append([label_of(key), *(Cell(float(x.mean()), float(x.std() / len(x) ** 0.5)) for x in by)])
    return Table(
        "spending",
        f"Share of the budget spent by then, at B/T = {at}",
        ["Schedule", "0.25 T", "0.5 T", "0.75 T", "0.9 T"],
        rows,
        ["Mean ± standard error over the evaluation seeds. Even spacing has spent 0.25, 0.5, 0.75 and 0.9."],
    )


def cost(again: Mapping[str, Again]) -> Table:
    """Projections and processor seconds of a rollout, by part."""
    slowest = again["stepwise"].seconds
    rows: list[Row] = []
    for key, (record, seconds, clock) in again.items():
        n = len(record.closing)
        made = float((record.spent + record.closing).double().mean())
        parts = [seconds * record.seconds[part] / clock / n for part in ("update", "defect", "projection")]
        per_call = 1e3 * parts[2] / made
        rows.append([label_of(key), *map(Cell, (made, *parts, seconds / n, per_call, slowest / seconds))])
    return Table(
        "cost",
        "What a rollout costs",
        [
            "Schedule",
            "projections",
            "s update",
            "s defect",
            "s projection",
            "s in all",
            "ms per projection",
            "speed-up",
        ],
        rows,
        [
            f"Processor seconds of one core, {n} rollouts in a batch, a rollout's share of it. The "
            "speed-up is against stepwise correction. Projections include the closing one; levels that are not "
            "eligible are part of the whole alone."
        ],
    )


# ------------------------------------------------------------------ the page


def said_of(run: Path, summary: Mapping[str, Any]) -> str:
    """What was run, and what it took."""
    seconds = read_run(run)["seconds"]
    config, found = summary["config"], summary["domains"]["pdm"]
    settings = config["samplers"].get("pdm", {}).get("settings", {})
    timing = [task for task in read_timing(run) if task.get("rows_defect")]
    look, step = (
        sum(t[f"seconds_{kind}"] for t in timing) / sum(t[f"rows_{kind}"] for t in timing)
        for kind in ("defect", "update")
    )
    return (
        f"Preset `{config['preset']}`: {config['seeds']} evaluation seeds, each with a start and goal of its own, "
        f"{config['calibration_seeds']} calibration seeds, levels from {settings.get('eligible_from', 6)} on, "
        f"T = {found['n_steps']}, {found['failures']} projections failed. The run took "
        f"{seconds / 60:.0f} minutes. Looking at a defect took {look / step:.1%} of an update's time "
        f"({1e3 * look:.3f} of {1e3 * step:.2f} ms per sample)."
    )


def content_of(part: str, run: Path) -> str:
    """The tables and figures of a run."""
    summary = json.loads((run / "summary.json").read_text())
    study = Study.from_facts({name: value for name, value in summary["config"].items() if name != "code"})
    made: Sequence[Table] = (by_budget(summary),)
    again = run_again(run, study, summary)
    why = (cost(again), lasting(run, study), spending(again, budget_name(study.table_budget)))
    stored = [(run / "tables" / f"{name}.md").read_text() for name in ("table2", "quality-pdm")]
    whole = "\n".join([*(t.markdown() for t in made), *stored, *(t.markdown() for t in why)])
    for name in FIGURES:
        shutil.copyfile(run / "figures" / f"{name}.png", HERE / "images" / f"pdm-{part}-{name}.png")
    pictures = "".join(f"\n![{words}: {RUNS[part]}](images/pdm-{part}-{name}.png)\n" for name, words in FIGURES.items())
    return said_of(run, summary) + "\n\n" + whole.replace("## ", "### ") + pictures


def main() -> None:
    """Replace the parts whose runs are given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, words in RUNS.items():
        parser.add_argument(f"--{name}", type=Path, help=f"a run of {words}")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name in RUNS:
        run: Path | None = getattr(arguments, name)
        if run is not None:
            renew("pdm.md", name, content_of(name, run))


if __name__ == "__main__":
    main()
