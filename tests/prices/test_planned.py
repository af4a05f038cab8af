"""Planned times: the best that can be fixed in advance."""

from __future__ import annotations

import pytest
import torch

import free
import trimtab as tt
from cases import CONSTRAINTS, Walk
from price_cases import CALIBRATION, ZERO, Drift
from trimtab.calibration.collect import Explore
from trimtab.prices.plan import cheapest_times, gap_costs, planned_masks


def test_planned_times_are_the_best_open_loop_times_where_those_are_known():
    """With no forgetting the mean defect is the time since the last correction, so even gaps are best."""
    T, budget = 24, 5
    sampler = Drift(0.0)
    plan = free.calibrate(tt.Problem(sampler, ZERO, CALIBRATION), method="planned", objective="path")
    gaps = torch.cat([torch.tensor([-1]), plan.masks[budget].nonzero().squeeze(1), torch.tensor([T])]).diff()
    assert gaps.max() - gaps.min() <= 1


def test_cheapest_times_equal_enumeration():
    from itertools import combinations

    T, generator = 7, torch.Generator().manual_seed(0)
    defects = torch.rand(3, T + 1, T, generator=generator, dtype=torch.float64)
    costs = gap_costs(defects)
    for budget in (0, 2, 6, 7):
        masks = cheapest_times(costs, budget)[budget]
        for i in range(3):

            def cost(times, i=i):
                rows = [0, *(t + 1 for t in times)]
                return sum(float(costs[i, row, w]) for row, w in zip(rows, [*times, T], strict=True))

            best = min(cost(times) for times in combinations(range(T), budget))
            assert cost(masks[:, i].nonzero().squeeze(1).tolist()) == pytest.approx(best, abs=1e-12)


@pytest.mark.parametrize("name", ["so3", "se3-lever", "terrain"])
@pytest.mark.parametrize("budget", [3, 10])
def test_no_neighbour_of_planned_times_is_better_under_common_noise(name, budget):
    """All masks with one correction a step earlier or later, on the calibration rollouts: a local search stays put."""
    domain, n = tt.domain(name, n_steps=40), 128
    problem = domain.problem(range(1000, 1000 + n))
    plan = free.calibrate(problem, budget=budget, method="planned", objective="path")
    chosen = plan.masks[budget]
    neighbours = [chosen]
    for t in chosen.nonzero().squeeze(1).tolist():
        for other in (t - 1, t + 1):
            if 0 <= other < 40 and not chosen[other]:
                moved = chosen.clone()
                moved[t], moved[other] = False, True
                neighbours.append(moved)
    masks, seeds = torch.stack(neighbours, dim=1), torch.arange(1000, 1000 + n).repeat(len(neighbours))
    again = domain.problem(seeds)
    run = free.rollout(again.sampler, again.constraint, tt.schedules.Fixed(masks.repeat_interleave(n, dim=1)), seeds)
    cost = run.residuals.sum(dim=0).reshape(len(neighbours), n)
    worse = cost[1:] - cost[0]
    assert (worse.mean(dim=1) > -3.5 * worse.std(dim=1) / n**0.5).all()
    assert (worse.mean(dim=1) > 2 * worse.std(dim=1) / n**0.5).any()  # and many are worse


def test_a_plan_that_does_not_keep_its_budgets_is_refused():
    with pytest.raises(ValueError, match="row b of a plan must hold exactly b steps"):
        tt.prices.Plan(torch.ones(3, 5, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"\(B \+ 1, T\) bool"):
        tt.prices.Plan(torch.ones(3, 5))


def test_plans_from_few_rollouts_are_plans():
    runs = [
        free.rollout(Walk(), CONSTRAINTS["sphere"](None), Explore(torch.tensor([2, 9]), seed=k), [1, 2])
        for k in range(2)
    ]
    masks = planned_masks(runs, 12)
    assert masks.sum(dim=1).tolist() == list(range(13))
