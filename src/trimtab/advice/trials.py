"""Ways to correct, tried at times to correct: what each loses against full projection, and what it costs.

A candidate is a way ("whole", "1 iteration", a cheaper variant of the constraint), times to use it at, and whose budget
it draws from. Candidates are compared at equal work.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from trimtab.advice.verdict import Judgement, judge
from trimtab.calibration.calibrate import calibrate
from trimtab.calibration.collect import check_schedule_is_used, same_batch
from trimtab.core.budget import PerBatch
from trimtab.core.constraint import Constraint
from trimtab.core.metrics import Distance, distinct_seeds, measured_distance, path_error
from trimtab.core.progress import Progress
from trimtab.core.quality import Quality
from trimtab.core.record import Rollout
from trimtab.core.repeatable import RunBatch, as_record, check_repeatable
from trimtab.core.schedule import Schedule
from trimtab.core.statistics import Summary
from trimtab.loop.rollout import Problem
from trimtab.prices import Plan, Price
from trimtab.schedules import By, Fixed, Periodic, Stepwise, Terminal, Window
from trimtab.schedules.measured import measured

__all__ = ["FAR", "SIMPLE", "WHOLE", "Candidate", "Cost", "Evaluation", "Goal", "Search", "Times", "Trial", "scale_of"]

Cost = Literal["seconds", "projections", "iterations"]
Times = Literal["terminal", "stepwise", "periodic", "window", "first", "planned", "adaptive"]

WHOLE = "whole"
"""The way that is the constraint's own projection."""

SIMPLE: dict[str, str] = {
    "terminal": "once, at the end",
    "stepwise": "at every step",
    "periodic": "evenly spaced",
    "window": "in the last steps",
    "first": "in the first steps",
}
"""Times that need no prices, the simplest first, in words."""

_ORDER = (*SIMPLE, "planned", "adaptive")

FAR = 10.0
"""A landing so many times the median is far out."""

_LEVEL = 0.25  # share of the work of full projection at which all candidates are compared first
_LEAST_FULL = 1 / 2  # of the tolerance: what a cheaper way may lose at every step, on average, to be scheduled
_FOLLOWED = 2  # candidates whose budget is searched
_SEARCHES = 3  # budgets tried of each
_TIMED = 4  # candidates whose clocks are compared
_ROUNDS = 3  # of clocks, there and back


@dataclass(frozen=True, eq=False)
class Goal:
    """What was asked for."""

    distance: Distance  # between states
    quality: Quality | None = None  # the measure of final samples, if any
    objective: str = "endpoint"  # "endpoint" or "path", the measure without a quality
    tolerance: float = 0.1  # the loss that may be lost
    absolute: bool = False  # whether the tolerance is in the unit of the measure, not a share of the scale
    limit: float | None = None  # seconds per sample, if any
    cost: Cost = "seconds"  # what to save

    @property
    def measure(self) -> str:
        """Return the name of the measure."""
        return self.objective if self.quality is None else self.quality.name

    @property
    def to_full(self) -> bool:
        """Return whether the measure is the distance to full projection."""
        return self.quality is None and self.objective == "endpoint"


class Candidate(NamedTuple):
    """When and how to correct, at any budget."""

    times: Times  # when
    way: str = WHOLE  # how
    shared: bool = False  # whether the samples of a batch share the budget

    def named(self, budget: int, n_steps: int) -> str:
        """Return a description at a budget, as in reports."""
        way = "a whole projection" if self.way == WHOLE else self.way
        if self.times in ("terminal", "stepwise"):
            return f"{way} {SIMPLE[self.times]}"
        when = SIMPLE.get(self.times, "at planned steps" if self.times == "planned" else "by price")
        shared = ", shared by the batch" if self.shared else ""
        return f"{way} {when}, {budget} of {n_steps}{shared}"


TERMINAL, STEPWISE = Candidate("terminal"), Candidate("stepwise")


