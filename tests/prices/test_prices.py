"""Prices: what they promise on problems whose answer is known, and how they refuse what they cannot price."""

from __future__ import annotations

import pytest
import torch

import free
import trimtab as tt
from cases import Sphere, Walk
from price_cases import CALIBRATION, ZERO, Drift, mean_path_error
from trimtab.calibration.calibrate import METHODS
from trimtab.core.budget import corrections
from trimtab.core.noise import Noise

every_method = pytest.mark.parametrize("method", METHODS)


@every_method
def test_every_price_spends_exactly_its_budget_and_survives_its_file(method, tmp_path):
    price = free.calibrate(tt.Problem(Walk(), Sphere(), range(100, 116)), 0.75, method=method, objective="path")
    assert price.method == method
    assert price.seeds == tuple(range(100, 116))
    assert price.budget == 9
    price.save(tmp_path / "price.safetensors")
    again = type(price).load(tmp_path / "price.safetensors")
    for budget in (0, 1, 0.25, 0.5, 9):
        run = free.rollout(Walk(), Sphere(), price.at(budget), range(10))
        assert (run.spent == corrections(budget, 12)).all()
        assert torch.equal(free.rollout(Walk(), Sphere(), again.at(budget), range(10)).projected, run.projected)


@every_method
def test_every_price_is_deterministic(method):
    one, two = (
        free.calibrate(tt.Problem(Walk(), Sphere(), range(100, 116)), 0.5, method=method, objective="path")
        for _ in range(2)
    )
    run, other = (free.rollout(Walk(), Sphere(), price.at(0.5), range(10)) for price in (one, two))
    assert torch.equal(run.projected, other.projected)


@every_method
def test_every_price_serves_budgets_that_differ_by_sample(method):
    budgets = torch.tensor([0, 3, 9, 1])
    price = free.calibrate(tt.Problem(Walk(), Sphere(), range(100, 116)), 0.75, method=method, objective="path")
    together = free.rollout(Walk(), Sphere(), price.at(budgets), range(4))
    assert torch.equal(together.spent, budgets)
    for i, budget in enumerate(budgets.tolist()):
        alone = free.rollout(Walk(), Sphere(), price.at(budget), [i])
        assert torch.equal(alone.projected[:, 0], together.projected[:, i])


@every_method
def test_every_price_refuses_its_own_seeds_other_steps_and_larger_budgets(method):
    price = free.calibrate(tt.Problem(Walk(), Sphere(), range(100, 116)), 0.5, method=method, objective="path")
    with pytest.raises(ValueError, match="used to calibrate"):
        free.rollout(Walk(), Sphere(), price.at(0.5), [100])
    with pytest.raises(ValueError, match="T = 12 steps and cannot be used for T = 13"):
        free.rollout(Walk(n_steps=13), Sphere(), price.at(0.5), [1])
    with pytest.raises(ValueError, match="7"):
        price.at(7)


def test_the_papers_rule_loses_to_periodic_where_corrections_last():
    """The finding the dynamic program is there for; should it ever go away, the docs are wrong."""
    sampler = Drift(kappa=0.0)
    paper = free.calibrate(tt.Problem(sampler, ZERO, CALIBRATION), method="paper", objective="path").at(6)
    assert mean_path_error(paper, sampler) > 1.5 * mean_path_error(tt.Periodic(6), sampler)


def test_every_batch_that_was_run_is_counted():
    sampler, counted = Drift(0.3), []

    def run(schedule):
        counted.append(schedule)
        return free.rollout(sampler, ZERO, schedule, CALIBRATION)

    def distance(a, b):
        return (a - b).abs()[:, 0]

    for method in METHODS:
        before = len(counted)
        price = free.calibrate(run, method=method, objective="path")
        assert price.notes["batches"] == len(counted) - before
        assert price.notes["batches"] <= 20
    before = len(counted)
    price = free.calibrate(run, objective="endpoint", distance=distance, check=True)
    assert price.notes["batches"] == len(counted) - before <= 20


def test_a_loop_of_ones_own_is_calibrated_like_a_sampler_of_ours():
    sampler = Walk()
    seeds = torch.arange(100, 116)

    def run(schedule):
        corrector = free.Corrector(Sphere(), schedule, sampler.n_steps, seeds=seeds)
        x, noise = sampler.start(Noise(seeds)), Noise(seeds)
        for t in range(sampler.n_steps):
            x = corrector(sampler.step(x, t, noise), t)
        return corrector.rollout

    foreign = free.calibrate(run, 0.5, objective="path")
    ours = free.calibrate(tt.Problem(sampler, Sphere(), seeds), 0.5, objective="path")
    assert torch.equal(foreign.table, ours.table)


@every_method
def test_a_constant_defect_is_told(method):
    flat = tt.as_constraint(lambda x: x, lambda x: torch.ones(len(x), dtype=x.dtype))
    with pytest.warns(UserWarning, match="cannot tell one step from another"):
        price = free.calibrate(tt.Problem(Walk(), flat, range(100, 116)), 0.5, method=method, objective="path")
    assert (free.rollout(Walk(), flat, price.at(0.5), range(4)).spent == 6).all()


@pytest.mark.parametrize("method", ["dp", "planned"])
def test_too_few_rollouts_are_refused(method):
    with pytest.raises(ValueError, match="3 calibration rollouts are too few"):
        free.calibrate(tt.Problem(Walk(), Sphere(), range(3)), method=method, objective="path")


def test_unknown_methods_and_objectives_are_refused():
    with pytest.raises(ValueError, match="did you mean 'planned'"):
        free.calibrate(tt.Problem(Walk(), Sphere(), range(8)), method="plannd", objective="path")
    with pytest.raises(ValueError, match="did you mean 'endpoint'"):
        free.calibrate(tt.Problem(Walk(), Sphere(), range(8)), objective="endpoints")
    with pytest.raises(ValueError, match="prices path error only"):
        free.calibrate(tt.Problem(Walk(), Sphere(), range(8)), method="paper", objective="state")
    with pytest.raises(TypeError, match=r"calibrate\(Problem\(sampler, constraint, seeds\)\)"):
        free.calibrate(Walk())


def test_repeated_calibration_seeds_are_refused():
    with pytest.raises(ValueError, match=r"a calibration seed is repeated.*give each seed once"):
        free.calibrate(tt.Problem(Drift(0.3), ZERO, [7] * 16), objective="path")
