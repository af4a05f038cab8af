"""Ways to correct tried out: what each loses against full projection, and what it costs.

A way is a schedule (when) with a projection (how): the constraint's own, a cheaper variant, or single iterations of its
solver. Ways are compared at equal work, cheap ones first.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from trimtab.advice.checks import Effects, Stability
from trimtab.calibration.calibrate import calibrate
from trimtab.calibration.collect import check_schedule_is_used, same_batch
from trimtab.core.budget import PerBatch
from trimtab.core.constraint import Constraint
from trimtab.core.metrics import Distance, measured_distance, nepe, path_error
from trimtab.core.progress import Progress
from trimtab.core.quality import Quality
from trimtab.core.record import Rollout
from trimtab.core.repeatable import RunBatch, as_record, check_repeatable
from trimtab.core.schedule import ByIteration, Schedule
from trimtab.core.statistics import Signs, Summary, count_signs, paired, ratio
from trimtab.core.view import StepView
from trimtab.loop.rollout import Problem
from trimtab.loop.runner import Runs
from trimtab.prices import Plan, Price, Thresholds
from trimtab.schedules import Inexact, Periodic, Stepwise, Terminal, Window
from trimtab.schedules.measured import measured

__all__ = ["KINDS", "Cost", "Evaluation", "Finding", "Goal", "Kind", "Measured", "Search", "Trial", "Way"]

Cost = Literal["seconds", "projections", "iterations"]
Kind = Literal["terminal", "periodic", "window", "planned", "adaptive", "inexact", "stepwise"]

KINDS: tuple[Kind, ...] = ("terminal", "inexact", "stepwise", "periodic", "window", "planned", "adaptive")
"""Kinds of schedules, the simplest first."""

FAR = 10.0
"""A landing so many times the median is far out."""

ONE_ITERATION = "1 iteration"
"""How a constraint without cheaper variants is corrected a little: by one iteration of its solver."""

_FIRST = 0.25  # share of the cost of full projection that every way is tried at first
_REFINED = 2  # ways that are followed up
_NEAR = 1.5  # a way that loses more than so many times as much as the best one is not followed up if that one will do
_SEARCHES = 3  # further budgets of each
_LEAST_MOVE = 0.25  # of the gap between two budgets: a search moves at least so far from either
_LOSSLESS = 0.5  # of the tolerance: what a cheaper projection may lose at every step to replace the whole one


@dataclass(frozen=True, eq=False)
class Goal:
    """What was asked for."""

    distance: Distance  # between states
    quality: Quality | None = None  # the measure of final samples, if any
    objective: str = "endpoint"  # "endpoint" or "path", the measure without a quality
    tolerance: float | None = 0.1  # the loss that may be lost, if any
    absolute: bool = False  # whether the tolerance is in the unit of the measure, not a share of full projection's gain
    limit: float | None = None  # seconds per sample, if any
    cost: Cost = "seconds"  # what to save
    defect_cost: float = 0.0  # cost of measuring a defect, in projections

    @property
    def measure(self) -> str:
        """Return the name of the measure."""
        return self.objective if self.quality is None else self.quality.name

    @property
    def to_full(self) -> bool:
        """Return whether the measure is the distance to full projection."""
        return self.quality is None and self.objective == "endpoint"

    def lost(self, trial: Trial) -> Summary:
        """Return the loss in the unit of the tolerance."""
        return trial.excess if self.absolute else trial.loss

    def met(self, trial: Trial) -> bool:
        """Return whether the whole interval of the loss is within the tolerance."""
        return trial.way == STEPWISE or self.lost(trial).high <= (self.tolerance or 0.0)


class Way(NamedTuple):
    """When and how to correct, at any budget."""

    kind: Kind  # kind of schedule
    how: str = ""  # the name of a cheaper projection; "" for the constraint itself
    shared: bool = False  # whether the samples of a batch share the budget

    def named(self, budget: int) -> str:
        """Return a description of the correction at a budget, as in reports."""
        if self.kind == "terminal":
            return "one projection at the end"
        if self.kind in ("stepwise", "inexact"):
            return f"{self.how or 'a full projection'} at every step"
        shared = ", shared by the batch" if self.shared else ""
        return f"{self.how + ', ' if self.how else ''}{self.kind} with {budget}{shared}"


@dataclass(frozen=True, eq=False)
class Trial:
    """One way to correct with one budget, measured."""

    way: Way  # when and how
    budget: int  # corrections per sample
    schedule: Schedule  # the schedule
    measured: Tensor  # the measure of each sample, (n,), lower is better
    loss: Summary  # the share of full projection's gain that is lost: 0 is full projection, 1 is terminal projection
    excess: Summary  # the mean of `measured` minus that of full projection, in the unit of the measure
    worse: Signs  # in how many samples it is better and worse than full projection
    nepe: float  # mean normalised excess path error
    endpoint: float  # mean distance of final states to those of full projection
    seconds: float  # wall clock per sample
    projections: float  # per sample, with the closing projection, and defects at what one costs
    iterations: float  # solver iterations per sample; 0 if they are not counted
    far: int  # number of samples whose last proposal is ten times as far from feasible as usual
    missing: int  # number of samples without a measure

    @property
    def kind(self) -> Kind:
        """Return the kind of schedule."""
        return self.way.kind

    @property
    def how(self) -> str:
        """Return the name of a cheaper projection; "" for the constraint itself."""
        return self.way.how

    @property
    def never_projects(self) -> bool:
        """Return whether nothing is ever projected (a terminal schedule with closing='none')."""
        return self.projections == 0

    @property
    def name(self) -> str:
        """Return a description of the trial, as in reports."""
        return self.way.named(self.budget)

    def cost(self, unit: Cost) -> float:
        """Return the cost per sample in a unit."""
        return {"seconds": self.seconds, "projections": self.projections, "iterations": self.iterations}[unit]


TERMINAL, STEPWISE = Way("terminal"), Way("stepwise")


class Evaluation:
    """One batch of seeds on which ways to correct are measured against terminal and full projection."""

    def __init__(self, run: RunBatch, problem: Problem | None, goal: Goal, progress: Progress, check: bool = True):
        """Run the terminal batch, twice if it is to be checked, and the stepwise batch."""
        self.run_batch, self.problem, self.goal, self.progress = run, problem, goal, progress
        self.broken, self.batches, self.spent = "", 0, dict.fromkeys(get_args(Cost), 0.0)
        self._cheaper: dict[str, RunBatch] = {}
        progress("terminal and stepwise rollouts")
        self.alone = check_repeatable(run, measured(Terminal())) if check else as_record(run(measured(Terminal())))
        self.count(self.alone, 2 if check else 1)
        self._tried = False  # the quality, which may fail at once but not later
        if goal.quality is not None:
            self.measure(self.alone)
        self._tried = True
        self.reference = self.run(Stepwise())
        check_schedule_is_used(self.alone, self.reference)
        self.n = self.alone.defects.shape[1]
        self.looks_project = self.alone.calls["defect"] == 0  # a defect that projects is counted as a projection
        self.clusters = None if self.alone.seeds is None else self.alone.seeds.cpu()
        self.ends = path_error(self.reference).double(), path_error(self.alone).double()
        self.full, self.closed = self.measure(self.reference), self.measure(self.alone)
        self.gain = paired(self.closed, self.full, self.clusters)
        nothing = int(self.alone.closing_rule == "paid")
        self.terminal = self.judge(TERMINAL, nothing, Terminal(), self.alone)
        self.stepwise = self.judge(STEPWISE, self.n_steps, Stepwise(), self.reference)

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

    @property
    def worth_following(self) -> bool:
        """Return whether full projection is better than terminal projection, as far as can be told.

        With an unknown tail the sign test decides.
        """
        if not self.gain.mean > 0:
            return False
        signs = count_signs(self.full, self.closed, self.clusters)
        return self.gain.low > 0 if self.gain.reliable else signs.lower > signs.higher and signs.p < 0.05

    def count(self, run: Rollout, batches: int = 1) -> None:
        """Count batches that were run, and what they cost."""
        self.batches += batches
        self.spent["seconds"] += batches * sum(run.seconds.values())
        self.spent["projections"] += batches * self._projections(run) * run.projected.shape[1]
        self.spent["iterations"] += batches * float(run.all_iterations.sum())
        self.progress.batch(batches)

    def run(self, schedule: Schedule, how: str = "") -> Rollout:
        """Run the batch under a schedule, with a cheaper projection if it is named."""
        run = self.run_batch
        if how:
            if how not in self._cheaper:
                closing = {"closing": self.alone.closing_rule}
                self._cheaper[how] = self.changed(partial(_with_cheaper, how=how), how, **closing)[1]
            run = self._cheaper[how]
        record = same_batch(run(measured(schedule)), self.alone)
        self.count(record)
        return record

    def changed(self, change: Callable[[Problem], Problem], role: str, **options: Any) -> tuple[Problem, RunBatch]:
        """Return a modified problem and a function that runs it on the same engine; `role` names the change."""
        assert self.problem is not None
        other, run = change(self.problem), self.run_batch
        if not isinstance(run, Runs):
            return other, partial(other.rollout, **options)
        return other, run.runner.runs(other, role, **options)

    def measure(self, run: Rollout) -> Tensor:
        """Return the measure of each sample, (n,), lower is better; NaN if the quality failed."""
        goal = self.goal
        if goal.quality is not None:
            found = self._quality(goal.quality, run)
        elif goal.objective == "path":
            found = path_error(run).double().cpu()
        else:
            found = measured_distance(goal.distance, run.final, self.reference.final).double().cpu()
        if bool(found.isinf().any()):
            raise ValueError(
                f"{goal.measure} is infinite for {int(found.isinf().sum())} of {len(found)} samples, so a mean over "
                "them says nothing; give a large number instead"
            )
        return found

    def _quality(self, quality: Quality, run: Rollout) -> Tensor:
        if not self._tried:
            return quality.costs(run.final, self.problem)
        try:
            found = quality.lenient.costs(run.final, self.problem)
        except Exception as error:  # what was measured before must not be lost
            self.broken = f"{type(error).__name__}: {error}"
            found = torch.full((run.projected.shape[1],), torch.nan, dtype=torch.float64)
        return torch.where(found.isinf(), torch.nan, found)

    def judge(self, way: Way, budget: int, schedule: Schedule, run: Rollout) -> Trial:
        """Return the trial of a run whose defects were measured: its loss and its cost."""
        measured = self.measure(run)
        landing = run.landing
        far = int((landing > FAR * landing.median()).sum()) if float(landing.median()) > 0 else 0
        looks = self.goal.defect_cost * self.n_steps * schedule.uses_defects
        return Trial(
            way=way,
            budget=budget,
            schedule=schedule,
            measured=measured,
            loss=self._loss(way, measured),
            excess=paired(measured, self.full, self.clusters),
            worse=count_signs(measured, self.full, self.clusters),
            nepe=float(nepe(path_error(run).double(), *self.ends).nanmean()),
            endpoint=float(measured_distance(self.goal.distance, run.final, self.reference.final).double().mean()),
            seconds=self.seconds(run, way.kind, schedule.uses_defects),
            projections=self._projections(run) + looks,
            iterations=run.all_iterations.double().mean().item(),
            far=far,
            missing=int(measured.isnan().sum()),
        )

    def again(self, trial: Trial) -> Trial:
        """Repeat a trial of another evaluation on the samples of this one."""
        return self.judge(trial.way, trial.budget, trial.schedule, self.run(trial.schedule, trial.how))

    def _loss(self, way: Way, measured: Tensor) -> Summary:
        """Return the share of full projection's gain that is lost; the two ends are 0 and 1 by definition."""
        if not float((self.closed - self.full).nanmean()) > 0:
            return Summary(math.nan)
        if way in (TERMINAL, STEPWISE):
            end = float(way == TERMINAL)
            return Summary(end, end, end, end, len(measured), 0.0, len(measured), True)
        return ratio(measured - self.full, self.closed - self.full, self.clusters)

    @staticmethod
    def _projections(run: Rollout) -> float:
        """Return projections per sample; a step of a few iterations counts as one."""
        if run.unit == "projection":
            return float(run.paid.double().mean())
        return float((run.projected.sum(dim=0) + run.closing).double().mean())

    def seconds(self, run: Rollout, kind: str, looks: bool = True) -> float:
        """Return wall clock per sample, without defects that were only measured for the record."""
        update = self.alone.seconds["update"]  # the same work whatever the schedule
        spent = run.seconds | {"update": update} | ({} if looks else {"defect": 0.0})
        if self.looks_project and kind != "adaptive":
            spent["projection"] *= int(run.paid.sum()) / max(run.rows["projection"], 1)
        return sum(spent.values()) / self.n


