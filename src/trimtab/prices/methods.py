"""The ways in which a price is made from calibration batches; the race tries out all but "on-policy"."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from trimtab.core.budget import Budget
from trimtab.core.metrics import summary
from trimtab.core.progress import Progress
from trimtab.core.record import Rollout
from trimtab.core.runner import RunBatch
from trimtab.prices.batches import Batches
from trimtab.prices.check_runs import check_corrections_happen
from trimtab.prices.dynamic import CostToGo, solve
from trimtab.prices.fit_scale import fit_sample_scale
from trimtab.prices.plan import Plan
from trimtab.prices.planned import planned_masks
from trimtab.prices.quantile import on_policy_table, quantile_table
from trimtab.prices.sample_scale import SampleScale
from trimtab.prices.thresholds import Adaptive, Thresholds
from trimtab.prices.transitions import MEMORY, estimate_transitions
from trimtab.schedules import Periodic

__all__ = [
    "FEWEST",
    "as_plan",
    "as_thresholds",
    "by_dp",
    "by_on_policy",
    "by_paper",
    "by_plan",
    "cost_to_go",
    "explored",
]

FEWEST = 4
"""Calibration rollouts below which nothing is learnt."""

_RANDOM_ROUNDS = 2
_NEAR_POLICY_ROUNDS = 2
_SHARE = 0.15  # of decisions made at random while staying near the policy


def as_thresholds(batches: Batches, table: Tensor, method: str, notes: dict[str, Any], **more: Any) -> Thresholds:
    """A table of the choices (T', B' + 1) as prices of all steps, with how they were made."""
    return Thresholds(batches.keep_one_back(table), method=method, **batches.facts(notes), **more)


def by_paper(batches: Batches) -> Thresholds:
    """Appendix B of the paper: quantiles of uncorrected defects."""
    return _by_quantiles(batches, "paper", {})


def _by_quantiles(batches: Batches, method: str, notes: dict[str, Any]) -> Thresholds:
    """Where there is no choice, the conventions of the table say it all, whatever the method."""
    table = quantile_table(batches.cut(batches.free).defects, batches.spendable)
    return as_thresholds(batches, table, method, notes)


def by_on_policy(batches: Batches) -> Thresholds:
    """The paper's rule on the policy's own rollouts."""
    batches.enough(FEWEST)
    if not batches.has_choice:
        return _by_quantiles(batches, "on-policy", {"rounds": []})

    def run(table: Tensor, budgets: Tensor) -> Rollout:
        by_table = Thresholds(batches.keep_one_back(table))
        record = batches.cut(batches.run(Adaptive(by_table, budgets + batches.closing_reserve)))
        if bool(budgets.any()):
            check_corrections_happen([record])
        return record

    table, rounds = on_policy_table(run, batches.cut(batches.free), batches.spendable)
    return as_thresholds(batches, table, "on-policy", {"rounds": rounds})


def by_dp(batches: Batches) -> Thresholds:
    """The dynamic program, tried out."""
    batches.enough(FEWEST)
    if not batches.has_choice:
        return _by_quantiles(batches, "dp", {})
    weights = batches.weights
    runs, sample_scale = explored(batches, weights)
    solution, memory, costs = _tried(batches, runs, weights, sample_scale)
    expected = solution.expected.tolist()
    notes = {"expected": [expected[0]] * batches.closing_reserve + expected, "memory": memory}
    if weights is None:  # other objectives have taken their batches already
        notes["ahead_of_periodic"] = _ahead_of_periodic(batches, costs)
    return as_thresholds(batches, solution.table, "dp", notes, sample_scale=sample_scale)


def explored(
    batches: Batches, weights: Tensor | None, near_rounds: int = _NEAR_POLICY_ROUNDS
) -> tuple[list[Rollout], SampleScale | None]:
    """Batches at random times and then near the policy, and the own scale they show."""
    runs, free = batches.explore(range(_RANDOM_ROUNDS)), batches.cut(batches.free)
    for k in range(_RANDOM_ROUNDS, _RANDOM_ROUNDS + near_rounds):
        sample_scale = _own_scale(batches, [*runs, free])
        steps = estimate_transitions([*runs, free], sample_scale).with_memory(MEMORY)
        table = batches.keep_one_back(solve(steps, batches.spendable, weights, keep_cost=False).table)
        runs += batches.explore(range(k, k + 1), Thresholds(table, sample_scale=sample_scale), _SHARE)
    return runs, _own_scale(batches, [*runs, free])


def _own_scale(batches: Batches, runs: list[Rollout]) -> SampleScale | None:
    """The own scale of cut records, with a last step that nobody reads where the closing is paid."""
    found = fit_sample_scale(runs)
    if found is None or not batches.closing_reserve:
        return found
    typical = torch.cat([found.typical, found.typical[-1:]])
    return SampleScale(torch.cat([typical, typical[:, -1:]], dim=1), found.prior)


def _tried(
    batches: Batches,
    runs: list[Rollout],
    weights: Tensor | None,
    sample_scale: SampleScale | None,
    keep_cost: bool = False,
) -> tuple[CostToGo, float, Tensor]:
    """The solution, how much memory of a corrected defect it assumes, and what the calibration seeds cost by it, (n,).

    Whether what raised a defect outlasts the correction by more than a step does not show in single steps. It shows in
    what prices come to: those for a cause that stays are taken where they cost less by more than 1 SE when tried out.
    """
    steps = estimate_transitions([*runs, batches.cut(batches.free)], sample_scale)
    solved, schedules = [], []
    for memory in (MEMORY, 1.0):
        solution = solve(steps.with_memory(memory), batches.spendable, weights, keep_cost=keep_cost)
        prices = Thresholds(batches.keep_one_back(solution.table), sample_scale=sample_scale)
        schedules.append(Adaptive(prices, batches.trial_budgets))
        batches.ahead(schedules[-1:])
        solved.append((solution, memory))
    costs = [_cost(batches, schedule, weights) for schedule in schedules]
    saved = summary(costs[0] - costs[1])
    best = int(saved.mean > saved.se)
    return *solved[best], costs[best]


def _cost(batches: Batches, schedule: Adaptive | Periodic, weights: Tensor | None = None) -> Tensor:
    """What each calibration rollout costs on that schedule, (n,)."""
    residuals = batches.cut(batches.run(schedule)).residuals.cpu().double()
    return residuals.sum(dim=0) if weights is None else weights @ residuals


def _ahead_of_periodic(batches: Batches, costs: Tensor) -> list[float]:
    """By how much less the calibration seeds cost than with even spacing at the same budgets, and the SE of that."""
    ahead = summary(_cost(batches, Periodic(batches.trial_budgets)) - costs)
    if ahead.mean < -2 * ahead.se:
        warnings.warn(
            f"tried out on the calibration seeds, these prices cost more than even spacing at the same budgets, by "
            f"{-ahead.mean:.3g} ± {ahead.se:.1g} per rollout: what makes a defect large here does not show in it; "
            "use Periodic or method='planned' (trimtab advise measures which)",
            stacklevel=4,
        )
    return [ahead.mean, ahead.se]


def by_plan(batches: Batches) -> Plan:
    """Times fixed in advance."""
    batches.enough(FEWEST)
    runs = [*batches.explore(range(3)), batches.cut(batches.free)]
    return as_plan(batches, planned_masks(runs, batches.spendable, batches.weights))


def as_plan(batches: Batches, masks: Tensor, method: str = "planned") -> Plan:
    """A plan of the choices (B' + 1, T') as one of all steps."""
    if batches.closing_reserve:
        closed = torch.cat([masks, torch.ones(len(masks), 1, dtype=torch.bool)], dim=1)
        masks = torch.cat([torch.zeros_like(closed[:1]), closed])
    return Plan(masks, **batches.facts({}), method=method)


def cost_to_go(run: RunBatch, budget: Budget = 1.0) -> CostToGo:
    """The whole solution of the dynamic program, for what needs more than its prices (`LookAhead`, `online_limit`).

    Samples are taken to be alike: it is not in units of their own scale. It counts corrections as the paper does.

    Args:
        run: As in `calibrate`, with a corrector whose closing projection is free.
        budget: The largest budget wanted.
    """
    batches = Batches(run, budget, "path", None, "", check=False, progress=Progress("cost_to_go"))
    batches.enough(FEWEST)
    if batches.closing == "paid":
        raise ValueError("the cost to go counts corrections as the paper does: run with closing='free', not 'paid'")
    if not batches.has_choice:
        raise ValueError(
            "the cost to go is that of choosing, which takes a correction and more than one step: got a budget of "
            f"{batches.budget} in {batches.n_steps} steps"
        )
    return _tried(batches, explored(batches, None)[0], None, None, keep_cost=True)[0]
