"""Prices: what they promise on problems whose answer is known, and how they refuse what they cannot price."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

import trimtab as tt
from cases import CONSTRAINTS, Sphere, Walk
from trimtab.calibration import METHODS
from trimtab.prices.explore import Explore, spread_budgets
from trimtab.prices.planned import cheapest_times, gap_costs, planned_masks
from trimtab.prices.transitions import one_step

CALIBRATION, EVALUATION = range(1000, 1048), range(48)
every_method = pytest.mark.parametrize("method", METHODS)


@dataclass(frozen=True)
class Drift:
    """A defect that grows by a random amount each step and is forgotten at rate kappa; the state is the defect."""

    kappa: float
    n_steps: int = 24

    def start(self, noise: tt.Noise) -> torch.Tensor:
        return torch.zeros(len(noise.seeds), 1, dtype=torch.float64)

    def step(self, x: torch.Tensor, t: int, noise: tt.Noise) -> torch.Tensor:
        return (1 - self.kappa) * x - noise.uniform(t, (1,)).log()


ZERO = tt.as_constraint(torch.zeros_like, lambda x: x[:, 0])


@dataclass(frozen=True)
class Caught:
    """Halfway through each sample gets to a defect of its own, which is back one step after every correction."""

    n_steps: int = 24

    def start(self, noise: tt.Noise) -> torch.Tensor:
        own = -noise.uniform(-1, (1,)).log()
        return torch.cat([torch.zeros_like(own), own], dim=1)

    def step(self, x: torch.Tensor, t: int, noise: tt.Noise) -> torch.Tensor:
        fresh, own = -noise.uniform(t, (1,)).log(), x[:, 1:]
        return torch.cat([fresh if 2 * t < self.n_steps else 0.05 * fresh + own, own], dim=1)


@dataclass(frozen=True)
class Regrown:
    """A defect of each sample's own, to which it grows back over a few steps after every correction."""

    n_steps: int = 50

    def start(self, noise: tt.Noise) -> torch.Tensor:
        own = -noise.uniform(-1, (1,)).log()
        return torch.cat([own, own], dim=1)

    def step(self, x: torch.Tensor, t: int, noise: tt.Noise) -> torch.Tensor:
        now, own = x[:, :1], x[:, 1:]
        return torch.cat([0.5 * (now + own) - 0.05 * noise.uniform(t, (1,)).log(), own], dim=1)


FIRST_ZERO = tt.as_constraint(lambda x: x * torch.tensor([0.0, 1.0], dtype=x.dtype), lambda x: x[:, 0])


def mean_path_error(schedule, sampler, constraint=ZERO, seeds=EVALUATION) -> float:
    return float(tt.rollout(sampler, constraint, schedule, seeds).residuals.sum(dim=0).mean())


@every_method
def test_every_price_spends_exactly_its_budget_and_survives_its_file(method, tmp_path):
    price = tt.calibrate(Walk(), Sphere(), range(100, 116), 0.75, method=method)
    assert price.method == method
    assert price.seeds == tuple(range(100, 116))
    assert price.budget == 9
    price.save(tmp_path / "price.safetensors")
    again = type(price).load(tmp_path / "price.safetensors")
    for budget in (0, 1, 0.25, 0.5, 9):
        run = tt.rollout(Walk(), Sphere(), price.at(budget), range(10))
        assert (run.spent == tt.schedule.corrections(budget, 12)).all()
        assert torch.equal(tt.rollout(Walk(), Sphere(), again.at(budget), range(10)).projected, run.projected)


@every_method
def test_every_price_is_deterministic(method):
    one, two = (tt.calibrate(Walk(), Sphere(), range(100, 116), 0.5, method=method) for _ in range(2))
    run, other = (tt.rollout(Walk(), Sphere(), price.at(0.5), range(10)) for price in (one, two))
    assert torch.equal(run.projected, other.projected)