class Search:
    """Ways tried on one evaluation; prices are calibrated on `calibrating`, a problem or a run function."""

    def __init__(self, at: Evaluation, calibrating: Any, price: Price | None, thorough: bool, engine: Any) -> None:
        """Start with the two ends."""
        self.at, self.goal, self.calibrating = at, at.goal, calibrating
        self.thorough, self.engine = thorough, engine
        self.trials: dict[tuple[Way, int], Trial] = {}
        self.efforts: list[Trial] = []
        self.few: dict[str, int] = {}  # cheaper projections that stop early, and after how many iterations
        self.given: Kind | None = None
        self.prices: dict[str, Price] = {}
        self.calibration_batches = 0
        if price is not None:
            self.given = "planned" if isinstance(price, Plan) else "adaptive"
            self.prices[self.given] = price

    @property
    def everything(self) -> list[Trial]:
        """Return all trials, with both ends."""
        return [self.at.terminal, *self.efforts, *self.trials.values(), self.at.stepwise]

    @property
    def good(self) -> list[Trial]:
        """Return the trials that meet the tolerance; full projection is always one of them."""
        found = [trial for trial in self.efforts if self.goal.met(trial)]
        for way in dict.fromkeys(way for way, _ in self.trials):
            found += [trial for trial in self.meeting(way) if trial.way == way]
        return [*found, self.at.stepwise]

    def explore(self) -> dict[str, Trial]:
        """Try cheaper projections at every step, then all ways at equal work, and follow up the best.

        Returns:
            By kind, the cheapest trial that meets the tolerance.
        """
        self._try_efforts()
        unit, goal = self.at.unit, self.goal
        cheapest = min((trial.cost(unit) for trial in self.efforts if goal.met(trial)), default=math.inf)
        level = min(_FIRST * self.at.stepwise.cost(unit), cheapest / 2)
        blind = self.at.constant or self.at.looks_project
        kinds: list[Kind] = ["periodic", "window", self.given or ("planned" if blind else "adaptive")]
        ways = [way for how in self._hows() for kind in kinds if self._fits(way := Way(kind, how))]
        first = {way: self.trial(way, self._budget_at(way, level)) for way in ways}
        by_loss = sorted(ways, key=lambda way: goal.lost(first[way]).mean)
        best = by_loss[0]
        if best.kind == "adaptive":
            shared = best._replace(shared=True)
            self.trial(shared, first[best].budget)
            by_loss.insert(0, shared)
        found: dict[str, Trial] = {}
        near = _NEAR * goal.lost(first[best]).mean
        for count, way in enumerate(by_loss):
            done = count >= _REFINED or (count and found and goal.lost(first.get(way, first[best])).mean > near)
            if done and not self.thorough and goal.limit is None:
                break
            trial = self.search(way)
            if trial is not None and trial.cost(unit) < found.get(way.kind, self.at.stepwise).cost(unit):
                found[way.kind] = trial
        return found

    def _try_efforts(self) -> None:
        """Try cheaper projections or a few iterations at every step until one reaches the goal; needs a problem."""
        at, problem = self.at, self.at.problem
        if problem is None:
            return
        variants: dict[str, Any] = dict(problem.constraint.cheaper())
        self.few = {how: int(one.iterations) for how, one in variants.items() if _stops_early(one)}
        if problem.constraint.improves and at.iterates and not self.few:
            variants[ONE_ITERATION], self.few[ONE_ITERATION] = problem.constraint, 1
        for how in sorted(variants, key=lambda name: self.few.get(name, math.inf)):  # the cheapest first
            few = self.few.get(how, 0)
            schedule = Inexact(few) if few else Stepwise()
            at.progress(f"projecting with {how} at every step")
            way = Way("inexact" if few else "stepwise", how)
            self.efforts.append(at.judge(way, at.n_steps, schedule, at.run(schedule, how)))
            if self.goal.limit is None and self.goal.met(self.efforts[-1]):
                break

    def _hows(self) -> list[str]:
        """Return the projections to schedule: the cheapest whole one, and a few iterations if they may do."""
        goal, unit = self.goal, self.at.unit
        most = math.inf if goal.tolerance is None else goal.tolerance

        def whole(trial: Trial) -> bool:
            return trial.how not in self.few and goal.lost(trial).mean <= _LOSSLESS * most

        cheap = min(
            (trial for trial in (self.at.stepwise, *self.efforts) if trial.way == STEPWISE or whole(trial)),
            key=lambda trial: trial.cost(unit),
        )
        few = [trial.how for trial in self.efforts if trial.how in self.few and goal.lost(trial).mean <= most]
        return [cheap.how, *few[:1]]

    def _fits(self, way: Way) -> bool:
        """Return whether this correction has a schedule: of prices, only thresholds can buy single iterations."""
        if way.kind in ("periodic", "window") or way.how not in self.few:
            return True
        return self.few[way.how] == 1 and isinstance(self.price(way.kind), Thresholds)

    def _at_every_step(self, how: str) -> Trial:
        """Return the trial that corrects at every step, with the cheaper projection named `how`."""
        return next((trial for trial in self.efforts if trial.how == how), self.at.stepwise)

    def _budget_at(self, way: Way, level: float) -> int:
        """Return the budget at which this kind of correction costs about `level`."""
        share = level / max(self._at_every_step(way.how).cost(self.at.unit), 1e-300)
        return max(2, min(round(share * self.at.n_steps), self.most(way)))

    def price(self, kind: str) -> Price:
        """Return the price of a kind, calibrated when first asked for."""
        if kind not in self.prices:
            self.at.progress(f"calibrating {kind} correction")
            goal = self.goal
            path = goal.objective == "path" and goal.quality is None
            method = "planned" if kind == "planned" else "dp" if path or self.thorough else "paper"
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a constant defect is among the findings
                found = calibrate(
                    self.calibrating,
                    method=method,
                    objective="path" if path else "endpoint",
                    distance=goal.distance,
                    check=False,
                    engine=self.engine,
                    progress=self.at.progress,
                )
            self.calibration_batches += int(getattr(found, "notes", {}).get("batches", 0))
            self.prices[kind] = found
        return self.prices[kind]

    def schedule(self, way: Way, budget: int) -> Schedule:
        """Return the schedule of this kind of correction for a budget, which includes the closing projection."""
        T, few = self.at.n_steps, self.few.get(way.how)
        if few and way.kind in ("periodic", "window"):
            t, b = torch.arange(T), budget - 1
            even = ((t + 1) * budget) // T > (t * budget) // T  # the last one is the closing projection
            return _FewAt(even if way.kind == "periodic" else t >= T - 1 - b, few, few * b + 1)
        if way.kind == "periodic":
            return Periodic(budget)
        if way.kind == "window":
            return Window(T - budget)
        price = self.price(way.kind)
        if few:
            price = _of_single_iterations(price)
        return price.at(PerBatch(budget) if way.shared else budget)

    def trial(self, way: Way, budget: int) -> Trial:
        """Return one trial; each is run once."""
        at = self.at
        if budget <= at.terminal.budget:
            return at.terminal
        if budget >= at.n_steps:
            return self._at_every_step(way.how)
        if (way, budget) not in self.trials:
            schedule = self.schedule(way, budget)
            at.progress(f"{way.named(budget)} of {at.n_steps}")
            run = at.run(schedule, way.how)
            self.trials[way, budget] = at.judge(way, budget, schedule, run)
        return self.trials[way, budget]

    def most(self, way: Way) -> int:
        """Return the largest budget below T; a price made earlier may end before."""
        price = self.prices.get(way.kind)
        return self.at.n_steps - 1 if price is None else min(self.at.n_steps - 1, price.budget)

    def known(self, way: Way) -> list[Trial]:
        """Return the trials of this kind of correction by budget, with both ends; a short price has no upper end."""
        between = [trial for (one, _), trial in self.trials.items() if one == way]
        upper = [] if self.most(way) < self.at.n_steps - 1 else [self._at_every_step(way.how)]
        return sorted([self.at.terminal, *between, *upper], key=lambda trial: trial.budget)

    def search(self, way: Way) -> Trial | None:
        """Return the cheapest trial of this kind of correction that reaches the goal; None if none does."""
        goal, unit = self.goal, self.at.unit
        for _ in range(_SEARCHES):
            budget = self._next(way)
            if budget is None:
                break
            # a budget that costs more than what is known to do is of no use
            cost = budget / self.at.n_steps * self._at_every_step(way.how).cost(unit)
            if goal.limit is None and not self.thorough and cost >= min(trial.cost(unit) for trial in self.good):
                break
            self.trial(way, budget)
        if goal.limit is not None:
            fitting = [trial for trial in self.known(way) if trial.seconds <= goal.limit]
            return min(fitting, key=lambda trial: goal.lost(trial).mean, default=None)
        return next(iter(self.meeting(way)), None)

    def meeting(self, way: Way) -> list[Trial]:
        """Return the trials within the tolerance from the smallest budget above which all are, by budget."""
        known = self.known(way)
        return known[first_within([self.goal.met(trial) for trial in known]) :]

    def _next(self, way: Way) -> int | None:
        """Return the budget to try next, between the last that fails the tolerance and the first that meets it."""
        goal, known, most = self.goal, self.known(way), self.most(way)
        if goal.limit is not None:
            ok, value, target = [t.seconds > goal.limit for t in known], [t.seconds for t in known], goal.limit
        else:
            ok = [goal.met(trial) for trial in known]
            value = [_upper(goal.lost(trial)) for trial in known]
            target = goal.tolerance or 0.0
        at = first_within(ok)
        low = known[at - 1].budget
        high = min(known[at].budget, most + 1) if at < len(known) else most + 1
        if high - low <= 1:
            return None
        if at == len(known):
            return most
        share = min(max(_between(value[at - 1], value[at], target), _LEAST_MOVE), 1 - _LEAST_MOVE)
        return min(max(round(low + share * (high - low)), low + 1), high - 1)


