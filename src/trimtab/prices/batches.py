"""Calibration batches: run, counted, and cut to the steps at which there is a choice."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import Any

from torch import Tensor

from trimtab.core.budget import Budget, Unit, units
from trimtab.core.metrics import Distance, euclidean
from trimtab.core.problem import Problem
from trimtab.core.progress import progress_of
from trimtab.core.record import Rollout
from trimtab.core.repeatable import as_record
from trimtab.core.runner import RunBatch, ahead, checked
from trimtab.core.schedule import Schedule, Watched, watched
from trimtab.prices.check_runs import check_corrections_happen, check_uncorrected, same_batch
from trimtab.prices.explore import Explore, spread_budgets
from trimtab.prices.objective import Objective, describe, objective_weights, residual_weights, window_schedules
from trimtab.prices.thresholds import Thresholds, choices, with_closing
from trimtab.schedules import Stepwise, Terminal

__all__ = ["Batches", "Source", "check_distinct_seeds", "largest"]

Source = Problem | RunBatch
"""What is calibrated: a problem, or a function that runs a loop of the user's own on a schedule."""


class Batches:
    """The batches of one calibration, and what all methods need of them.

    Where the closing projection is paid for, the last step corrects every sample whatever the schedule. The choice is
    then that of the steps before, with one correction fewer: `cut` records hold those steps alone, and `n_choices` and
    `spendable` are counted so.
    """

    def __init__(
        self,
        run: RunBatch,
        budget: Budget,
        objective: Objective,
        distance: Distance | None,
        fingerprint: str,
        check: bool,
        progress: Callable[[str], None],
        unit: Unit = "projection",
    ) -> None:
        """Run the uncorrected batch, twice if it is to be checked that the two are the same."""
        self._run, self.objective, self.fingerprint = run, objective, fingerprint
        self.progress = progress_of("calibrate", progress)
        self.distance = euclidean if distance is None else distance
        self._ran, self._expected = [0], False  # shared by views of the same batches
        self._first: Rollout | None = None
        if check:
            self._ran[0] += 2
            self.progress("calibration batches 1 and 2, which must be the same")
            self.free = self._counted(checked(run, Watched(Terminal())), Terminal(), 2)
        else:
            self.free = self.run(Terminal())
        self.n_steps, self.n = self.free.defects.shape
        self.unit, self.budget = unit, largest(budget, self.n_steps, unit)
        self.closing = self.free.closing_rule
        self.n_choices, _ = choices(self.n_steps, self.budget, self.closing)
        self.closing_reserve = self.n_steps - self.n_choices
        self.hold(self.closing_reserve)
        check_uncorrected(self.cut(self.free))
        if bool(self.free.defects.isnan().any()):
            raise ValueError(
                "the calibration rollouts hold no defects; run(schedule) must hand its schedule to a Corrector that "
                "measures them (measure_defects=True)"
            )
        if float(self.free.defects.max()) == float(self.free.defects.min()):
            warnings.warn(
                f"the defect is {float(self.free.defects.max()):g} at every step of every calibration rollout: it "
                "cannot tell one moment from another; a defect that measures distance, or Periodic, will serve better",
                stacklevel=4,
            )

    def hold(self, units: int) -> None:
        """Keep so much of every budget back for the closing projection."""
        self.held, self.spendable = units, self.budget - units

    def in_projections(self, budget: int) -> Batches:
        """The same batches where a budget counts whole projections; what it runs is counted here too."""
        view = copy(self)
        view.unit, view.budget = "projection", budget
        view.hold(self.closing_reserve)
        return view

    @property
    def count(self) -> int:
        """Batches that were run so far."""
        return self._ran[0]

    def run(self, schedule: Schedule) -> Rollout:
        """One batch of calibration rollouts; all of them are run, and counted, here."""
        self._ran[0] += 1
        self.progress(f"calibration batch {self.count}")
        return self._counted(as_record(self._run(watched(schedule))), schedule)

    def ahead(self, schedules: Sequence[Schedule]) -> None:
        """Begin batches that will be run."""
        ahead(self._run, list(map(watched, schedules)))

    def _counted(self, record: Rollout, schedule: Schedule, batches: int = 1) -> Rollout:
        if record.planned_steps is not None:
            raise ValueError(
                f"run ended early, after {record.n_steps} of {record.planned_steps} steps, and prices are for all T of "
                "them: let calibration runs go on to their end, and stop early with the prices that come of it"
            )
        if self._first is None:
            self._first = record
        same_batch(record, self._first)
        unit = schedule.unit or "projection"
        if record.unit != unit:
            raise ValueError(
                f"run counted {record.unit}s under a schedule of {unit}s, and prices would be made from something else "
                "than they are for: leave unit out of your Corrector, the schedule says it"
            )
        # of all samples: a group has a column for its first row alone
        self.groups, self.seeds = record.groups, () if record.seeds is None else tuple(record.seeds.tolist())
        self.progress.batch(batches)
        return record.grouped()

    def per_decider(self, values: Tensor) -> Tensor:
        """Values per sample as values per group, where decisions are about groups."""
        return values if self.groups is None else self.groups.together(values)

    def cut(self, run: Rollout) -> Rollout:
        """The record of the steps at which there is a choice."""
        names = ("defects", "residuals", "projected", "failed", "iterations")
        return replace(run, **{name: getattr(run, name)[: self.n_choices] for name in names})  # passes tell their step

    @cached_property
    def stepwise(self) -> Rollout:
        """The batch corrected at every step: what endpoints are compared with."""
        return self.run(Stepwise())

    def explore(self, rounds: range, thresholds: Thresholds | None = None, share: float = 1.0) -> list[Rollout]:
        """Batches with budgets spread over all rates, at random times or near a table; cut."""
        budgets = {k: spread_budgets(self.n, self.n_choices, self.spendable, seed=k) for k in rounds}
        schedules = [Explore(budgets[k] + self.closing_reserve, thresholds, share, seed=k) for k in rounds]
        self.ahead(schedules)
        runs = [self.cut(self.run(schedule)) for schedule in schedules]
        if thresholds is None and any(bool(some.any()) for some in budgets.values()):
            check_corrections_happen(runs)
        return runs

    @property
    def has_choice(self) -> bool:
        """Whether there is a correction to spend and more than one step to spend it at."""
        return self.spendable > 0 and self.n_choices > 1

    @property
    def trial_budgets(self) -> Tensor:
        """Budgets at which prices are tried out, spread over all rates, (n,), the closing projection included."""
        spread = spread_budgets(self.n, self.n_choices, self.spendable, seed=0).clamp(max=self.spendable)
        return spread + self.closing_reserve

    @cached_property
    def weights(self) -> Tensor | None:
        """What a unit of residual costs at each step with a choice, (T',); None for path error."""
        self.expect_weights()
        found = residual_weights(
            self.objective, self.run, self.distance, lambda: self.stepwise, per_decider=self.per_decider
        )
        return None if found is None else found[: self.n_choices]

    def expect_weights(self) -> None:
        """Begin the batches that `weights` looks at, once."""
        if not self._expected and set(objective_weights(self.objective)) != {"path"}:
            self._expected = True
            self.ahead([Stepwise(), *window_schedules(self.n_steps, self.n)])

    def keep_one_back(self, table: Tensor) -> Tensor:
        """A price table (T', B' + 1) of the choices as one of all steps and the whole budget, (T, B + 1)."""
        return with_closing(table, self.closing_reserve)

    def facts(self, notes: dict[str, Any]) -> dict[str, Any]:
        """What every price keeps about how it was made."""
        return {
            "seeds": self.seeds,
            "objective": describe(self.objective),
            "fingerprint": self.fingerprint,
            "closing": self.closing,
            "notes": {"rollouts": self.n, "batches": self.count, **notes},
        }

    def enough(self, least: int) -> None:
        """Refuse to learn from too little."""
        if self.n < least:
            what, enough = "rollouts", f"at least {least} seeds, better 64"
            if self.groups is not None:
                what, enough = "groups", f"the seeds of at least {least} groups, better of 64"
            raise ValueError(
                f"{self.n} calibration {what} are too few for this method: give {enough} (method='paper' works with "
                "any number)"
            )


def largest(budget: Budget, n_steps: int, unit: Unit) -> int:
    """The largest budget wanted, in units."""
    if isinstance(budget, Tensor) and budget.ndim:
        raise ValueError(f"calibrate takes the largest budget wanted, one number: got {tuple(budget.shape)} of them")
    return int(units(budget, n_steps, unit))


def check_distinct_seeds(problem: Problem) -> None:
    """Refuse calibration seeds of which one is there twice."""
    seeds = problem.seeds.tolist()
    repeated = len(seeds) - len(set(seeds))
    if repeated:
        raise ValueError(
            f"{repeated} of the {len(seeds)} calibration seeds are repeated: the same rollout twice tells nothing new; "
            "give each seed once"
        )
