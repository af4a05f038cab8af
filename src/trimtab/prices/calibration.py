"""Calibration: from held-out rollouts to a price that a schedule can use."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from trimtab.core.constraint import Constraint
from trimtab.core.errors import of_type, unknown
from trimtab.core.fingerprint import fingerprint
from trimtab.core.metrics import Distance, summary
from trimtab.core.noise import as_seeds
from trimtab.core.record import Rollout
from trimtab.core.rollout import Sampler, rollout
from trimtab.core.schedule import Budget, Schedule, corrections
from trimtab.experimental.learn_value import learn
from trimtab.experimental.value import Value
from trimtab.prices.dynamic import CostToGo, solve
from trimtab.prices.explore import Explore, Run, spread_budgets
from trimtab.prices.fit_scale import fit_own_scale
from trimtab.prices.objective import Objective, as_mix, describe, residual_weights
from trimtab.prices.own_scale import OwnScale
from trimtab.prices.plan import Plan
from trimtab.prices.planned import planned_masks
from trimtab.prices.quantile import on_policy_table, quantile_table
from trimtab.prices.thresholds import Adaptive, Thresholds
from trimtab.prices.transitions import MEMORY, one_step
from trimtab.schedules import Periodic, Terminal

__all__ = ["METHODS", "Price", "calibrate", "calibrate_runs", "cost_to_go", "thresholds_from_runs"]

Price = Thresholds | Plan | Value
"""What calibration makes; `price.at(budget)` is a schedule."""


def calibrate(
    sampler: Sampler,
    constraint: Constraint,
    seeds: Iterable[int] | Tensor,
    budget: Budget = 1.0,
    method: str = "dp",
    *,
    objective: Objective = "path",
    distance: Distance | None = None,
) -> Price:
    """Estimate the price of a correction for all budgets up to `budget`.

    Args:
        sampler: As in `rollout`, for these seeds.
        constraint: As in `rollout`, for these seeds.
        seeds: Calibration seeds; a schedule made from the result refuses to be evaluated on them. 64 are plenty for
            most samplers, below 16 expect to lose something (docs/prices.md shows how much).
        budget: The largest budget wanted. A smaller one needs no calibration of its own: the price of a correction
            depends on how many are left and how many steps remain, not on how many there were.
        method: "dp" (the dynamic program, best where measured), "paper" (appendix B of the paper), "on-policy" (the
            paper's rule on the policy's own rollouts; for `budget` itself rather than all below it), "planned"
            (times fixed in advance, no defect looked at online), or "value" (the dynamic program, corrected by what
            else a rollout shows).
        objective: What the price is meant to lower: "path", "state" or "endpoint" error, or a mix of them such as
            `{"path": 1.0, "endpoint": 5.0}`. All but "path" need `distance`, and go with "dp" and "planned".
        distance: The domain's rho, (n, *event) twice to (n,).

    Example:
        >>> import trimtab as tt
        >>> problem = tt.domain("so3").problem(range(1000, 1016))
        >>> price = tt.calibrate(problem.sampler, problem.constraint, range(1000, 1016), budget=0.5)
        >>> run = tt.rollout(problem.sampler, problem.constraint, price.at(0.25), range(4))
        >>> run.spent.tolist()
        [25, 25, 25, 25]
    """
    seeds = as_seeds(seeds)
    repeated = len(seeds) - len(set(seeds.tolist()))
    if repeated:
        raise ValueError(
            f"{repeated} of the {len(seeds)} calibration seeds are repeated: the same rollout twice tells nothing new; "
            "give each seed once"
        )

    def run(schedule: Schedule) -> Rollout:
        return rollout(sampler, constraint, schedule, seeds, keep_states="state" in as_mix(objective))

    return calibrate_runs(
        run,
        sampler.n_steps,
        budget,
        method,
        objective=objective,
        distance=distance,
        fingerprint=fingerprint(sampler, constraint),
    )


def calibrate_runs(
    run: Run,
    n_steps: int,
    budget: Budget = 1.0,
    method: str = "dp",
    *,
    objective: Objective = "path",
    distance: Distance | None = None,
    fingerprint: str = "",
) -> Price:
    """Calibrate a loop that is not ours.

    Args:
        run: `run(schedule)` runs the loop once with a `Corrector` on that schedule, always with the same seeds, and
            returns `corrector.rollout`.
        n_steps: T.
        budget: As in `calibrate`, and so are the rest.
        method: See `calibrate`.
        objective: See `calibrate`; all but "path" and "endpoint" need the corrector to keep states.
        distance: See `calibrate`.
        fingerprint: Of whatever the loop samples, if it should be kept with the price.
    """
    if not isinstance(method, str) or method not in METHODS:
        raise unknown("method", method, METHODS)
    if isinstance(budget, Tensor) and budget.ndim:
        raise ValueError(f"calibrate takes the largest budget wanted, one number: got {tuple(budget.shape)} of them")
    most = int(torch.as_tensor(corrections(budget, n_steps)).max())
    if objective != "path" and method not in ("dp", "planned"):
        raise ValueError(
            f"method {method!r} prices path error only; for the objective {objective!r} use 'dp' or 'planned'"
        )
    return METHODS[method](_Task(run, n_steps, most, objective, distance, fingerprint))


def cost_to_go(run: Run, n_steps: int, budget: Budget = 1.0) -> CostToGo:
    """The whole solution of the dynamic program, for what needs more than its prices (`LookAhead`, `online_limit`).

    Samples are taken to be alike: it is not in units of their own scale.

    Args:
        run: As in `calibrate_runs`.
        n_steps: T.
        budget: The largest budget wanted.
    """
    task = _Task(run, n_steps, int(torch.as_tensor(corrections(budget, n_steps)).max()), "path", None, "")
    task.enough(_LEAST)
    return _tried(task, _explored(task, None)[0], None, None, keep_cost=True)[0]


def thresholds_from_runs(runs: Iterable[Rollout], budget: Budget = 1.0) -> Thresholds:
    """Estimate the price table from recorded runs of a loop that is not ours, by the paper's rule.

    Args:
        runs: Runs of the loop with `Terminal()`, all of the same T: `corrector.rollout` of as many batches as you like.
        budget: The largest budget wanted.

    Example:
        >>> import torch, trimtab as tt
        >>> ball = tt.as_constraint(lambda x: x / x.norm(dim=1, keepdim=True).clamp(min=1),
        ...                         lambda x: (x.norm(dim=1) - 1).clamp(min=0))
        >>> corrector = tt.Corrector(ball, tt.Terminal(), n_steps=8)
        >>> x = torch.zeros(4, 2)
        >>> for t in range(8):
        ...     x = corrector(x + 0.3, t)
        >>> tt.thresholds_from_runs([corrector.rollout], budget=0.25).budget
        2
    """
    if not isinstance(runs, Iterable):
        raise TypeError(f"runs to calibrate from are a list of rollouts: got {runs!r:.60}")
    runs = [of_type(run, Rollout, "a run to calibrate from", "rollout(…) returns one") for run in runs]
    if not runs:
        raise ValueError("no runs to calibrate from: give the rollouts of at least one run with Terminal()")
    lengths = sorted({run.n_steps for run in runs})
    if len(lengths) > 1:
        raise ValueError(f"runs to calibrate from must have the same number of steps: got {lengths}")
    touched = sum(bool(run.projected.any()) for run in runs)
    if touched:
        raise ValueError(
            f"{touched} of {len(runs)} runs were corrected on the way, so that their defects do not show what happens "
            "without corrections; record them with Terminal()"
        )
    most = corrections(budget, lengths[0])
    return Thresholds(
        quantile_table(torch.cat([run.defects for run in runs], dim=1), int(torch.as_tensor(most).max())),
        method="paper",
        seeds=tuple(int(s) for run in runs if run.seeds is not None for s in run.seeds),
    )


# ------------------------------------------------------------------ the methods

_RANDOM_ROUNDS = 2
_NEAR_POLICY_ROUNDS = 2
_SHARE = 0.15  # of decisions made at random while staying near the policy


class _Task:
    """One calibration under way: the batches run so far, and what all methods need of them."""

    def __init__(
        self, run: Run, n_steps: int, budget: int, objective: Objective, distance: Distance | None, fingerprint: str
    ) -> None:
        self._run, self.n_steps, self.budget = run, n_steps, budget
        self.objective, self.distance, self.fingerprint = objective, distance, fingerprint
        self.batches = 0
        self.free = self.run(Terminal())
        if self.free.n_steps != n_steps:
            raise ValueError(f"n_steps is {n_steps}, but the run came back with {self.free.n_steps} steps")
        self.n = self.free.defects.shape[1]
        if float(self.free.defects.max()) == float(self.free.defects.min()):
            warnings.warn(
                f"the defect is {float(self.free.defects.max()):g} at every step of every calibration rollout: it "
                "cannot tell one moment from another; a defect that measures distance, or Periodic, will serve better",
                stacklevel=4,
            )

    def run(self, schedule: Schedule) -> Rollout:
        """One batch of calibration rollouts; all of them are run, and counted, here."""
        self.batches += 1
        return self._run(schedule)

    def explore(self, rounds: range, thresholds: Thresholds | None = None, share: float = 1.0) -> list[Rollout]:
        """Batches with budgets spread over all rates, at random times or near a table."""
        budgets = {k: spread_budgets(self.n, self.n_steps, self.budget, seed=k) for k in rounds}
        return [self.run(Explore(budgets[k], thresholds, share, seed=k)) for k in rounds]

    @property
    def has_choice(self) -> bool:
        """Whether there is a correction to spend and more than one step to spend it at."""
        return self.budget > 0 and self.n_steps > 1

    @property
    def trial_budgets(self) -> Tensor:
        """Budgets at which prices are tried out, spread over all rates, (n,)."""
        return spread_budgets(self.n, self.n_steps, self.budget, seed=0).clamp(max=self.budget)

    def cost(self, schedule: Schedule, weights: Tensor | None = None) -> Tensor:
        """What each calibration rollout costs on that schedule, (n,)."""
        residuals = self.run(schedule).residuals.cpu().double()
        return residuals.sum(dim=0) if weights is None else weights @ residuals

    def weights(self) -> Tensor | None:
        """What a unit of residual costs at each step; None for path error."""
        return residual_weights(self.objective, self.run, self.distance)

    def facts(self, notes: dict[str, Any]) -> dict[str, Any]:
        """What every price keeps about how it was made."""
        seeds = () if self.free.seeds is None else tuple(self.free.seeds.tolist())
        return {
            "seeds": seeds,
            "objective": describe(self.objective),
            "fingerprint": self.fingerprint,
            "notes": {"rollouts": self.n, "batches": self.batches, **notes},
        }

    def enough(self, least: int) -> None:
        """Refuse to learn from too little."""
        if self.n < least:
            raise ValueError(
                f"{self.n} calibration rollouts are too few for this method: give at least {least} seeds, better 64 "
                "(method='paper' works with any number)"
            )


def _paper(task: _Task) -> Thresholds:
    return Thresholds(quantile_table(task.free.defects, task.budget), "paper", **task.facts({}))


def _on_policy(task: _Task) -> Thresholds:
    task.enough(_LEAST)
    table, rounds = on_policy_table(task.run, task.free, task.budget)
    return Thresholds(table, "on-policy", **task.facts({"rounds": rounds}))


def _dp(task: _Task) -> Thresholds:
    task.enough(_LEAST)
    if not task.has_choice:  # the conventions of the table say it all
        return Thresholds(quantile_table(task.free.defects, task.budget), "dp", **task.facts({}))
    weights = task.weights()
    runs, own_scale = _explored(task, weights)
    solution, memory, costs = _tried(task, runs, weights, own_scale)
    notes = {"expected": solution.expected.tolist(), "memory": memory}
    if weights is None:  # other objectives have taken their batches already
        notes["ahead_of_periodic"] = _ahead_of_periodic(task, costs)
    return Thresholds(solution.table, "dp", own_scale=own_scale, **task.facts(notes))


def _explored(task: _Task, weights: Tensor | None) -> tuple[list[Rollout], OwnScale | None]:
    """Batches at random times and then near the policy, and the own scale they show."""
    runs = task.explore(range(_RANDOM_ROUNDS))
    for k in range(_RANDOM_ROUNDS, _RANDOM_ROUNDS + _NEAR_POLICY_ROUNDS):
        own_scale = fit_own_scale([*runs, task.free])
        steps = one_step([*runs, task.free], own_scale).remembering(MEMORY)
        near = Thresholds(solve(steps, task.budget, weights, keep_cost=False).table, own_scale=own_scale)
        runs += task.explore(range(k, k + 1), near, _SHARE)
    return runs, fit_own_scale([*runs, task.free])


def _tried(
    task: _Task, runs: list[Rollout], weights: Tensor | None, own_scale: OwnScale | None, keep_cost: bool = False
) -> tuple[CostToGo, float, Tensor]:
    """The solution, how much memory of a corrected defect it assumes, and what the calibration seeds cost by it, (n,).

    Whether what raised a defect outlasts the correction by more than a step does not show in single steps. It shows in
    what prices come to: those for a cause that stays are taken where they cost less by more than 1 SE when tried out.
    """
    steps = one_step([*runs, task.free], own_scale)
    trials = []
    for memory in (MEMORY, 1.0):
        solution = solve(steps.remembering(memory), task.budget, weights, keep_cost=keep_cost)
        prices = Thresholds(solution.table, own_scale=own_scale)
        trials.append((solution, memory, task.cost(Adaptive(prices, task.trial_budgets), weights)))
    saved = summary(trials[0][2] - trials[1][2])
    return trials[saved.mean > saved.se]


def _ahead_of_periodic(task: _Task, costs: Tensor) -> list[float]:
    """By how much less the calibration seeds cost than with even spacing at the same budgets, and the SE of that."""
    ahead = summary(task.cost(Periodic(task.trial_budgets)) - costs)
    if ahead.mean < -2 * ahead.se:
        warnings.warn(
            f"tried out on the calibration seeds, these prices cost more than even spacing at the same budgets, by "
            f"{-ahead.mean:.3g} ± {ahead.se:.1g} a rollout: what makes a defect large here does not show in it; "
            "use Periodic or method='planned' (trimtab advise measures which)",
            stacklevel=5,
        )
    return [ahead.mean, ahead.se]


def _planned(task: _Task) -> Plan:
    task.enough(_LEAST)
    runs = [*task.explore(range(3)), task.free]
    return Plan(planned_masks(runs, task.budget, task.weights()), **task.facts({}))


def _value(task: _Task) -> Value:
    if not task.has_choice:
        raise ValueError(
            f"with T = {task.n_steps} and a budget of {task.budget} there is no choice whose value could be learned; "
            "method='dp' works, and Terminal or Stepwise do the same"
        )
    table = _dp(task)
    value = learn(task.run, table, task.free)
    return replace(value, **task.facts({"expected": table.notes["expected"], **value.notes}))


_LEAST = 4

METHODS: dict[str, Callable[[_Task], Price]] = {
    "dp": _dp,
    "paper": _paper,
    "on-policy": _on_policy,
    "planned": _planned,
    "value": _value,
}
