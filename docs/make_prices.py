"""Measure every price on every domain and write the tables and figures of docs/prices.md.

    python docs/make_prices.py                     everything, about twenty minutes on two cores
    python docs/make_prices.py --quick             a small part of it, for a look
    python docs/make_prices.py --first-seed 0      the same on other evaluation seeds; nothing is written

It is all about path error in the paper's accounting, with a closing projection apart from the budget; final samples at
equal total cost are docs/make_quality.py's. Prices are calibrated on seeds from 1,000,000 on and evaluated on 64 seeds
from 130,000 on, which nothing was chosen by.
Results go to docs/prices.json, from which the figures and the tables between the markers of docs/prices.md are made.
"""

from __future__ import annotations

import argparse
import json
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import torch
from _prices_page import BUDGETS, COUNTS, METHODS, figures, tables

import trimtab as tt
from _page import HERE, renew
from trimtab.core import metrics
from trimtab.core.files import write_atomically
from trimtab.core.view import last_corrections
from trimtab.evaluation.domains import SYNTHETIC
from trimtab.evaluation.limits.hindsight import hindsight
from trimtab.evaluation.limits.online_bound import online_limit
from trimtab.experimental.learn_value import calibrate_value
from trimtab.experimental.lookahead import LookAhead
from trimtab.prices.methods import cost_to_go

KAPPAS = (0.0, 0.1, 0.3, 0.6, 1.0)
FIRST_SEED = 130_000
Job = tuple[str, float, range]
rollout = partial(tt.rollout, closing="free", measure_defects=True)  # as the paper counts


def calibrated(domain: tt.domains.Domain, method: str, count: int = 64) -> Any:
    """A price of a domain, from `count` calibration rollouts."""
    seeds = range(1_000_000, 1_000_000 + count)
    problem = domain.problem(seeds)
    if method == "value":
        return calibrate_value(lambda s: rollout(problem.sampler, problem.constraint, s, seeds))
    return tt.calibrate(problem, method=method, objective="path", closing="free", check=False)


class Evaluation:
    """All budgets of a domain on the same evaluation seeds, as one batch."""

    def __init__(self, domain: tt.domains.Domain, seeds: range, budgets: tuple[float, ...]) -> None:
        """Every seed at every budget."""
        self.n, self.budgets = len(seeds), budgets
        one = domain.problem(seeds)
        self.seeds = torch.tensor(seeds).repeat(len(budgets))
        self.problem = domain.problem(self.seeds)
        T = self.problem.sampler.n_steps
        counts = [tt.core.budget.corrections(b, T) for b in budgets]
        self.counts = torch.tensor(counts).repeat_interleave(self.n)
        ends = (tt.Stepwise(), tt.Terminal())
        self.ends = [metrics.path_error(rollout(one.sampler, one.constraint, s, seeds)) for s in ends]

    def nepe(self, schedule: tt.Schedule) -> torch.Tensor:
        """(budgets, n)."""
        run = rollout(self.problem.sampler, self.problem.constraint, schedule, self.seeds)
        assert torch.equal(run.spent, schedule.budget)  # type: ignore[attr-defined]
        path = metrics.path_error(run).reshape(len(self.budgets), self.n)
        return metrics.nepe(path, *(end.expand_as(path) for end in self.ends))


def measure(job: Job) -> dict[str, Any]:
    """Every method on one domain and kappa: NEPE by budget, paired differences to dp, and hindsight at 0.25."""
    torch.set_num_threads(1)
    name, kappa, seeds = job
    domain = tt.domain(name, kappa=kappa)
    evaluation = Evaluation(domain, seeds, BUDGETS)
    values = {"periodic": evaluation.nepe(tt.Periodic(evaluation.counts))}
    for method in METHODS:
        values[method] = evaluation.nepe(calibrated(domain, method).at(evaluation.counts))
    at = BUDGETS.index(0.25)
    problem = domain.problem(seeds)
    B = tt.core.budget.corrections(0.25, problem.sampler.n_steps)
    mask = hindsight(problem.sampler, problem.constraint, torch.tensor(seeds), int(B))
    limit = metrics.path_error(rollout(problem.sampler, problem.constraint, tt.schedules.Fixed(mask), seeds))
    limit = metrics.nepe(limit, *evaluation.ends)
    return {
        "domain": name,
        "kappa": kappa,
        "nepe": {m: [vars(metrics.summary(v)) for v in rows] for m, rows in values.items()},
        "minus": {
            m: [vars(metrics.summary(values["dp"][i] - v)) for i, v in enumerate(rows)] for m, rows in values.items()
        },
        "hindsight": vars(metrics.summary(limit)),
        "gap_closed": {m: metrics.gap_closed(values[m][at], values["periodic"][at], limit) for m in METHODS},
    }