@dataclass(frozen=True, eq=False)
class Trial:
    """A candidate at one budget, measured."""

    candidate: Candidate  # when and how
    budget: int  # corrections per sample, the closing one included
    n_steps: int  # T
    schedule: Schedule  # ready to use
    measured: Tensor  # the measure of each distinct seed, (n,), lower is better
    judged: Judgement  # whether full projection is better, in the unit of the measure
    loss: Summary  # what is lost against full projection, in the unit of the tolerance
    seconds: float  # wall clock per sample
    projections: float  # corrections per sample
    iterations: float  # solver iterations per sample; 0 if they are not counted
    far: int  # number of samples whose last proposal is ten times as far from feasible as usual

    @property
    def times(self) -> Times:
        """Return when it corrects."""
        return self.candidate.times

    @property
    def way(self) -> str:
        """Return how it corrects."""
        return self.candidate.way

    @property
    def name(self) -> str:
        """Return a description, as in reports."""
        return self.candidate.named(self.budget, self.n_steps)

    @property
    def meets(self) -> bool:
        """Return whether full projection is no better within the tolerance."""
        return self.candidate == STEPWISE or self.judged.verdict == "no better"

    @property
    def simple(self) -> bool:
        """Return whether it needs no prices."""
        return self.times in SIMPLE

    @property
    def missing(self) -> int:
        """Return the number of samples without a measure."""
        return int(self.measured.isnan().sum())

    def cost(self, unit: Cost) -> float:
        """Return the cost per sample in a unit."""
        return {"seconds": self.seconds, "projections": self.projections, "iterations": self.iterations}[unit]

    def rank(self, unit: Cost) -> tuple[float, int, float]:
        """Return what decides between two that do: cost, then simplicity, then loss."""
        return self.cost(unit), _ORDER.index(self.times) + self.candidate.shared, self.loss.mean


def scale_of(terminal: Tensor, full: Tensor) -> float:
    """Return by how much full projection changes the measure of a typical sample, (n,) twice.

    It is the median of the changes that are not 0, times the share of samples that have one: a few samples with a large
    change do not make a loss look small.

    Example:
        >>> import torch
        >>> scale_of(torch.tensor([1.0, 2.0, 900.0, 0.0]), torch.zeros(4))
        1.5
    """
    change = (terminal - full).abs()
    change = change[~change.isnan()]
    changed = change[change > 0]
    return float(changed.quantile(0.5)) * len(changed) / len(change) if len(changed) else 0.0


