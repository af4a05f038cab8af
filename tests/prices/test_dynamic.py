"""The dynamic program: what it believes of a sampler, and the prices that follow."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

import free
import trimtab as tt
from price_cases import CALIBRATION, EVALUATION, FIRST_ZERO, ZERO, Caught, Drift, mean_path_error
from trimtab.calibration.collect import Explore, spread_budgets
from trimtab.core.noise import Noise
from trimtab.loop.replay import replay
from trimtab.prices.transitions import estimate_transitions


@pytest.mark.parametrize("kappa", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("budget", [3, 8])
def test_the_dynamic_program_beats_the_others_whatever_a_correction_lasts(kappa, budget):
    sampler = Drift(kappa)
    price = free.calibrate(tt.Problem(sampler, ZERO, CALIBRATION), objective="path")
    error = mean_path_error(price.at(budget), sampler)
    for rival in (tt.Periodic(budget), tt.schedules.RandomTimes(budget)):
        assert error < mean_path_error(rival, sampler)
    for method in ("paper", "planned"):
        rival = free.calibrate(tt.Problem(sampler, ZERO, CALIBRATION), method=method, objective="path").at(budget)
        assert error < 1.02 * mean_path_error(rival, sampler), method


@pytest.mark.parametrize("kappa", [0.0, 0.5])
def test_the_expected_cost_is_what_evaluation_measures(kappa):
    sampler = Drift(kappa)
    price = free.calibrate(tt.Problem(sampler, ZERO, range(1000, 1064)), objective="path")
    for budget in (0, 3, 8, 16):
        measured = mean_path_error(price.at(budget), sampler, seeds=range(512))
        assert price.notes["expected"][budget] == pytest.approx(measured, rel=0.12)


def test_where_nothing_lasts_the_price_is_that_of_the_height_alone():
    """Defects that are independent and exponential have a known best price: what one correction fewer costs."""
    T, draws = 24, torch.arange(0.5, 2000) / 2000
    exponential = -(1 - draws.double()).log()
    to_go, best = torch.zeros(T + 1, dtype=torch.float64), torch.full((T, T + 1), torch.inf, dtype=torch.float64)
    for t in reversed(range(T)):
        best[t, 1:] = to_go[:-1] - to_go[1:]
        spend = exponential >= best[t][:, None]
        corrected = torch.cat([to_go[:1], to_go[:-1]])[:, None]
        to_go = torch.where(spend, corrected, exponential + to_go[:, None]).mean(dim=1)
    price = free.calibrate(tt.Problem(Drift(1.0), ZERO, CALIBRATION), method="dp", objective="path")
    seeds = range(2000)
    lowest, found = (
        mean_path_error(tt.prices.Thresholds(t).at(6), Drift(1.0), seeds=seeds) for t in (best, price.table)
    )
    assert lowest <= found < 1.005 * lowest
    assert torch.allclose(price.table[:16, 2:8], best[:16, 2:8], rtol=0.25)


def explored_steps(sampler, constraint=ZERO):
    n_steps = sampler.n_steps
    schedules = (Explore(spread_budgets(48, n_steps, 1.0, seed), seed=seed) for seed in range(2))
    return estimate_transitions([free.rollout(sampler, constraint, schedule, CALIBRATION) for schedule in schedules])


@pytest.mark.parametrize(("kappa", "low", "high"), [(1.0, 0.0, 0.3), (0.5, 0.9, 1.0), (0.0, 0.98, 1.0)])
def test_a_lasting_defect_is_believed_in_as_far_as_it_shows(kappa, low, high):
    steps = explored_steps(Drift(kappa))
    assert low <= float(steps.trust[1].mean()) <= high
    for weights in (steps.alone, steps.corrected, steps.start):
        assert torch.allclose(weights.sum(dim=-1), torch.ones(()).double(), atol=1e-9)
    later = (steps.alone @ steps.nodes[1:, :, None])[..., 0]  # the mean next defect at each node
    assert (later[:, -4:].mean(dim=1) >= later[:, :4].mean(dim=1) - 1e-9).all()


def test_a_defect_that_is_back_after_its_correction_is_expected_back():
    steps = explored_steps(Caught(), FIRST_ZERO)
    late = slice(16, 22)  # pools of these steps have hardly any of the first half
    defects = (steps.nodes * steps.scale[:, None])[late]
    following = (steps.corrected @ steps.nodes[1:, :, None])[late, :, 0] * steps.scale[1:, None][late]
    large = defects > defects.mean()
    assert torch.allclose(following[large], defects[large], rtol=0.25)


def test_a_defect_that_is_back_after_its_correction_is_not_corrected_for_nothing():
    price = free.calibrate(tt.Problem(Caught(), FIRST_ZERO, CALIBRATION), objective="path")
    paper = free.calibrate(tt.Problem(Caught(), FIRST_ZERO, CALIBRATION), method="paper", objective="path")
    errors = [mean_path_error(some.at(16), Caught(), FIRST_ZERO, range(256)) for some in (price, paper)]
    assert errors[0] < 0.95 * errors[1]


def test_prices_fall_with_the_budget_left():
    table = free.calibrate(tt.Problem(Drift(0.3), ZERO, CALIBRATION), objective="path").table[:16, 1:8]
    falls = (table.diff(dim=1) <= 1e-9).double().mean()
    assert falls > 0.95  # estimates, so nearly


def test_exploration_meets_its_budgets_and_tries_both_actions_everywhere():
    budgets = spread_budgets(200, 24, 1.0, seed=0)
    assert int(budgets.min()) == 0
    assert int(budgets.max()) >= 23
    run = free.rollout(Drift(0.3), ZERO, Explore(budgets), range(200))
    assert torch.equal(run.spent, budgets)
    rate = run.projected.double().mean(dim=1)
    assert ((rate > 0.3) & (rate < 0.7)).all()


def test_random_decisions_belong_to_a_seed_and_a_step_in_any_batch():
    many, few = (free.rollout(Drift(0.3), ZERO, Explore(8, seed=2), seeds) for seeds in (range(40), [7, 3]))
    assert torch.equal(many.projected[:, [7, 3]], few.projected)
    assert not torch.equal(free.rollout(Drift(0.3), ZERO, Explore(8, seed=3), [7, 3]).projected, few.projected)


def test_runs_that_show_only_one_action_are_refused():
    run = free.rollout(Drift(0.3), ZERO, tt.Terminal(), range(20))
    with pytest.raises(ValueError, match="only one of the two actions"):
        estimate_transitions([run])


@dataclass(frozen=True)
class GrowsBack:
    """A quarter of the samples return, over a few steps, to a defect of their own, which nothing but it shows."""

    n_steps: int = 48

    def start(self, noise: Noise) -> torch.Tensor:
        own = torch.where(noise.uniform(-1, (1,)) < 0.25, 10.0, 0.0).double()
        return torch.cat([own, own], dim=1)

    def step(self, x: torch.Tensor, t: int, noise: Noise) -> torch.Tensor:
        now, own = x[:, :1], x[:, 1:]
        return torch.cat([now + 0.4 * (own - now) - 0.05 * noise.uniform(t, (1,)).log(), own], dim=1)


@pytest.mark.parametrize("closing", ["free", "paid"])
def test_even_spacing_takes_the_place_of_prices_that_lose_to_it(closing):
    sampler = GrowsBack()
    with pytest.warns(UserWarning, match="cost more than even spacing.*the result is even spacing") as seen:
        price = tt.calibrate(tt.Problem(sampler, FIRST_ZERO, CALIBRATION), objective="path", closing=closing)
    assert seen[0].filename == __file__
    assert price.method == "even spacing"
    mean, se = price.notes["ahead_of_even_spacing"]
    assert mean < -2 * se
    assert price.seeds == tuple(CALIBRATION)
    for budget in (1, 7, 24, 48):
        schedules = price.at(budget), tt.Periodic(budget)
        runs = [tt.rollout(sampler, FIRST_ZERO, one, range(4), closing=closing) for one in schedules]
        assert torch.equal(runs[0].projected, runs[1].projected)


@pytest.mark.parametrize("kappa", [0.0, 0.3, 1.0])
def test_prices_are_known_to_be_ahead_of_even_spacing(kappa):
    mean, se = free.calibrate(tt.Problem(Drift(kappa), ZERO, CALIBRATION), objective="path").notes[
        "ahead_of_even_spacing"
    ]
    assert mean > 2 * se > 0


@dataclass(frozen=True)
class Unequal:
    """`Drift` with a scale of its own for each sample."""

    kappa: float
    n_steps: int = 40

    def start(self, noise: Noise) -> torch.Tensor:
        return torch.zeros(len(noise.seeds), 1, dtype=torch.float64)

    def step(self, x: torch.Tensor, t: int, noise: Noise) -> torch.Tensor:
        scale = (0.8 * noise.normal(-2, (1,))).exp()
        return (1 - self.kappa) * x - scale * noise.uniform(t, (1,)).log()


@pytest.mark.parametrize("kappa", [0.05, 0.5])
def test_samples_that_differ_in_scale_are_priced_in_their_own(kappa):
    sampler = Unequal(kappa)
    price = free.calibrate(tt.Problem(sampler, ZERO, CALIBRATION), objective="path")
    assert price.sample_scale is not None
    error = mean_path_error(price.at(10), sampler, seeds=range(200))
    for rival in ("paper", "planned"):
        assert error < mean_path_error(
            free.calibrate(tt.Problem(sampler, ZERO, CALIBRATION), method=rival, objective="path").at(10),
            sampler,
            seeds=range(200),
        )
    assert error < mean_path_error(tt.Periodic(10), sampler, seeds=range(200))


def test_samples_that_are_alike_share_one_scale():
    assert free.calibrate(tt.Problem(Drift(0.3), ZERO, CALIBRATION), objective="path").sample_scale is None


def test_the_own_scale_of_a_loop_is_that_of_its_record(tmp_path):
    sampler = Unequal(0.1)
    price = free.calibrate(tt.Problem(sampler, ZERO, CALIBRATION), objective="path")
    run = free.rollout(sampler, ZERO, price.at(10), range(6))
    assert torch.equal(replay(price.at(10), run), run.projected)
    price.save(tmp_path / "price.safetensors")
    again = tt.prices.Thresholds.load(tmp_path / "price.safetensors")
    assert torch.equal(replay(again.at(10), run), run.projected)
    scale = price.sample_scale.along(run.defects, run.projected)
    left = 10 - run.projected.long().cumsum(dim=0) + run.projected.long()
    by_hand = (run.defects >= price.table.gather(1, left) * scale) & (left > 0)
    assert torch.equal(by_hand, run.projected)


@pytest.mark.parametrize(("n_steps", "budget"), [(1, 1), (1, 0), (12, 0)])
def test_where_there_is_no_choice_the_table_is_what_its_conventions_say(n_steps, budget):
    price = free.calibrate(tt.Problem(Drift(0.3, n_steps), ZERO, CALIBRATION), budget, objective="path")
    assert price.table.isinf().all()
    run = free.rollout(Drift(0.3, n_steps), ZERO, price.at(budget), EVALUATION)
    assert (run.spent == budget).all()


@pytest.mark.parametrize("budget", [2, 5, 10])
def test_in_a_short_run_whose_defects_depend_on_the_step_it_is_ahead_of_even_spacing(budget):
    domain = tt.domain("terrain-replica", n_steps=20)
    price = tt.calibrate(domain.problem(range(1000, 1064)), method="dp", objective="path", check=False)
    problem = domain.problem(range(256))
    ours, even = (
        problem.rollout(each, measure_defects=True).residuals.sum(dim=0)
        for each in (price.at(budget), tt.Periodic(budget))
    )
    gap = (ours - even).double()
    assert gap.mean() < -2 * gap.std() / len(gap) ** 0.5
