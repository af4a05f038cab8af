"""Write docs/results/pdm.md: final trajectories, path errors under four scores, and readings of Table 2.

    python docs/make_pdm_readings.py --checkpoint FILE --circles MAP.json [--seeds 32] [--work runs/pdm-docs]

Without a public checkpoint only the part of the shipped model is written. Every rollout is kept in the work folder, so
a run that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from _page import renew
from torch import Tensor

import trimtab as tt
from trimtab.core.files import load_tensors, save_tensors
from trimtab.core.metrics import nepe
from trimtab.core.noise import Noise, as_seeds
from trimtab.core.record import Rollout
from trimtab.core.schedule import Schedule
from trimtab.loop.kept import name_of
from trimtab_lab.distributions import compare_samples
from trimtab_lab.domains import domain
from trimtab_lab.domains.pdm.domain import SCORES, path_distance, path_errors, trajectory_quality
from trimtab_lab.domains.pdm.planner import plan
from trimtab_lab.report.formats import Cell, Table

BUDGET = 0.25
CALIBRATION_SEED = 1_000_000
PAPER = {"periodic": Cell(0.486, 0.009), "paper": Cell(0.288, 0.009)}  # Table 2 of the paper
LABELS = {
    "terminal": "terminal",
    "stepwise": "stepwise",
    "periodic": "periodic",
    "paper": "adaptive (paper)",
    "dp": "adaptive (dp)",
    "planned": "planned",
}
SHOWN = ("stepwise", "terminal", "periodic", "paper", "dp", "planned")
TWO = ("stepwise", "terminal", "periodic", "paper")
Row = list[str | int | Cell]
Found = dict[str, dict[str, Tensor]]


@dataclass(frozen=True)
class Reading:
    """One way to read what the paper did.

    Attributes:
        name: Of its files.
        words: In the table.
        settings: Of the domain.
        schedules: That are run; keys of `LABELS`.
        budget: Of the eligible updates.
        scores: Whether path errors are measured under all four scores.
    """

    name: str
    words: str
    settings: dict[str, Any]
    schedules: tuple[str, ...] = SHOWN
    budget: float = BUDGET
    scores: bool = False

    def problem(self, seeds: range) -> Any:
        """For these seeds."""
        return domain("pdm", **self.settings).problem(seeds)


COUNTS = {"eligible_from": 0, "defect": "colliding-segments", "effective_from": 6}
READINGS = (
    Reading("six", "segment depth, from level 6", {"eligible_from": 6}, scores=True),
    Reading("all", "segment depth, all levels", {"eligible_from": 0}, scores=True),
    Reading("A", "A: residual, from level 4", {"eligible_from": 4, "defect": "residual"}, TWO),
    Reading("B", "B, every look counted: colliding segments, all levels, no effect below 6", COUNTS, TWO),
    Reading(
        "B6",
        "B: the same for periodic; the rule looks from level 6 on, where PDM's code projects",
        {"eligible_from": 6, "defect": "colliding-segments"},
        ("stepwise", "terminal", "paper"),
        budget=0.63,  # as many corrections as a quarter of all 250 updates
    ),
)


def evaluated(reading: Reading, seeds: int, calibration: int, work: Path) -> Found:
    """Every schedule of a reading: final states, path errors and projections that took effect, (n, …)."""
    work.mkdir(parents=True, exist_ok=True)
    found: Found = {}
    made: list[Any] = []

    def run(schedule: Schedule) -> Rollout:
        held_out = range(CALIBRATION_SEED, CALIBRATION_SEED + calibration)
        path = work / f"calibration-{calibration}-{name_of(schedule)}.safetensors"
        if not path.exists():
            reading.problem(held_out).rollout(schedule, closing="free", measure_defects=True).save(path)
        return Rollout.load(path)

    def scheduled(name: str) -> Any:
        if name in ("paper", "dp", "planned"):
            return tt.calibrate(run, reading.budget, name, objective="path", check=False).at(reading.budget)
        return {"stepwise": tt.Stepwise(), "terminal": tt.Terminal(), "periodic": tt.Periodic(reading.budget)}[name]

    for name in reading.schedules:
        path = work / f"{name}-{seeds}.safetensors"
        if not path.exists():
            print(f"{work.name}: {name}", flush=True)
            made = made or [reading.problem(range(seeds))]
            problem = made[0]
            record = problem.rollout(scheduled(name), closing="free", keep_states=True, measure_defects=True)
            kept = {"final": record.final, "path": record.residuals.double().sum(dim=0)}
            level = torch.tensor([problem.sampler.level(t) for t in range(problem.n_steps)])
            late = level >= reading.settings.get("effective_from", 0)
            kept["effective"] = record.projected[late].sum(dim=0).double()
            if reading.scores:
                kept |= {f"path {key}": value for key, value in path_errors(record, problem.constraint).items()}
            save_tensors(path, "trajectories", kept, {"schedule": name})
        found[name] = load_tensors(path, "trajectories")[0]
    return found


def mean(values: Tensor) -> Cell:
    """Mean and standard error of what is finite."""
    good = values[values.isfinite()]
    return Cell(float(good.mean()), float(good.std() / len(good) ** 0.5))


def nepe_of(found: Found, name: str, key: str = "path") -> Cell:
    """NEPE of a schedule under a score."""
    return mean(nepe(found[name][key], found["stepwise"][key], found["terminal"][key]))


# ------------------------------------------------------------------ tables


def quality_table(title: str, found: Found, problem: Any, seeds: int) -> Table:
    """Final trajectories in their own right, best first to read; NEPE in the last column."""
    circles = problem.constraint.obstacles.circles
    paths = planned_paths(problem, circles, seeds)
    rows: list[Row] = []
    beside = {"planner": paths, **{name: found[name]["final"] for name in SHOWN}}
    for name, x in beside.items():
        judged = trajectory_quality(x, circles)
        numbers = [mean(judged.length), mean(judged.roughness), mean(judged.jump)]
        if name == "planner":
            rows.append([name, *numbers, "n/a", "n/a", "n/a", "n/a"])
            continue
        near = compare_samples(x, paths, embed=embedded, shift=0.0, called="planned trajectories")
        end = mean(path_distance(x, found["stepwise"]["final"]))
        rows.append([LABELS[name], *numbers, Cell(near.value), Cell(near.p), end, nepe_of(found, name)])
    notes = [
        f"{seeds} seeds, each with a start and goal of its own, B/T = {BUDGET} of the updates from noise level 6 on; "
        "mean ± standard error after the closing projection, so nothing collides. Distribution: energy distance of the "
        "waypoints, as seen from the straight line, to trajectories of our planner for the same starts and goals, and "
        f"the share p of relabellings at least as far apart; its noise floor is {near.floor:.3f} "
        f"(95%: {near.floor_high:.3f}).",
    ]
    columns = ["Schedule", "length", "roughness", "jump", "distribution", "p", "distance to stepwise", "NEPE"]
    return Table("quality", title, columns, rows, notes)


def embedded(x: Tensor) -> Tensor:
    """How far every fourth waypoint is from the straight line, (n, 4, w) or (n, w, 2) to (n, w / 2).

    Samples and plans share starts and goals, which would drown everything else.
    """
    positions = (x[:, :2].transpose(1, 2) if x.shape[1] == 4 else x).double()
    share = torch.linspace(0, 1, positions.shape[1], dtype=torch.float64)[:, None]
    straight = torch.lerp(positions[:, :1], positions[:, -1:], share)
    return (positions - straight)[:, ::4].flatten(1)


def planned_paths(problem: Any, circles: Tensor, seeds: int) -> Tensor:
    """What a planner finds for the same starts and goals, (m, w, 2)."""
    sampler = problem.sampler
    starts, goals = sampler.starts.double(), sampler.goals.double()
    found = plan(Noise(as_seeds(range(500_000, 500_000 + seeds))), starts, goals, circles.double())
    return found.points[found.solved]


def scores_table(name: str, words: str, found: Found) -> Table:
    """NEPE of one run under four scores."""
    rows: list[Row] = [
        [LABELS[key], *(nepe_of(found, key, f"path {which}") for which in SCORES)]
        for key in found
        if key not in ("stepwise", "terminal")
    ]
    note = (
        "Schedules looked at segment depth; only the score that adds up the path error changes. B/T = "
        f"{BUDGET}, mean ± standard error."
    )
    return Table(f"scores-{name}", f"NEPE under four scores, {words}", ["Schedule", *SCORES], rows, [note])


def readings_table(all_found: dict[str, Found], readings: Sequence[Reading], title: str) -> Table:
    """The paper's Table 2 under several readings."""
    rows: list[Row] = [["the paper", PAPER["periodic"], PAPER["paper"], "41%", "n/a"]]
    for reading in readings:
        found = all_found[reading.name]
        even = all_found["B"] if reading.name == "B6" else found
        one, other = nepe_of(even, "periodic"), nepe_of(found, "paper")
        assert one.mean is not None
        assert other.mean is not None
        effects = (even["periodic"]["effective"], found["paper"]["effective"])
        real = " and ".join(f"{float(count.mean()):.0f}" for count in effects)
        rows.append([reading.words, one, other, f"{100 * (1 - other.mean / one.mean):.0f}%", real])
    notes = [
        f"NEPE at B/T = {BUDGET} of a public checkpoint, T over the eligible updates; mean ± standard error. The gain "
        "is that of the means. The last column counts the projections that took effect, for periodic and for the "
        "paper's rule.",
    ]
    columns = ["Reading", "periodic", "adaptive (paper)", "gain", "projections that took effect"]
    return Table("readings", title, columns, rows, notes)


