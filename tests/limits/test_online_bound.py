"""What is luck and what is not, on a process whose best schedule is known; and look-ahead, which must not know more."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

import free
import trimtab as tt
from cases import CONSTRAINTS, Walk
from trimtab.core.moment import Moment
from trimtab.core.noise import Noise
from trimtab.experimental.lookahead import LookAhead
from trimtab.limits.hindsight import hindsight
from trimtab.limits.online_bound import Resampled, online_limit
from trimtab.prices.dynamic import CostToGo
from trimtab.prices.methods import cost_to_go

T, BUDGET = 10, 3
ZERO = tt.as_constraint(torch.zeros_like, lambda x: x[:, 0])


@dataclass(frozen=True)
class Uniform:
    """Independent uniform defects: what a correction is worth is the height of the defect."""

    n_steps: int = T

    def start(self, noise: Noise) -> torch.Tensor:
        return torch.zeros(len(noise.seeds), 1, dtype=torch.float64)

    def step(self, x: torch.Tensor, t: int, noise: Noise) -> torch.Tensor:
        return noise.uniform(t, (1,))


def exact() -> CostToGo:
    """The cost to go of `Uniform`, which is piecewise linear in the defect, on a grid fine enough to integrate."""
    nodes = torch.linspace(0, 1, 2001, dtype=torch.float64)
    table = torch.full((T, BUDGET + 1), torch.inf, dtype=torch.float64)
    cost = torch.zeros(T, BUDGET + 1, len(nodes), dtype=torch.float64)
    mean = torch.zeros(BUDGET + 1, dtype=torch.float64)
    for t in reversed(range(T)):
        table[t, 1:] = mean[:-1] - mean[1:]
        cost[t] = torch.minimum(nodes + mean[:, None], torch.cat([torch.tensor([torch.inf]), mean[:-1]])[:, None])
        mean = torch.trapezoid(cost[t], nodes, dim=1)
    return CostToGo(table, mean, nodes.expand(T, -1), cost)


def rollouts(schedule, seeds):
    return free.rollout(Uniform(), ZERO, schedule, seeds)


def test_the_limit_is_the_best_online_cost_if_the_cost_to_go_is_exact():
    seeds, cost = torch.arange(24), exact()
    mask = rollouts(tt.Periodic(BUDGET), seeds).projected
    limit = online_limit(Uniform(), ZERO, seeds, mask, cost, copies=4096)
    best = float(cost.expected[BUDGET])
    assert torch.allclose(limit, torch.full_like(limit, best), rtol=0.03)  # for every sample: no luck is left in it
    best_known = rollouts(tt.schedules.Fixed(hindsight(Uniform(), ZERO, seeds, BUDGET)), seeds).residuals.sum(dim=0)
    assert float(limit.std()) < 0.05 * float(best_known.std())


def test_a_poor_cost_to_go_gives_a_lower_limit_not_a_wrong_one():
    seeds, cost = torch.arange(400), exact()
    mask = rollouts(tt.Periodic(BUDGET), seeds).projected
    poor = CostToGo(cost.table, cost.expected, cost.nodes, 0.5 * cost.cost)
    limit = online_limit(Uniform(), ZERO, seeds, mask, poor, copies=64)
    best_known = online_limit(Uniform(), ZERO, seeds, mask, CostToGo(*_nothing(cost)), copies=2)
    assert float(best_known.mean()) < float(limit.mean())
    assert float(limit.mean()) < float(cost.expected[BUDGET]) + 2 * float(limit.std()) / 20


def _nothing(cost):
    return cost.table, cost.expected, cost.nodes, 0 * cost.cost


def test_without_charges_the_limit_is_hindsight():
    seeds, cost = torch.arange(12), exact()
    mask = rollouts(tt.Periodic(BUDGET), seeds).projected
    limit = online_limit(Uniform(), ZERO, seeds, mask, CostToGo(*_nothing(cost)), copies=2)
    largest = rollouts(tt.Terminal(), seeds).defects.topk(BUDGET, dim=0).values.sum(dim=0)
    total = rollouts(tt.Terminal(), seeds).defects.sum(dim=0)
    assert torch.allclose(limit, total - largest, atol=1e-12)


def test_fresh_noise_leaves_what_was_drawn_at_the_start():
    own = torch.arange(3)
    noise, plain = Resampled(own + 100, own=own), Noise(own)
    assert torch.equal(noise.normal(-1, (2,)), plain.normal(-1, (2,)))
    assert torch.equal(noise.normal(4, (2,)), Noise(own + 100).normal(4, (2,)))


@pytest.fixture(scope="module")
def walk():
    seeds = range(1000, 1024)
    sampler = Walk()

    def run(schedule):
        return free.rollout(sampler, CONSTRAINTS["ball"](torch.tensor(seeds)), schedule, seeds)

    return sampler, cost_to_go(run, sampler.n_steps)


def look_ahead(walk, seeds, **settings):
    sampler, cost = walk
    ball = CONSTRAINTS["ball"](seeds)
    schedule = LookAhead(sampler, ball, tt.prices.Thresholds(cost.table), cost, 4, **settings)
    return free.rollout(sampler, ball, schedule, seeds)


def test_look_ahead_spends_its_budget_and_does_not_depend_on_batch_mates(walk):
    seeds = torch.arange(12)
    whole = look_ahead(walk, seeds, horizon=3, copies=4, caution=0.0)
    assert (whole.spent == 4).all()
    part = look_ahead(walk, seeds[5:8], horizon=3, copies=4, caution=0.0)
    assert torch.equal(whole.projected[:, 5:8], part.projected)


def test_look_ahead_that_is_never_sure_follows_the_table(walk):
    sampler, cost = walk
    seeds = torch.arange(12)
    table = free.rollout(sampler, CONSTRAINTS["ball"](seeds), tt.prices.Thresholds(cost.table).at(4), seeds)
    assert torch.equal(look_ahead(walk, seeds, caution=1e9).projected, table.projected)
    assert not torch.equal(look_ahead(walk, seeds, caution=0.0, copies=4).projected, table.projected)


def test_a_cost_to_go_of_another_number_of_steps_is_refused():
    seeds, cost = torch.arange(3), exact()
    mask = torch.zeros(T - 1, 3, dtype=torch.bool)
    with pytest.raises(ValueError, match=f"of all T = {T - 1} steps: got {T} of them"):
        online_limit(Uniform(T - 1), ZERO, seeds, mask, cost)
    without = CostToGo(cost.table, cost.expected, cost.nodes, cost.cost[:0])
    with pytest.raises(ValueError, match=f"of all T = {T} steps: got 0 of them.*keep_cost=True"):
        online_limit(Uniform(), ZERO, seeds, torch.zeros(T, 3, dtype=torch.bool), without)


def test_a_cost_to_go_counts_as_the_paper_does_and_is_that_of_a_choice():
    def run(schedule, n_steps=T, closing="free"):
        return tt.rollout(Uniform(n_steps), ZERO, schedule, range(8), closing=closing, measure_defects=True)

    with pytest.raises(ValueError, match="run with closing='free', not 'paid'"):
        cost_to_go(lambda schedule: run(schedule, closing="paid"))
    with pytest.raises(ValueError, match="got a budget of 0 in 10 steps"):
        cost_to_go(run, 0)
    with pytest.raises(ValueError, match="got a budget of 1 in 1 steps"):
        cost_to_go(lambda schedule: run(schedule, n_steps=1))


def test_look_ahead_finds_the_best_decision_where_the_table_is_wrong():
    """A price that is too low asks for corrections too early; simulation sees that waiting is better."""
    cost, seeds = exact(), torch.arange(300)
    wrong = tt.prices.Thresholds(0.6 * cost.table)
    ahead = LookAhead(Uniform(), ZERO, wrong, cost, BUDGET, horizon=1, copies=64)
    best, early, found = (
        float(rollouts(s, seeds).residuals.sum(dim=0).mean())
        for s in (tt.prices.Thresholds(cost.table).at(BUDGET), wrong.at(BUDGET), ahead)
    )
    assert best < early
    assert abs(found - best) < 0.3 * (early - best)


def test_look_ahead_refuses_what_it_cannot_do(walk):
    sampler, cost = walk
    table = tt.prices.Thresholds(cost.table)
    ball = CONSTRAINTS["ball"](torch.arange(2))
    with pytest.raises(ValueError, match="horizon"):
        LookAhead(sampler, ball, table, cost, 4, horizon=0)
    with pytest.raises(ValueError, match="more than"):
        LookAhead(sampler, ball, tt.prices.Thresholds(cost.table[:, :3]), cost, 4)
    price, nothing = cost.table[0, 4].expand(2), torch.zeros(12, 2)
    now = Moment.of_record(0, price.expand(12, 2), nothing.bool(), 4)
    with pytest.raises(ValueError, match="knows its seeds"):
        LookAhead(sampler, ball, table, cost, 4).decide(now)
