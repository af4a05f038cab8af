"""Try to break trimtab, and print a table: `python tools/torture.py`, about ten minutes; `--quick`, about two.

`--write` renews the table of docs/results/reliability.md; names of attacks run these alone. The tests of tests/torture
are run by pytest, with `TRIMTAB_TORTURE=20` for many more cases.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import math
import os
import pickle
import random
import resource
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import trimtab as tt
from trimtab.constraints import NonlinearEquality
from trimtab.core.budget import PerBatch, PerSample
from trimtab.core.files import load_tensors, save_tensors
from trimtab.loop.replay import replay
from trimtab.prices.learner import Learner
from trimtab.schedules import By

PAGE = Path(__file__).parent.parent / "docs" / "results" / "reliability.md"
CLEAR = (ValueError, TypeError, RuntimeError, OSError)


class Row(NamedTuple):
    """What came of an attack: how many cases, what was wrong in silence, and what is worth saying."""

    cases: int
    wrong: list[str]
    note: str = ""


# ------------------------------------------------------------------ what is attacked


@dataclass(frozen=True)
class Walk:
    """A random walk."""

    n_steps: int = 12
    size: int = 3

    def start(self, noise: Any) -> Tensor:
        """Return normal states."""
        return noise.start((self.size,))

    def step(self, x: Tensor, t: int, noise: Any) -> Tensor:
        """Return the next states."""
        return x + 0.3 * noise.normal(t, (self.size,))


class Ball(tt.Constraint):
    """The unit ball; its defect and projection can be spoilt."""

    def __init__(self, defect: Callable[[Tensor], Tensor] | None = None, project: Any = None) -> None:
        """Spoil what is given: functions of the good answer."""
        self.spoil_defect, self.spoil = defect, project

    def defect(self, x: Tensor) -> Tensor:
        """Return the distance."""
        good = (x.norm(dim=1) - 1).clamp(min=0)
        return good if self.spoil_defect is None else self.spoil_defect(good)

    def project(self, x: Tensor) -> Any:
        """Return the nearest states."""
        good = x / x.norm(dim=1, keepdim=True).clamp(min=1)
        return good if self.spoil is None else self.spoil(good)


CIRCLE = NonlinearEquality(lambda y: (y * y).sum()[None] - 1)
CONSTRAINTS = {"ball": Ball(), "circle": CIRCLE}
LEARNERS = {
    "per batch": lambda: Learner(0.25, twins=0),
    "per sample": lambda: Learner(PerSample(0.25)),
    "fixed rows": lambda: Learner(PerBatch(0.25, rows="fixed")),
    "seconds": lambda: Learner(0.25, unit="second", twins=0),
}


class Fragile(tt.Constraint):
    """A state is (defect now, steps since its correction, whether it is lost); who is lost stays far off forever."""

    def defect(self, x: Tensor) -> Tensor:
        """Return the defect."""
        return x[:, 0] + 5 * x[:, 2]

    def project(self, x: Tensor) -> Tensor:
        """Return states without the defect of now."""
        return torch.stack([0 * x[:, 0], 0 * x[:, 1], x[:, 2]], dim=1)


@dataclass(frozen=True)
class Waiting(Walk):
    """Loses samples that wait for a correction longer than five steps, of which no defect warns."""

    def start(self, noise: Any) -> Tensor:
        """Return states that are not lost."""
        return torch.zeros(len(noise.seeds), 3, dtype=torch.float64)

    def step(self, x: Tensor, t: int, noise: Any) -> Tensor:
        """Return the next states."""
        waited = x[:, 1] + 1
        lost = torch.maximum(x[:, 2], (waited > 5).to(x))
        return torch.stack([noise.normal(t, (1,))[:, 0].abs(), waited, lost], dim=1)


def seeds_of(batch: int, n: int = 16) -> range:
    """Return the seeds of a batch."""
    return range(n * batch, n * batch + n)


# ------------------------------------------------------------------ attacks


def guard(quick: bool) -> Row:
    """Serve a sampler on which learned prices are really worse than even spacing."""
    lost, acted = [], []
    for budget in (PerBatch(0.25), PerSample(0.25)):
        learner, since = Learner(budget, twins=0), None
        for k in range(24):
            run = tt.rollout(Waiting(24), Fragile(), learner, seeds_of(k))
            even = tt.rollout(Waiting(24), Fragile(), tt.Periodic(6), seeds_of(k), measure_defects=True)
            lost.append(float(run.residuals.sum() / even.residuals.sum()))
            if since is None and learner.report().in_use == "even spacing":
                since = k + 1
        acted.append(since)
    wrong = [] if all(since is not None and since <= 8 for since in acted) else [f"the guard acted after {acted}"]
    note = f"path error {max(lost):.1f} times even spacing's for {acted[0]} batches, then {np.mean(lost[12:24]):.2f}"
    return Row(len(lost), wrong, note)


def bad_numbers(quick: bool) -> Row:
    """Propose NaN and inf, and measure NaN, inf and negative defects: at any step, in every unit."""
    r, wrong, cases = random.Random(0), [], 0
    for unit, kind, step in itertools.product(("projection", "iteration"), range(6), range(12)):
        constraint: tt.Constraint = CIRCLE if unit == "iteration" else Ball()
        schedule = By("1 iteration") if unit == "iteration" else tt.Periodic(6)
        spoilt, good = [math.nan, math.inf, -math.inf][kind % 3], torch.rand(8, 3) + 1
        if kind >= 3:
            bad = [math.nan, math.inf, -1.0][kind % 3]
            now = [False]
            constraint = Ball(
                lambda d, bad=bad, now=now: torch.where(torch.arange(len(d)) == 2, bad, d) if now[0] else d
            )
            schedule = tt.Periodic(6)
        corrector = tt.Corrector(constraint, schedule, 12, measure_defects=True, unit=unit)
        x, cases = good, cases + 1
        for t in range(12):
            if t == step:
                x = good.clone()
                if kind < 3:
                    x[r.randrange(8), 0] = spoilt
                else:
                    now[0] = True
                try:
                    corrector(x, t)
                    wrong.append(f"{unit}, kind {kind}, step {step}: accepted")
                except ValueError as error:
                    if f"step {step}" not in str(error):
                        wrong.append(f"{unit}, kind {kind}: {error}")
                if kind >= 3:
                    now[0] = False
            x = corrector(good, t)  # the step can be made again
        if not bool(corrector.rollout.feasible.all()):
            wrong.append(f"{unit}, kind {kind}, step {step}: not feasible after")
    return Row(cases, wrong)


def budgets(quick: bool) -> Row:
    """Give budgets of 0, below 0, above 1, of T and above, NaN: exact, or an error before the first step."""
    wrong, cases, refused = [], 0, 0
    values = [-1, -0.1, 0, 0.0, 1e-9, 1, 0.5, 0.999, 1.0, 1.0001, 2.5, 11, 12, 13, math.nan, math.inf, 2**70, True]
    for value, wrap, closing in itertools.product(values, (None, PerBatch, PerSample), ("paid", "free", "none")):
        for make in (tt.Periodic, lambda budget: Learner(budget, twins=0)):
            if make is tt.Periodic and wrap is not None:
                continue
            cases += 1
            known = value == value and 0 <= value < 1e9
            asked = (int(value * 12 + 0.5) if isinstance(value, float) else int(value)) if known else -1
            try:
                schedule = make(value if wrap is None else wrap(value))
                for k in range(3):
                    run = tt.rollout(Walk(), Ball(), schedule, seeds_of(k), closing=closing)
                    if int(run.spent.sum()) != 16 * asked:
                        wrong.append(f"{value!r}, {wrap}, {closing}: {int(run.spent.sum())} instead of {16 * asked}")
            except CLEAR as error:
                refused += 1
                fits = 0 <= asked <= 12 and value is not True and not (isinstance(value, float) and value > 1)
                if len(str(error)) < 20 or (fits and not (closing == "paid" and asked == 0)):
                    wrong.append(f"{value!r}, {wrap}, {closing}: {error}")
    return Row(cases, wrong, f"{refused} refused")


def exceptions(quick: bool) -> Row:
    """Raise in a projection or an update at any step, and start again: nothing of the broken run is learned."""
    wrong, cases = [], 0
    for name, at in itertools.product(LEARNERS, range(0, 12, 3 if quick else 1)):
        armed = [False]

        def spoil(good: Tensor, armed: list[bool] = armed) -> Tensor:
            if armed[0]:
                armed[0] = False
                raise ArithmeticError("as asked")
            return good

        learner, cases = LEARNERS[name](), cases + 1
        corrector = tt.Corrector(Ball(project=spoil), learner, 12)
        for k in range(5):
            generator, x, broken = torch.Generator().manual_seed(k), torch.zeros(8, 3), False
            for t in range(12):
                armed[0] = k == 2 and t == at
                try:
                    x = corrector(x + 0.5 * torch.randn(8, 3, generator=generator), t)
                except ArithmeticError:
                    broken = True
                    break
            armed[0] = False
            if broken:
                try:
                    corrector(x, at + 1)
                    wrong.append(f"{name}, step {at}: a broken run went on")
                except RuntimeError:
                    pass
        if learner.runs not in (4, 5) or learner.samples != 8 * learner.runs:
            wrong.append(f"{name}, step {at}: {learner.samples} samples in {learner.runs} runs")
    return Row(cases, wrong)


def threads(quick: bool) -> Row:
    """Let four threads learn with one learner, a corrector each."""
    wrong, cases = [], 0
    for name, make in LEARNERS.items():
        learner, errors = make(), []
        rounds = 4 if quick else 16

        def serve(worker: int, learner: Learner = learner, errors: list[str] = errors, rounds: int = rounds) -> None:
            try:
                for k in range(rounds):
                    run = tt.rollout(Walk(), Ball(), learner, seeds_of(1000 * worker + k))
                    if run.unit == "projection" and int(run.spent.sum()) != 16 * 3:
                        errors.append(f"spent {int(run.spent.sum())}")
            except Exception as error:
                errors.append(f"{type(error).__name__}: {error}")

        started = [threading.Thread(target=serve, args=(worker,)) for worker in range(4)]
        for thread in started:
            thread.start()
        for thread in started:
            thread.join()
        cases += 4 * rounds
        wrong += [f"{name}: {what}" for what in errors]
        if not errors and (learner.runs, learner.samples) != (4 * rounds, 64 * rounds):
            wrong.append(f"{name}: {learner.samples} samples in {learner.runs} runs of {4 * rounds}")
    return Row(cases, wrong)


def pickles(quick: bool) -> Row:
    """Pickle, copy and deepcopy correctors and learners at every step; what goes on is the same to the bit."""
    wrong, cases = [], 0
    ways: dict[str, Callable[[Any], Any]] = {
        "pickle": lambda c: pickle.loads(pickle.dumps(c)),
        "copy": copy.copy,
        "deepcopy": copy.deepcopy,
    }
    for (name, how), at in itertools.product(ways.items(), range(0, 12, 4 if quick else 1)):
        for budget in (0.25, PerSample(0.25)):
            cases += 1
            whole = tt.Corrector(Ball(), Learner(budget, twins=0), 12)
            for k in range(4):
                steps = 0.5 * torch.randn(12, 8, 3, generator=torch.Generator().manual_seed(k))
                x = y = torch.zeros(8, 3)
                twin = None
                for t in range(12):
                    if k == 3 and t == at and t > 0:
                        twin, y = how(whole), x
                    x = whole(x + steps[t], t)
                    y = x if twin is None else twin(y + steps[t], t)
                if twin is not None and not (
                    torch.equal(x, y) and torch.equal(whole.rollout.projected, twin.rollout.projected)
                ):
                    wrong.append(f"{name} at step {at}, {budget}: goes on differently")
    return Row(cases, wrong)


def merges(quick: bool) -> Row:
    """Merge workers in every order, twice, and with copies of them."""
    wrong, cases = [], 0
    for name, make in LEARNERS.items():
        start = make()
        for k in range(2):
            tt.rollout(Walk(), Ball(), start, seeds_of(k))
        workers = [start.worker(seed) for seed in range(3)]
        for w, worker in enumerate(workers):
            for k in range(2):
                tt.rollout(Walk(), Ball(), worker, seeds_of(100 * w + 10 + k))
        known = None
        for order in itertools.permutations(range(3)):
            some = [workers[i] for i in order]
            merged = some[0].merge([*some[1:], copy.deepcopy(some[0]), pickle.loads(pickle.dumps(some[2]))])
            facts = (merged.samples, merged.runs, merged.comparisons["path"], merged.comparisons["landing"])
            known, cases = known or facts, cases + 1
            if facts != known or merged.samples != 16 * 8:
                wrong.append(f"{name}, {order}: {facts[:2]} instead of {known[:2]}")
    return Row(cases, wrong)


def projections(quick: bool) -> Row:
    """Return other shapes, types and numbers from a projection: an error that says so."""
    wrong, cases = [], 0
    spoils: dict[str, Callable[[Tensor], Any]] = {
        "fewer rows": lambda x: x[:-1],
        "another event": lambda x: x[:, :2],
        "one axis more": lambda x: x[None],
        "float32": lambda x: x.float(),
        "integers": lambda x: x.long(),
        "a list": lambda x: x.tolist(),
        "None": lambda x: None,
        "a number": lambda x: 1.0,
        "NaN": lambda x: x * math.nan,
        "one NaN": lambda x: torch.where(torch.arange(len(x))[:, None] == 0, math.nan, x),
        "inf": lambda x: x / 0,
        "converged of floats": lambda x: tt.Projection(x, torch.ones(len(x))),
        "converged of another size": lambda x: tt.Projection(x, torch.ones(len(x) + 1).bool()),
        "negative iterations": lambda x: tt.Projection(x, None, torch.full((len(x),), -1)),
        "residuals of another size": lambda x: tt.Projection(x, None, None, torch.ones(len(x), 1)),
        "negative residuals": lambda x: tt.Projection(x, None, None, torch.full((len(x),), -1.0, dtype=x.dtype)),
        "NaN residuals": lambda x: tt.Projection(x, None, None, torch.full((len(x),), math.nan, dtype=x.dtype)),
    }
    for (name, spoil), schedule in itertools.product(spoils.items(), (tt.Stepwise(), 0.25)):
        cases += 1
        try:
            tt.rollout(Walk(), Ball(project=spoil), schedule, range(8), measure_defects=True)
            wrong.append(f"{name}: accepted")
        except CLEAR as error:
            if len(str(error)) < 20:
                wrong.append(f"{name}: {error!r}")
    return Row(cases, wrong)


def not_idempotent(quick: bool) -> Row:
    """Project to where another projection would move again, as far as a tenth or outward: residuals say so."""
    wrong, cases = [], 0
    for factor, budget in itertools.product((1.1, 2.0), (0.25, PerSample(0.25))):
        learner = Learner(budget, twins=0)
        for k in range(6):
            run = tt.rollout(Walk(), Ball(project=lambda x, f=factor: f * x), learner, seeds_of(k))
            cases += 1
            left = run.residuals[run.projected]
            outside = run.final.norm(dim=1) - 1
            if int(run.spent.sum()) != 48 or not torch.allclose(run.residuals[-1], outside.clamp(min=0)):
                wrong.append(f"factor {factor}, {budget}: spent {int(run.spent.sum())}")
            if float(left.max()) > factor - 1 + 1e-9:
                wrong.append(f"factor {factor}, {budget}: residual {float(left.max())}")
    return Row(cases, wrong)


def child(work: Callable[[], None]) -> int:
    """Start a forked process; return its id."""
    found = os.fork()
    if found == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    return found


def taught(batches: int = 2) -> Learner:
    """Return a learner that has learned a little."""
    learner = Learner(0.25, twins=0)
    for k in range(batches):
        tt.rollout(Walk(), Ball(), learner, seeds_of(k))
    return learner


def two_writers(quick: bool) -> Row:
    """Save two learners to one file again and again, while it is read: it is always one of them, whole."""
    wrong, reads, one, two = [], 0, taught(2), taught(3)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "learner"
        one.save(path)
        started = [
            child(lambda each=each: [each.save(path) for _ in range(50 if quick else 400)] and None)
            for each in (one, two)
        ]
        left = set(started)
        while left:
            left -= {pid for pid in left if os.waitpid(pid, os.WNOHANG)[0]}
            try:
                wrong += [] if Learner.load(path).runs in (2, 3) else ["another learner"]
            except Exception as error:
                wrong.append(f"{type(error).__name__}: {error}")
            reads += 1
        wrong += [f"left behind: {name}" for name in os.listdir(folder) if name != "learner"]
    return Row(reads, wrong, "reads")


def kills(quick: bool) -> Row:
    """Kill a learner that saves after every batch with SIGKILL, load and go on: nothing but the last batch is lost."""
    wrong, r, times = [], random.Random(0), 6 if quick else 40
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "learner"

        def serve() -> None:
            learner = Learner.load(path) if path.exists() else Learner(0.25, twins=0)
            while learner.runs < 10**6:
                tt.rollout(Walk(), Ball(), learner, seeds_of(learner.runs))
                learner.save(path)

        before = 0
        for _ in range(times):
            pid = child(serve)
            time.sleep(0.2 + 0.4 * r.random())
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            runs = Learner.load(path).runs if path.exists() else 0
            if runs < before:
                wrong.append(f"{runs} runs after {before}")
            before = runs
    return Row(times, wrong, f"{before} batches learned on the way")


def full_disk(quick: bool) -> Row:
    """Save to a disk that fills up after any number of bytes, and to /dev/full: an OSError, the old file kept."""
    wrong, cases = [], 0
    learner, run = taught(), tt.rollout(Walk(), Ball(), tt.Periodic(3), range(8), measure_defects=True)
    with tempfile.TemporaryDirectory() as folder:
        for thing, limit in itertools.product((learner, run), (0, 1, 100, 2000)):
            path = Path(folder) / "kept"
            thing.save(path)
            old, cases = path.read_bytes(), cases + 1

            def fill(thing: Any = thing, limit: int = limit, path: Path = path) -> None:
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
                try:
                    thing.save(path)
                except OSError as error:
                    os._exit(7 if str(path) in str(error) else 8)

            status = os.waitstatus_to_exitcode(os.waitpid(child(fill), 0)[1])
            if status != 7 or path.read_bytes() != old or os.listdir(folder) != ["kept"]:
                wrong.append(f"{type(thing).__name__} at {limit} bytes: {status}")
        for thing in (learner, run):
            cases += 1
            try:
                thing.save("/dev/full")
                wrong.append("/dev/full was written")
            except OSError:
                pass
    return Row(cases, wrong)


def hostile_files(quick: bool) -> Row:
    """Load damaged files, and files with a good checksum whose contents were made up: a ValueError or the same."""
    r, wrong, cases = random.Random(0), [], 0
    price = tt.calibrate(tt.Problem(Walk(), Ball(), range(1000, 1016)), method="dp")
    things = {
        "learner": (taught(), Learner.load, "learner"),
        "table": (_taught_table(), Learner.load, "learner"),
        "rollout": (
            tt.rollout(Walk(), Ball(), tt.Periodic(3), range(8), measure_defects=True),
            tt.Rollout.load,
            "rollout",
        ),
        "price": (price, tt.load, None),
    }
    junk: list[Any] = [
        None,
        -1,
        0,
        1e308,
        math.nan,
        "",
        "x" * 50,
        [],
        {},
        [[]],
        {"a": {}},
        True,
        2**70,
        [None],
        -(2**70),
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        for name, (thing, load, kind) in things.items():
            thing.save(path)
            whole = path.read_bytes()
            tensors, facts = load_tensors(path, kind) if kind else ({}, {})
            for i in range(100 if quick else 1000):
                cases += 1
                if i % 2 or kind is None:
                    at = r.randrange(len(whole))
                    flipped = bytes([whole[at] ^ (1 << r.randrange(8))])
                    path.write_bytes(
                        r.choice([whole[:at], whole[:at] + flipped + whole[at + 1 :], whole[at:], whole + whole])
                    )
                else:
                    _save_made_up(path, kind, tensors, facts, junk, r)
                try:
                    read = load(path)
                    if kind == "learner":  # what was accepted must work, or say what is wrong
                        repr(read.report())
                        tt.rollout(Walk(), Ball(), read, seeds_of(50))
                except CLEAR as error:
                    if len(str(error)) < 10:
                        wrong.append(f"{name}, case {i}: {error!r}")
                except Exception as error:
                    where = traceback.extract_tb(error.__traceback__)[-1]
                    wrong.append(
                        f"{name}, case {i}: {type(error).__name__}: {error!s:.80} "
                        f"({Path(where.filename).name}:{where.lineno})"
                    )
    return Row(cases, wrong)


def _taught_table() -> Learner:
    learner = Learner(PerSample(0.25))
    for k in range(3):
        tt.rollout(Walk(), Ball(), learner, seeds_of(k))
    return learner


def _save_made_up(
    path: Path, kind: str, tensors: dict[str, Tensor], facts: dict[str, Any], junk: list[Any], r: random.Random
) -> None:
    """Write a file with a good checksum in which one fact, one part of a fact or one tensor is junk."""
    tensors, facts = dict(tensors), json.loads(json.dumps(facts))
    if r.random() < 0.3 and tensors:
        name = r.choice(sorted(tensors))
        t = tensors[name]
        tensors[name] = r.choice(
            [t[:1], t.flatten(), t.double() * math.nan, -t.double(), t.new_zeros(0), t[..., :1], t.bool()]
        )
    else:
        here: Any = facts
        while True:
            keys = list(here) if isinstance(here, dict) else list(range(len(here)))
            key = r.choice(keys)
            inside = here[key]
            if isinstance(inside, dict | list) and inside and r.random() < 0.7:
                here = inside
                continue
            here[key] = r.choice(junk)
            break
    save_tensors(path, kind, tensors, facts)


def replays(quick: bool) -> Row:
    """Compute the decisions of learned runs again."""
    wrong, cases = [], 0
    for (name, make), (what, constraint) in itertools.product(LEARNERS.items(), CONSTRAINTS.items()):
        for closing, n in itertools.product(("paid", "free", "none"), (1, 5, 16)):
            learner = make()
            for k in range(4 if quick else 10):
                corrector = tt.Corrector(constraint, learner, 12, closing=closing)
                noise, x = torch.Generator().manual_seed(k), torch.ones(n, 3, dtype=torch.float64)
                for t in range(12):
                    x = corrector(x + 0.3 * torch.randn(n, 3, generator=noise, dtype=torch.float64), t)
                run, cases = corrector.rollout, cases + 1
                again = replay(corrector.schedule, run)
                if not torch.equal(again, run.projected if again.dtype is torch.bool else run.ways):
                    wrong.append(f"{name}, {what}, {closing}, {n} samples, run {k}")
    return Row(cases, wrong)


# ------------------------------------------------------------------ growth


def _grow_samples(n: int) -> None:
    learner = Learner(0.25, twins=0)
    for k in range(3):
        tt.rollout(Walk(12), Ball(), learner, seeds_of(k, n))


def _grow_steps(steps: int) -> None:
    learner = Learner(0.25, twins=0)
    for k in range(3):
        tt.rollout(Walk(steps), Ball(), learner, seeds_of(k, 8))


def _grow_batches(batches: int) -> None:
    learner = Learner(0.25, twins=0)
    for k in range(batches):
        tt.rollout(Walk(12), Ball(), learner, seeds_of(k, 8))
    learner.report()


def growth(work: Callable[[int], None], sizes: list[int], allowed: float, quick: bool) -> Row:
    """Return how time and memory grow with a size: the slope of their logarithms from the first size to the last."""
    seconds, memory = [], []
    for size in sizes if not quick else sizes[:-1]:
        reader, writer = os.pipe()

        def measured(size: int = size, writer: int = writer) -> None:
            torch.set_num_threads(1)
            work(sizes[0] // 10 + 1)  # imports and caches
            before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
            work(size)
            used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
            os.write(writer, json.dumps([time.process_time() - start, used / 1024]).encode())

        pid = child(measured)
        os.close(writer)
        answer = os.read(reader, 1000)
        os.close(reader)
        if os.waitpid(pid, 0)[1]:
            return Row(1, [f"failed at {size}"])
        one = json.loads(answer)
        seconds.append(one[0])
        memory.append(max(one[1], 1.0))
    used = sizes[: len(seconds)]
    slopes = [math.log(each[-1] / each[0]) / math.log(used[-1] / used[0]) for each in (seconds, memory)]
    note = f"{used[0]:,} to {used[-1]:,}: {seconds[-1]:.1f} s, {memory[-1]:.0f} MB; "
    note += f"time^{slopes[0]:.2f}, memory^{slopes[1]:.2f}"
    return Row(len(used), [] if max(slopes) <= allowed else [note], note)


ATTACKS: dict[str, Callable[[bool], Row]] = {
    "guard": guard,
    "bad numbers": bad_numbers,
    "budgets": budgets,
    "exceptions": exceptions,
    "threads": threads,
    "pickles": pickles,
    "merges": merges,
    "projections": projections,
    "not idempotent": not_idempotent,
    "two writers": two_writers,
    "kill -9": kills,
    "full disk": full_disk,
    "hostile files": hostile_files,
    "replays": replays,
    "growth with samples": lambda quick: growth(_grow_samples, [1_000, 10_000, 100_000], 1.2, quick),
    "growth with steps": lambda quick: growth(_grow_steps, [100, 1_000, 10_000], 1.3, quick),
    "growth with batches": lambda quick: growth(_grow_batches, [20, 200, 2_000], 1.3, quick),
}


def main(words: list[str]) -> int:
    """Run attacks and print their table; return 1 if something was wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("attacks", nargs="*", metavar="ATTACK", help=f"of {', '.join(ATTACKS)}; all by default")
    parser.add_argument("--quick", action="store_true", help="fewer cases, about two minutes")
    parser.add_argument("--write", action="store_true", help=f"renew the table of {PAGE.name}")
    asked = parser.parse_args(words)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    lines, failed = ["| attack | cases | wrong | seconds | |", "|---|---|---|---|---|"], 0
    print("\n".join(lines), flush=True)
    for name in asked.attacks or ATTACKS:
        start = time.perf_counter()
        try:
            row = ATTACKS[name](asked.quick)
        except Exception as error:
            traceback.print_exc()
            row = Row(0, [f"{type(error).__name__}: {error}"])
        failed += len(row.wrong)
        lines.append(f"| {name} | {row.cases} | {len(row.wrong)} | {time.perf_counter() - start:.0f} | {row.note} |")
        print(lines[-1], flush=True)
        for what in row.wrong[:6]:
            print(f"    {what}", flush=True)
    if asked.write:
        text = PAGE.read_text(encoding="utf-8")
        first, last = "<!-- table -->\n", "<!-- end of table -->"
        PAGE.write_text(
            text[: text.index(first) + len(first)] + "\n".join(lines) + "\n" + text[text.index(last) :],
            encoding="utf-8",
        )
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
