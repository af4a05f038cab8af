"""Calibration batches: how they are run, explored and checked."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self
from zlib import crc32

import torch
from torch import Tensor

from trimtab.core.budget import Budget, Unit, corrections, units
from trimtab.core.metrics import Distance, euclidean
from trimtab.core.noise import uniform_numbers
from trimtab.core.problem import Problem
from trimtab.core.progress import progress_of
from trimtab.core.record import Rollout
from trimtab.core.repeatable import as_record
from trimtab.core.runner import RunBatch, ahead, checked
from trimtab.core.schedule import Schedule, Watched, watched
from trimtab.core.view import StepView
from trimtab.prices.objective import Objective, describe, objective_weights, residual_weights, window_schedules
from trimtab.prices.price import Plan, Thresholds, inner_size, with_closing
from trimtab.prices.program import solve
from trimtab.prices.sample_scale import SampleScale, fit_sample_scale
from trimtab.prices.transitions import estimate_transitions
from trimtab.schedules import Stepwise, Terminal

Source = Problem | RunBatch
"""What is calibrated: a problem, or a function that runs the user's loop on a schedule."""

FEWEST = 4
"""The smallest number of calibration rollouts that anything is learned from."""

RANDOM_SHARE = 0.15
"""Share of the decisions made at random while staying near the policy."""

_RANDOM_ROUNDS, _NEAR_ROUNDS = 2, 2
_COINS = 1 << 33  # streams of noise
_ITERATION_COINS = 1 << 34
_COINS_PER_STEP = 64  # within a step, if decisions are about iterations


