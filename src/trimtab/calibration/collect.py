"""Calibration batches: how they are run, explored and checked."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self
from zlib import crc32

import torch
from torch import Tensor

from trimtab.calibration.cost import with_payback
from trimtab.core.budget import Budget, corrections
from trimtab.core.metrics import Distance, endpoint_distance, euclidean, state_error
from trimtab.core.noise import uniform_numbers
from trimtab.core.progress import progress_of
from trimtab.core.record import Rollout
from trimtab.core.repeatable import RunBatch, as_record, check_repeatable
from trimtab.core.schedule import Schedule
from trimtab.core.view import StepView
from trimtab.loop.rollout import Problem
from trimtab.loop.runner import prefetch
from trimtab.prices.objective import (
    Objective,
    describe,
    finite,
    objective_weights,
    residual_weights,
    window_schedules,
)
from trimtab.prices.price import Plan, Thresholds, free_size
from trimtab.prices.program import solve
from trimtab.prices.sample_scale import SampleScale, fit_sample_scale
from trimtab.prices.transitions import estimate_transitions
from trimtab.schedules.basic import Stepwise, Terminal
from trimtab.schedules.measured import measured

Source = Problem | RunBatch
"""What is calibrated: a problem, or a function that runs the user's loop on a schedule."""

FEWEST = 4
"""The smallest number of calibration rollouts that anything is learned from."""

FEWEST_FOR_INTERVALS = 8
"""The smallest number that is resampled: intervals of fewer would be far too narrow."""

RANDOM_SHARE = 0.15
"""Share of the decisions made at random while staying near the policy."""

_RANDOM_ROUNDS, _NEAR_ROUNDS = 2, 2
_RESAMPLES = 40  # of the calibration rollouts, for intervals of prices
_COINS = 1 << 33  # streams of noise