@every_method
def test_every_price_serves_budgets_that_differ_by_sample(method):
    budgets = torch.tensor([0, 3, 9, 1])
    price = tt.calibrate(Walk(), Sphere(), range(100, 116), 0.75, method=method)
    together = tt.rollout(Walk(), Sphere(), price.at(budgets), range(4))
    assert torch.equal(together.spent, budgets)
    for i, budget in enumerate(budgets.tolist()):
        alone = tt.rollout(Walk(), Sphere(), price.at(budget), [i])
        assert torch.equal(alone.projected[:, 0], together.projected[:, i])


@every_method
def test_every_price_refuses_its_own_seeds_other_steps_and_larger_budgets(method):
    price = tt.calibrate(Walk(), Sphere(), range(100, 116), 0.5, method=method)
    with pytest.raises(ValueError, match="used to calibrate"):
        tt.rollout(Walk(), Sphere(), price.at(0.5), [100])
    with pytest.raises(ValueError, match="T = 12 steps and cannot be used for T = 13"):
        tt.rollout(Walk(n_steps=13), Sphere(), price.at(0.5), [1])
    with pytest.raises(ValueError, match="7"):
        price.at(7)


@pytest.mark.parametrize("kappa", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("budget", [3, 8])
def test_the_dynamic_program_beats_the_others_whatever_a_correction_lasts(kappa, budget):
    sampler = Drift(kappa)
    price = tt.calibrate(sampler, ZERO, CALIBRATION)
    error = mean_path_error(price.at(budget), sampler)
    for rival in (tt.Periodic(budget), tt.RandomTimes(budget)):
        assert error < mean_path_error(rival, sampler)
    for method in ("paper", "on-policy", "planned"):
        rival = tt.calibrate(sampler, ZERO, CALIBRATION, method=method).at(budget)
        assert error < 1.02 * mean_path_error(rival, sampler), method


def test_the_papers_rule_loses_to_periodic_where_corrections_last():
    """The finding the dynamic program is there for; should it ever go away, the docs are wrong."""
    sampler = Drift(kappa=0.0)
    paper = tt.calibrate(sampler, ZERO, CALIBRATION, method="paper").at(6)
    assert mean_path_error(paper, sampler) > 1.5 * mean_path_error(tt.Periodic(6), sampler)


@pytest.mark.parametrize("kappa", [0.0, 0.5])
def test_the_expected_cost_is_what_evaluation_measures(kappa):
    sampler = Drift(kappa)
    price = tt.calibrate(sampler, ZERO, range(1000, 1064))
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
    price = tt.calibrate(Drift(1.0), ZERO, CALIBRATION, method="dp")
    seeds = range(2000)
    lowest, found = (mean_path_error(tt.Thresholds(t).at(6), Drift(1.0), seeds=seeds) for t in (best, price.table))
    assert lowest <= found < 1.005 * lowest
    assert torch.allclose(price.table[:16, 2:8], best[:16, 2:8], rtol=0.25)


def explored_steps(sampler, constraint=ZERO):
    n_steps = sampler.n_steps
    schedules = (Explore(spread_budgets(48, n_steps, 1.0, seed), seed=seed) for seed in range(2))
    return one_step([tt.rollout(sampler, constraint, schedule, CALIBRATION) for schedule in schedules])


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
    forgotten = steps.remembering(0.0).corrected
    assert torch.equal(forgotten, steps.alike.expand_as(forgotten))
    assert torch.allclose(steps.remembering(1.0).corrected, steps.corrected, atol=1e-12)


@pytest.mark.parametrize("kappa", [0.0, 0.3, 1.0])
def test_settled_samples_are_no_others_where_corrections_leave_no_trace(kappa):
    assert float(explored_steps(Drift(kappa, n_steps=50)).trust[2].mean()) < 0.15


def test_settled_samples_are_told_from_those_that_grow_back():
    steps = explored_steps(Regrown(), FIRST_ZERO)
    assert float(steps.trust[2].mean()) > 0.9
    defects = (steps.nodes * steps.scale[:, None])[:-1, 8:20]  # where there are many of both
    settled, any_alone = (
        (kernel @ steps.nodes[1:, :, None])[:, 8:20, 0] * steps.scale[1:, None]
        for kernel in (steps.settled, steps.alone)
    )
    assert float((settled / defects - 1).abs().mean()) < 0.05
    assert float((any_alone / defects - 1).mean()) > 0.1


def test_all_memory_of_a_defect_is_taken_where_that_proves_better():
    price = tt.calibrate(Caught(), FIRST_ZERO, CALIBRATION)
    assert price.notes["memory"] == 1.0
    paper = tt.calibrate(Caught(), FIRST_ZERO, CALIBRATION, method="paper")
    errors = [mean_path_error(some.at(16), Caught(), FIRST_ZERO, range(256)) for some in (price, paper)]
    assert errors[0] < 0.95 * errors[1]
    assert tt.calibrate(Drift(1.0), ZERO, CALIBRATION).notes["memory"] == 0.5


def test_every_batch_that_was_run_is_counted():
    sampler, counted = Drift(0.3), []

    def run(schedule):
        counted.append(schedule)
        return tt.rollout(sampler, ZERO, schedule, CALIBRATION)

    def distance(a, b):
        return (a - b).abs()[:, 0]

    for method in METHODS:
        before = len(counted)
        price = tt.calibrate_runs(run, 24, method=method)
        assert price.notes["batches"] == len(counted) - before
        assert method == "value" or price.notes["batches"] <= 12
    before = len(counted)
    price = tt.calibrate_runs(run, 24, objective="endpoint", distance=distance)
    assert price.notes["batches"] == len(counted) - before <= 12


def test_prices_fall_with_the_budget_left():
    table = tt.calibrate(Drift(0.3), ZERO, CALIBRATION).table[:16, 1:8]
    falls = (table.diff(dim=1) <= 1e-9).double().mean()
    assert falls > 0.95  # estimates, so nearly


def test_planned_times_are_the_best_open_loop_times_where_those_are_known():
    """With no forgetting the mean defect is the time since the last correction, so even gaps are best."""
    T, budget = 24, 5
    sampler = Drift(0.0)
    plan = tt.calibrate(sampler, ZERO, CALIBRATION, method="planned")
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


def test_on_policy_rounds_settle_and_are_recorded():
    price = tt.calibrate(Drift(0.1), ZERO, CALIBRATION, 0.5, method="on-policy")
    rounds = price.notes["rounds"]
    assert 2 <= len(rounds) <= 6
    assert rounds[-1]["profile_change"] < rounds[0]["profile_change"]


def test_exploration_meets_its_budgets_and_tries_both_actions_everywhere():
    budgets = spread_budgets(200, 24, 1.0, seed=0)
    assert int(budgets.min()) == 0
    assert int(budgets.max()) >= 23
    run = tt.rollout(Drift(0.3), ZERO, Explore(budgets), range(200))
    assert torch.equal(run.spent, budgets)
    rate = run.projected.double().mean(dim=1)
    assert ((rate > 0.3) & (rate < 0.7)).all()


def test_runs_that_show_only_one_action_are_refused():
    run = tt.rollout(Drift(0.3), ZERO, tt.Terminal(), range(20))
    with pytest.raises(ValueError, match="only one of the two actions"):
        one_step([run])


def test_a_loop_of_ones_own_is_calibrated_like_a_sampler_of_ours():
    sampler = Walk()
    seeds = torch.arange(100, 116)

    def run(schedule):
        corrector = tt.Corrector(Sphere(), schedule, sampler.n_steps, seeds=seeds)
        x, noise = sampler.start(tt.Noise(seeds)), tt.Noise(seeds)
        for t in range(sampler.n_steps):
            x = corrector(sampler.step(x, t, noise), t)
        return corrector.rollout

    foreign = tt.calibrate_runs(run, sampler.n_steps, 0.5)
    ours = tt.calibrate(sampler, Sphere(), seeds, 0.5)
    assert torch.equal(foreign.table, ours.table)


@every_method
def test_a_constant_defect_is_told(method):
    flat = tt.as_constraint(lambda x: x, lambda x: torch.ones(len(x), dtype=x.dtype))
    with pytest.warns(UserWarning, match="cannot tell one moment from another"):
        price = tt.calibrate(Walk(), flat, range(100, 116), 0.5, method=method)
    assert (tt.rollout(Walk(), flat, price.at(0.5), range(4)).spent == 6).all()


@pytest.mark.parametrize("method", ["dp", "on-policy", "planned"])
def test_too_few_rollouts_are_refused(method):
    with pytest.raises(ValueError, match="3 calibration rollouts are too few"):
        tt.calibrate(Walk(), Sphere(), range(3), method=method)


def test_unknown_methods_and_objectives_are_refused():
    with pytest.raises(ValueError, match="did you mean 'planned'"):
        tt.calibrate(Walk(), Sphere(), range(8), method="plannd")
    with pytest.raises(ValueError, match="did you mean 'endpoint'"):
        tt.calibrate(Walk(), Sphere(), range(8), objective="endpoints")
    with pytest.raises(ValueError, match="prices path error only"):
        tt.calibrate(Walk(), Sphere(), range(8), method="paper", objective="endpoint")
    with pytest.raises(ValueError, match="needs a distance"):
        tt.calibrate(Walk(), Sphere(), range(8), objective="endpoint")


@dataclass(frozen=True)
class GrowsBack:
    """A quarter of the samples return, over a few steps, to a defect of their own, which nothing but it shows."""

    n_steps: int = 48

    def start(self, noise: tt.Noise) -> torch.Tensor:
        own = torch.where(noise.uniform(-1, (1,)) < 0.25, 10.0, 0.0).double()
        return torch.cat([own, own], dim=1)

    def step(self, x: torch.Tensor, t: int, noise: tt.Noise) -> torch.Tensor:
        now, own = x[:, :1], x[:, 1:]
        return torch.cat([now + 0.4 * (own - now) - 0.05 * noise.uniform(t, (1,)).log(), own], dim=1)


def test_prices_that_lose_to_even_spacing_are_not_handed_out_in_silence():
    sampler = GrowsBack()
    with pytest.warns(UserWarning, match="cost more than even spacing") as seen:
        price = tt.calibrate(sampler, FIRST_ZERO, CALIBRATION)
    assert seen[0].filename == __file__
    mean, se = price.notes["ahead_of_periodic"]
    assert mean < -2 * se
    assert mean_path_error(price.at(0.5), sampler, FIRST_ZERO) > mean_path_error(tt.Periodic(0.5), sampler, FIRST_ZERO)


@pytest.mark.parametrize("kappa", [0.0, 0.3, 1.0])
def test_prices_are_known_to_be_ahead_of_even_spacing(kappa):
    mean, se = tt.calibrate(Drift(kappa), ZERO, CALIBRATION).notes["ahead_of_periodic"]
    assert mean > 2 * se > 0


@pytest.mark.parametrize("name", ["so3", "se3-lever", "terrain"])
@pytest.mark.parametrize("budget", [3, 10])
def test_no_neighbour_of_planned_times_is_better_under_common_noise(name, budget):
    """All masks with one correction a step earlier or later, on the calibration rollouts: a local search stays put."""
    domain, n = tt.domain(name, n_steps=40), 128
    problem = domain.problem(range(1000, 1000 + n))
    plan = tt.calibrate(problem.sampler, problem.constraint, range(1000, 1000 + n), budget=budget, method="planned")
    planned = plan.masks[budget]
    neighbours = [planned]
    for t in planned.nonzero().squeeze(1).tolist():
        for other in (t - 1, t + 1):
            if 0 <= other < 40 and not planned[other]:
                moved = planned.clone()
                moved[t], moved[other] = False, True
                neighbours.append(moved)
    masks, seeds = torch.stack(neighbours, dim=1), torch.arange(1000, 1000 + n).repeat(len(neighbours))
    again = domain.problem(seeds)
    run = tt.rollout(again.sampler, again.constraint, tt.Fixed(masks.repeat_interleave(n, dim=1)), seeds)
    cost = run.residuals.sum(dim=0).reshape(len(neighbours), n)
    worse = cost[1:] - cost[0]
    assert (worse.mean(dim=1) > -3.5 * worse.std(dim=1) / n**0.5).all()
    assert (worse.mean(dim=1) > 2 * worse.std(dim=1) / n**0.5).any()  # and many are worse


def test_a_plan_that_does_not_keep_its_budgets_is_refused():
    with pytest.raises(ValueError, match="row b of a plan must hold exactly b steps"):
        tt.Plan(torch.ones(3, 5, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"\(B \+ 1, T\) bool"):
        tt.Plan(torch.ones(3, 5))


def test_plans_from_few_rollouts_are_plans():
    runs = [
        tt.rollout(Walk(), CONSTRAINTS["sphere"](None), Explore(torch.tensor([2, 9]), seed=k), [1, 2]) for k in range(2)
    ]
    masks = planned_masks(runs, 12)
    assert masks.sum(dim=1).tolist() == list(range(13))


@dataclass(frozen=True)
class Unequal:
    """`Drift` with a scale of its own for each sample."""

    kappa: float
    n_steps: int = 40

    def start(self, noise: tt.Noise) -> torch.Tensor:
        return torch.zeros(len(noise.seeds), 1, dtype=torch.float64)

    def step(self, x: torch.Tensor, t: int, noise: tt.Noise) -> torch.Tensor:
        scale = (0.8 * noise.normal(-2, (1,))).exp()
        return (1 - self.kappa) * x - scale * noise.uniform(t, (1,)).log()


@pytest.mark.parametrize("kappa", [0.05, 0.5])
def test_samples_that_differ_in_scale_are_priced_in_their_own(kappa):
    sampler = Unequal(kappa)
    price = tt.calibrate(sampler, ZERO, CALIBRATION)
    assert price.own_scale is not None
    error = mean_path_error(price.at(10), sampler, seeds=range(200))
    for rival in ("paper", "on-policy", "planned"):
        assert error < mean_path_error(
            tt.calibrate(sampler, ZERO, CALIBRATION, method=rival).at(10), sampler, seeds=range(200)
        )
    assert error < mean_path_error(tt.Periodic(10), sampler, seeds=range(200))


def test_samples_that_are_alike_share_one_scale():
    assert tt.calibrate(Drift(0.3), ZERO, CALIBRATION).own_scale is None


def test_the_own_scale_of_a_loop_is_that_of_its_record(tmp_path):
    sampler = Unequal(0.1)
    price = tt.calibrate(sampler, ZERO, CALIBRATION)
    run = tt.rollout(sampler, ZERO, tt.Adaptive(price, 10), range(6))
    assert torch.equal(tt.replay(price.at(10), run), run.projected)
    price.save(tmp_path / "price.safetensors")
    again = tt.Thresholds.load(tmp_path / "price.safetensors")
    assert torch.equal(tt.replay(again.at(10), run), run.projected)
    scale = price.own_scale.along(run.defects, run.projected)
    left = 10 - run.projected.long().cumsum(dim=0) + run.projected.long()
    by_hand = (run.defects >= price.table.gather(1, left) * scale) & (left > 0)
    assert torch.equal(by_hand, run.projected)


@pytest.mark.parametrize(("n_steps", "budget"), [(1, 1), (1, 0), (12, 0)])
def test_where_there_is_no_choice_the_table_is_what_its_conventions_say(n_steps, budget):
    price = tt.calibrate(Drift(0.3, n_steps), ZERO, CALIBRATION, budget)
    assert price.table.isinf().all()
    run = tt.rollout(Drift(0.3, n_steps), ZERO, price.at(budget), EVALUATION)
    assert (run.spent == budget).all()
    with pytest.raises(ValueError, match="no choice"):
        tt.calibrate(Drift(0.3, n_steps), ZERO, CALIBRATION, budget, method="value")


def test_repeated_calibration_seeds_are_refused():
    with pytest.raises(ValueError, match="15 of the 16 calibration seeds are repeated"):
        tt.calibrate(Drift(0.3), ZERO, [7] * 16)
