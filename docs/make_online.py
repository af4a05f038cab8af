"""Measure where final samples end against the work they take: the line, and simple rules, on twelve systems.

    python docs/make_online.py [--quick] [--processes 2]

It writes docs/results/online.md, its numbers (online.json) and the first figure of the README. Finished cells are kept
in runs/online, and a command that was stopped goes on from there; remove that folder to measure again. It takes about a
quarter of an hour of processor time.

A learner learns on two batches of 16 and is measured on later ones. Rules and learners see the same seeds, which
nothing else in this repository uses.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from _online_page import publish
from torch import Tensor

import trimtab as tt
from trimtab.core.budget import Cost, PerBatch
from trimtab.core.files import write_atomically
from trimtab.prices.learned import Learned, Programmed
from trimtab.prices.learner import Learner
from trimtab.prices.ways import solve_ways
from trimtab.schedules import By, Window
from trimtab_lab.domains import Domain, domain

KEPT = Path("runs") / "online"
SHARES = (0.05, 0.1, 0.25, 0.5)
BATCH, LEARNED_ON = 16, 2
LEARNING, EVALUATION, CALLS = 3_400_000, 3_500_000, 3_600_000
CALL_SIZE = 64
COSTS = {"a = 0": (0.0, 1.0), "a = 16 b": (16.0, 1.0), "a = 64 b": (64.0, 1.0), "b = 0": (64.0, 0.0)}
CALLED = ("so3-impulse-flow", "terrain-ridge", "terrain-ridge-flow", "se3-lever-flow")


@dataclass(frozen=True)
class System:
    """A domain with settings, how many samples are measured, and how many run together under simple rules."""

    domain: str
    settings: dict[str, Any]
    samples: int
    block: int

    def make(self) -> Domain:
        """Make the domain."""
        return domain(self.domain, **self.settings)


SYSTEMS = {
    "molecules, 22 atoms": System("molecules", {}, 64, 64),
    "reaction flow": System("reaction-flow", {"n_steps": 50}, 32, 16),
    "linkage": System("linkage", {}, 64, 64),
    "so3-impulse-flow": System("so3-impulse-flow", {}, 96, 96),
    "calm linkage": System("linkage", {"kappa": 0.1, "bursts": 0}, 64, 64),
    "terrain-ridge": System("terrain-ridge", {}, 96, 96),
    "terrain-ridge-ramp": System("terrain-ridge-ramp", {}, 96, 96),
    "terrain-ridge-flow": System("terrain-ridge-flow", {}, 96, 96),
    "so3-flow": System("so3-flow", {}, 96, 96),
    "se3-flow": System("se3-flow", {}, 96, 96),
    "robot paths": System("pdm", {"inner_steps": 4}, 32, 16),
    "molecules, 60 atoms": System("molecules", {"molecule": "testosterone-butyrate"}, 32, 32),
}
QUICK = ("calm linkage", "so3-impulse-flow")


def blocks(first: int, samples: int, size: int) -> list[range]:
    """Return seeds in blocks."""
    return [range(first + k, first + min(k + size, samples)) for k in range(0, samples, size)]


def digits(values: Tensor) -> list[float]:
    """Return numbers for a file."""
    return [float(f"{value:.4g}") for value in values.tolist()]


# ------------------------------------------------------------------ simple rules


def work_of(run: tt.Rollout, counted: bool) -> Tensor:
    """Return the solver iterations of each sample, (n,), or its projections if the solver counts none."""
    return (run.all_iterations if counted else run.projected.sum(dim=0) + run.closing).double()


def rule(kind: str, count: int, T: int) -> Any:
    """Return the rule that projects `count` times, the closing projection included."""
    if count <= 1:
        return tt.Terminal()
    return {"even": tt.Periodic(count), "last": Window(T - count, T), "first": Window(0, count - 1)}[kind]


def counts(system: System) -> tuple[dict[str, list[int]], bool]:
    """Return how often each rule may project at each share of full projection's work, found on learning seeds."""
    problem = system.make().problem(range(LEARNING, LEARNING + BATCH))
    full = problem.rollout(tt.Stepwise())
    T, counted = full.n_steps, bool((full.iterations > 0).any())
    plain = [max(1, round(share * T)) for share in SHARES]
    found = {kind: list(plain) for kind in ("even", "last", "first")}
    if not counted:
        return found, counted
    whole = float(work_of(full, counted).mean())
    closing = float(work_of(problem.rollout(tt.Terminal()), counted).mean())
    for kind, row in found.items():
        for i, (share, count) in enumerate(zip(SHARES, plain, strict=True)):
            tried = max(2, count)
            each = float(work_of(problem.rollout(rule(kind, tried, T)), counted).mean()) - closing
            row[i] = min(T, max(1, 1 + round((share * whole - closing) * (tried - 1) / max(each, 1e-9))))
    return found, counted


