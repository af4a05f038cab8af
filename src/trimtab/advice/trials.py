"""Schedules tried out at budgets: what each loses and what it costs, on seeds that calibrated nothing."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from trimtab.advice.diagnosis import Interval, bootstrap, mean, ratio_interval
from trimtab.advice.shared import Shared
from trimtab.advice.trial import Kind, Trial
from trimtab.core.budget import Budget, Unit
from trimtab.core.identity import fingerprint
from trimtab.core.metrics import Distance, measured_distance, nepe, path_error
from trimtab.core.problem import Problem
from trimtab.core.progress import Progress
from trimtab.core.quality import Quality
from trimtab.core.record import Rollout
from trimtab.core.repeatable import Twice, check_same, twice
from trimtab.core.runner import RunBatch, Runs, ahead
from trimtab.core.schedule import Schedule, Watched
from trimtab.prices.calibration import batches_of, by_dp, by_plan
from trimtab.prices.collect import Batches, check_distinct_seeds, check_schedule_is_used, same_batch
from trimtab.prices.objective import Objective, describe, finite
from trimtab.prices.plan import Plan
from trimtab.prices.price import Price
from trimtab.prices.race import by_race
from trimtab.schedules import Periodic, Stepwise, Terminal, Window

__all__ = ["TrialRuns"]

_SEARCHES = 3  # budgets tried between those of the grid, for each schedule
_TRIAL_RUNS = 27  # about, beside those that calibrate
_PATIENCE = 20.0  # seconds: slower rollouts are not run again to compare their times


class TrialRuns:
    """Two batches of rollouts, one that calibrates and one that measures, and everything run on them."""

    def __init__(
        self,
        calibrating: Shared,
        measuring: RunBatch,
        n_steps: int,
        distance: Distance,
        price: Price | None,
        progress: Progress,
        quality: Quality | None = None,
        problems: tuple[Problem | None, Problem | None] = (None, None),
        objective: Objective = "endpoint",
        look: float = 0.0,
    ) -> None:
        """Run the ends that everything is measured between; both runs use the same seeds each time, and not others'."""
        self.calibrating, self.measuring, self.problems = calibrating, measuring, problems
        self.distance, self.progress = distance, progress
        self.quality, self.objective, self.look = quality, objective, look
        self.n_steps, self._measured = n_steps, 0

        progress("terminal and stepwise rollouts")
        progress.expect(_TRIAL_RUNS + (0 if price is not None else batches_of("race", objective)))
        ahead(measuring, [Watched(Stepwise())])
        first_of_all, self.alone, moved = self.twice(Watched(Terminal()))
        check_same(Twice(first_of_all, self.alone, moved))
        if self.alone.n_steps != n_steps:
            raise ValueError(f"n_steps is {n_steps}, but the run came back with {self.alone.n_steps} steps")
        self.reference = self.run(Watched(Stepwise()))
        check_schedule_is_used(self.alone, self.reference)
        # updates are the same work whatever the schedule, so differences between runs are noise
        self.update = sorted(run.seconds["update"] for run in (first_of_all, self.alone, self.reference))[1]
        self.n = self.alone.defects.shape[1]
        # a constraint without a defect of its own has its looks booked as projections
        self.looks_project = self.alone.calls["defect"] == 0
        self.ends = path_error(self.reference).double(), path_error(self.alone).double()
        self.path_span = self.ends[1] - self.ends[0]
        self.full, self.closed = self.measure(self.reference), self.measure(self.alone)
        self.span = float((self.closed - self.full).mean())  # what full projection gains over terminal projection
        self.constant = float(self.alone.defects.max()) == float(self.alone.defects.min())
        self.finals: dict[tuple[str, int], Any] = {}
        nothing = int(self.alone.closing_rule == "paid")  # on the way: a budget counts the closing projection if paid
        self.terminal = self.judge("terminal", nothing, Terminal(), self.alone)
        self.stepwise = self.judge("stepwise", self.n_steps, Stepwise(), self.reference)
        self.trials: dict[tuple[str, int], Trial] = {}
        self.given: Kind | None = None  # the kind of schedule that a price made earlier is of
        self.prices: dict[str, Price] = {}
        if price is not None:
            self.given = "planned" if isinstance(price, Plan) else "adaptive"
            self.prices[self.given] = price

    @property
    def degenerate(self) -> float:
        """The share of samples for which timing is of no consequence to path error."""
        return float((self.path_span <= 1e-9).double().mean())

    @property
    def calibrated(self) -> int:
        """Samples, or groups of them, that prices are calibrated on."""
        problem = self.problems[0]
        if problem is not None:
            return len(problem) if problem.groups is None else problem.groups.n
        return self.calibrating(Watched(Terminal())).grouped().defects.shape[1]

    @property
    def worth_following(self) -> bool:
        """Whether full projection is better than terminal projection in the measure, by more than chance."""
        return self.span > 0 and self.gain.low > 0

    @property
    def gain(self) -> Interval:
        """By how much full projection is better than terminal projection in the measure, with its interval."""
        return bootstrap(mean, self.closed - self.full)

    @property
    def groups(self) -> bool:
        """Whether samples are decided on together."""
        return self.alone.groups is not None

    def your_window(self, schedule: Window) -> Trial:
        """What is done today: every step from some step on, measured like the rest."""
        budget = len(schedule.steps(self.n_steps))
        self.progress(f"your window, the last {budget} of {self.n_steps} steps")
        return self.judge("window", budget, schedule, self.run(Watched(schedule)))

    @property
    def measure_name(self) -> str:
        """What losses are measured by."""
        return self.quality.name if self.quality is not None else describe(self.objective)

    def measure(self, run: Rollout) -> Tensor:
        """The number that advice is about, (n,), lower being better; of groups, their means, since rows go together."""
        if self.quality is not None:
            found = self.quality.costs(run.final, self.problems[1])
        elif self.objective == "path":
            found = path_error(run).double().cpu()
        else:
            found = measured_distance(self.distance, run.final, self.reference.final).double().cpu()
        finite(found, self.measure_name)
        return found if run.groups is None else run.groups.means(found)

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """What can be recommended here: a defect that is constant, or costs a projection to see, decides nothing.

        A price that was made earlier is judged for what it is, whatever the defect.
        """
        if self.given is not None:
            return ("periodic", "window", self.given)
        blind = self.constant or self.looks_project
        return ("periodic", "window", "planned") if blind else ("periodic", "window", "adaptive")

    @property
    def batches(self) -> int:
        """All that were run, of either half of the samples."""
        return self.calibrating.count + self._measured

    def ran(self, batches: int = 1) -> None:
        """Count batches of the half that measures, whatever ran them."""
        self._measured += batches
        self.progress.batch(batches)

    def run(self, schedule: Schedule) -> Rollout:
        """The batch that measures, under a schedule."""
        record = same_batch(self.measuring(schedule), self.alone)
        self.ran()
        return record

    def twice(self, schedule: Schedule) -> Twice:
        """The batch that measures, twice under one schedule."""
        run = self.measuring
        both = run.twice(schedule) if isinstance(run, Runs) else twice(run, schedule)
        self.ran(2)
        return both

    def announce(self, kind: Kind, budgets: Iterable[int]) -> None:
        """Begin the runs of trials to come."""
        new = [b for b in dict.fromkeys(budgets) if 1 < b < self.n_steps and (kind, b) not in self.trials]
        ahead(self.measuring, [Watched(self.schedule(kind, budget)) for budget in new])

    def price(self, kind: str) -> Price:
        """Of a kind that needs one, calibrated on the other batch when first asked for."""
        if kind not in self.prices:
            self.progress(f"calibrating {kind} correction")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a constant defect is among the findings
                batches = self.calibration_batches(1.0)
                if kind == "planned":
                    self.prices[kind] = by_plan(batches)
                elif self.objective == "path" and self.quality is None and not self.look:
                    self.prices[kind] = by_dp(batches)
                else:
                    self.prices[kind] = by_race(batches, self.quality, self.problems[0], {}, self.look)
        return self.prices[kind]

    def calibration_batches(self, budget: Budget, unit: Unit = "projection") -> Batches:
        """Of the half that calibrates; what was run there before is not run again."""
        problem, known = self.problems[0], ""
        if problem is not None:
            check_distinct_seeds(problem)
            known = fingerprint(problem.sampler, problem.constraint)
        return Batches(self.calibrating, budget, self.objective, self.distance, known, False, self.progress, unit)

    def judge(self, kind: Kind, budget: int, schedule: Schedule, run: Rollout) -> Trial:
        """What a run, whose defects were measured, lost and cost.

        A schedule that does not look at defects does not pay for the looks that were made to measure them.
        """
        apart = measured_distance(self.distance, run.final, self.reference.final)
        measured = self.measure(run)
        values = (measured - self.full) / self.span if self.span > 0 else torch.full_like(measured, torch.nan)
        self.finals[kind, budget] = run.final
        return Trial(
            kind=kind,
            budget=budget,
            values=values,
            loss=self.share_lost(measured),
            measured=measured,
            nepe=float(nepe(path_error(run).double(), *self.ends).nanmean()),
            seconds=self.seconds(run, kind, schedule.uses_defects),
            projections=float(run.paid.double().mean()) + self.look * self.n_steps * schedule.uses_defects,
            endpoint=float(apart.double().mean()),
            schedule=schedule,
        )

    def share_lost(self, measured: Tensor) -> Interval:
        """The share of what full projection gains that a schedule loses, from its measure of each sample, (n,).

        The gain is as uncertain as the loss, and of the same samples: one that ends far away makes both large. So the
        interval is that of their ratio.
        """
        if not self.span > 0:
            return Interval(math.nan, math.nan, math.nan)
        return ratio_interval(measured - self.full, self.closed - self.full)

    def seconds(self, run: Rollout, kind: str, looks: bool = True) -> float:
        """Wall clock per sample. Where looking is projecting, only adaptive correction has to look."""
        spent = run.seconds | {"update": self.update} | ({} if looks else {"defect": 0.0})
        if self.looks_project and kind != "adaptive":
            spent["projection"] *= int(run.paid.sum()) / max(run.rows["projection"], 1)
        return sum(spent.values()) / self.n

    def trial(self, kind: Kind, budget: int) -> Trial:
        """Measured once."""
        if budget <= self.terminal.budget:
            return self.terminal
        if budget == self.n_steps:
            return self.stepwise
        if (kind, budget) not in self.trials:
            schedule = self.schedule(kind, budget)
            self.progress(f"{kind} correction with {budget} of {self.n_steps}")
            self.trials[kind, budget] = self.judge(kind, budget, schedule, self.run(Watched(schedule)))
        return self.trials[kind, budget]

    def schedule(self, kind: Kind, budget: int) -> Schedule:
        """The schedule of a kind for a budget, the closing projection included."""
        if kind == "periodic":
            return Periodic(budget)
        if kind == "window":
            return Window(self.n_steps - budget)
        return self.price(kind).at(budget)

    def most(self, kind: str) -> int:
        """The largest budget between terminal and stepwise; a price made earlier may go less far."""
        price = self.prices.get(kind)
        return self.n_steps - 1 if price is None else min(self.n_steps - 1, price.budget)

    def falls_short(self, kind: str) -> bool:
        """Whether a price made earlier ends before every step, so that stepwise correction is none of its budgets."""
        return self.most(kind) < self.n_steps - 1

    def known(self, kind: str) -> list[Trial]:
        """The trials of a kind so far, by budget, the ends included."""
        between = [trial for (name, _), trial in self.trials.items() if name == kind]
        return sorted([self.terminal, *between, self.stepwise], key=lambda trial: trial.budget)

    def cheapest_within(self, kind: Kind, tolerance: float) -> Trial:
        """The smallest budget found whose whole interval is within the tolerance, as are those of all larger ones.

        One that is within it while a larger one is not owes that to chance: taking the smallest of many would pick it.
        """
        for _ in range(_SEARCHES):
            known = self.known(kind)
            at = _first_within(known, tolerance)
            below, above = known[at - 1], known[at]
            budget = _between(below.budget, above.budget, below.loss.high, above.loss.high, tolerance, self.most(kind))
            if budget is None:
                break
            self.trial(kind, budget)
        known = self.known(kind)
        return known[_first_within(known, tolerance)]

    def best_within(self, kind: Kind, limit: float) -> Trial | None:
        """The trial that loses least of those found that take no longer than the limit; None if none does."""
        for _ in range(_SEARCHES):
            known = self.known(kind)
            fitting = [i for i, trial in enumerate(known) if trial.seconds <= limit]
            if not fitting or fitting[-1] == len(known) - 1:
                break
            below, above = known[fitting[-1]], known[fitting[-1] + 1]
            budget = _between(below.budget, above.budget, below.seconds, above.seconds, limit, self.most(kind))
            if budget is None:
                break
            self.trial(kind, budget)
        fitting_trials = [trial for trial in self.known(kind) if trial.seconds <= limit]
        return min(fitting_trials, key=lambda trial: trial.loss.mean, default=None)

    def timed_again(self, trial: Trial) -> tuple[Trial, Trial, Interval]:
        """A trial and the stepwise one with their times taken twice more, side by side, and the share that is saved."""
        if trial.kind == "stepwise":
            return trial, self.stepwise, Interval(0.0, 0.0, 0.0)
        times = [(trial.seconds, self.stepwise.seconds)]
        if self.stepwise.seconds * self.n < _PATIENCE:
            both = trial, self.stepwise
            times += [tuple(self.seconds(self.run(one.schedule), one.kind) for one in both) for _ in range(2)]  # type: ignore[misc]
        shares = sorted(1 - ours / theirs for ours, theirs in times)
        middle = sorted(times, key=lambda pair: 1 - pair[0] / pair[1])[len(times) // 2]
        saving = Interval(shares[len(shares) // 2], shares[0], shares[-1])
        return replace(trial, seconds=middle[0]), replace(self.stepwise, seconds=middle[1]), saving


def _first_within(known: Sequence[Trial], tolerance: float) -> int:
    """The first trial but the terminal one, by budget, from which on all are within the tolerance: the last one is."""
    failing = [i for i, trial in enumerate(known) if not trial.loss.high <= tolerance]
    return max(failing, default=0) + 1


def _between(low: int, high: int, at_low: float, at_high: float, target: float, most: int) -> int | None:
    """The budget between two where a straight line reaches the target; None if there is none left to try."""
    high = min(high, most + 1)
    if high - low <= 1:
        return None
    share = (target - at_low) / (at_high - at_low) if at_high != at_low else 0.5
    return min(max(round(low + share * (high - low)), low + 1), high - 1)
