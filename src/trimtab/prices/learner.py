"""Learn from run to run when, how much and how to correct, and prove it against control samples.

`Corrector(constraint, 0.25, n_steps)` makes a `Learner`. It needs no calibration. In the first two runs samples take
ways of correcting at random (or, if there is only the whole projection, at evenly spaced steps that take turns), and a
few pilot samples follow full projection, with every other way tried beside it. After each run its traces join a bounded
memory, the program over ways is solved again, and the next run has its decisions. Learning happens between runs: the
schedule of a run is a frozen value, and `replay` holds.

One sample in eight stays on even spacing of whole projections at equal work, as control, and one in 32 once the others
are better beyond doubt. Where they are worse, a guard falls back to even spacing.

A way is left out if its errors point one way: what single iterations leave is small, but on some systems it adds up
over the steps, while what staying leaves cancels. The pilots show which (`drifting_ways`).

Path error is not what a user wants, so where trimtab holds the loop (`rollout`, `Corrector.sample`) twins decide: a few
samples of one early run are run again on the same noise, under full projection and under every candidate, and the
candidate that ends nearest serves from then on. Simple rules (even spacing, the last steps, one at the end, a few
iterations at every step) are candidates too.
"""

from __future__ import annotations

import hashlib
import math
import os
import warnings
from collections.abc import Callable, Sequence
from copy import deepcopy
from importlib import import_module
from threading import RLock
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trimtab.constraints.ways import ways_of
from trimtab.core.budget import Cost, PerBatch, PerSample, Unit, corrections
from trimtab.core.checks import check_integer, check_number, check_type, unknown
from trimtab.core.constraint import Constraint
from trimtab.core.control import ControlStream
from trimtab.core.evidence import Comparison, batch_identity
from trimtab.core.files import load_tensors, save_tensors
from trimtab.core.metrics import Distance, euclidean, measured_distance
from trimtab.core.quality import Quality, as_quality
from trimtab.core.record import Closing, Rollout
from trimtab.core.schedule import WHOLE
from trimtab.prices.fit import Model, Traces, fit, joined
from trimtab.prices.learned import Arm, Even, Every, Explore, Last, Learned, Programmed, budgets_of
from trimtab.prices.observed import Spent, as_traces, spent_in, work_per_sample
from trimtab.prices.report import IN_WORDS, Report
from trimtab.prices.ways import Program, fit_cost, solve_ways

__all__ = ["Learned", "Learner", "Report", "as_learner", "drifting_ways", "warn_of_path_error"]

_CONTROL, _PROVEN = 8, 32  # one sample in so many stays on even spacing, at first and once the others are better
_RIVALS = 8  # with a quality, one sample in so many follows a rival
_EXPLORED = 2  # runs
_FEWEST = 4  # samples to learn from
_WINDOW = 512  # samples in memory
_BATCH = 8  # samples that make a batch; smaller runs are gathered
_GUARD = 4  # batches before the guard believes a mean
_MEASURES = ("path", "landing", "quality")
_TELLING = 8  # samples whose median says what scale defects have
_NO_LIMIT = 2**31 - 1
_TURN = RLock()  # correctors in several threads may share a learner
_LEVEL_WORK = 1.1  # a candidate may take this much of the budget


