"""Budgets in seconds: what a projection takes, and schedules that keep to it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import free
import trimtab as tt
from trimtab.core.metrics import summary
from trimtab.core.noise import Noise
from trimtab.prices.rates import SolverCost, TimedPrices, price_seconds, solver_cost

CALIBRATION, EVALUATION, T = range(1000, 1048), range(256), 24


@dataclass(frozen=True)
class Drift:
    """A defect that grows by a random amount each step; half of it is forgotten."""

    n_steps: int = T

    def start(self, noise: Noise) -> torch.Tensor:
        return torch.zeros(len(noise.seeds), 1, dtype=torch.float64)

    def step(self, x: torch.Tensor, t: int, noise: Noise) -> torch.Tensor:
        return 0.5 * x - noise.uniform(t, (1,)).log()


@dataclass(frozen=True, eq=False)
class Slow(tt.Constraint):
    """Zero, by a solver whose iterations grow with the defect to some power."""

    power: float = 2.0

    def project(self, x: torch.Tensor) -> tt.Projection:
        return tt.Projection(torch.zeros_like(x), iterations=self.iterations(x[:, 0]).long(), residual=0 * x[:, 0])

    def iterations(self, defect: torch.Tensor) -> torch.Tensor:
        return (1 + 4 * defect**self.power).round()

    def defect(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, 0]

    def take(self, rows: torch.Tensor) -> Slow:
        return self


def run_for(constraint):
    return lambda schedule: free.rollout(Drift(), constraint, schedule, CALIBRATION)


def explored(constraint):
    return [run_for(constraint)(tt.schedules.RandomTimes(budget, seed=1)) for budget in (0.2, 0.5)]


def exactly(steps, defects):
    return (1 + 4 * defects**2.0).double()


@pytest.fixture(scope="module")
def prices():
    return price_seconds(run_for(Slow()), T, 200.0, exactly)


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_the_cost_of_a_projection_is_learned_from_its_defect(power):
    cost = solver_cost(explored(Slow(power)), seconds_per_iteration=0.1)
    defects = torch.linspace(0.3, 3.0, 20, dtype=torch.float64)
    truth = 0.1 * Slow(power).iterations(defects)
    assert (cost(torch.full((20,), 12), defects) - truth).abs().max() < 0.12 * truth.max()


def test_costs_stay_within_what_was_seen():
    cost = solver_cost(explored(Slow()), seconds_per_iteration=1.0)
    assert float(cost(torch.tensor([3]), torch.tensor([1e9]))) == cost.limits[1]
    assert float(cost(torch.tensor([3]), torch.tensor([0.0]))) >= cost.limits[0]


def test_a_solver_that_counts_nothing_costs_the_same_everywhere():
    plain = tt.as_constraint(torch.zeros_like, lambda x: x[:, 0])
    runs = explored(plain)
    cost = solver_cost(runs)
    each = sum(r.seconds["projection"] for r in runs) / sum(r.rows["projection"] for r in runs)
    taken = cost(torch.arange(T)[:, None], torch.rand(T, 5, dtype=torch.float64))
    assert torch.allclose(taken, torch.full_like(taken, each), rtol=1e-6)


def test_runs_whose_defects_were_not_measured_are_refused():
    run = free.rollout(Drift(), Slow(), tt.schedules.RandomTimes(0.25), CALIBRATION, measure_defects=False)
    with pytest.raises(ValueError, match="measure_defects=True"):
        solver_cost([run])


def test_runs_without_projections_are_refused():
    with pytest.raises(ValueError, match="no projections to learn a cost from"):
        solver_cost([run_for(Slow())(tt.Terminal())])


@settings(max_examples=25)
@given(st.floats(0.0, 200.0))
def test_a_budget_of_seconds_is_never_exceeded(prices, seconds):
    run = free.rollout(Drift(), Slow(), prices.at(seconds), range(16))
    spent = torch.where(run.projected, exactly(None, run.defects), 0.0).sum(dim=0)
    assert (spent <= seconds).all()


def test_most_of_a_budget_is_spent_and_more_seconds_help(prices):
    errors = []
    for seconds in (20.0, 60.0, 180.0):
        run = free.rollout(Drift(), Slow(), prices.at(seconds), EVALUATION)
        spent = torch.where(run.projected, exactly(None, run.defects), 0.0).sum(dim=0)
        if seconds < 100:  # beyond, every step can be corrected
            assert float(spent.mean()) > 0.85 * seconds
        errors.append(float(run.residuals.sum(dim=0).mean()))
    assert errors[0] > 1.1 * errors[1] > 1.1 * errors[2]


def test_benefit_per_second_beats_counting_corrections_where_large_defects_are_dear(prices):
    by_count = free.rollout(
        Drift(), Slow(), free.calibrate(tt.Problem(Drift(), Slow(), CALIBRATION), objective="path").at(4), EVALUATION
    )
    seconds = float(torch.where(by_count.projected, exactly(None, by_count.defects), 0.0).sum(dim=0).mean())
    by_seconds = free.rollout(Drift(), Slow(), prices.at(seconds), EVALUATION)
    difference = summary(by_seconds.residuals.sum(dim=0) - by_count.residuals.sum(dim=0))
    assert difference.mean < -4 * difference.se


def test_with_equal_costs_seconds_are_corrections():
    """One second each: the same program over the same budgets, up to its exploration."""
    timed = price_seconds(run_for(Slow()), T, 12.0, lambda steps, defects: torch.ones_like(defects).double())
    counted = free.calibrate(tt.Problem(Drift(), Slow(), CALIBRATION), 0.5, objective="path")
    for budget in (3, 8):
        ours, theirs = (
            free.rollout(Drift(), Slow(), schedule, EVALUATION)
            for schedule in (timed.at(float(budget)), counted.at(budget))
        )
        assert (ours.spent <= budget).all()
        assert float(ours.spent.double().mean()) > 0.9 * budget
        ours_error, their_error = (float(run.residuals.sum(dim=0).mean()) for run in (ours, theirs))
        assert ours_error == pytest.approx(their_error, rel=0.03)


def test_each_sample_may_have_seconds_of_its_own(prices):
    seconds = torch.tensor([0.0, 30.0, 200.0])
    together = free.rollout(Drift(), Slow(), prices.at(seconds), range(3))
    for i, some in enumerate(seconds.tolist()):
        alone = free.rollout(Drift(), Slow(), prices.at(some), [i])
        assert torch.equal(alone.projected[:, 0], together.projected[:, i])


def test_prices_refuse_what_they_cannot_serve(prices):
    with pytest.raises(ValueError, match="budgets from 0 to 200 seconds"):
        prices.at(201.0)
    with pytest.raises(ValueError, match="finite number above 0"):
        price_seconds(run_for(Slow()), T, 0.0)
    with pytest.raises(ValueError, match="used to calibrate"):
        free.rollout(Drift(), Slow(), prices.at(10.0), [1000])
    with pytest.raises(ValueError, match="T = 24 steps and cannot be used for T = 25"):
        free.rollout(Drift(25), Slow(), prices.at(10.0), [1])


def test_the_cost_is_learned_when_none_is_given():
    prices = price_seconds(run_for(Slow()), T, 1e-3)
    assert isinstance(prices.cost, SolverCost)


def test_prices_of_seconds_survive_their_file(tmp_path):
    learned = price_seconds(run_for(Slow()), T, 60.0, cost=solver_cost(explored(Slow()), seconds_per_iteration=1.0))
    learned.save(tmp_path / "prices.safetensors")
    loaded = TimedPrices.load(tmp_path / "prices.safetensors")
    before, after = (free.rollout(Drift(), Slow(), prices.at(30.0), EVALUATION) for prices in (learned, loaded))
    assert torch.equal(before.projected, after.projected)
    with pytest.raises(ValueError, match="calibrate"):
        free.rollout(Drift(), Slow(), loaded.at(30.0), CALIBRATION)


def test_a_cost_that_is_a_function_cannot_be_saved(prices, tmp_path):
    with pytest.raises(ValueError, match="SolverCost"):
        prices.save(tmp_path / "prices.safetensors")


@dataclass(frozen=True)
class Uneven(Drift):
    """`Drift` of samples whose defects are ten times as large for some as for others."""

    def step(self, x: torch.Tensor, t: int, noise: Noise) -> torch.Tensor:
        return 0.5 * x - 10 ** noise.uniform(-1, (1,)) * noise.uniform(t, (1,)).log()


def test_samples_that_differ_in_scale_spend_their_seconds_in_their_own():
    def run(schedule):
        return free.rollout(Uneven(), Slow(0.0), schedule, CALIBRATION)

    prices = price_seconds(run, T, float(T), cost=lambda steps, defects: torch.ones_like(defects).double())
    assert prices.sample_scale is not None
    own, shared = (
        free.rollout(Uneven(), Slow(0.0), p.at(6.0), EVALUATION).residuals.sum(dim=0).mean()
        for p in (prices, price_seconds_alike(run))
    )
    assert own < shared


def price_seconds_alike(run):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trimtab.prices.rates.fit_sample_scale", lambda runs: None)
        return price_seconds(run, T, float(T), cost=lambda steps, defects: torch.ones_like(defects).double())


def test_prices_are_found_on_many_seeds_whose_closing_projection_is_paid_for():
    """Random budgets begin at 0 where there are more samples than steps, which leaves nothing for the closing one."""
    run = lambda schedule: tt.rollout(Drift(), Slow(), schedule, range(1000, 1000 + 4 * T))  # noqa: E731
    prices = price_seconds(run, T, 40.0, cost=lambda steps, defects: 1 + defects)
    assert tt.rollout(Drift(), Slow(), prices.at(20.0), range(4)).projected.any()


@pytest.mark.parametrize("said", ["x", None, torch.ones(3), -1.0])
def test_a_cost_that_tells_no_seconds_is_refused(said):
    with pytest.raises(ValueError, match="must give seconds of at least 0"):
        price_seconds(run_for(Slow()), T, 40.0, cost=lambda steps, defects: said)


def test_groups_are_priced_as_they_are_corrected():
    groups = torch.arange(len(CALIBRATION)) // 2

    def run(schedule):
        return tt.rollout(Drift(), Slow(), schedule, CALIBRATION, groups=groups, measure_defects=True)

    priced = price_seconds(run, T, 200.0, exactly)
    assert priced.nodes.shape[0] == T
    assert priced.seeds == tuple(CALIBRATION)


def test_only_projections_are_asked_for_their_cost(prices):
    run = tt.rollout(Drift(), Slow(), tt.schedules.MeasureEvery(prices.at(150.0), 2), range(64))
    assert run.projected.any()
    assert not run.projected[::2].any()


def test_what_was_spent_does_not_depend_on_the_batch(prices):
    one = tt.rollout(Drift(), Slow(), prices.at(150.0), range(1))
    many = tt.rollout(Drift(), Slow(), prices.at(150.0), range(67))
    assert torch.equal(one.projected[:, 0], many.projected[:, 0])