@dataclass(frozen=True, eq=False)
class _FewAt(ByIteration):
    """A few iterations at fixed steps, (T,) bool."""

    steps: Tensor
    few: int
    budget: int
    uses_defects = False

    def decide(self, view: StepView) -> Tensor:
        return torch.full_like(view.defect, bool(self.steps[view.t]) and view.iteration < self.few, dtype=torch.bool)


def _of_single_iterations(price: Price) -> Thresholds:
    """Return the same thresholds with one iteration bought wherever a projection was."""
    assert isinstance(price, Thresholds)
    return replace(price, unit="iteration")


def first_within(ok: Sequence[bool]) -> int:
    """Return the first index, after 0, from which on all are true; the length if there is none.

    A budget that meets the tolerance while a larger one does not owes that to chance.

    Example:
        >>> first_within([False, True, False, True]), first_within([True, True]), first_within([True, False])
        (3, 1, 2)
    """
    return max([i for i, one in enumerate(ok) if not one], default=0) + 1


def _between(first: float, last: float, target: float) -> float:
    """Guess where a curve that falls from `first` to `last` gets below 0.8 of the target, as a share of the way.

    Losses fall between linearly and geometrically, so it is the mean of both.
    """
    first, last, target = (value if value == value else 2 * target for value in (first, last, 0.8 * target))
    if not first > target > last:
        return 0.5
    linear = (first - target) / (first - last)
    return (linear + math.log(first / target) / math.log(first / max(last, target / 4))) / 2