class Batches:
    """The batches of one calibration, and what all methods need of them.

    If the closing projection is paid for, the last step corrects every sample under any schedule. The free decisions
    are then those of the steps before, with one correction less, and prices are tables of those: `inner` records hold
    only those steps, and `n_choices` and `spendable` are counted that way.

    Attributes:
        first: The uncorrected batch, all steps.
        uncorrected: Its inner record.
        n_choices: Steps with a free decision, T'.
        spendable: The largest budget for them, B'.
    """

    def __init__(
        self,
        run: RunBatch,
        budget: Budget,
        objective: Objective = "endpoint",
        distance: Distance | None = None,
        *,
        constraint: str = "",
        check: bool = True,
        progress: Callable[[str], None] | None = None,
        uncertainty: bool = False,
    ) -> None:
        """Run the uncorrected batch; run it twice and compare if `check`."""
        self._run, self.objective = run, objective
        self.progress = progress_of("calibrate", progress)
        self.distance = euclidean if distance is None else distance
        self.uncertainty = uncertainty
        self.ran = [0, 0]  # batches and projections
        self._known: Rollout | None = None  # a record that all others must belong with
        if check:
            self.ran[0] += 2
            self.progress("calibration batches 1 and 2, which must be the same")
            self.first = self._checked(check_repeatable(run, measured(Terminal())), 2)
        else:
            self.first = self.run(Terminal())
        defects = self.first.defects
        self.n_steps, self.n = defects.shape
        if uncertainty:
            check_enough_for_intervals(self.n)
        self.budget, self.closing = int(corrections(budget, self.n_steps)), self.first.closing_rule
        self.n_choices, self.spendable = free_size(self.n_steps, self.budget, self.closing)
        self.uncorrected = self.inner(self.first)
        if bool(self.uncorrected.projected.any()):
            raise ValueError(f"run(schedule) made corrections under Terminal(), which makes none: {_PASS_IT_ON}")
        if bool(defects.isnan().any()):
            raise ValueError(
                "the calibration rollouts hold no defects; run(schedule) must pass its schedule to a Corrector that "
                "measures them (measure_defects=True)"
            )
        if float(defects.max()) == float(defects.min()):
            warnings.warn(
                f"the defect is {float(defects.max()):g} at every step of every calibration rollout: it cannot tell "
                "one step from another; a defect that measures distance, or Periodic, will serve better",
                stacklevel=3,
            )
        shape = getattr(self.first.final, "shape", None)
        self.made_for: dict[str, Any] = {"defect": float(defects[0].double().median()), "constraint": constraint}
        self.made_for["event"] = None if shape is None else list(shape[1:])
        self.made_for["rollouts"] = rollout_marks(defects)

    # -------------------------------------------------------------- running

    def run(self, schedule: Schedule) -> Rollout:
        """Run one batch and count it."""
        self.ran[0] += 1
        self.progress(f"calibration batch {self.ran[0]}")
        return self._checked(as_record(self._run(measured(schedule))))

    def prefetch(self, schedules: Sequence[Schedule]) -> None:
        """Start batches that will be run."""
        prefetch(self._run, [measured(schedule) for schedule in schedules])

    def _checked(self, record: Rollout, batches: int = 1) -> Rollout:
        if record.planned_steps is not None:
            raise ValueError(
                f"run ended early, after {record.n_steps} of {record.planned_steps} steps, and prices are for all T of "
                "them: let calibration runs continue to their end, and stop early with the prices that they make"
            )
        self._known = same_batch(record, self._known or record)
        if record.unit != "projection":
            raise ValueError(
                f"run counted {record.unit}s, and prices count projections: leave unit= out of your Corrector"
            )
        self.seeds = () if record.seeds is None else tuple(record.seeds.tolist())
        self.ran[1] += batches * record.rows["projection"]
        self.progress.batch(batches)
        return record

    @cached_property
    def stepwise(self) -> Rollout:
        """The batch corrected at every step, with which endpoints are compared."""
        return self.run(Stepwise())

    def explore(self, rounds: range, thresholds: Thresholds | None = None, share: float = 1.0) -> list[Rollout]:
        """Run batches with budgets spread over all rates, at random times or near a table; return inner records."""
        budgets = {k: spread_budgets(self.n, self.n_choices, self.spendable, seed=k) for k in rounds}
        schedules = [Explore(self.with_closing(budgets[k]), thresholds, share, seed=k) for k in rounds]
        self.prefetch(schedules)
        runs = [self.inner(self.run(schedule)) for schedule in schedules]
        if thresholds is None and any(bool(some.any()) for some in budgets.values()):
            check_corrections_happen(runs)
        return runs

    def explored(self, weights: Tensor | None) -> tuple[list[Rollout], SampleScale | None]:
        """Run batches at random times and then near the policy.

        Returns:
            All inner records, the uncorrected one last, and the scale of samples that they show.
        """
        runs, uncorrected = self.explore(range(_RANDOM_ROUNDS)), self.uncorrected
        for k in range(_RANDOM_ROUNDS, _RANDOM_ROUNDS + _NEAR_ROUNDS):
            scale = fit_sample_scale([*runs, uncorrected])
            steps = estimate_transitions([*runs, uncorrected], scale)
            table = solve(steps, self.spendable, weights).table
            near = Thresholds(table, sample_scale=scale, closing=self.closing)
            runs += self.explore(range(k, k + 1), near, RANDOM_SHARE)
        runs.append(uncorrected)
        return runs, fit_sample_scale(runs)

    @cached_property
    def weights(self) -> Tensor | None:
        """What a unit of residual costs at each step with a choice, (T',); None for path error."""
        if set(objective_weights(self.objective)) != {"path"}:
            self.prefetch([Stepwise(), *window_schedules(self.n_steps, self.n)])
        found = residual_weights(self.objective, self.run, self.distance, lambda: self.stepwise)
        return None if found is None else found[: self.n_choices]

    # -------------------------------------------------------------- what the records show

    def inner(self, run: Rollout) -> Rollout:
        """Return the record of the steps with a free decision."""
        names = ("defects", "residuals", "projected", "failed", "iterations")
        return replace(run, **{name: getattr(run, name)[: self.n_choices] for name in names})

    def with_closing(self, budgets: Tensor) -> Tensor:
        """Return budgets of free decisions, (n,), as those of whole runs."""
        return budgets + (self.n_steps - self.n_choices)

    def cost(self, run: Rollout) -> Tensor:
        """Return what the objective measures of each sample of a run, (n,)."""
        total = torch.zeros(self.n, dtype=torch.float64)
        for name, weight in objective_weights(self.objective).items():
            if name == "path":
                part = self.inner(run).residuals.double().sum(dim=0)
            else:
                error = endpoint_distance if name == "endpoint" else state_error
                part = error(run, self.stepwise, self.distance).double()
            total += weight * part.cpu()
        return finite(total, f"the objective {describe(self.objective)!r}")

    @property
    def has_choice(self) -> bool:
        """Whether there is a correction to spend and more than one step to spend it at."""
        return self.spendable > 0 and self.n_choices > 1

    def require(self) -> None:
        """Raise if there are too few rollouts to learn from."""
        if self.n < FEWEST:
            raise ValueError(
                f"{self.n} calibration rollouts are too few for this method: give at least {FEWEST} seeds, better 64 "
                "(method='paper' works with any number)"
            )

    # -------------------------------------------------------------- prices

    def facts(self, notes: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return what every price keeps about how it was made."""
        cost = with_payback(self.ran[0], self.n, self.ran[1], self.n_steps, self.budget)
        paid_back = None if cost.pays_back_after == math.inf else cost.pays_back_after
        work = {"batches": cost.batches, "projections": cost.spent, "pays_back_after": paid_back}
        return {
            "seeds": self.seeds,
            "objective": describe(self.objective),
            "closing": self.closing,
            "notes": {"rollouts": self.n, **work, **(notes or {})},
            "made_for": self.made_for,
        }

    def thresholds(self, table: Tensor, method: str, notes: dict[str, Any] | None = None, **more: Any) -> Thresholds:
        """Return the price made from a table of the free decisions, (T', B' + 1)."""
        return Thresholds(table, **{"method": method, **self.facts(notes), **more})

    def plan(self, masks: Tensor, notes: dict[str, Any] | None = None, **more: Any) -> Plan:
        """Return masks of the free decisions, (B' + 1, T') bool, as a price."""
        return Plan(masks, **{**self.facts(notes), **more})

    def interval(self, table_of: Callable[[Tensor], Tensor]) -> Tensor | None:
        """Return a 90% interval of a table, (2, T', B' + 1), from resampled rollouts; None unless it was asked for.

        `table_of(rows)` makes the table (T', B' + 1) of the free decisions from some rollouts, (n,) int64. The ends are
        order statistics, since prices may be infinite.
        """
        if not self.uncertainty:
            return None
        generator = torch.Generator().manual_seed(0)
        drawn = torch.randint(self.n, (_RESAMPLES, self.n), generator=generator)
        tables = torch.stack([table_of(rows) for rows in drawn]).sort(dim=0).values
        edge = _RESAMPLES // 20
        return tables[[edge, -1 - edge]]


def rollout_marks(defects: Tensor) -> list[int]:
    """Return numbers by which uncorrected rollouts are recognised again, from their defects, (T, n), in any order.

    The first four defects above 0 are rounded to three digits and hashed. Rollouts that look alike are left out.

    Example:
        >>> import torch
        >>> a, b = torch.rand(2, 9, 5, generator=torch.manual_seed(0))
        >>> rollout_marks(a) == rollout_marks(a * (1 + 1e-9)), set(rollout_marks(a)) & set(rollout_marks(b))
        (True, set())
    """
    seen = [[f"{one:.2e}" for one in rollout if one > 0][:4] for rollout in defects.double().T.tolist()]
    count = Counter(crc32(" ".join(first).encode()) for first in seen if len(first) == 4)
    return sorted(mark for mark, times in count.items() if times == 1)


# ------------------------------------------------------------------ exploring


@dataclass(frozen=True, eq=False)
class Explore(Schedule):
    """Follow a price table, but decide a share of the time at random; without a table, always at random.

    Random decisions spread the budget left evenly over the remaining steps. Every budget is met exactly, and every step
    shows what follows a correction and what follows none.

    Attributes:
        budget: For each sample, (n,), usually spread over all budgets of interest.
        thresholds: The table to stay near.
        share: Share of the decisions made at random.
        seed: Of the random decisions.
    """

    budget: Budget
    thresholds: Thresholds | None = None
    share: float = 1.0
    seed: int = 0

    def decide(self, view: StepView) -> Any:
        """Return which samples to correct now, (n,) bool."""
        seeds = view.seeds if view.seeds is not None else torch.arange(len(view), device=view.defect.device)
        explores, at_random = self._tossed(view, seeds)
        if self.thresholds is None:
            return at_random
        s, b = view.arrays(self)
        by_price = s >= self.thresholds.threshold(view, b.clip(max=self.thresholds.budget))
        return torch.where(explores, at_random, torch.as_tensor(by_price))

    def _tossed(self, view: StepView, seeds: Tensor) -> tuple[Tensor, Tensor]:
        """Return which samples decide at random, and their random decisions, (n,) bool each."""
        first, second = uniform_numbers(seeds, range(view.t, view.t + 1), (2,), _COINS + self.seed)[0].T
        return first < self.share, second * view.steps_to_go < view.spendable

    def to(self, device: torch.device) -> Self:
        """Return the same schedule on `device`."""
        budget = self.budget.to(device) if isinstance(self.budget, Tensor) else self.budget
        return replace(self, budget=budget, thresholds=self.thresholds and self.thresholds.to(device))


def spread_budgets(n: int, n_steps: int, most: Budget, seed: int) -> Tensor:
    """Return budgets for n samples, spread evenly from 0 to 1.5 times `most`, in random order, (n,).

    Example:
        >>> spread_budgets(4, 100, 0.5, seed=0).sort().values
        tensor([ 9, 28, 46, 65])
    """
    limit = min(n_steps, 1.5 * int(torch.as_tensor(corrections(most, n_steps)).max()))
    order = uniform_numbers(torch.tensor([seed]), range(1), (n,), _COINS)[0, 0].argsort()
    return ((order + 0.5) / n * limit).long()


# ------------------------------------------------------------------ checks


def check_enough_for_intervals(n: int) -> None:
    """Raise if n calibration rollouts are too few to resample."""
    if n < FEWEST_FOR_INTERVALS:
        raise ValueError(
            "uncertainty=True resamples calibration rollouts, and needs at least "
            f"{FEWEST_FOR_INTERVALS} of them: got {n}"
        )


_PASS_IT_ON = "it must pass the schedule that it is given to its Corrector"


def same_batch(answer: object, first: Rollout) -> Rollout:
    """Return the record of a run if it is the same batch as the first one; raise if not."""
    record = as_record(answer)
    got, wanted = (
        f"{one.defects.shape[1]} samples over {one.n_steps} steps with closing={one.closing_rule!r}"
        for one in (record, first)
    )
    if got != wanted:
        raise ValueError(f"run(schedule) must run the same batch each time: first it ran {wanted}, and then {got}")
    if record.seeds is not None and first.seeds is not None and not torch.equal(record.seeds, first.seeds):
        raise ValueError("run(schedule) must run the same seeds each time, in the same order: got others than at first")
    return record


def check_schedule_is_used(terminal: Rollout, stepwise: Rollout) -> None:
    """Raise if `Terminal()` and `Stepwise()` led to the same corrections, unless T = 1."""
    if terminal.n_steps > 1 and torch.equal(terminal.projected, stepwise.projected):
        raise ValueError(f"run(schedule) made the same corrections under Stepwise() as under Terminal(): {_PASS_IT_ON}")


def check_corrections_happen(explored: Sequence[Rollout]) -> None:
    """Raise if no sample was corrected under schedules that always spend their budgets."""
    if not any(bool(run.projected.any()) for run in explored):
        raise ValueError(f"run(schedule) corrected nothing under schedules that correct some samples: {_PASS_IT_ON}")
