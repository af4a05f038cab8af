import pytest
import torch

import free
import trimtab as tt
from cases import allowance
from trimtab.core.noise import Noise, as_seeds
from trimtab_lab.domains import domain
from trimtab_lab.domains.reaction_flow.domain import given_conditions
from trimtab_lab.domains.reaction_flow.equation import CELLS, TIMES, solve
from trimtab_lab.domains.reaction_flow.train import solution_error

STEPS = 4
NOTHING = tt.as_constraint(lambda x: x, lambda x: x.new_zeros(len(x)))


def run(target, schedule, seeds=range(3), constraint=None, steps=STEPS):
    problem = domain("reaction-flow", n_steps=steps, target=target).problem(seeds)
    return free.rollout(problem.sampler, constraint or problem.constraint, schedule, seeds)


def test_without_corrections_the_pair_follows_the_same_euler_steps():
    clean = run("clean", tt.Terminal(), constraint=NOTHING).final
    state = run("state", tt.Terminal(), constraint=NOTHING).final
    assert clean.shape == (3, 2, TIMES, CELLS)
    # the same numbers in another order of operations, in single precision
    torch.testing.assert_close(clean[:, 0], state, rtol=0, atol=1e-4)


@pytest.mark.parametrize("target", ["clean", "state"])
@pytest.mark.parametrize("schedule", [tt.Terminal(), tt.Stepwise(), tt.Periodic(2)])
def test_every_rollout_ends_with_its_own_profile_and_balance(target, schedule):
    done = run(target, schedule)
    problem = domain("reaction-flow", n_steps=STEPS, target=target).problem(range(3))
    assert problem.constraint.defect(done.final).max() < 1e-5
    field = done.final[:, 0] if target == "clean" else done.final
    torch.testing.assert_close(field[:, 0], given_conditions(range(3))[0].initial.float(), rtol=0, atol=1e-6)
    assert not done.failed.any()
    assert not done.closing_failed.any()


def test_a_sample_does_not_depend_on_its_batch():
    bare, one = (run("clean", tt.Terminal(), seeds, constraint=NOTHING).final for seeds in ([5, 6, 7], [6]))
    together, alone = run("clean", tt.Stepwise(), [5, 6, 7]), run("clean", tt.Stepwise(), [6])
    allowed = allowance(bare[1], one[0])
    torch.testing.assert_close(together.final[1], alone.final[0], rtol=0, atol=allowed)
    assert (together.final[0] - together.final[1]).abs().max() > 10 * allowed


def test_a_correction_changes_the_clean_field_and_keeps_the_noise():
    problem = domain("reaction-flow", n_steps=STEPS).problem(range(2))
    noise = Noise(as_seeds(range(2)), torch.float32)
    x = problem.sampler.step(problem.sampler.start(noise), 0, noise)
    projected = problem.constraint.project(x).x
    assert torch.equal(projected[:, 1], x[:, 1])
    assert not torch.equal(projected[:, 0], x[:, 0])


def test_thresholds_fit_other_seeds_of_the_same_problem_only():
    seeds = range(100, 104)
    problem = domain("reaction-flow", n_steps=STEPS).problem(seeds)
    prices = free.calibrate(problem, budget=2, method="paper", objective="path")
    spent = run("clean", tt.prices.Adaptive(prices)).spent
    assert (spent == 2).all()


def test_the_error_of_a_solution_is_the_distance_to_the_nearest_tried():
    conditions, _ = given_conditions(range(3))
    low = torch.full((3,), 0.005, dtype=torch.float64)
    assert solution_error(solve(conditions, low), conditions, count=2).max() == 0
    shifted = solve(conditions, low) + 0.25
    assert solution_error(shifted, conditions, count=1).tolist() == pytest.approx([0.25] * 3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_steps": 0}, "at least 1"),
        ({"n_steps": 2.5}, "whole number"),
        ({"tolerance": -1.0}, "above 0"),
        ({"target": "cleen"}, "did you mean 'clean'"),
    ],
)
def test_bad_settings_are_explained(settings, message):
    with pytest.raises((TypeError, ValueError), match=message):
        domain("reaction-flow", **settings)


@pytest.mark.parametrize("shape", [(3,), (3, TIMES, CELLS), (3, 1, TIMES, CELLS), (3, 2, TIMES, CELLS - 1)])
def test_states_of_another_shape_are_refused(shape):
    constraint = domain("reaction-flow", n_steps=STEPS).problem(range(3)).constraint
    for call in (constraint.project, constraint.defect, constraint.improve):
        with pytest.raises(ValueError, match=rf"CleanBalance takes states of shape \(n, 2, {TIMES}, {CELLS}\).*: got"):
            call(torch.zeros(shape))
        with pytest.raises(TypeError, match="takes states as a torch tensor"):
            call([0.0])