def _upper(loss: Summary) -> float:
    return loss.high if loss.reliable else 2 * loss.mean


def _with_cheaper(problem: Problem, how: str) -> Problem:
    """Return the problem with one of its constraint's cheaper projections; itself if `how` is ""."""
    return replace(problem, constraint=cheaper_constraint(problem.constraint, how))


def cheaper_constraint(constraint: Constraint, how: str) -> Constraint:
    """Return the named cheaper variant, or the constraint itself for "".

    A variant that stops early does not end feasible. Its solver is returned instead, to be run by `Inexact`, after
    which the closing projection is a whole one.
    """
    found = constraint.cheaper()[how] if how not in ("", ONE_ITERATION) else constraint
    solver: Constraint = getattr(found, "constraint", found) if _stops_early(found) else found
    return solver


def _stops_early(constraint: Any) -> bool:
    return not constraint.is_projection and hasattr(constraint, "iterations") and hasattr(constraint, "constraint")


@dataclass(frozen=True)
class Finding:
    """One answer."""

    name: str  # the question, or the failure mode (a key of `FAILURE_MODES`)
    warns: bool  # whether it is a failure mode that was seen
    text: str  # one or two sentences


@dataclass(frozen=True, eq=False)
class Measured:
    """Everything that was measured."""

    goal: Goal  # what was asked for
    unit: Cost  # the cost that decided: seconds, projections, or iterations if the solver iterates
    n_steps: int  # T
    calibrated: int  # number of seeds that calibrated; 0 if a price was given or none was needed
    held_out: int  # number of seeds that chose
    fresh: int  # number of seeds that chose nothing and measured the recommendation; 0 if there were none
    repeated: int  # number of samples left out because their seed was there already
    batch: int  # number of samples in the batch that chose
    gain: Summary  # by how much full projection is better than terminal projection
    full: float  # mean of the measure with full projection
    terminal: Trial  # the trial that projects once, at the end
    stepwise: Trial  # the trial that projects at every step
    trials: tuple[Trial, ...]  # schedules at budgets, in the order they were tried
    efforts: tuple[Trial, ...]  # cheaper projections, and fewer iterations, at every step
    needed: Mapping[str, Trial]  # by kind, the cheapest trial that meets the tolerance
    confirmed: Trial | None  # the recommendation on fresh seeds, if there were any
    rejected: tuple[Trial, ...]  # candidates that met the tolerance at first, but not on fresh seeds; as measured there
    yours: Trial | None  # the window that is used today, if it was given
    concentration: float  # C_0.2 of the terminal rollouts
    constant: bool  # whether the defect is the same number everywhere
    looks_project: bool  # whether measuring the defect is a projection
    iterates: bool  # whether the solver iterates
    effects: Effects | None  # what single corrections did; None if timing makes no difference
    stability: Stability  # of the projection and the rollout
    turnable: bool  # whether states look like point sets, (n, m, 3), whose distance depends on how they are turned
    batches: int  # number of batches that were run
    paid_back: float  # number of samples after which the advice has saved what it cost; inf if it saves nothing
    given: bool = False  # whether the price was made earlier
    broken: str = ""  # the error of the quality, if it failed on the way

    @property
    def everything(self) -> list[Trial]:
        """Return all candidates, by cost."""
        return sorted(
            [self.terminal, *self.efforts, *self.trials, self.stepwise], key=lambda trial: trial.cost(self.unit)
        )

    @property
    def best(self) -> Trial:
        """Return the trial with the best final samples; full projection if none is better."""
        known = [trial for trial in (self.stepwise, *self.everything) if not trial.missing]
        return min(known or [self.stepwise], key=lambda trial: float(trial.measured.mean()))

    def of(self, kind: str) -> list[Trial]:
        """Return the trials of a kind with whole projections, by budget, from terminal to stepwise projection."""
        between = [trial for trial in self.trials if trial.way == Way(kind)]  # type: ignore[arg-type]
        return [self.terminal, *sorted(between, key=lambda trial: trial.budget), self.stepwise]

    @property
    def level(self) -> dict[str, Trial]:
        """Return the first trials by kind, all with the same projection and the same budget."""
        first = self.trials[:1]
        return {
            t.kind: t for t in self.trials for f in first if (t.how, t.budget, t.way.shared) == (f.how, f.budget, False)
        }