def measured(made: Domain, run: tt.Rollout, problem: Any, full: Tensor, counted: bool) -> dict[str, list[float]]:
    """Return distances to full projection, work and quality of the samples of a run, (n,) each."""
    found = {"distance": digits(problem.distance(run.final, full).double()), "work": digits(work_of(run, counted))}
    if made.quality is not None:
        found["quality"] = digits(next(iter(made.quality(run.final, problem.constraint).values())).double())
    return found


def joined(parts: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Return what blocks of samples have, one after another."""
    return {name: [one for part in parts for one in part[name]] for name in parts[0]}


def rules(name: str, path: Path) -> dict[str, Any]:
    """Return everything about the simple rules on one system, and keep the final samples of full projection."""
    system, started = SYSTEMS[name], process_time()
    made, (often, counted) = system.make(), counts(system)
    problems = [made.problem(seeds) for seeds in blocks(EVALUATION, system.samples, system.block)]
    fulls = [problem.rollout(tt.Stepwise()) for problem in problems]
    T = fulls[0].n_steps

    def row(schedule: Any) -> dict[str, list[float]]:
        runs = [problem.rollout(schedule) for problem in problems]
        parts = zip(runs, problems, fulls, strict=True)
        return joined([measured(made, run, problem, full.final, counted) for run, problem, full in parts])

    rows = {"full": row(tt.Stepwise()) if made.quality else None, "terminal": row(tt.Terminal())}
    works = torch.cat([work_of(full, counted) for full in fulls])
    rows["full"] = rows["full"] or {"distance": [0.0] * len(works), "work": digits(works)}
    for kind, row_counts in often.items():
        for share, count in zip(SHARES, row_counts, strict=True):
            rows[f"{kind} {share:g}"] = row(rule(kind, count, T)) | {"count": count}
    if counted and problems[0].constraint.improves:
        for way in ("1 iteration", "2 iterations"):
            rows[way] = row(By(way))
    finals = torch.cat([full.final for full in fulls])
    write_atomically(path.with_suffix(".pt"), lambda part: torch.save(finals, part))
    return {"rows": rows, "counted": counted, "T": T, "seconds": process_time() - started}


# ------------------------------------------------------------------ the line


class Metered(Learner):
    """A learner that counts what its twins cost, those included that were left out for taking too much."""

    twins_work, counted = 0.0, True

    def try_out(self, run: Callable[[Learned], tt.Rollout], n: int, distance: Any = None) -> None:
        """Count the work of every run."""

        def again(schedule: Learned) -> tt.Rollout:
            done = run(schedule)
            self.twins_work += float(work_of(done, self.counted).sum())
            return done

        super().try_out(again, n, distance)


def line(name: str, share: float, twins: int) -> dict[str, Any]:
    """Return what one learner does on one system, from its first sample on."""
    system, started = SYSTEMS[name], process_time()
    known = json.loads((KEPT / f"rules {name}.json").read_text())
    finals = torch.load(KEPT / f"rules {name}.pt", weights_only=True)
    made, counted = system.make(), known["counted"]
    learner = Metered(share, twins=twins)
    learner.counted = counted
    learning, parts, used = 0.0, [], []
    for seeds in blocks(LEARNING, LEARNED_ON * BATCH, BATCH):
        learning += float(work_of(made.problem(seeds).rollout(learner), counted).sum())
    for seeds in blocks(EVALUATION, system.samples, BATCH):
        problem, first = made.problem(seeds), seeds.start - EVALUATION
        frozen = learner.schedule(len(seeds), peek=True)
        control = torch.zeros(len(seeds)).index_fill(0, frozen.rows_of("control"), 1.0)
        used.append(learner.report().in_use)
        run = problem.rollout(learner)
        found = measured(made, run, problem, finals[first : first + len(seeds)], counted)
        parts.append(found | {"control": control.tolist()})
    return {
        "row": joined(parts),
        "in use": used,
        "left out": learner.drifting(),
        "learning work": learning,
        "twins work": learner.twins_work,
        "twins": learner.tried,
        "fitting": learner.fitting,
        "seconds": process_time() - started,
    }


# ------------------------------------------------------------------ calls that cost something


def spend(run: tt.Rollout, cost: Cost) -> float:
    """Return what the calls and rows of a run cost in all."""
    rows = run.projected.sum(dim=1)
    return float(cost.call * (rows > 0).sum() + cost.row * rows.sum())


def programmed(model: Any, limit: float, cost: Cost, T: int) -> Learned:
    """Return the schedule of a batch that shares `limit` per sample under the program of whole projections."""
    n = CALL_SIZE
    arm = Programmed(torch.arange(n), limit, True, solve_ways(model, (1,), True, cost, n / 4))
    budget = PerBatch(torch.full((n,), limit, dtype=torch.float64))
    facts = {"constraint": "", "n_steps": T}
    return Learned({"program": arm}, ("whole",), "second", cost, cost.row + cost.call / n, None, budget, facts)


def without_price(model: Any, problem: Any, cost: Cost, allowed: float, T: int) -> Learned:
    """Return the program over rows with the largest limit, in rows, that costs no more than allowed on a batch."""
    low, high = 1.01, 0.25 * T
    best = programmed(model, low, Cost(row=1), T)
    for middle in (high, *([None] * 6)):
        limit = middle or (low + high) / 2
        tried = programmed(model, limit, Cost(row=1), T)
        if spend(problem.rollout(tried), cost) <= 1.02 * allowed:
            low, best = limit, tried
            if middle:
                break
        else:
            high = limit
    return best


def calls(name: str) -> dict[str, Any]:
    """Return distances under three rules at equal total cost, if a call costs something."""
    started, made, n = process_time(), domain(name), CALL_SIZE
    learner = Learner(0.25, unit="projection", twins=0)
    for seeds in blocks(CALLS, 2 * n, n):
        learned_on = made.problem(seeds)
        learned_on.rollout(learner)
    problems = [made.problem(seeds) for seeds in blocks(CALLS + 2 * n, 2 * n, n)]
    full = [one.rollout(tt.Stepwise()) for one in problems]
    T, found = full[0].n_steps, dict[str, Any]()

    def measure(schedule: Any) -> tuple[list[tt.Rollout], list[float]]:
        runs = [one.rollout(schedule) for one in problems]
        apart = [p.distance(r.final, f.final) for p, r, f in zip(problems, runs, full, strict=True)]
        return runs, digits(torch.cat(apart).double())

    for label, (call, row) in COSTS.items():
        cost, allowed = Cost(call=call, row=row), 0.25 * T * (call + n * row)
        rules = {
            "even": tt.Periodic(0.25),
            "without": without_price(learner.model, learned_on, cost, allowed, T),
            "priced": programmed(learner.model, allowed / n, cost, T),
        }
        for rival, schedule in rules.items():
            runs, distance = measure(schedule)
            found[f"{label}, {rival}"] = {
                "distance": distance,
                "cost": sum(spend(run, cost) for run in runs) / (len(runs) * 4 * allowed),
                "called": sum(float(run.projected.any(dim=1).sum()) for run in runs) / len(runs),
            }
    terminal = measure(tt.Terminal())[1]
    return {"rows": found, "terminal": terminal, "T": T, "n": n, "seconds": process_time() - started}


# ------------------------------------------------------------------ all of it


def cell(kind: str, *facts: Any) -> Path:
    """Return the file of a cell."""
    return KEPT / f"{' '.join(str(fact) for fact in (kind, *facts))}.json"


def work(kind: str, *facts: Any) -> None:
    """Measure one cell and keep it."""
    torch.set_num_threads(1)
    path = cell(kind, *facts)
    found = rules(*facts, path) if kind == "rules" else line(*facts) if kind == "line" else calls(*facts)
    write_atomically(path, json.dumps(found).encode())


def jobs(names: Sequence[str], called: Sequence[str]) -> Iterator[list[tuple[Any, ...]]]:
    """Yield what can be measured at the same time: learners come after the rules, whose full projection they need."""
    yield [("calls", name) for name in called]
    for k in range(0, len(names), 2):
        some = names[k : k + 2]
        yield [("rules", name) for name in some]
        yield [("line", name, share, twins) for share in SHARES for name in some for twins in (16, 0)]


def main() -> None:
    """Measure what is missing, and write the page and the figure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two systems, and nothing is written but runs/online")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--page", action="store_true", help="measure nothing, and write about what is finished")
    asked = parser.parse_args()
    names, called = (QUICK, CALLED[:1]) if asked.quick else (tuple(SYSTEMS), CALLED)
    KEPT.mkdir(parents=True, exist_ok=True)
    started, everything = perf_counter(), [job for some in jobs(names, called) for job in some]
    done = sum(cell(*job).exists() for job in everything)
    if asked.page:
        names = tuple(name for name in names if all(cell(*job).exists() for some in jobs([name], []) for job in some))
        called = tuple(name for name in called if cell("calls", name).exists())
        everything = [job for some in jobs(names, called) for job in some]
    with ProcessPoolExecutor(asked.processes) as pool:
        for some in jobs(names, called):
            running = {pool.submit(work, *job): job for job in some if not cell(*job).exists()}
            for future in as_completed(running):
                future.result()
                done += 1
                shown = " ".join(str(fact) for fact in running[future])
                print(f"[{done}/{len(everything)}] {shown}, {perf_counter() - started:.0f} s", flush=True)
    cells = {cell(*job).stem: json.loads(cell(*job).read_text()) for job in everything}
    publish(cells, names, called, SHARES, write=not asked.quick)


if __name__ == "__main__":
    main()