def main() -> None:
    """Write the parts of the page that the given files allow."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, help="a public PDM checkpoint")
    parser.add_argument("--circles", type=Path, help="its map")
    parser.add_argument("--seeds", type=int, default=32)
    parser.add_argument("--calibration-seeds", type=int, default=32)
    parser.add_argument("--work", type=Path, default=Path("runs") / "pdm-docs")
    parser.add_argument("--only", nargs="+", help="run these readings alone, and write what they are enough for")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    seeds, calibration = arguments.seeds, arguments.calibration_seeds
    wanted = {"own": READINGS[0]}
    if arguments.checkpoint is not None:
        files = {"checkpoint": str(arguments.checkpoint), "circles": str(arguments.circles)}
        wanted |= {r.name: replace(r, settings=r.settings | files) for r in READINGS}
    if arguments.only:
        wanted = {name: wanted[name] for name in arguments.only}
    found = {name: evaluated(reading, seeds, calibration, arguments.work / name) for name, reading in wanted.items()}
    tables: dict[str, list[Table]] = {}
    if "own" in found:
        own = quality_table("The shipped model", found["own"], wanted["own"].problem(range(seeds)), seeds)
        tables["quality-own"] = [own, scores_table("own", "shipped model", found["own"])]
    if "six" in found:
        six = quality_table("A public checkpoint", found["six"], wanted["six"].problem(range(seeds)), seeds)
        tables["quality-public"] = [six]
        tables["scores-public"] = [scores_table("six", "public checkpoint from level 6", found["six"])]
    if "all" in found:
        tables["scores-all"] = [scores_table("all", "public checkpoint, all levels", found["all"])]
    if found.keys() >= {reading.name for reading in READINGS}:
        title = "Table 2 of the paper, under several readings"
        tables["readings"] = [readings_table(found, READINGS, title)]
    for name, some in tables.items():
        renew("results/pdm.md", name, "\n".join(table.markdown() for table in some).replace("## ", "### "))


if __name__ == "__main__":
    main()
