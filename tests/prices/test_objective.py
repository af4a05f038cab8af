"""What prices are meant to lower: the measured weights, and that they help on what they were made for."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import free
import trimtab as tt
from trimtab.core.metrics import endpoint_distance, state_error
from trimtab.core.noise import Noise
from trimtab.prices.objective import SkipWindow, describe, objective_weights, residual_weights, smooth_ratio
from trimtab.schedules import Stepwise

CALIBRATION, EVALUATION = range(1000, 1064), range(256)
T = 40


@dataclass(frozen=True)
class Leak:
    """A height that should be 0, and a place that it leaks into: late heights alone last to the end."""

    n_steps: int = T

    def start(self, noise: Noise) -> torch.Tensor:
        return torch.zeros(len(noise.seeds), 2, dtype=torch.float64)

    def step(self, x: torch.Tensor, t: int, noise: Noise) -> torch.Tensor:
        height, place = x.unbind(1)
        return torch.stack([0.5 * height - noise.uniform(t, ()).log(), 0.8 * place + height], dim=1)


FLAT = tt.as_constraint(lambda x: x * x.new_tensor([0.0, 1.0]), lambda x: x[:, 0].abs())


def distance(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a[:, 1] - b[:, 1]).abs()


def run(schedule):
    return free.rollout(Leak(), FLAT, schedule, CALIBRATION, keep_states=True)


def test_a_window_is_skipped_and_nothing_else():
    projected = free.rollout(Leak(), FLAT, SkipWindow(torch.tensor([0, 7, 38]), 2), range(3)).projected
    assert [(~column).nonzero().squeeze(1).tolist() for column in projected.unbind(1)] == [[0, 1], [7, 8], [38, 39]]


def test_path_error_needs_no_weights():
    assert residual_weights("path", run, distance, lambda: run(Stepwise())) is None


def test_endpoint_weights_follow_what_lasts_to_the_end():
    """A height of 1 at step t moves the place by 1 at t + 1, of which 0.8 ** (T - 2 - t) is left at the end."""
    weights = residual_weights("endpoint", run, distance, lambda: run(Stepwise()), batches=4)
    assert weights is not None
    truth = 0.8 ** (T - 2 - torch.arange(T, dtype=torch.float64))
    truth[-1] = 0.0  # the last height leaks nowhere
    middle = torch.arange(24, 34)  # where neither smoothing nor the ends matter much
    assert torch.allclose(weights[middle].log(), truth[middle].log(), atol=0.9)
    assert (weights[:10] < 0.1 * weights[middle].mean()).all()


def test_state_weights_follow_how_long_an_error_is_felt():
    weights = residual_weights("state", run, distance, lambda: run(Stepwise()), batches=4)
    assert weights is not None
    assert (weights[:20] / 5.0 - 1).abs().max() < 0.25  # 1 + 0.8 + 0.64 + … = 5
    assert weights[-1] < 0.6 * weights[0]


def test_a_mix_adds_up():
    parts = {name: residual_weights(name, run, distance, lambda: run(Stepwise())) for name in ("state", "endpoint")}
    mixed = residual_weights({"path": 2.0, "state": 0.5, "endpoint": 3.0}, run, distance, lambda: run(Stepwise()))
    assert torch.allclose(mixed, 2.0 + 0.5 * parts["state"] + 3.0 * parts["endpoint"])


@pytest.mark.parametrize("method", ["dp", "planned"])
@pytest.mark.parametrize("objective", ["endpoint", "state"])
def test_a_price_lowers_what_it_was_made_for(method, objective):
    def errors(objective, budget):
        price = free.calibrate(
            tt.Problem(Leak(), FLAT, CALIBRATION), 0.5, method, objective=objective, distance=distance
        )
        assert price.objective == objective
        ours = free.rollout(Leak(), FLAT, price.at(budget), EVALUATION, keep_states=True)
        return {
            "endpoint": float(endpoint_distance(ours, stepwise, distance).mean()),
            "state": float(state_error(ours, stepwise, distance).mean()),
        }

    stepwise = free.rollout(Leak(), FLAT, tt.Stepwise(), EVALUATION, keep_states=True)
    made_for_it, made_for_path = (errors(name, 0.25)[objective] for name in (objective, "path"))
    # the end is decided by the last steps, where the path's price spends no more than elsewhere
    assert made_for_it < (0.5 if objective == "endpoint" else 1.02) * made_for_path


def test_a_ratio_that_is_known_is_kept_and_one_that_is_not_becomes_a_constant():
    generator = torch.Generator().manual_seed(0)
    steps = torch.rand(256, generator=generator, dtype=torch.float64) * 100
    causes = 1 + torch.rand(256, generator=generator, dtype=torch.float64)
    known = smooth_ratio(steps, causes, causes * (1 + steps / 50), 100)
    assert float(known[80] / known[20]) == pytest.approx(2.6 / 1.4, rel=0.05)
    rare = torch.zeros(256, dtype=torch.float64)
    rare[:2] = 50.0
    unknown = smooth_ratio(steps, causes, rare, 100)
    assert float(unknown.max() / unknown.min()) < 1.5


@given(st.integers(1, 60), st.integers(1, 40), st.integers(0, 2**30))
def test_ratios_are_positive_and_finite(n_steps, m, seed):
    generator = torch.Generator().manual_seed(seed)
    steps = torch.rand(m, generator=generator, dtype=torch.float64) * n_steps
    causes, effects = torch.rand(2, m, generator=generator, dtype=torch.float64) + 1e-6
    ratio = smooth_ratio(steps, causes, effects, n_steps)
    assert ratio.shape == (n_steps,)
    assert ratio.isfinite().all()
    assert (ratio > 0).all()


@pytest.mark.parametrize("cause", [0.0, -1e-17, 1e-200])
@pytest.mark.parametrize("effect", [0.0, 1e-8])
def test_where_nothing_was_added_every_step_counts_the_same(cause, effect):
    steps = torch.arange(20, dtype=torch.float64)
    causes, effects = torch.full((2, 20), cause, dtype=torch.float64)
    assert torch.equal(smooth_ratio(steps, causes, effects + effect, 20), torch.ones(20, dtype=torch.float64))


@pytest.mark.parametrize("method", ["planned", "dp"])
def test_a_sampler_that_is_feasible_by_itself_can_be_calibrated(method):
    everywhere = tt.as_constraint(lambda x: x, lambda x: torch.zeros(len(x)))
    with pytest.warns(UserWarning, match="the defect is 0 at every step"):
        price = tt.calibrate(tt.Problem(Leak(), everywhere, CALIBRATION), method=method)
    run = tt.rollout(Leak(), everywhere, price.at(0.25), range(4))
    assert run.spent.tolist() == [10] * 4


def test_what_has_no_weight_is_no_part_of_a_mix():
    mix = {"path": 1, "endpoint": 0, "state": 0.0}
    assert objective_weights(mix) == {"path": 1.0}
    assert describe(mix) == "path"
    assert residual_weights(mix, run, distance, lambda: run(Stepwise())) is None
    problem = tt.Problem(Leak(), FLAT, CALIBRATION)
    assert tt.calibrate(problem, method="paper", objective=mix).objective == "path"  # it prices path error alone
    with pytest.raises(ValueError, match="unknown objective 'paths'"):
        objective_weights({"path": 1, "paths": 0})


def test_mixes_are_checked_and_described():
    assert describe({"path": 1, "endpoint": 2}) == "1 path + 2 endpoint"
    for bad in ({}, {"path": 0.0}, {"path": -1.0}, {"path": float("nan")}):
        with pytest.raises(ValueError, match="weight"):
            objective_weights(bad)
    for no_number in ("1.0", None, True):
        with pytest.raises(TypeError, match="the weight of 'path' in an objective must be a number"):
            objective_weights({"path": no_number})
    with pytest.raises(ValueError, match="unknown objective 'paths'; did you mean 'path'"):
        objective_weights({"paths": "1.0"})