class Learner:
    """Learns from run to run which corrections pay; use it as the schedule of a `Corrector` or of `rollout`.

    Example:
        >>> import trimtab as tt
        >>> domain, learner = tt.domain("so3-impulse", n_steps=40), tt.prices.Learner(0.25)
        >>> for batch in range(4):
        ...     run = domain.problem(range(16 * batch, 16 * batch + 16)).rollout(learner)
        >>> int(run.spent.sum()), learner.report().samples
        (160, 64)
    """

    def __init__(
        self,
        budget: int | float | PerBatch | PerSample,
        *,
        quality: Quality | Callable[[Any], Any] | None = None,
        unit: str = "work",
        ways: Sequence[str] | None = None,
        twins: int = 16,
        tolerance: float = 0.05,
        seed: int = 0,
    ) -> None:
        """Make a learner.

        Args:
            budget: What may be spent. A number is `PerBatch`: the batch shares it.
            quality: A `Quality`, or a function of final states, (n, *event) to (n,), lower being better. If given, it
                decides between what was learned and simple rules. Samples whose number is NaN or infinite are left out
                and counted.
            unit: What the budget is a share of. "work": of the work of full projection, in iterations if the
                constraint's solver iterates, else in projections. "second": of its seconds, as measured.
                "projection": whole projections only, exactly as many as the budget says.
            ways: Names of ways to choose from, see `trimtab.constraints.ways`; by default one, two or three iterations
                and whole projections, without those that drift.
            twins: How many samples of one early run are run again, under full projection and under every candidate, to
                choose the one that ends nearest; 0 for none. Only where trimtab holds the loop.
            tolerance: How much worse than even spacing's the path error may be, as a share, before the guard acts.
            seed: Of the control's choice and phases.
        """
        check_number(tolerance, "tolerance", 0.0, 10.0)
        if budget is None:
            raise ValueError("a learner needs a budget, such as 0.25: got None")
        if unit not in ("work", "second", "projection"):
            raise unknown("unit", unit, ("work", "second", "projection"))
        self.budget = budget if isinstance(budget, PerBatch | PerSample) else PerBatch(budget)
        if isinstance(self.budget, PerBatch) and self.budget.parts is not None:
            raise ValueError("a learner shares its budget over the whole batch: leave out the parts of PerBatch")
        if self._by_table and ways is not None:
            raise ValueError("ways are chosen for a budget that the batch shares: leave out PerSample and rows='fixed'")
        judged = as_quality(quality)
        self.quality = None if judged is None else judged.lenient
        self.asked_unit, self.asked_ways = unit, None if ways is None else (*ways,)
        self.tolerance, self.seed = float(tolerance), check_integer(seed, "seed", -(2**63))
        self.twins, self.tried = check_integer(twins, "twins", 0), dict[str, list[float]]()
        self.made_for: dict[str, Any] = {}
        self.ways: tuple[str, ...] = (WHOLE,)
        self.memory: dict[str, Traces] = {}  # by run
        self.spent: dict[str, Spent] = {}
        self._counts_iterations = False
        self.drift: dict[str, list[list[float]]] = {}  # of pilots: ways, length of the sum, sum of lengths
        self.comparisons = {name: Comparison() for name in _MEASURES}
        self.rivals: dict[str, Comparison] = {}  # quality of each rival against what is in use
        self._gathered: dict[str, dict[str, list[Tensor]]] = {}  # runs of a few samples, not compared yet
        self.main = "program"
        self.log: list[tuple[float, int, int]] = []  # seconds, rows, iterations of calls
        self.stream = ControlStream(self.seed)
        self.fitting = 0.0  # seconds
        self._unused = 0  # samples since the last fit
        self._forget_fit()

    def _forget_fit(self) -> None:
        self.model: Model | None = None
        self.table: Any = None
        self._programs: dict[tuple[int, ...], Program] = {}

    def __repr__(self) -> str:
        """Return a one-line summary."""
        return f"Learner({self.budget!r}, {self.samples} samples in {self.runs} runs)"

    @property
    def runs(self) -> int:
        """How many runs were seen."""
        return len(self.spent)

    @property
    def samples(self) -> int:
        """How many samples were seen, in all runs."""
        return sum(sum(spent.samples) for spent in self.spent.values())

    @property
    def _by_table(self) -> bool:
        """Whether samples have budgets of their own, or the rows of each step must be known before a run."""
        return isinstance(self.budget, PerSample) or self.budget.rows == "fixed"

    # -------------------------------------------------------------- a run

    def prepare(self, constraint: Constraint, n_steps: int, closing: Closing, unit: Unit | None) -> None:
        """Check that what was learned fits a loop; a `Corrector` calls this."""
        if unit is not None:
            raise ValueError(
                f"a budget that is learned with has its unit in Learner(budget, unit=…): got unit={unit!r}"
            )
        if self.quality is None and not constraint.is_projection:
            warn_of_path_error(constraint, "trimtab.prices.Learner(budget, quality=…)", stacklevel=4)
        loop = {"constraint": type(constraint).__name__, "n_steps": n_steps, "closing": closing}
        for name, value in loop.items():
            if self.made_for.get(name, value) != value:
                raise ValueError(
                    f"this learner has learned on another problem: got {name}={value!r} (learned with "
                    f"{self.made_for[name]!r}); make a new one"
                )
        ways: tuple[str, ...] = (WHOLE,)
        if not (self._by_table or self.asked_unit == "projection"):
            ways = ways_of(constraint) if self.asked_ways is None else self.asked_ways
        if ways[-1:] != (WHOLE,):
            raise ValueError(f"the last way must be {WHOLE!r}: got ways={ways!r}")
        if self.memory and ways != self.ways:
            raise ValueError(f"this learner has learned the ways {self.ways!r}: got {ways!r}; make a new one")
        self.ways = ways
        by_work = not self._by_table and self.asked_unit != "projection"
        self._counts_iterations = constraint.counts_iterations and by_work
        count = corrections(self.budget, n_steps)
        if closing == "paid" and int(count) < 1:
            raise ValueError(
                f"a budget of {self.budget.budget} with T = {n_steps} leaves nothing for the closing projection, which "
                "takes 1; give at least 1, or closing='free' to count as the paper does"
            )
        self.made_for = {**loop, **self.made_for}

    def schedule(self, n: int, peek: bool = False) -> Learned:
        """Return the frozen schedule of the next run, for n samples; `peek` does not count as one."""
        with _TURN:
            arms, pilots = self._arms(n, deepcopy(self.stream) if peek else self.stream)
            return self._frozen(arms, n, pilots)

    def _frozen(self, arms: dict[str, Arm], n: int, pilots: Tensor | None) -> Learned:
        """Return the schedule of n samples that follow arms."""
        unit, cost = self._run_unit()
        limits: Any = budgets_of(arms, n, unit, _NO_LIMIT if unit != "projection" else self.made_for["n_steps"])
        budget = PerBatch(limits) if any(arm.shared for arm in arms.values()) else limits
        reserve = 1.0 if cost is None else cost.row + cost.iteration
        return Learned(arms, self.ways, unit, cost, reserve, pilots, budget, dict(self.made_for))

    def _run_unit(self) -> tuple[Unit, Cost | None]:
        """Return what runs count, and the cost of calls, rows and iterations if those are seconds."""
        if self.asked_unit == "second":
            return "second", fit_cost(self.log)
        return ("iteration" if self._counts_iterations else "projection"), None

    def _arms(self, n: int, stream: ControlStream) -> tuple[dict[str, Arm], Tensor | None]:
        """Return the arms of the next run by name, and its pilot rows."""
        several, ready, use = len(self.ways) > 1, self._ready(), self._in_use()
        chosen, generator = stream.draw(n, self._one_in())
        mixed = torch.randperm(n, generator=generator)  # rows may have an order that means something
        order = torch.cat([mixed[chosen[mixed]], mixed[~chosen[mixed]]])
        kept, n_pilots = int(chosen.sum()), min(2, -(-n // 4)) if self._counts_iterations and not self.drift else 0
        if not several and not ready:
            kept = n - n_pilots
        pilots, order = order[n - n_pilots :], order[: n - n_pilots]
        if ready and use == "even" and self.main == "program":  # the guard turns the two around
            order, kept, use = order.flip(0), len(order) - kept, "program"
        control, rest = order[:kept], order[kept:]
        arms: dict[str, Arm] = {}
        if n_pilots:
            arms["pilots"] = Every(pilots, way=len(self.ways))
        if len(control):
            start = 0.618 if self._fixed_rows else float(torch.rand(1, generator=generator))
            phase = (torch.arange(kept).double() + start) / kept
            arms["control"] = Even(control, count=self._even_count(), phase=phase)
        if len(rest) and not ready:
            coins = torch.rand(self.made_for["n_steps"], len(rest), generator=generator, dtype=torch.float64)
            arms["explore"] = Explore(rest, coins=coins, chance=self._chance())
        elif len(rest) and self._by_table:
            arms["program"] = self._tables().table_arm(self.table, rest)
        elif len(rest):
            rival = self._rival()
            aside = max(1, len(rest) // _RIVALS) if rival and len(rest) > 1 else 0
            if aside:
                arms[f"rival {rival}"] = self._arm_of(rival, rest[:aside])
            arms[use] = self._arm_of(use, rest[aside:])
        return arms, pilots if n_pilots else None

    @property
    def _fixed_rows(self) -> bool:
        return isinstance(self.budget, PerBatch) and self.budget.rows == "fixed"

    def _ready(self) -> bool:
        """Whether enough was seen to leave the exploring of the first runs."""
        if self._by_table:
            return self.table is not None
        return self.model is not None and (self.runs >= _EXPLORED or len(self.ways) == 1)

    def _one_in(self) -> int:
        """Return which share of the next samples stays on even spacing, or on prices if the guard has acted.

        A few prices go on then, so that it can be seen when they are good again.
        """
        measure = self.comparisons["path" if self.quality is None else "quality"]
        proven = "worse" if self._in_use() == "even" and self.main == "program" else "better"
        return _PROVEN if measure.verdict == proven and not measure.changed else _CONTROL

    def _chance(self) -> float:
        """Return how often exploring samples are corrected, so that this takes about the budget."""
        return min(max(2 * self._share_of_steps(), 0.2), len(self.ways) / (len(self.ways) + 2))

    def _share_of_steps(self) -> float:
        n_steps: int = self.made_for["n_steps"]
        return int(corrections(self.budget, n_steps)) / n_steps

    # -------------------------------------------------------------- what a run may spend

    def _mean(self, what: str, who: int) -> float:
        """Return what samples (0), control (1) or pilots (2) have spent, per sample."""
        count = sum(spent.samples[who] for spent in self.spent.values())
        total = float(sum(getattr(spent, what)[who] for spent in self.spent.values()))
        return total / count if count else math.nan

    @property
    def full_seconds(self) -> float:
        """The seconds of full projection, per sample, by the cost of calls, rows and iterations."""
        cost, n_steps = fit_cost(self.log), int(self.made_for["n_steps"])
        n = self.samples / max(self.runs, 1)
        return n_steps * (cost.call / max(n, 1.0) + cost.row) + self.full_work * cost.iteration

    @property
    def full_work(self) -> float:
        """The work of full projection, per sample; NaN if it is not known yet."""
        if not self._counts_iterations:
            return float(self.made_for.get("n_steps", math.nan))
        return self.tried["full projection"][1] if self.tried else self._mean("work", 2)

    def _total(self) -> float:
        """Return the work that a sample may spend, the closing projection included."""
        return self._share_of_steps() * self.full_work

    def _even_count(self) -> float:
        """Return how many whole projections before the closing one take a sample's work at evenly spaced steps."""
        closed = int(self.made_for["closing"] == "paid")
        n_steps = int(self.made_for["n_steps"])
        count = self._share_of_steps() * n_steps - closed
        done = self._mean("corrections", 1)
        if not self._counts_iterations or math.isnan(self.full_work) or not done > 0:
            return count
        closing = self._mean("closing", 1)
        each = (self._mean("work", 1) - closing) / done
        return min(max((self._total() - closing * closed) / max(each, 1e-9), 0.0), n_steps - closed)

    # -------------------------------------------------------------- arms

    def _in_use(self) -> str:
        """Return the arm that most rows of the next run follow."""
        if not self._ready():
            return "explore"
        if self.main == "program" and self.quality is None and not self.tried and self._guarded():
            return "even"
        return self.main

    # -------------------------------------------------------------- twins

    @property
    def wants_twins(self) -> bool:
        """Whether candidates are to be compared on the noise of the run that has just ended."""
        return self.twins > 0 and not self.tried and not self._by_table and self._ready()

    def try_out(self, run: Callable[[Learned], Rollout], n: int, distance: Distance = euclidean) -> None:
        """Run twins, and use the candidate whose final samples are best from then on.

        They are best if they are nearest to those of full projection on average, or if a quality says so. Among
        candidates that are level, the one that is nearest for most samples is taken.

        Args:
            run: `run(schedule)` runs n samples on the same noise each time.
            n: The size of its batch.
            distance: A function of two states to (n,).
        """
        try:
            costs, tried = self._compare(run, n, distance)
        except Exception as error:  # of the user's loop or distance; the run that has ended is worth more
            self.twins = 0
            warnings.warn(
                f"candidates could not be compared by twins ({type(error).__name__}: {error}); the run is kept, and "
                "learning goes on without them",
                stacklevel=4,
            )
            return
        self.tried, best = tried, _nearest(costs)
        if best != self.main:
            self.main, self.rivals = best, {}
            self.comparisons = {measure: Comparison() for measure in _MEASURES}

    def _compare(
        self, run: Callable[[Learned], Rollout], n: int, distance: Distance
    ) -> tuple[dict[str, Tensor], dict[str, list[float]]]:
        """Return the costs of twins, (k,), by candidate, and what `tried` holds."""
        rows, rest = torch.arange(min(n, self.twins)), torch.arange(min(n, self.twins), n)
        full = run(self._twin_schedule(Every(rows, way=len(self.ways)), rest))
        costs, tried = dict[str, Tensor](), dict[str, list[float]]()
        for name in self.candidates():
            twin = run(self._twin_schedule(self._arm_of(name, rows), rest))
            work = work_per_sample(twin, self._counts_iterations)[rows]
            if name != "program" and float(work.mean()) > _LEVEL_WORK * max(self._total(), 1.0):
                continue
            costs[name] = self._judged(twin, full, distance)[rows].nan_to_num(math.inf)
            tried[name] = [float(costs[name].mean()), float(work.mean())]
        work = work_per_sample(full, self._counts_iterations)[rows]
        tried["full projection"] = [float(self._judged(full, full, distance)[rows].mean()), float(work.mean())]
        return costs, tried

    def _judged(self, twin: Rollout, full: Rollout, distance: Distance) -> Tensor:
        """Return the distance of final samples to those of full projection, (n,), or their quality if there is one."""
        if self.quality is not None:
            return self.quality.costs_or_missing(twin.final)
        return measured_distance(distance, twin.final, full.final).detach().cpu().double()

    def _twin_schedule(self, arm: Arm, rest: Tensor) -> Learned:
        """Return the schedule of twins: their rows follow an arm, and the others are projected at the end."""
        arms = {"twins": arm} | ({"rest": Last(rest, count=0)} if len(rest) else {})
        return self._frozen(arms, len(arm.rows) + len(rest), None)

    # -------------------------------------------------------------- the guard, and rivals

    def _guarded(self) -> bool:
        """Whether path error is worse than even spacing's beyond the tolerance."""
        path = self.comparisons["path"]
        value, low, _ = path.ratio
        return path.batches >= _GUARD and (low > 1 or value > 1 + self.tolerance)

    def _rival(self) -> str:
        """Return the simple rule that is tried next against what is in use; "" without a quality."""
        if self.quality is None:
            return ""
        open_ = [name for name in self.candidates() if name != self.main and self._verdict(name) != "worse"]
        return min(open_, key=lambda name: self.rivals[name].batches if name in self.rivals else 0, default="")

    def _verdict(self, rival: str) -> str:
        return self.rivals[rival].verdict if rival in self.rivals else "undecided"

    def candidates(self) -> list[str]:
        """Return the names of the arms that a quality, or twins, may choose from."""
        steps = [f"{name} at every step" for name in self.ways[:-1]]
        kinds = [f"program of {name} and whole" for name in self.ways[:-1]] + ["program of whole"] * (len(steps) > 0)
        return ["program", *kinds, "even", "last", "end", *steps]

    def _arm_of(self, name: str, rows: Tensor) -> Arm:
        """Return the arm of a name."""
        closed = int(self.made_for["closing"] == "paid")
        if name == "end":
            return Last(rows, count=0)
        if name == "last":
            return Last(rows, count=round(self._even_count()))
        if name == "even":
            return Even(rows, count=self._even_count(), phase=(torch.arange(len(rows)).double() + 0.5) / len(rows))
        if name.endswith(" at every step"):
            return Every(rows, way=self.ways.index(name.removesuffix(" at every step")) + 1)
        ways = self._set_of(name)
        unit, cost = self._run_unit()
        limit = self._total() if unit != "second" else self._share_of_steps() * self.full_seconds
        return Programmed(
            rows, limit if unit != "projection" else round(limit), True, self._program(ways, cost, closed)
        )

    def _set_of(self, name: str) -> tuple[int, ...]:
        """Return the ways of a program by its name, as numbers."""
        if name.startswith("program of "):
            names = name.removeprefix("program of ").split(" and ")
            return tuple(sorted(self.ways.index(one) + 1 for one in names))
        return tuple(i for i, one in enumerate(self.ways, 1) if one not in self.drifting())

    def drifting(self) -> list[str]:
        """Return the ways that are left out because what they leave adds up."""
        found = [drifting_ways(*parts) for parts in self.drift.values()]
        return sorted({self.ways[way - 1] for ways in found for way in ways})

    def _program(self, ways: tuple[int, ...], cost: Cost | None, closed: int) -> Program:
        """Return the solved program of some ways."""
        if ways not in self._programs:
            assert self.model is not None
            self._programs[ways] = solve_ways(self.model, ways, bool(closed), cost or Cost(iteration=1))
        return self._programs[ways]

    # -------------------------------------------------------------- what was seen

    def observe(self, run: Rollout, schedule: Any) -> None:
        """Learn from a finished run; a `Corrector` calls this."""
        with _TURN:
            self._observe(run, schedule)

    def _observe(self, run: Rollout, schedule: Learned) -> None:
        if run.planned_steps is not None or bool(run.defects.isnan().any()):
            return  # a run that was stopped early shows no whole trace
        run_id = batch_identity(run.defects, run.residuals)
        if run_id in self.spent:
            return
        self.made_for.setdefault("event", None if not isinstance(run.final, Tensor) else list(run.final.shape[1:]))
        groups = {"control": schedule.rows_of("control"), "pilots": schedule.rows_of("pilots")}
        served = torch.ones(run.projected.shape[1], dtype=torch.bool)
        for rows in groups.values():
            served[rows] = False
        rest = served.clone()
        for name, arm in schedule.arms.items():
            if name.startswith("rival "):
                rest[arm.rows.cpu()] = False
        spent = spent_in(run, [served, groups["control"], groups["pilots"]], self._counts_iterations)
        self.log = [*self.log, *run.call_log][-4096:]
        if run.trials is not None:
            self.drift[run_id] = [part.tolist() for part in run.trials[5:8]]
        costs = {"path": run.residuals.sum(dim=0), "landing": run.landing}
        if self.quality is not None:
            costs["quality"] = self.quality.costs_or_missing(run.final)
            spent = spent._replace(missing=int((~costs["quality"].isfinite()).sum()))
        self.spent[run_id] = spent
        treated = rest if {"program", self.main} & set(schedule.arms) else torch.zeros_like(rest)
        halves = {
            name: [values.detach().cpu().double()[rows] for rows in (treated, groups["control"])]
            for name, values in costs.items()
        }
        self._gathered[run_id] = halves
        self._gather()
        if self.quality is not None:
            self._judge(costs["quality"].cpu().double(), schedule, rest, run_id)
        self._remember(run, run_id, schedule)

    def _gather(self) -> None:
        """Count the costs of samples and control; runs of a few samples are gathered until they make a batch."""
        waiting = list(self._gathered.values())
        if sum(len(half) for halves in waiting for half in halves["path"]) < _BATCH:
            return
        for name in waiting[0]:
            treated, control = (torch.cat([halves[name][half] for halves in waiting]) for half in (0, 1))
            self.comparisons[name].add(treated, control, "+".join(self._gathered))
        self._gathered.clear()

    def _judge(self, values: Tensor, schedule: Learned, rest: Tensor, run_id: str) -> None:
        """Compare the rival of a run with what was in use, and use what is proven better."""
        for name, arm in schedule.arms.items():
            rival = name.removeprefix("rival ")
            if rival == name or self.main not in schedule.arms:
                continue
            known = self.rivals.setdefault(rival, Comparison())
            known.add(values[arm.rows.cpu()], values[rest], run_id)
            if known.verdict == "better":
                self.main, self.rivals = rival, {}
                self.comparisons = {measure: Comparison() for measure in _MEASURES}
                return

    def _remember(self, run: Rollout, run_id: str, schedule: Learned) -> None:
        """Keep the traces of a run, and fit again if enough is new."""
        n_choices = run.n_steps - int(run.closing_rule == "paid")
        ways = run.projected.to(torch.int8) if run.ways is None else run.ways
        work = run.iterations if self._counts_iterations else run.projected
        whole = as_traces(run, ways, work, n_choices)
        self.memory[run_id] = whole
        starts = torch.cat([part.defects[0] for part in self.memory.values()])
        if len(starts) >= _TELLING:
            self.made_for.setdefault("defect", float(starts.median()))
        n, total = run.projected.shape[1], sum(part.defects.shape[1] for part in self.memory.values())
        for oldest in list(self.memory)[:-1]:
            if total <= _WINDOW:
                break
            total -= self.memory.pop(oldest).defects.shape[1]
        self._unused += n
        if total >= _FEWEST and self._unused >= max(1, (total - n) // 4):
            self._learn()

    def _learn(self) -> None:
        """Fit what is in memory; keep the last fit if it shows too little."""
        traces, self._unused = joined(list(self.memory.values())).last(_WINDOW), 0
        if len(traces.residuals) < 2 or self._share_of_steps() * self.made_for["n_steps"] < 1:
            return
        if self._by_table:
            made_for = self.made_for["n_steps"], self.made_for["closing"]
            self.table = self._tables().learn_table(traces, self.budget, *made_for) or self.table
            return
        start = perf_counter()
        self.model, self._programs = fit(traces, len(self.ways)), {}
        self.fitting += perf_counter() - start

    @staticmethod
    def _tables() -> Any:
        """Return the module that makes price tables, which most learners never need."""
        return import_module("trimtab.prices.table")

    def freeze(self, n: int) -> Learned:
        """Return what was learned as a schedule for n samples, without control samples; it learns no more."""
        if not self._ready():
            raise ValueError(f"nothing was learned yet: got {self.runs} runs, and the first two are for exploring")
        rows = torch.arange(n)
        arm = self._tables().table_arm(self.table, rows) if self._by_table else self._arm_of(self._in_use(), rows)
        return self._frozen({"program": arm}, n, None)

    @property
    def price(self) -> Any:
        """The price table that has been learned, to freeze: `learner.price.at(0.25)`. None if there is none.

        Only a budget for each sample, `PerSample(0.25)`, is learned as a table.
        """
        return None if self.table is None else self.table.price

    # -------------------------------------------------------------- what came of it

    def report(self) -> Report:
        """Return what is known so far, with intervals that are valid at any time."""
        n_steps = self.made_for.get("n_steps")
        of = "" if n_steps is None else f" of {n_steps}"
        count: Any = self.budget.budget if n_steps is None else int(corrections(self.budget, n_steps))
        whose = "shared by the batch" if isinstance(self.budget, PerBatch) else "for each sample"
        what = "projections" if n_steps is None or not self._counts_iterations else "projections' work"
        recent = list(self.spent.values())[-4:]
        comparisons, n = self.comparisons, sum(spent.samples[0] for spent in recent)
        mine = sum(spent.work[0] for spent in recent) / n if n else math.nan
        return Report(
            samples=self.samples,
            runs=self.runs,
            control=sum(spent.samples[1] for spent in self.spent.values()),
            in_use=IN_WORDS.get(self._in_use(), self._in_use()) if n_steps else "even spacing",
            ways=tuple(one for one in self.ways if one not in self.drifting()),
            work=(mine, self._mean("work", 1), self.full_work),
            called=sum(one.steps for one in recent) / len(recent) if recent else math.nan,
            seconds=self._seconds(recent),
            path=comparisons["path"].ratio,
            landing=comparisons["landing"].ratio,
            quality=None if self.quality is None else comparisons["quality"].wins,
            twins=self.tried,
            missing=sum(spent.missing for spent in self.spent.values()),
            drift=comparisons["path" if self.quality is None else "quality"].changed,
            budget=f"{count}{of} {what} per sample, {whose}",
        )

    def _seconds(self, recent: list[Spent]) -> tuple[float, float]:
        """Return the seconds in the solver per run: of recent runs, and of full projection."""
        if not recent:
            return math.nan, math.nan
        n = self.samples / max(self.runs, 1)
        return sum(one.seconds for one in recent) / len(recent), n * self.full_seconds

    # -------------------------------------------------------------- several workers, and files

    def worker(self, seed: int) -> Learner:
        """Return a learner for one of several workers: it starts with what this one knows.

        `merge` counts what workers share once: every run that was observed has an identity.

        Example:
            >>> import trimtab as tt
            >>> learner = tt.prices.Learner(0.25)
            >>> workers = [learner.worker(seed) for seed in range(4)]
            >>> workers[0].merge(workers[1:])
            Learner(PerBatch(budget=0.25, rows='any'), 0 samples in 0 runs)
        """
        one = self.merge([])
        one.stream = ControlStream(self.seed, f"worker {int(seed)} after {self.runs}")
        return one

    def merge(self, others: Sequence[Learner]) -> Learner:
        """Return a learner that knows what several have learned, each run once."""
        merged = Learner(
            self.budget,
            quality=self.quality,
            unit=self.asked_unit,
            ways=self.asked_ways,
            tolerance=self.tolerance,
            seed=self.seed,
        )
        for one in (self, *others):
            check_type(one, Learner, "what is merged")
            fixed = {name: value for name, value in one.made_for.items() if name not in ("defect", "event")}
            known = {name: merged.made_for.get(name, value) for name, value in fixed.items()}
            if one.budget != self.budget or one.asked_unit != self.asked_unit or known != fixed:
                raise ValueError(
                    f"merged learners must have the same budget and problem: got {one.budget!r} for {one.made_for} and "
                    f"{self.budget!r} for {merged.made_for}"
                )
            if one.made_for:
                merged.ways, merged._counts_iterations = one.ways, one._counts_iterations
            merged.made_for = {**one.made_for, **merged.made_for}
            merged.memory |= one.memory
            merged.spent |= one.spent
            merged.drift |= one.drift
            merged.log = [*merged.log, *one.log][-4096:]
            merged.comparisons = {name: merged.comparisons[name].merge(one.comparisons[name]) for name in _MEASURES}
            for name, known_rival in one.rivals.items():
                merged.rivals[name] = merged.rivals.get(name, Comparison()).merge(known_rival)
            merged.twins, merged.tried = one.twins, merged.tried or dict(one.tried)
            merged.main = one.main if one.main != "program" else merged.main
        known_runs = hashlib.blake2b(" ".join(sorted(merged.spent)).encode(), digest_size=8).hexdigest()
        merged.stream = ControlStream(self.seed, f"merged {known_runs}")  # one that was not drawn from yet
        counted = {run for batch in merged.comparisons["path"].state()["batches"] for run in batch.split("+")}
        waiting = {run: halves for one in (self, *others) for run, halves in one._gathered.items()}
        merged._gathered = {run: halves for run, halves in waiting.items() if run not in counted}
        if merged._gathered:
            merged._gather()
        if merged.memory:
            merged._learn()
        return merged

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one safetensors file: the memory, and what was counted."""
        tensors = {
            f"{run_id}/{name}": part.contiguous()
            for run_id, traces in self.memory.items()
            for name, part in traces._asdict().items()
        }
        facts = {
            "budget": self.budget.budget,
            "rows": getattr(self.budget, "rows", None),
            "unit": self.asked_unit,
            "ways": self.asked_ways,
            "tolerance": self.tolerance,
            "seed": self.seed,
            "made_for": self.made_for,
            "known_ways": self.ways,
            "counts_iterations": self._counts_iterations,
            "main": self.main,
            "twins": self.twins,
            "tried": self.tried,
            "stream": self.stream.state(),
            "spent": {run_id: list(spent) for run_id, spent in self.spent.items()},
            "drift": self.drift,
            "log": self.log,
            "comparisons": {name: one.state() for name, one in self.comparisons.items()},
            "rivals": {name: one.state() for name, one in self.rivals.items()},
            "gathered": {
                run: {name: [half.tolist() for half in halves] for name, halves in one.items()}
                for run, one in self._gathered.items()
            },
            "order": list(self.memory),
        }
        save_tensors(path, "learner", tensors, facts)

    @classmethod
    def load(cls, path: str | os.PathLike[str], quality: Quality | Callable[[Any], Any] | None = None) -> Learner:
        """Read what `save` wrote, and continue learning from there."""
        tensors, facts = load_tensors(path, "learner")
        try:
            rows = facts["rows"]
            budget = PerBatch(facts["budget"], rows=rows) if rows else PerSample(facts["budget"])
            learner = cls(
                budget,
                quality=quality,
                unit=facts["unit"],
                ways=facts["ways"],
                tolerance=facts["tolerance"],
                seed=facts["seed"],
            )
            learner.made_for, learner.ways = dict(facts["made_for"]), tuple(facts["known_ways"])
            learner._counts_iterations = bool(facts["counts_iterations"])
            learner.main, learner.stream = str(facts["main"]), ControlStream.from_state(facts["stream"])
            learner.spent = {run_id: Spent(*row) for run_id, row in facts["spent"].items()}
            learner.twins, learner.tried = int(facts["twins"]), dict(facts["tried"])
            learner.drift, learner.log = dict(facts["drift"]), [_as_call(*row) for row in facts["log"]]
            learner.comparisons = {name: Comparison.from_state(facts["comparisons"][name]) for name in _MEASURES}
            learner.rivals = {name: Comparison.from_state(one) for name, one in facts["rivals"].items()}
            for run_id, one in facts["gathered"].items():
                halves = {
                    name: [torch.tensor(half, dtype=torch.float64) for half in pair] for name, pair in one.items()
                }
                learner._gathered[run_id] = halves
            for run_id in facts["order"]:
                learner.memory[run_id] = Traces(*(tensors[f"{run_id}/{name}"] for name in Traces._fields))
            if learner.memory:
                learner._learn()
        except (AttributeError, KeyError, TypeError, ValueError, IndexError) as error:
            hint = " is missing; a learner of another version cannot be read: learn again" * isinstance(error, KeyError)
            raise ValueError(f"{path}: not a whole learner: {error}{hint}") from error
        return learner


def _as_call(seconds: float, rows: int, iterations: int) -> tuple[float, int, int]:
    """Return an entry of a log of calls; raise if it is none."""
    call = float(seconds), int(rows), int(iterations)
    if not all(0 <= part < math.inf for part in call):
        raise ValueError(f"not a call of a solver: {call}")
    return call


def drifting_ways(kinds: Sequence[float], drift: Sequence[float], length: Sequence[float]) -> list[int]:
    """Return the ways whose errors add up over the steps, while those of staying cancel.

    A way drifts if its coherence (the length of the sum of its errors over the sum of their lengths) is over twice
    staying's, and the length of the sum over a twentieth of staying's.

    Args:
        kinds: The ways; the first is 0, to stay.
        drift: Length of the sum over the steps of the vectors to the whole projection, by way.
        length: Sum of the lengths of these vectors, by way.

    Example:
        >>> drifting_ways([0, 1, 2], [1.0, 0.2, 0.01], [12.0, 0.21, 0.011])
        [1]
    """
    coherence = [one / max(whole, 1e-300) for one, whole in zip(drift, length, strict=True)]
    return [
        int(way)
        for way, sum_, coherent in zip(kinds, drift, coherence, strict=True)
        if way and coherent > 2 * coherence[0] and sum_ > drift[0] / 20
    ]


def _nearest(costs: dict[str, Tensor]) -> str:
    """Return the name of the best costs, (k,) each: the lowest mean, and among those level with it the lowest ranks."""
    best = min(costs, key=lambda name: float(costs[name].mean()))
    level = [best]
    for name, values in costs.items():
        apart = values - costs[best]
        if name != best and len(apart) > 1 and float(apart.mean()) <= float(apart.std()) / math.sqrt(len(apart)):
            level.append(name)
    ranks = torch.stack([costs[name] for name in level]).argsort(dim=0).argsort(dim=0).double().mean(dim=1)
    return level[int(ranks.argmin())]


def warn_of_path_error(constraint: Constraint, instead: str, stacklevel: int) -> None:
    """Warn that path error is the wrong objective for a correction that ends on no feasible set."""
    warnings.warn(
        f"{type(constraint).__name__} is not a projection (its is_projection is False), and prices for path error may "
        f"choose steps that make final samples worse than no correction; judge final samples by {instead}",
        stacklevel=stacklevel + 1,
    )


def as_learner(schedule: Any, quality: Any = None) -> Any:
    """Return a learner if the schedule is a budget (a number, `PerBatch` or `PerSample`), else the schedule itself."""
    budget = isinstance(schedule, int | float | np.integer | np.floating | PerBatch | PerSample)
    if budget and not isinstance(schedule, bool):
        return Learner(schedule, quality=quality)
    if quality is not None:
        hint = (
            "Learner(budget, quality=…)" if isinstance(schedule, Learner) else "a budget, such as 0.25, as the schedule"
        )
        raise ValueError(f"quality= decides what is learned: give it to {hint}; got the schedule {schedule!r:.60}")
    return schedule
