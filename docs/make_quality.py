"""Measure final samples at equal total cost, and write the tables and the figure of docs/quality.md.

    python docs/make_quality.py                    what is not in docs/results/quality.json yet, then the page
    python docs/make_quality.py --cells so3 pdm    some of it
    python docs/make_quality.py --anew             everything again
    python docs/make_quality.py --cells pdm-public --checkpoint FILE --circles MAP.json

Each cell is one domain with one kind of dynamics. Prices are calibrated on 64 seeds from 1,100,000 on. All schedules
are run on the 64 seeds from 510,000 on, and 256 of their final samples are compared as distributions with those of full
projection on 256 seeds from 610,000 on; for domains with a trained model these are 32 and 64 instead. A budget counts
every projection, the closing one included, and every rollout is checked to have paid for exactly its budget; rules that
know no budget stop at it and may pay less, and their values are tuned for each budget on the calibration seeds. Domains
that judge their final states are measured by that too, with a price of the same race made for it. Finished cells are
kept in docs/results/quality.json, so that an interrupted run goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from _page import HERE, renew
from _quality_page import BUDGETS, DEFAULT, JUDGED, PATH, QUARTER, RIVALS, RULED, draw, tables
from torch import Tensor

import trimtab as tt
from trimtab.core import metrics
from trimtab.core.budget import corrections
from trimtab.core.distributions import compare_samples, minimum_detectable_shift
from trimtab.core.files import write_atomically
from trimtab.core.quality import Quality
from trimtab.evaluation.domains import SYNTHETIC, Domain
from trimtab.evaluation.studies.rules import Rule, find_rule
from trimtab.schedules import (
    AboveNoise,
    AccumulatedDefect,
    Fixed,
    Geometric,
    RandomRamp,
    Trigger,
    UntilBelow,
    windows,
)

CALIBRATION, EVALUATION, REFERENCE = 1_100_000, 510_000, 610_000
N, N_MORE, POSITIONS = 64, 256, 10  # samples; of distributions; windows that are tried on the calibration seeds
PUBLIC = "pdm-public"  # the same sampler with a checkpoint that is at hand, on its own map
TRAINED = ("reaction-flow", "grid", "pdm", PUBLIC)
QUALITIES = {"grid": "cost_gap", "pdm": "length", PUBLIC: "length"}  # lower is better
N_TRAINED, N_MORE_TRAINED, POSITIONS_TRAINED = 32, 64, 4  # a network is run at every step
CELLS = (*SYNTHETIC, *(f"{name}-flow" for name in SYNTHETIC), *TRAINED)
FACTORS = (0.1, 0.2, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0)  # of the value at which a rule would spend the budget on average
FACTORS_TRAINED = (0.2, 0.5, 1.0, 1.5)
STORE = HERE / "results" / "quality.json"
RULE_KINDS = AboveNoise, AccumulatedDefect, Trigger, UntilBelow
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
        """The samples `copies` times over; each must have paid for exactly what it was given, a rule for no more."""
        run = self.domain.problem(self.one.seeds.repeat(copies)).rollout(schedule, measure_defects=True)
        paid = run.paid.cpu()
        assert bool((paid <= counts).all()), "a schedule paid for more than its budget"
        assert isinstance(schedule, RULE_KINDS) or torch.equal(paid, counts), "a schedule paid for less than its budget"
        return run

    def quality(self, run: tt.Rollout, copies: int, name: str) -> Tensor:
        """The domain's own judgement of the final states, (copies, n)."""
        assert self.domain.quality is not None
        constraint = self.domain.problem(self.one.seeds.repeat(copies)).constraint
        return self.domain.quality(run.final, constraint)[name].double().reshape(copies, self.n)

    def endpoint(self, run: tt.Rollout, copies: int) -> Tensor:
        """Distance of the final states to those of full projection, (copies, n)."""
        full = self.full.final.repeat(copies, *([1] * (self.full.final.ndim - 1)))
        return self.one.distance(run.final, full).double().reshape(copies, self.n)

    def all_budgets(
        self, make: Callable[[Tensor], tt.Schedule], judged: str | None
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Endpoint distances, NEPE and the quality, (budgets, n) each, and final states, (budgets, n, *event)."""
        counts, copies = torch.tensor(self.counts).repeat_interleave(self.n), len(BUDGETS)
        run = self.run(make(counts), counts, copies)
        path = metrics.path_error(run).double().reshape(copies, self.n)
        nepe = metrics.nepe(path, *(end.expand_as(path) for end in self.ends))
        paid = run.paid.double().cpu().reshape(copies, self.n)
        found = {"endpoint": self.endpoint(run, copies), "nepe": nepe, "paid": paid}
        if judged is not None:
            found["quality"] = self.quality(run, copies, judged)
        return found, run.final.reshape(copies, self.n, *run.final.shape[1:])

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

    def tuned(self, rule: Rule, factors: tuple[float, ...]) -> Tensor:
        """For each budget, the value of the rule whose final states are nearest to those of full projection."""
        values = rule.values[:, None] * torch.tensor(factors, dtype=torch.float64)  # (budgets, factors)
        counts = torch.tensor(self.counts).repeat_interleave(len(factors) * self.n)
        schedule = rule.made(values.flatten().repeat_interleave(self.n), counts)
        means = self.endpoint(self.run(schedule, counts, values.numel()), values.numel()).mean(dim=1)
        return values.gather(1, means.reshape(values.shape).argmin(dim=1, keepdim=True))[:, 0]


def schedules_of(
    domain: Domain, evaluation: Evaluation, trained: bool, judged: str | None, progress: Callable[[str], None]
) -> tuple[dict[str, Callable[[Tensor], tt.Schedule]], dict[str, Any]]:
    """By name, what makes the schedule for budgets of all rows; and what the race decided."""
    calibration = domain.problem(range(CALIBRATION, CALIBRATION + N))
    prices = {}
    methods: dict[str, dict[str, Any]] = {
        DEFAULT: {},
        "paper's rule": {"method": "paper"},
        "planned": {"method": "planned"},
        "dp for path": {"objective": "path"},
        "dp for endpoint": {"method": "dp"},
    }
    judge = domain.quality
    if judged is not None and judge is not None:
        methods[JUDGED] = {"quality": Quality(lambda x, about: judge(x, about.constraint), name=judged)}
    for name, options in methods.items():
        progress(f"calibrating {name}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a price is behind even spacing is in the tables
            prices[name] = tt.calibrate(calibration, **options)
    progress("windows")
    T, n = evaluation.T, evaluation.n
    tuning = Evaluation(domain, CALIBRATION, n)
    best = tuning.best_windows(POSITIONS_TRAINED if trained else POSITIONS)
    last = [range(T - b, T) for b in evaluation.counts]

    def fixed(stretches: list[range]) -> Callable[[Tensor], tt.Schedule]:
        return lambda counts: Fixed(masks_of(stretches, T).repeat_interleave(n, dim=1))

    made: dict[str, Callable[[Tensor], tt.Schedule]] = {name: price.at for name, price in prices.items()}
    made |= {"periodic": tt.Periodic, "geometric": Geometric, "random ramp": RandomRamp}
    made |= {"last steps": fixed(last), "best window": fixed(best)}
    for name, key in RULED.items():
        progress(f"tuning {name}")
        rule = find_rule(key, domain.problem, calibration.seeds, "free")
        assert len(rule.counts) == len(BUDGETS), f"{T} steps are too few to tell {len(BUDGETS)} budgets apart"
        values = tuning.tuned(rule, FACTORS_TRAINED if trained else FACTORS).repeat_interleave(n)
        made[name] = partial(rule.made, values)
    return made, {"batches": prices[DEFAULT].notes["batches"], "ranges": prices[DEFAULT].notes["ranges"]}


def told(values: Tensor) -> Summed:
    """The mean and its standard error, samples for which timing is of no consequence left out."""
    found = metrics.summary(values[~values.isnan()])
    return {"mean": round(found.mean, 7), "se": round(found.se, 7)}


def terminal_of(evaluation: Evaluation) -> Summed:
    """Terminal projection's endpoint distance, and the share of it that the sample farthest away makes."""
    apart = evaluation.one.distance(evaluation.terminal.final, evaluation.full.final).double()
    return told(apart) | {"largest": round(float(apart.max() / apart.sum()), 4)}


def measure(name: str, domain: Domain, progress: Callable[[str], None]) -> dict[str, Any]:
    """One cell."""
    began = time.process_time()
    trained, judged = name in TRAINED, QUALITIES.get(name)
    n, n_more = (N_TRAINED, N_MORE_TRAINED) if trained else (N, N_MORE)
    evaluation = Evaluation(domain, EVALUATION, n)
    progress("full projection on other seeds")
    reference = domain.problem(range(REFERENCE, REFERENCE + n_more)).rollout(tt.Stepwise()).final
    made, raced = schedules_of(domain, evaluation, trained, judged, progress)
    shift = minimum_detectable_shift(reference, n)
    rows: dict[str, Any] = {}
    values = {}
    ours = (DEFAULT, *([JUDGED] if judged else []))
    for method in (*ours, *RIVALS):
        progress(method)
        values[method], final = evaluation.all_budgets(made[method], judged)
        p = [compare_samples(samples, reference, shift=shift).p for samples in final]
        rows[method] = {key: list(map(told, found)) for key, found in values[method].items()} | {"p": p}
    pairs = {"endpoint": (DEFAULT, "endpoint"), "nepe": (DEFAULT, "nepe"), "path": (PATH, "nepe")}
    if judged:
        pairs |= {"quality": (DEFAULT, "quality"), "judged": (JUDGED, "quality")}
    for method in RIVALS:
        rows[method]["behind"] = {
            measure: [told(a - b) for a, b in zip(values[one][key], values[method][key], strict=True)]
            for measure, (one, key) in pairs.items()
        }
    progress("more samples at a quarter of the steps")
    more = domain.problem(range(EVALUATION, EVALUATION + n_more))
    count = evaluation.counts[QUARTER]
    ends = {"full": tt.Stepwise(), "terminal": tt.Terminal()}
    quarter = {DEFAULT: made[DEFAULT](torch.full((n_more,), count)), "periodic": tt.Periodic(count)}
    width = minimum_detectable_shift(reference, n_more)
    told_apart = {
        method: compare_samples(more.rollout(schedule).final, reference, shift=width).facts()
        for method, schedule in (ends | quarter).items()
    }
    ends_judged = {
        key: told(evaluation.quality(run, 1, judged)[0])
        for key, run in (("full", evaluation.full), ("terminal", evaluation.terminal))
        if judged is not None
    }
    return {
        "n_steps": evaluation.T,
        "n": n,
        "n_more": n_more,
        "terminal": terminal_of(evaluation),
        "judged": {"name": judged, **ends_judged} if judged else None,
        "rows": rows,
        "race": raced,
        "shift": shift,
        "told_apart": {k: {f: v[f] for f in ("value", "floor_high", "p", "shift")} for k, v in told_apart.items()},
        "seconds": round(time.process_time() - began, 1),
    }


def main() -> None:
    """Measure what is missing, and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", nargs="+", choices=CELLS, help=f"all by default, {PUBLIC} if its files are given")
    parser.add_argument("--checkpoint", help=f"of {PUBLIC}: a public PDM checkpoint")
    parser.add_argument("--circles", help=f"of {PUBLIC}: its map")
    parser.add_argument("--anew", action="store_true", help="measure again what is in docs/results/quality.json")
    options = parser.parse_args()
    files = bool(options.checkpoint and options.circles)
    wanted = options.cells or [name for name in CELLS if name != PUBLIC or files]
    if PUBLIC in wanted and not files:
        parser.error(f"{PUBLIC} needs --checkpoint and --circles")
    torch.set_num_threads(1)
    done: dict[str, Any] = json.loads(STORE.read_text(encoding="utf-8"))["cells"] if STORE.exists() else {}
    for number, name in enumerate(wanted, 1):
        if name in done and not options.anew:
            continue
        place = f"{number}/{len(wanted)} {name}"
        own = {"checkpoint": options.checkpoint, "circles": options.circles}
        domain = tt.domain("pdm", **own) if name == PUBLIC else tt.domain(name)
        done[name] = measure(name, domain, lambda text, place=place: print(f"{place}: {text}", flush=True))
        cells = {cell: done[cell] for cell in CELLS if cell in done}
        text = json.dumps({"version": tt.__version__, "cells": cells}, separators=(",", ":"))
        write_atomically(STORE, f"{text}\n".encode())
        print(f"{place}: {done[name]['seconds']} processor seconds", flush=True)
    cells = {cell: done[cell] for cell in CELLS if cell in done}
    draw(cells)
    renew("results/quality.md", "tables", tables(cells))


if __name__ == "__main__":
    main()
