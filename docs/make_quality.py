"""Measure final samples at equal total cost, and write the tables and the figure of docs/results/quality.md.

    python docs/make_quality.py                    what is not in docs/results/quality.json yet, then the page
    python docs/make_quality.py --cells so3 pdm    some of it
    python docs/make_quality.py --again            everything again
    python docs/make_quality.py --checkpoint FILE --circles MAP.json    with the cell pdm-public

A cell is one domain with one kind of dynamics. Prices are calibrated on seeds from 1,100,000 on, all schedules are run
on seeds from 510,000 on, and final samples are compared as distributions with those of full projection on seeds from
610,000 on. A budget counts every projection, the closing one included, and every rollout is checked to have paid for
exactly its budget. Samplers with a network have fewer samples and three budgets. Domains that judge their final states
are measured by that too.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from _page import HERE, renew
from _quality_page import DEFAULT, PATH, draw, tables
from torch import Tensor

import trimtab as tt
from trimtab.core import metrics
from trimtab.core.budget import corrections
from trimtab.core.files import write_atomically
from trimtab.loop.runner import BatchRunner
from trimtab.schedules import Fixed, Geometric, RandomRamp, windows
from trimtab_lab.distributions import compare_samples, minimum_detectable_shift
from trimtab_lab.domains import SYNTHETIC, Domain
from trimtab_lab.metrics import summary

CALIBRATION, EVALUATION, REFERENCE = 1_100_000, 510_000, 610_000
PUBLIC = "pdm-public"  # the same sampler with a checkpoint that is at hand, on its own map
TRAINED: dict[str, tuple[str, dict[str, Any]]] = {  # the domain and its settings
    "reaction-flow": ("reaction-flow", {"n_steps": 50}),
    "grid": ("grid", {}),
    "pdm": ("pdm", {"eligible_from": 6}),
    PUBLIC: ("pdm", {"eligible_from": 6}),
}
QUALITIES = {"grid": "cost_gap", "pdm": "length", PUBLIC: "length"}  # lower is better
FLOWS = tuple(f"{name}-flow" for name in SYNTHETIC)
CELLS = (*SYNTHETIC, *FLOWS, *TRAINED)
BUDGETS, BUDGETS_TRAINED = (0.05, 0.1, 0.25, 0.5, 0.75, 0.95), (0.1, 0.25, 0.5)
N, N_CALIBRATION, N_MORE, PLACES = 64, 32, 128, 6  # samples; of distributions; windows tried for each budget
N_TRAINED, N_CALIBRATION_TRAINED, N_MORE_TRAINED, PLACES_TRAINED = 24, 16, 48, 4
STORE = HERE / "results" / "quality.json"
Summed = dict[str, float]


class Evaluation:
    """All budgets of a domain on the same seeds, as one batch: rows are budgets times samples."""

    def __init__(self, domain: Domain, seeds: range, budgets: tuple[float, ...]) -> None:
        """Run the ends that path error is measured between."""
        self.domain, self.n, self.one = domain, len(seeds), domain.problem(seeds)
        self.T = self.one.n_steps
        self.counts = [int(corrections(budget, self.T)) for budget in budgets]
        self.full = self.one.rollout(tt.Stepwise(), measure_defects=True)
        self.terminal = self.one.rollout(tt.Terminal(), measure_defects=True)
        self.ends = [metrics.path_error(run).double() for run in (self.full, self.terminal)]

    def run(self, schedule: tt.Schedule, counts: Tensor) -> tt.Rollout:
        """Run the samples once for each of the budgets; check that each paid for exactly its budget."""
        problem = self.domain.problem(self.one.seeds.repeat(len(counts) // self.n))
        run = problem.rollout(schedule, measure_defects=True)
        assert torch.equal(run.paid.cpu(), counts), "a schedule missed its budget"
        return run

    def endpoint(self, final: Tensor) -> Tensor:
        """Return the distances of final states to those of full projection, (copies, n)."""
        full = self.full.final.repeat(len(final) // self.n, *([1] * (final.ndim - 1)))
        return self.one.distance(final, full).double().reshape(-1, self.n)

    def quality(self, final: Tensor, name: str) -> Tensor:
        """Return the domain's own judgement of final states, (copies, n)."""
        assert self.domain.quality is not None
        constraint = self.domain.problem(self.one.seeds.repeat(len(final) // self.n)).constraint
        return self.domain.quality(final, constraint)[name].double().reshape(-1, self.n)

    def all_budgets(self, make: Callable[[Tensor], tt.Schedule], judged: str | None) -> dict[str, Tensor]:
        """Return endpoint distances, NEPE and the quality, (budgets, n) each."""
        counts = torch.tensor(self.counts).repeat_interleave(self.n)
        run = self.run(make(counts), counts)
        path = metrics.path_error(run).double().reshape(-1, self.n)
        full, terminal = (end.expand_as(path) for end in self.ends)
        nepe = metrics.nepe(path, full, terminal)
        judgement = {"quality": self.quality(run.final, judged)} if judged else {}
        return {"endpoint": self.endpoint(run.final), "nepe": nepe, **judgement}

    def best_windows(self, places: int) -> list[range]:
        """Return for each budget the window whose final states are nearest to those of full projection."""
        tried: list[tuple[int, range]] = []
        for count in self.counts:
            found = windows(count, self.T)
            at = sorted({round(i * (len(found) - 1) / (places - 1)) for i in range(places)})
            tried += [(count, found[place].steps(self.T)) for place in at]
        mask = masks_of([steps for _, steps in tried], self.T).repeat_interleave(self.n, dim=1)
        counts = torch.tensor([count for count, _ in tried]).repeat_interleave(self.n)
        means = self.endpoint(self.run(Fixed(mask), counts).final).mean(dim=1).tolist()
        ranked = sorted(zip(means, tried, strict=True), key=lambda pair: pair[0])
        return [next(steps for _, (b, steps) in ranked if b == count) for count in self.counts]


def masks_of(stretches: list[range], n_steps: int) -> Tensor:
    """Return one column per stretch of steps, (T, len(stretches)) bool."""
    mask = torch.zeros(n_steps, len(stretches), dtype=torch.bool)
    for column, steps in enumerate(stretches):
        mask[steps.start : steps.stop, column] = True
    return mask


def schedules_of(
    domain: Domain, evaluation: Evaluation, trained: bool, judged: str | None, progress: Callable[[str], None]
) -> dict[str, Callable[[Tensor], tt.Schedule]]:
    """Return by name what makes the schedule for the budgets of all rows."""
    seeds = range(CALIBRATION, CALIBRATION + (N_CALIBRATION_TRAINED if trained else N_CALIBRATION))
    calibration = domain.problem(seeds)
    methods: dict[str, dict[str, Any]] = {
        DEFAULT: {},
        "paper's rule": {"method": "paper"},
        "planned": {"method": "planned"},
        PATH: {"objective": "path"},
        "dp for endpoint": {"method": "dp"},
    }
    made: dict[str, Callable[[Tensor], tt.Schedule]] = {}
    with tempfile.TemporaryDirectory() as folder, BatchRunner(keep=folder, key="quality") as runner:
        for name, options in methods.items():
            progress(f"calibrating {name}")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that a price is behind even spacing is in the tables
                made[name] = tt.calibrate(calibration, engine=runner, progress=lambda text: None, **options).at
    progress("windows")
    T, n = evaluation.T, evaluation.n
    tuning = Evaluation(domain, range(CALIBRATION, CALIBRATION + n), BUDGETS_TRAINED if trained else BUDGETS)

    def fixed(stretches: list[range]) -> Callable[[Tensor], tt.Schedule]:
        return lambda counts: Fixed(masks_of(stretches, T).repeat_interleave(n, dim=1))

    made |= {"periodic": tt.Periodic, "geometric": Geometric, "random ramp": RandomRamp}
    made["last steps"] = fixed([range(T - count, T) for count in evaluation.counts])
    made["best window"] = fixed(tuning.best_windows(PLACES_TRAINED if trained else PLACES))
    return made


def summed(values: Tensor) -> Summed:
    """Return the mean and its standard error; samples for which timing is of no consequence are left out."""
    found = summary(values[~values.isnan()])
    return {"mean": round(found.mean, 7), "se": round(found.se, 7)}


def fewer_steps(name: str, evaluation: Evaluation) -> list[Summed]:
    """Return the endpoint distances of as many steps as the budget has projections, all projected."""
    runs = [
        tt.domain(name, n_steps=count).problem(evaluation.one.seeds).rollout(tt.Stepwise())
        for count in evaluation.counts
    ]
    return [summed(evaluation.endpoint(run.final)[0]) for run in runs]


def measure(name: str, domain: Domain, progress: Callable[[str], None]) -> dict[str, Any]:
    """Return the numbers of one cell."""
    began = time.process_time()
    trained, judged = name in TRAINED, QUALITIES.get(name)
    n, n_more = (N_TRAINED, N_MORE_TRAINED) if trained else (N, N_MORE)
    budgets = BUDGETS_TRAINED if trained else BUDGETS
    evaluation = Evaluation(domain, range(EVALUATION, EVALUATION + n), budgets)
    made = schedules_of(domain, evaluation, trained, judged, progress)
    rows: dict[str, Any] = {}
    values = {}
    for method, make in made.items():
        progress(method)
        values[method] = evaluation.all_budgets(make, judged)
        rows[method] = {key: list(map(summed, found)) for key, found in values[method].items()}
    pairs = {"endpoint": (DEFAULT, "endpoint"), "path": (PATH, "nepe")}
    if judged:
        pairs |= {"quality": (DEFAULT, "quality")}
    for method in rows:
        rows[method]["behind"] = {
            measure: [summed(a - b) for a, b in zip(values[one][key], values[method][key], strict=True)]
            for measure, (one, key) in pairs.items()
        }
    progress("distributions at a quarter of the steps")
    reference = domain.problem(range(REFERENCE, REFERENCE + n_more)).rollout(tt.Stepwise()).final
    more = domain.problem(range(EVALUATION, EVALUATION + n_more))
    count = evaluation.counts[budgets.index(0.25)]
    quarter = {DEFAULT: made[DEFAULT](torch.full((n_more,), count)), "periodic": tt.Periodic(count)}
    width = minimum_detectable_shift(reference, n_more)
    told_apart = {
        method: compare_samples(more.rollout(schedule).final, reference, shift=width).facts()
        for method, schedule in ({"full": tt.Stepwise(), "terminal": tt.Terminal()} | quarter).items()
    }
    ends = {"full": evaluation.full.final, "terminal": evaluation.terminal.final}
    apart = evaluation.endpoint(evaluation.terminal.final)[0]
    return {
        "n_steps": evaluation.T,
        "n": n,
        "n_more": n_more,
        "budgets": list(budgets),
        "terminal": summed(apart) | {"largest": round(float(apart.max() / apart.sum()), 4)},
        "judged": {"name": judged} | {k: summed(evaluation.quality(x, judged)[0]) for k, x in ends.items()}
        if judged
        else None,
        "rows": rows,
        "fewer": fewer_steps(name, evaluation) if name in FLOWS else None,
        "told_apart": {k: {f: v[f] for f in ("value", "floor_high", "p", "shift")} for k, v in told_apart.items()},
        "seconds": round(time.process_time() - began, 1),
    }


def main() -> None:
    """Measure what is missing, and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", nargs="+", choices=CELLS, help=f"all by default, {PUBLIC} if its files are given")
    parser.add_argument("--checkpoint", help=f"of {PUBLIC}: a public PDM checkpoint")
    parser.add_argument("--circles", help=f"of {PUBLIC}: its map")
    parser.add_argument("--again", action="store_true", help="measure again what is in docs/results/quality.json")
    options = parser.parse_args()
    files = {"checkpoint": options.checkpoint, "circles": options.circles}
    known = all(files.values())
    wanted = options.cells or [name for name in CELLS if name != PUBLIC or known]
    if PUBLIC in wanted and not known:
        parser.error(f"{PUBLIC} needs --checkpoint and --circles")
    torch.set_num_threads(1)
    stored: dict[str, Any] = json.loads(STORE.read_text(encoding="utf-8")) if STORE.exists() else {}
    done: dict[str, Any] = stored["cells"] if stored.get("version") == tt.__version__ else {}
    for number, name in enumerate(wanted, 1):
        if name in done and not options.again:
            continue
        place = f"{number}/{len(wanted)} {name}"
        kind, settings = TRAINED.get(name, (name, {}))
        domain = tt.domain(kind, **settings | (files if name == PUBLIC else {}))
        done[name] = measure(name, domain, partial(print, f"{place}:", flush=True))
        cells = {cell: done[cell] for cell in CELLS if cell in done}
        text = json.dumps({"version": tt.__version__, "cells": cells}, separators=(",", ":"))
        write_atomically(STORE, f"{text}\n".encode())
        print(f"{place}: {done[name]['seconds']} processor seconds", flush=True)
    cells = {cell: done[cell] for cell in CELLS if cell in done}
    draw(cells)
    renew("results/quality.md", "tables", tables(cells))


if __name__ == "__main__":
    main()