def sweep(job: Job) -> dict[str, Any]:
    """The dynamic program from more and more calibration rollouts, at a quarter of the budget."""
    torch.set_num_threads(1)
    name, kappa, seeds = job
    domain = tt.domain(name, kappa=kappa)
    evaluation = Evaluation(domain, seeds, (0.25,))
    curve = [evaluation.nepe(calibrated(domain, "dp", count).at(evaluation.counts))[0] for count in COUNTS]
    periodic = evaluation.nepe(tt.Periodic(evaluation.counts))[0]
    return {
        "domain": name,
        "kappa": kappa,
        "dp": [vars(metrics.summary(v)) for v in curve],
        "periodic": vars(metrics.summary(periodic)),
    }


def reach(job: Job) -> dict[str, Any]:
    """At a quarter of the budget: what is luck, and what more than the table could gain. In path error."""
    torch.set_num_threads(1)
    name, kappa, seeds = job
    domain = tt.domain(name, kappa=kappa)
    problem, known = domain.problem(seeds), range(1_000_000, 1_000_064)
    T = problem.sampler.n_steps
    B = int(tt.core.budget.corrections(0.25, T))
    calibration = domain.problem(known)

    def run(schedule: tt.Schedule) -> tt.Rollout:
        return rollout(problem.sampler, problem.constraint, schedule, seeds)

    def calibrate_on(schedule: tt.Schedule) -> tt.Rollout:
        return rollout(calibration.sampler, calibration.constraint, schedule, known)

    cost = cost_to_go(calibrate_on, T)
    by_table = run(calibrated(domain, "dp").at(B))
    value = calibrated(domain, "value")
    ahead = LookAhead(
        problem.sampler, problem.constraint, tt.prices.Thresholds(cost.table), cost, B, horizon=10, copies=64
    )
    best = hindsight(problem.sampler, problem.constraint, torch.tensor(seeds), B)
    errors = {
        "periodic": metrics.path_error(run(tt.Periodic(B))),
        "dp": metrics.path_error(by_table),
        "value": metrics.path_error(run(value.at(B))),
        "look-ahead": metrics.path_error(run(ahead)),
        "limit": online_limit(
            problem.sampler, problem.constraint, torch.tensor(seeds), by_table.projected, cost, copies=64
        ),
        "hindsight": metrics.path_error(run(tt.schedules.Fixed(best))),
    }
    gap = float((errors["periodic"] - errors["hindsight"]).mean())
    return {
        "domain": name,
        "kappa": kappa,
        "closed": {m: vars(metrics.summary((errors["periodic"] - v) / gap)) for m, v in errors.items()},
        "minus dp": {m: vars(metrics.summary((errors["dp"] - v) / gap)) for m, v in errors.items()},
        "value departs": value.notes["penalty"] != "table",
        "value batches": value.notes["batches"],
    }