class Evaluation:
    """One batch of seeds on which candidates are measured against terminal and full projection."""

    def __init__(
        self,
        run: RunBatch,
        problem: Problem | None,
        goal: Goal,
        progress: Progress,
        scale: float | None = None,
    ) -> None:
        """Run both ends; the terminal batch twice, to check that it is repeatable, unless there is a scale already."""
        self.run_batch, self.problem, self.goal, self.progress = run, problem, goal, progress
        self.broken, self.batches, self.spent = "", 0, dict.fromkeys(get_args(Cost), 0.0)
        progress("terminal and stepwise rollouts")
        first = measured(Terminal())
        self.alone = as_record(run(first)) if scale is not None else check_repeatable(run, first)
        self.count(self.alone, 1 if scale is not None else 2)
        if self.alone.seeds is None:
            self.rows = torch.arange(self.n)
        else:
            self.rows = distinct_seeds(self.alone.seeds).cpu()  # a repeated seed shows nothing new
        if goal.quality is not None:
            self._check_finite(goal.quality.costs(self.alone.final, problem))  # one that fails should fail now
        self.reference = self.run(Stepwise())
        check_schedule_is_used(self.alone, self.reference)
        self.looks_project = self.alone.calls["defect"] == 0  # a defect that projects is counted as a projection
        self.full, self.closed = self.measure(self.reference), self.measure(self.alone)
        self.scale = scale_of(self.closed, self.full) if scale is None else scale
        self.tolerance = goal.tolerance * (1.0 if goal.absolute else self.scale)
        self.gain = judge(self.closed, self.full, self.tolerance)
        nothing = int(self.alone.closing_rule == "paid")
        self.terminal = self.judged(TERMINAL, nothing, Terminal(), self.alone)
        self.stepwise = self.judged(STEPWISE, self.n_steps, Stepwise(), self.reference)

    @property
    def n(self) -> int:
        """Return the number of samples."""
        return self.alone.defects.shape[1]

    @property
    def n_steps(self) -> int:
        """Return T."""
        return self.alone.n_steps

    @property
    def constant(self) -> bool:
        """Return whether the defect is the same number everywhere."""
        return float(self.alone.defects.max()) == float(self.alone.defects.min())

    @property
    def iterates(self) -> bool:
        """Return whether the solver iterates: a full projection takes more than one iteration."""
        return self.stepwise.iterations > 1.001 * self.stepwise.projections

    @property
    def unit(self) -> Cost:
        """Return the cost that decides: if the solver iterates, equal projections are not equal work."""
        return "iterations" if self.goal.cost == "projections" and self.iterates else self.goal.cost

    def count(self, run: Rollout, batches: int = 1) -> None:
        """Count batches that were run, and what they cost."""
        self.batches += batches
        self.spent["seconds"] += batches * sum(run.seconds.values())
        self.spent["projections"] += batches * float(run.projected.sum() + run.closing.sum())
        self.spent["iterations"] += batches * float(run.all_iterations.sum())
        self.progress.batch(batches)

    def run(self, schedule: Schedule) -> Rollout:
        """Run the batch under a schedule, with all defects measured."""
        record = same_batch(self.run_batch(measured(schedule)), self.alone)
        self.count(record)
        return record

    def measure(self, run: Rollout) -> Tensor:
        """Return the measure of each distinct seed, (n,), lower is better; NaN if the quality failed."""
        goal = self.goal
        if goal.quality is not None:
            found = goal.quality.costs_or_missing(run.final, self.problem, self._failed)
            found = torch.where(found.isinf(), torch.nan, found)
        elif goal.objective == "path":
            found = path_error(run).double().cpu()
        else:
            found = measured_distance(goal.distance, run.final, self.reference.final).double().cpu()
        self._check_finite(found)
        return found[self.rows]

    def _check_finite(self, found: Tensor) -> None:
        if bool(found.isinf().any()):
            raise ValueError(
                f"{self.goal.measure} is infinite for {int(found.isinf().sum())} of {len(found)} samples, so a mean "
                "over them says nothing; give a large number instead"
            )

    def _failed(self, error: str) -> None:
        self.broken = error

    def judged(self, candidate: Candidate, budget: int, schedule: Schedule, run: Rollout) -> Trial:
        """Return the trial of a run whose defects were measured: its loss and its cost."""
        measured, landing = self.measure(run), run.landing
        tail = None if candidate == STEPWISE else self.closed - self.full
        found = judge(measured, self.full, self.tolerance, tail)
        unit = 1.0 if self.goal.absolute or self.scale == 0 else self.scale
        lost = found.loss
        scaled = {end: getattr(lost, end) / unit for end in ("mean", "low", "high", "median")}
        return Trial(
            candidate=candidate,
            budget=budget,
            n_steps=self.n_steps,
            schedule=schedule,
            measured=measured,
            judged=found,
            loss=replace(lost, **scaled),
            seconds=self.seconds(run, schedule),
            projections=projections_of(run, schedule),
            iterations=run.all_iterations.double().mean().item(),
            far=int((landing > FAR * landing.median()).sum()) if float(landing.median()) > 0 else 0,
        )

    def again(self, trial: Trial) -> Trial:
        """Repeat a trial of another evaluation on the samples of this one."""
        return self.judged(trial.candidate, trial.budget, trial.schedule, self.run(trial.schedule))

    def seconds(self, run: Rollout, schedule: Schedule) -> float:
        """Return wall clock per sample, without defects that were only measured for the record."""
        update = self.alone.seconds["update"]  # the same work whatever the schedule
        spent = run.seconds | {"update": update} | ({} if schedule.uses_defects else {"defect": 0.0})
        if self.looks_project and not schedule.uses_defects:
            spent["projection"] *= int(run.projected.sum() + run.closing.sum()) / max(run.rows["projection"], 1)
        return sum(spent.values()) / self.n

    def clocks(self, trials: Sequence[Trial]) -> list[Trial]:
        """Return the trials with the medians of clocks that were read in turns, there and back.

        A clock that drifts, as when a machine gets busy, would choose between trials that were timed one after another.
        """
        read: list[list[float]] = [[] for _ in trials]
        for number in range(_ROUNDS):
            self.progress(f"comparing clocks, round {number + 1} of {_ROUNDS}")
            order = list(zip(trials, read, strict=True))
            for trial, seconds in order if number % 2 == 0 else order[::-1]:
                seconds.append(self.seconds(self.run(trial.schedule), trial.schedule))
        return [
            replace(trial, seconds=sorted(seconds)[len(seconds) // 2])
            for trial, seconds in zip(trials, read, strict=True)
        ]


class Search:
    """Search over candidates on one evaluation batch; prices are calibrated on `calibrating`."""

    def __init__(
        self, at: Evaluation, calibrating: Any, price: Price | None, constraint: Constraint | None, engine: Any
    ) -> None:
        """Start with the two ends."""
        self.at, self.goal, self.calibrating, self.engine = at, at.goal, calibrating, engine
        self.ways = ways_to_try(constraint)
        self.trials: dict[tuple[Candidate, int], Trial] = {}
        self.prices: dict[str, Price] = {}
        self.given: Times | None = None
        self.calibration_batches = 0
        if price is not None:
            self.given = "planned" if isinstance(price, Plan) else "adaptive"
            self.prices[self.given] = price

    @property
    def everything(self) -> list[Trial]:
        """Return all trials, with both ends, by cost."""
        found = [self.at.terminal, *self.trials.values(), self.at.stepwise]
        return sorted(found, key=lambda trial: trial.rank(self.at.unit))

    def explore(self) -> None:
        """Try every way at every step, then all times at equal work, and follow up the best of them."""
        at, goal = self.at, self.goal
        for way in self.ways:
            self.trial(Candidate("stepwise", way), at.n_steps)
        level = _LEVEL if goal.limit is None else self._level_of(goal.limit)
        blind = at.constant or at.looks_project
        priced: Times = self.given or ("planned" if blind else "adaptive")
        times: list[Times] = ["periodic", "window", "first", priced]
        plans = [Candidate(one, way) for way in self._scheduled() for one in times]
        first = {plan: self.trial(plan, self._budget_at(plan, level)) for plan in plans}
        best = self._by_loss(first)[0]
        if best.times == "adaptive":
            shared = best._replace(shared=True)
            first[shared] = self.trial(shared, first[best].budget)
        ordered = self._by_loss(first)
        simple = next(plan for plan in ordered if plan.times in SIMPLE)
        for plan in list(dict.fromkeys([ordered[0], simple, *ordered]))[:_FOLLOWED]:
            self.follow(plan)

    def clock(self) -> None:
        """Compare the clocks of the cheapest candidates that will do, if seconds decide."""
        if self.at.unit != "seconds":
            return
        able = {key: trial for key, trial in self.trials.items() if self._does(trial)}
        some = sorted(able, key=lambda key: able[key].seconds)[:_TIMED]
        before = [*(able[key] for key in some), self.at.stepwise]
        *timed, self.at.stepwise = self.at.clocks(before)
        self.trials |= dict(zip(some, timed, strict=True))
        drift = self.at.stepwise.seconds / max(before[-1].seconds, 1e-300)
        for key in self.trials.keys() - set(some):
            self.trials[key] = replace(self.trials[key], seconds=drift * self.trials[key].seconds)
        self.at.terminal = replace(self.at.terminal, seconds=drift * self.at.terminal.seconds)

    def _does(self, trial: Trial) -> bool:
        return trial.meets if self.goal.limit is None else trial.seconds <= 1.2 * self.goal.limit

    def _by_loss(self, first: dict[Candidate, Trial]) -> list[Candidate]:
        return sorted(first, key=lambda plan: first[plan].loss.mean)

    def _scheduled(self) -> list[str]:
        """Return the ways to schedule: whole, and the cheapest other one that may do at every step."""
        most = _LEAST_FULL * self.at.tolerance
        able = [trial for trial in self.trials.values() if trial.judged.loss.mean <= most]
        cheapest = min(able, key=lambda trial: trial.cost(self.at.unit), default=None)
        return [WHOLE] if cheapest is None else [WHOLE, cheapest.way]

    def _level_of(self, limit: float) -> float:
        """Return the share of the corrections that takes about so many seconds per sample."""
        low, high = self.at.terminal.seconds, self.at.stepwise.seconds
        return min(max((limit - low) / max(high - low, 1e-300), 0.0), 1.0)

    def _budget_at(self, plan: Candidate, level: float) -> int:
        """Return the budget at which this candidate takes about this share of the work of full projection."""
        at = self.at
        share = level * at.stepwise.cost(at.unit) / max(self._at_every_step(plan.way).cost(at.unit), 1e-300)
        return max(at.terminal.budget + 1, min(round(share * at.n_steps), self.most(plan)))

    def _at_every_step(self, way: str) -> Trial:
        return self.at.stepwise if way == WHOLE else self.trials[Candidate("stepwise", way), self.at.n_steps]

    def most(self, plan: Candidate) -> int:
        """Return the largest budget below T; a price made earlier may end before."""
        price = self.prices.get(plan.times)
        return self.at.n_steps - 1 if price is None else min(self.at.n_steps - 1, price.budget)

    def price(self, times: str) -> Price:
        """Return the price for these times, calibrated when first asked for."""
        if times not in self.prices:
            self.at.progress(f"calibrating {times} correction")
            path = self.goal.objective == "path" and self.goal.quality is None
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a constant defect is among the findings
                found = calibrate(
                    self.calibrating,
                    method="planned" if times == "planned" else "dp" if path else "paper",
                    objective="path" if path else "endpoint",
                    distance=self.goal.distance,
                    check=False,
                    engine=self.engine,
                    progress=self.at.progress,
                )
            self.calibration_batches += int(getattr(found, "notes", {}).get("batches", 0))
            self.prices[times] = found
        return self.prices[times]

    def schedule(self, plan: Candidate, budget: int) -> Schedule:
        """Return the schedule of a candidate for a budget, which includes the closing projection."""
        T = self.at.n_steps
        times: Schedule
        if plan.times == "stepwise":
            times = Stepwise()
        elif plan.times == "periodic":
            times = Periodic(budget)
        elif plan.times == "window":
            times = Window(T - budget)
        elif plan.times == "first":
            times = Fixed.at(range(budget - self.at.terminal.budget), T)
        else:
            times = self.price(plan.times).at(PerBatch(budget) if plan.shared else budget)
        return times if plan.way == WHOLE else By(plan.way, times)

    def trial(self, plan: Candidate, budget: int) -> Trial:
        """Return one trial; each is run once."""
        at = self.at
        if budget <= at.terminal.budget:
            return at.terminal
        if budget >= at.n_steps:
            plan = Candidate("stepwise", plan.way)
            if plan.way == WHOLE:
                return at.stepwise
        if (plan, budget) not in self.trials:
            at.progress(plan.named(budget, at.n_steps))
            schedule = self.schedule(plan, budget)
            self.trials[plan, budget] = at.judged(plan, budget, schedule, at.run(schedule))
        return self.trials[plan, budget]

    def follow(self, plan: Candidate) -> None:
        """Search for the smallest budget of a candidate that will do, halving the gap in its logarithm."""
        unit, limit = self.at.unit, self.goal.limit
        full = self._at_every_step(plan.way)
        for _ in range(_SEARCHES):
            tried = sorted((t for (p, _), t in self.trials.items() if p == plan), key=lambda trial: trial.budget)
            known = [self.at.terminal, *tried, *([full] if self.most(plan) == self.at.n_steps - 1 else [])]
            start = first_within([t.seconds > limit if limit is not None else t.meets for t in known])
            low = known[start - 1].budget
            high = known[start].budget if start < len(known) else self.most(plan) + 1
            budget = min(max(round(math.sqrt(max(low, 1) * high)), low + 1), self.most(plan))
            if high - low <= 1 or any(trial.budget == budget for trial in tried):
                return
            # a budget that costs more than what is known to do is of no use
            cost = budget / self.at.n_steps * full.cost(unit)
            if limit is None and cost >= min(t.cost(unit) for t in self.everything if t.meets):
                return
            self.trial(plan, budget)


def projections_of(run: Rollout, schedule: Schedule) -> float:
    """Return corrections per sample in any way, with retries, and with defects that project if the schedule asks."""
    looks = run.n_steps if run.calls["defect"] == 0 and bool(run.defects.isfinite().any()) else 0
    extra = 0.0 if run.extra is None else float(run.extra.double().mean()) - looks
    asked = looks * schedule.uses_defects
    return float((run.projected.sum(dim=0) + run.closing).double().mean()) + extra + asked


def ways_to_try(constraint: Constraint | None) -> tuple[str, ...]:
    """Return the ways besides whole projections: one and two iterations, and the cheaper variants of a constraint."""
    if constraint is None:
        return ()
    few = ("1 iteration", "2 iterations") if constraint.improves else ()
    return tuple(dict.fromkeys([*few, *constraint.cheaper()]))


def first_within(ok: Sequence[bool]) -> int:
    """Return the start of the final run of True, at least 1; the length if the last is False.

    A budget that meets the tolerance while a larger one does not owes that to chance.

    Example:
        >>> first_within([False, True, False, True]), first_within([True, True]), first_within([True, False])
        (3, 1, 2)
    """
    return max([i for i, one in enumerate(ok) if not one], default=0) + 1
