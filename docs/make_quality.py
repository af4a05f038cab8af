"""Measure final samples at equal total cost, and write the tables and the figure of docs/quality.md.

    python docs/make_quality.py                    what is not in docs/quality.json yet, then the page
    python docs/make_quality.py --cells so3 pdm    some of it
    python docs/make_quality.py --anew             everything again

Each cell is one domain with one kind of dynamics. Prices are calibrated on 64 seeds from 1,000,000 on. All schedules
are run on the 64 seeds from 500,000 on, and 256 of their final samples are compared as distributions with those of full
projection on 256 seeds from 600,000 on; for domains with a trained model these are 16 and 32 instead. A budget counts
every projection, the closing one included, and every rollout is checked to have paid for exactly its budget. Finished
cells are kept in docs/quality.json, so that an interrupted run goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from _quality_page import BUDGETS, DEFAULT, PATH, QUARTER, RIVALS, draw, tables
from torch import Tensor

import trimtab as tt
from _page import HERE, renew
from trimtab.core import metrics
from trimtab.core.distributions import compare_samples, smallest_shift
from trimtab.core.files import write_atomically
from trimtab.core.schedule import corrections
from trimtab.domains import SYNTHETIC, Domain
from trimtab.schedules import Fixed, Geometric, RandomRamp, windows

CALIBRATION, EVALUATION, REFERENCE = 1_000_000, 500_000, 600_000
N, N_MORE, POSITIONS = 64, 256, 10  # samples; of distributions; windows that are tried on the calibration seeds
TRAINED = ("reaction-flow", "pdm")
N_TRAINED, N_MORE_TRAINED, POSITIONS_TRAINED = 16, 32, 4  # a network is run at every step
CELLS = (*SYNTHETIC, *(f"{name}-flow" for name in SYNTHETIC), *TRAINED)
STORE = HERE / "quality.json"
Summed = dict[str, float]


def masks_of(steps: list[range], n_steps: int) -> Tensor:
    """One column per stretch of steps, (T, len(steps)) bool."""
    mask = torch.zeros(n_steps, len(steps), dtype=torch.bool)
    for column, stretch in enumerate(steps):
        mask[stretch.start : stretch.stop, column] = True
    return mask


class Evaluation:
    """All budgets of a domain on the same seeds, as one batch: rows are budgets times samples."""

    def __init__(self, domain: Domain, first: int, n: int) -> None:
        """Run the ends that path error is measured between."""
        self.domain, self.n = domain, n
        self.one = domain.problem(range(first, first + n))
        self.T = self.one.n_steps
        self.counts = [int(corrections(b, self.T)) for b in BUDGETS]
        self.full = self.one.rollout(tt.Stepwise(), measure_defects=True)
        self.terminal = self.one.rollout(tt.Terminal(), measure_defects=True)
        self.ends = [metrics.path_error(run).double() for run in (self.full, self.terminal)]

    def run(self, schedule: tt.Schedule, counts: Tensor, copies: int) -> tt.Rollout:
        """The samples `copies` times over; each must have paid for exactly what it was given."""
        run = self.domain.problem(self.one.seeds.repeat(copies)).rollout(schedule, measure_defects=True)
        assert torch.equal(run.paid.cpu(), counts), "a schedule paid for something else than its budget"
        return run

    def endpoint(self, run: tt.Rollout, copies: int) -> Tensor:
        """Distance of the final states to those of full projection, (copies, n)."""
        full = self.full.final.repeat(copies, *([1] * (self.full.final.ndim - 1)))
        return self.one.distance(run.final, full).double().reshape(copies, self.n)

    def all_budgets(self, make: Callable[[Tensor], tt.Schedule]) -> tuple[Tensor, Tensor, Tensor]:
        """Endpoint distances and NEPE, (budgets, n) each, and final states, (budgets, n, *event)."""
        counts, copies = torch.tensor(self.counts).repeat_interleave(self.n), len(BUDGETS)
        run = self.run(make(counts), counts, copies)
        path = metrics.path_error(run).double().reshape(copies, self.n)
        nepe = metrics.nepe(path, *(end.expand_as(path) for end in self.ends))
        return self.endpoint(run, copies), nepe, run.final.reshape(copies, self.n, *run.final.shape[1:])

    def best_windows(self, positions: int) -> list[range]:
        """For each budget, the stretch of steps whose final states are nearest to those of full projection."""
        tried: list[tuple[int, range]] = []
        for b in self.counts:
            found = windows(b, self.T)
            places = sorted({round(i * (len(found) - 1) / (positions - 1)) for i in range(positions)})
            tried += [(b, found[place].steps(self.T)) for place in places]
        mask = masks_of([steps for _, steps in tried], self.T).repeat_interleave(self.n, dim=1)
        counts = torch.tensor([b for b, _ in tried]).repeat_interleave(self.n)
        means = self.endpoint(self.run(Fixed(mask), counts, len(tried)), len(tried)).mean(dim=1).tolist()
        ranked = sorted(zip(means, tried, strict=True), key=lambda pair: pair[0])
        return [next(steps for _, (count, steps) in ranked if count == b) for b in self.counts]


def schedules_of(
    domain: Domain, evaluation: Evaluation, positions: int, say: Callable[[str], None]
) -> tuple[dict[str, Callable[[Tensor], tt.Schedule]], dict[str, Any]]:
    """By name, what makes the schedule for budgets of all rows; and what the race decided."""
    calibration = domain.problem(range(CALIBRATION, CALIBRATION + evaluation.n))
    prices = {}
    methods: dict[str, dict[str, Any]] = {
        DEFAULT: {},
        "paper's rule": {"method": "paper"},
        "planned": {"method": "planned"},
        "dp for path": {"objective": "path"},
        "dp for endpoint": {"method": "dp"},
    }
    for name, options in methods.items():
        say(f"calibrating {name}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a price is behind even spacing is in the tables
            prices[name] = tt.calibrate(calibration, **options)
    say("windows")
    T, n = evaluation.T, evaluation.n
    best = Evaluation(domain, CALIBRATION, n).best_windows(positions)
    last = [range(T - b, T) for b in evaluation.counts]

    def fixed(stretches: list[range]) -> Callable[[Tensor], tt.Schedule]:
        return lambda counts: Fixed(masks_of(stretches, T).repeat_interleave(n, dim=1))

    made: dict[str, Callable[[Tensor], tt.Schedule]] = {name: price.at for name, price in prices.items()}
    made |= {"periodic": tt.Periodic, "geometric": Geometric, "random ramp": RandomRamp}
    made |= {"last steps": fixed(last), "best window": fixed(best)}
    return made, {"batches": prices[DEFAULT].notes["batches"], "ranges": prices[DEFAULT].notes["ranges"]}


def told(values: Tensor) -> Summed:
    """The mean and its standard error, samples for which timing is of no consequence left out."""
    found = metrics.summary(values[~values.isnan()])
    return {"mean": round(found.mean, 7), "se": round(found.se, 7)}


def measure(name: str, say: Callable[[str], None]) -> dict[str, Any]:
    """One cell."""
    began, domain = time.process_time(), tt.domain(name)
    trained = name in TRAINED
    n, n_more, positions = (N_TRAINED, N_MORE_TRAINED, POSITIONS_TRAINED) if trained else (N, N_MORE, POSITIONS)
    evaluation = Evaluation(domain, EVALUATION, n)
    say("full projection on other seeds")
    reference = domain.problem(range(REFERENCE, REFERENCE + n_more)).rollout(tt.Stepwise()).final
    made, raced = schedules_of(domain, evaluation, positions, say)
    shift = smallest_shift(reference, n)
    rows: dict[str, Any] = {}
    values = {}
    for method in (DEFAULT, *RIVALS):
        say(method)
        values[method] = endpoint, nepe, final = evaluation.all_budgets(made[method])
        p = [compare_samples(samples, reference, shift=shift).p for samples in final]
        rows[method] = {"endpoint": list(map(told, endpoint)), "nepe": list(map(told, nepe)), "p": p}
    for method in RIVALS:
        pairs = {"endpoint": (DEFAULT, 0), "nepe": (DEFAULT, 1), "path": (PATH, 1)}
        rows[method]["behind"] = {
            measure: [told(a - b) for a, b in zip(values[ours][which], values[method][which], strict=True)]
            for measure, (ours, which) in pairs.items()
        }
    say("more samples at a quarter of the steps")
    more = domain.problem(range(EVALUATION, EVALUATION + n_more))
    count = evaluation.counts[QUARTER]
    ends = {"full": tt.Stepwise(), "terminal": tt.Terminal()}
    quarter = {DEFAULT: made[DEFAULT](torch.full((n_more,), count)), "periodic": tt.Periodic(count)}
    width = smallest_shift(reference, n_more)
    told_apart = {
        method: compare_samples(more.rollout(schedule).final, reference, shift=width).facts()
        for method, schedule in (ends | quarter).items()
    }
    apart = evaluation.one.distance(evaluation.terminal.final, evaluation.full.final).double()
    return {
        "n_steps": evaluation.T,
        "n": n,
        "n_more": n_more,
        "terminal": told(apart),
        "rows": rows,
        "race": raced,
        "shift": shift,
        "told_apart": {k: {f: v[f] for f in ("value", "floor_high", "p", "shift")} for k, v in told_apart.items()},
        "seconds": round(time.process_time() - began, 1),
    }


def main() -> None:
    """Measure what is missing, and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", nargs="+", choices=CELLS, default=list(CELLS))
    parser.add_argument("--anew", action="store_true", help="measure again what is in docs/quality.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    done: dict[str, Any] = json.loads(STORE.read_text(encoding="utf-8"))["cells"] if STORE.exists() else {}
    for number, name in enumerate(options.cells, 1):
        if name in done and not options.anew:
            continue
        place = f"{number}/{len(options.cells)} {name}"
        done[name] = measure(name, lambda text, place=place: print(f"{place}: {text}", flush=True))
        cells = {cell: done[cell] for cell in CELLS if cell in done}
        text = json.dumps({"version": tt.__version__, "cells": cells}, separators=(",", ":"))
        write_atomically(STORE, f"{text}\n".encode())
        print(f"{place}: {done[name]['seconds']} processor seconds", flush=True)
    cells = {cell: done[cell] for cell in CELLS if cell in done}
    draw(cells)
    renew("quality.md", "tables", tables(cells))


if __name__ == "__main__":
    main()