class Batches:
    """The batches of one calibration, and what all methods need of them.

    If the closing projection is paid for, the last step corrects every sample under any schedule. The free decisions
    are then those of the steps before, with one correction less: `inner` records hold only those steps, and `n_choices`
    and `spendable` are counted that way.
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
        constraint: str = "",
    ) -> None:
        """Run the uncorrected batch; run it twice and compare if `check`."""
        self._run, self.objective, self.fingerprint = run, objective, fingerprint
        self.progress = progress_of("calibrate", progress)
        self.distance = euclidean if distance is None else distance
        self._ran, self._prefetched = [0], False  # the list is shared by copies of these batches
        self._first: Rollout | None = None
        if check:
            self._ran[0] += 2
            self.progress("calibration batches 1 and 2, which must be the same")
            self.uncorrected = self._checked(checked(run, Watched(Terminal())), Terminal(), 2)
        else:
            self.uncorrected = self.run(Terminal())
        defects = self.uncorrected.defects
        self.n_steps, self.n = defects.shape
        self.unit, self.budget = unit, _largest(budget, self.n_steps, unit)
        self.closing = self.uncorrected.closing_rule
        self.n_choices, _ = inner_size(self.n_steps, self.budget, self.closing)
        self.closing_reserve = self.n_steps - self.n_choices
        self.hold(self.closing_reserve)
        if bool(self.inner(self.uncorrected).projected.any()):
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
        shape = getattr(self.uncorrected.final, "shape", None)
        self.made_for: dict[str, Any] = {"defect": float(defects[0].double().median()), "constraint": constraint}
        self.made_for["event"] = None if shape is None else list(shape[1:])
        self.made_for["rollouts"] = rollout_marks(defects)

    def hold(self, units: int) -> None:
        """Keep so many units of every budget for the closing projection."""
        self.held, self.spendable = units, self.budget - units

    def with_projection_budget(self, budget: int) -> Batches:
        """Return the same batches with a budget of whole projections; what they run is counted here too."""
        view = copy(self)
        view.unit, view.budget = "projection", budget
        view.hold(self.closing_reserve)
        return view

    # -------------------------------------------------------------- running

    @property
    def count(self) -> int:
        """Batches that were run so far."""
        return self._ran[0]

    def run(self, schedule: Schedule) -> Rollout:
        """Run one batch and count it."""
        self._ran[0] += 1
        self.progress(f"calibration batch {self.count}")
        return self._checked(as_record(self._run(watched(schedule))), schedule)

    def ahead(self, schedules: Sequence[Schedule]) -> None:
        """Start batches that will be run."""
        ahead(self._run, [watched(schedule) for schedule in schedules])

    def _checked(self, record: Rollout, schedule: Schedule, batches: int = 1) -> Rollout:
        if record.planned_steps is not None:
            raise ValueError(
                f"run ended early, after {record.n_steps} of {record.planned_steps} steps, and prices are for all T of "
                "them: let calibration runs continue to their end, and stop early with the prices that they make"
            )
        if self._first is None:
            self._first = record
        same_batch(record, self._first)
        unit = schedule.unit or "projection"
        if record.unit != unit:
            raise ValueError(
                f"run counted {record.unit}s under a schedule of {unit}s: leave unit out of your Corrector, the "
                "schedule sets it"
            )
        # seeds of all samples: a group has a column for its first row only
        self.groups, self.seeds = record.groups, () if record.seeds is None else tuple(record.seeds.tolist())
        self.progress.batch(batches)
        return record.grouped()

    @cached_property
    def stepwise(self) -> Rollout:
        """The batch corrected at every step, with which endpoints are compared."""
        return self.run(Stepwise())

    def explore(self, rounds: range, thresholds: Thresholds | None = None, share: float = 1.0) -> list[Rollout]:
        """Run batches with budgets spread over all rates, at random times or near a table; return inner records."""
        budgets = {k: spread_budgets(self.n, self.n_choices, self.spendable, seed=k) for k in rounds}
        schedules = [Explore(budgets[k] + self.closing_reserve, thresholds, share, seed=k) for k in rounds]
        self.ahead(schedules)
        runs = [self.inner(self.run(schedule)) for schedule in schedules]
        if thresholds is None and any(bool(some.any()) for some in budgets.values()):
            check_corrections_happen(runs)
        return runs

    def explored(
        self, weights: Tensor | None, near_rounds: int = _NEAR_ROUNDS
    ) -> tuple[list[Rollout], SampleScale | None]:
        """Run batches at random times and then near the policy.

        Returns:
            All inner records, the uncorrected one last, and the scale of samples that they show.
        """
        runs, uncorrected = self.explore(range(_RANDOM_ROUNDS)), self.inner(self.uncorrected)
        for k in range(_RANDOM_ROUNDS, _RANDOM_ROUNDS + near_rounds):
            scale = self.sample_scale([*runs, uncorrected])
            steps = estimate_transitions([*runs, uncorrected], scale)
            table = self.closed(solve(steps, self.spendable, weights).table)
            runs += self.explore(range(k, k + 1), Thresholds(table, sample_scale=scale), RANDOM_SHARE)
        runs.append(uncorrected)
        return runs, self.sample_scale(runs)

    @cached_property
    def weights(self) -> Tensor | None:
        """What a unit of residual costs at each step with a choice, (T',); None for path error."""
        self.prefetch_weights()
        found = residual_weights(
            self.objective, self.run, self.distance, lambda: self.stepwise, per_decider=self.per_decider
        )
        return None if found is None else found[: self.n_choices]

    def prefetch_weights(self) -> None:
        """Start the batches that `weights` needs, once."""
        if not self._prefetched and set(objective_weights(self.objective)) != {"path"}:
            self._prefetched = True
            self.ahead([Stepwise(), *window_schedules(self.n_steps, self.n)])

    # -------------------------------------------------------------- what the records show

    def inner(self, run: Rollout) -> Rollout:
        """Return the record of the steps with a free decision."""
        names = ("defects", "residuals", "projected", "failed", "iterations")
        return replace(run, **{name: getattr(run, name)[: self.n_choices] for name in names})

    def per_decider(self, values: Tensor) -> Tensor:
        """Return values per sample as values per group, if decisions are about groups."""
        return values if self.groups is None else self.groups.together(values)

    def sample_scale(self, runs: list[Rollout]) -> SampleScale | None:
        """Return the scale of inner records, padded with a last step that nobody reads if the closing is paid."""
        found = fit_sample_scale(runs)
        if found is None or not self.closing_reserve:
            return found
        typical = torch.cat([found.typical, found.typical[-1:]])
        return SampleScale(torch.cat([typical, typical[:, -1:]], dim=1), found.prior)

    @property
    def has_choice(self) -> bool:
        """Whether there is a correction to spend and more than one step to spend it at."""
        return self.spendable > 0 and self.n_choices > 1

    @property
    def trial_budgets(self) -> Tensor:
        """Budgets at which prices are tried, spread over all rates, (n,), the closing projection included."""
        spread = spread_budgets(self.n, self.n_choices, self.spendable, seed=0).clamp(max=self.spendable)
        return spread + self.closing_reserve

    def require(self, least: int = FEWEST) -> None:
        """Raise if there are fewer rollouts than `least`."""
        if self.n < least:
            what, enough = "rollouts", f"at least {least} seeds, better 64"
            if self.groups is not None:
                what, enough = "groups", f"the seeds of at least {least} groups, better of 64"
            raise ValueError(
                f"{self.n} calibration {what} are too few for this method: give {enough} (method='paper' works with "
                "any number)"
            )

    # -------------------------------------------------------------- prices

    def facts(self, notes: dict[str, Any]) -> dict[str, Any]:
        """Return what every price keeps about how it was made."""
        return {
            "seeds": self.seeds,
            "objective": describe(self.objective),
            "fingerprint": self.fingerprint,
            "closing": self.closing,
            "notes": {"rollouts": self.n, "batches": self.count, **notes},
            "made_for": self.made_for,
        }

    def closed(self, table: Tensor) -> Tensor:
        """Return a table (T', B' + 1) of the free decisions for all steps and the whole budget, (T, B + 1)."""
        return with_closing(table, self.closing_reserve)

    def thresholds(self, table: Tensor, method: str, notes: dict[str, Any], **more: Any) -> Thresholds:
        """Return a table (T', B' + 1) of the free decisions as a price."""
        return Thresholds(self.closed(table), **{"method": method, **self.facts(notes), **more})

    def plan(self, masks: Tensor, method: str = "planned", **more: Any) -> Plan:
        """Return masks (B' + 1, T') of the free decisions as a price."""
        if self.closing_reserve:
            closed = torch.cat([masks, torch.ones(len(masks), 1, dtype=torch.bool)], dim=1)
            masks = torch.cat([torch.zeros_like(closed[:1]), closed])
        return Plan(masks, **{"method": method, **self.facts({}), **more})


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


def _largest(budget: Budget, n_steps: int, unit: Unit) -> int:
    """Return the largest budget in units."""
    if isinstance(budget, Tensor) and budget.ndim:
        raise ValueError(f"calibrate takes the largest budget wanted, one number: got {tuple(budget.shape)} of them")
    return int(units(budget, n_steps, unit))


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
        """Return where to decide at random, and what, (n,) bool each."""
        first, second = uniform_numbers(seeds, range(view.t, view.t + 1), (2,), _COINS + self.seed)[0].T
        return first < self.share, second * view.steps_to_go < view.spendable

    def to(self, device: torch.device) -> Self:
        """Return the same schedule on `device`."""
        budget = self.budget.to(device) if isinstance(self.budget, Tensor) else self.budget
        return replace(self, budget=budget, thresholds=self.thresholds and self.thresholds.to(device))


@dataclass(frozen=True, eq=False)
class ExploreIterations(Explore):
    """The same for single iterations: stop or continue with the odds that spend what is left by the last step.

    Attributes:
        held: Units that are kept for the closing projection.
    """

    held: int = 1

    @property
    def unit(self) -> str:
        """Iterations."""
        return "iteration"

    @property
    def repeats(self) -> bool:
        """Asked again after each iteration."""
        return True

    @property
    def closing_reserve(self) -> int:
        """Units that are kept for the closing projection."""
        return self.held

    def _tossed(self, view: StepView, seeds: Tensor) -> tuple[Tensor, Tensor]:
        count, stream = _COINS_PER_STEP, _ITERATION_COINS + self.seed
        coins = uniform_numbers(seeds, range(view.t, view.t + 1), (2 * count,), stream)[0]
        place = (view.spent % count)[:, None]
        coin, choice = coins[:, :count].gather(1, place)[:, 0], coins[:, count:].gather(1, place)[:, 0]
        per_step = view.spendable.clamp(min=0) / max(view.steps_to_go, 1)
        return choice < self.share, coin < per_step / (1 + per_step)


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


def check_distinct_seeds(problem: Problem) -> None:
    """Raise if a calibration seed is there twice."""
    seeds = problem.seeds.tolist()
    repeated = len(seeds) - len(set(seeds))
    if repeated:
        raise ValueError(
            f"{repeated} of the {len(seeds)} calibration seeds are repeated, and a repeated rollout shows nothing new: "
            "give each seed once"
        )