def history(name: str) -> dict[str, Any]:
    """How much of the next defect's variance the present one leaves open, and how much with the record of the loop."""
    torch.set_num_threads(1)
    seeds = range(1_000_000, 1_000_256)
    problem = tt.domain(name).problem(seeds)
    T = problem.sampler.n_steps
    run = rollout(problem.sampler, problem.constraint, tt.schedules.RandomTimes(torch.arange(256) * T // 512), seeds)
    defects = run.defects / run.defects.mean(dim=1, keepdim=True)
    kept = run.residuals / run.defects.mean(dim=1, keepdim=True)
    steps = torch.arange(T // 10, T - 1)
    alone = ~run.projected[steps]
    age = (steps[:, None] + 1 - last_corrections(run.projected)[steps]).double().log()
    recent = torch.stack([defects[t - T // 10 : t].mean(dim=0) for t in steps])
    present, following = defects[steps][alone], defects[steps + 1][alone]
    record = [x[alone] for x in (age, recent, kept[steps - 1], defects[steps - 1])]

    def left_open(*features: torch.Tensor) -> float:
        columns = torch.stack([torch.ones_like(present), *features], dim=1)
        fitted = columns @ torch.linalg.lstsq(columns, following[:, None]).solution
        return float((following - fitted[:, 0]).var() / following.var())

    shape = (present, present**2, present.sqrt())
    both = [*shape, *record, *(present * x for x in record)]
    return {"domain": name, "defect": left_open(*shape), "record": left_open(*both)}


def objectives(job: Job) -> list[dict[str, Any]]:
    """State error and endpoint distance at a quarter of the budget, under prices made for them and for path error."""
    torch.set_num_threads(1)
    name, kappa, seeds = job
    domain = tt.domain(name, kappa=kappa)
    problem, known = domain.problem(seeds), range(1_000_000, 1_000_064)
    calibration = domain.problem(known)

    def run(schedule: tt.Schedule) -> tt.Rollout:
        return rollout(problem.sampler, problem.constraint, schedule, seeds, keep_states=True)

    stepwise = run(tt.Stepwise())
    rivals = {"periodic": run(tt.Periodic(0.25)), "dp": run(calibrated(domain, "dp").at(0.25))}
    rows = []
    for objective, error in (("state", metrics.state_error), ("endpoint", metrics.endpoint_distance)):
        price = tt.calibrate(
            calibration, method="dp", objective=objective, distance=domain.distance, closing="free", check=False
        )
        found = error(run(price.at(0.25)), stepwise, domain.distance)
        others = {m: error(rival, stepwise, domain.distance) for m, rival in rivals.items()}
        row = {"domain": name, "objective": objective, "batches": price.notes["batches"]}
        row |= {"found": vars(metrics.summary(found))}
        row |= {m: vars(metrics.summary(v)) for m, v in others.items()}
        rows.append(row | {f"minus {m}": vars(metrics.summary(found - v)) for m, v in others.items()})
    return rows


def calibration_cost(name: str) -> list[dict[str, Any]]:
    """What calibration takes with 64 rollouts of 250 steps: batches, and processor seconds beside them."""
    torch.set_num_threads(1)
    domain = tt.domain(name, n_steps=250)
    seeds = range(1_000_000, 1_000_064)
    problem = domain.problem(seeds)
    rows = []
    for method in (*METHODS, "value"):
        batches: list[float] = []

        def run(schedule: tt.Schedule, batches: list[float] = batches) -> tt.Rollout:
            began = time.process_time()
            record = rollout(problem.sampler, problem.constraint, schedule, seeds)
            batches.append(time.process_time() - began)
            return record

        began = time.process_time()
        if method == "value":
            calibrate_value(run)
        else:
            tt.calibrate(run, method=method, objective="path", check=False)
        beside = time.process_time() - began - sum(batches)
        rows.append({"domain": name, "method": method, "batches": len(batches), "beside": beside})
    return rows


def main() -> None:
    """Run, and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two domains, two kappas, few seeds; nothing is written")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED, help="of evaluation")
    options = parser.parse_args()
    seeds = range(options.first_seed, options.first_seed + (16 if options.quick else 64))
    names, kappas = (("so3", "so3-impulse"), (0.0, 0.3)) if options.quick else (SYNTHETIC, KAPPAS)
    jobs = [(name, kappa, seeds) for name in names for kappa in kappas]
    swept = [("so3", 0.0, seeds), ("so3-impulse", 0.3, seeds), ("terrain-ridge", 0.3, seeds)]
    results: dict[str, Any] = {"version": tt.__version__, "first_seed": seeds[0], "seeds": len(seeds), "rows": []}
    with ProcessPoolExecutor(options.workers) as pool:
        for number, row in enumerate(pool.map(measure, jobs), 1):
            results["rows"].append(row)
            print(f"{number}/{len(jobs)} {row['domain']} kappa {row['kappa']:g}", flush=True)
        results["reach"] = list(pool.map(reach, [(name, 0.3, seeds) for name in names]))
        pairs = pool.map(objectives, [(name, 0.3, seeds) for name in ("se3", "terrain")])
        results["history"] = list(pool.map(history, names))
        results["objectives"] = [row for pair in pairs for row in pair]
        results["cost"] = [row for rows in pool.map(calibration_cost, ("so3", "terrain")) for row in rows]
        results["sweep"] = [] if options.quick else list(pool.map(sweep, swept))
    if options.quick or options.first_seed != FIRST_SEED:
        print(tables(results))
        return
    write_atomically(HERE / "prices.json", f"{json.dumps(results, separators=(',', ':'))}\n".encode())
    figures(results)
    renew("prices.md", "tables", tables(results))


if __name__ == "__main__":
    main()
