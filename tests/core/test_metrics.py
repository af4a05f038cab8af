from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import free
import trimtab as tt
from cases import Sphere, Walk
from trimtab.core import metrics


def distance(x, y):
    return (x - y).norm(dim=1)


@pytest.fixture(scope="module")
def runs():
    schedules = {"step": tt.Stepwise(), "term": tt.Terminal(), "periodic": tt.Periodic(4)}
    return {k: free.rollout(Walk(), Sphere(), s, range(6), keep_states=True) for k, s in schedules.items()}


def test_errors_are_sums_over_the_path(runs):
    run, step = runs["periodic"], runs["step"]
    assert torch.allclose(metrics.path_error(run), run.residuals.sum(dim=0), rtol=1e-14)
    assert torch.equal(metrics.endpoint_distance(run, step, distance), distance(run.final, step.final))
    by_hand = sum(distance(run.states[t], step.states[t]) for t in range(1, 13))
    assert torch.allclose(metrics.state_error(run, step, distance), by_hand, atol=1e-14)


def test_distances_are_euclidean_unless_another_is_given(runs):
    run, step = runs["periodic"], runs["step"]
    assert torch.equal(metrics.endpoint_distance(run, step), metrics.endpoint_distance(run, step, metrics.euclidean))
    assert torch.equal(metrics.state_error(run, step), metrics.state_error(run, step, metrics.euclidean))
    poses = torch.arange(12.0).reshape(2, 3, 2)
    assert torch.equal(metrics.euclidean(poses, torch.zeros_like(poses)), poses.flatten(1).norm(dim=1))


def test_distances_of_trees_add_up_their_squares(runs):
    a = {"x": torch.tensor([[3.0], [0.0]]), "y": np.array([4.0, 2.0])}
    b = {"x": torch.zeros(2, 1), "y": np.zeros(2)}
    assert metrics.euclidean(a, b).tolist() == [5.0, 2.0]
    run, step = (
        replace(r, final=(r.final[:, :1], r.final[:, 1:]), states=(r.states[..., :1], r.states[..., 1:]))
        for r in (runs["periodic"], runs["step"])
    )
    for measure in (metrics.endpoint_distance, metrics.state_error):
        assert torch.allclose(measure(run, step), measure(runs["periodic"], runs["step"]), rtol=1e-14)


@pytest.mark.parametrize(
    ("other", "got"),
    [
        (torch.zeros(2, 2, dtype=torch.float64), "dtype: got .*float32.* and .*float64"),
        (np.zeros((2, 2), dtype=np.float32), "got Tensor of the state .* and ndarray of the state"),
        ({"x": torch.zeros(2, 2)}, "got Tensor of the state .* and dict of x"),
        (torch.zeros(2, 3), r"shape .* got .*\(2, 2\).* and .*\(2, 3\)"),
    ],
)
def test_states_of_another_form_have_no_distance_and_there_is_no_step_to_speak_of(other, got):
    with pytest.raises((TypeError, ValueError), match=got):
        metrics.euclidean(torch.zeros(2, 2), other)


def test_a_path_without_its_initial_state_has_the_same_error(runs):
    run, step = runs["periodic"], runs["step"]
    shorter = replace(run, states=run.states[1:])
    assert torch.equal(metrics.state_error(shorter, step), metrics.state_error(run, step))


def test_sums_over_the_path_do_not_depend_on_the_batch():
    seeds = torch.arange(33)
    whole = metrics.path_error(free.rollout(Walk(n_steps=101), Sphere(), tt.Periodic(9), seeds))
    for rows in (seeds[:1], seeds[5:7], seeds[3:20]):
        part = free.rollout(Walk(n_steps=101), Sphere(), tt.Periodic(9), rows)
        torch.testing.assert_close(metrics.path_error(part), whole[rows], rtol=1e-9, atol=1e-12)


def test_nepe_is_0_for_stepwise_and_1_for_terminal(runs):
    path = {name: metrics.path_error(run) for name, run in runs.items()}
    assert (metrics.nepe(path["step"], path["step"], path["term"]) == 0).all()
    assert (metrics.nepe(path["term"], path["step"], path["term"]) == 1).all()
    values = metrics.nepe(path["periodic"], path["step"], path["term"])
    assert ((values > 0) & (values < 1)).any()


def test_degenerate_rollouts_are_marked_left_out_and_counted():
    values = metrics.nepe(torch.tensor([1.0, 1.0]), torch.tensor([0.5, 0.5]), torch.tensor([0.5 + 1e-12, 1.5]))
    assert values.isnan().tolist() == [True, False]


def test_where_terminal_is_lower_than_stepwise_there_is_no_scale():
    values = metrics.nepe(torch.tensor([2.0]), torch.tensor([3.0]), torch.tensor([1.0]))
    assert values.isnan().all()


def test_top_mass():
    defects = torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [4.0, 0.0, 0.0]])
    top = metrics.top_mass(defects, 0.2)
    assert top[:2].tolist() == [0.5, 1.0]
    assert top[2].isnan()
    assert metrics.top_mass(torch.ones(15, 1), 0.2).item() == pytest.approx(3 / 15)
    with pytest.raises(ValueError, match=r"q must be in \(0, 1\]"):
        metrics.top_mass(defects, 0.0)


def test_unpaired_rollouts_are_refused(runs):
    other = free.rollout(Walk(), Sphere(), tt.Stepwise(), range(1, 7))
    with pytest.raises(ValueError, match="have the same seeds"):
        metrics.endpoint_distance(runs["periodic"], other, distance)
    with pytest.raises(ValueError, match="keep_states=True"):
        metrics.state_error(runs["periodic"], free.rollout(Walk(), Sphere(), tt.Stepwise(), range(6)), distance)
    longer = free.rollout(Walk(20), Sphere(), tt.Stepwise(), range(6), keep_states=True)
    with pytest.raises(ValueError, match="step by step: got 12 and 20 steps"):  # the last 12 of 20 are other steps
        metrics.state_error(runs["periodic"], longer)
    metrics.endpoint_distance(runs["periodic"], longer)
    with pytest.raises(ValueError, match="same shape"):
        metrics.endpoint_distance(runs["periodic"], free.rollout(Walk(), Sphere(), tt.Stepwise(), range(3)), distance)


def test_aligned_distances_do_not_see_how_points_are_turned_and_moved():
    generator = torch.Generator().manual_seed(3)
    a, b = torch.randn(2, 12, 7, 3, generator=generator, dtype=torch.float64)
    turn, _ = torch.linalg.qr(torch.randn(12, 3, 3, generator=generator, dtype=torch.float64))
    turn = turn * torch.linalg.det(turn)[:, None, None].sign()
    shift = torch.randn(12, 1, 3, generator=generator, dtype=torch.float64)
    near = metrics.aligned(a, b)
    torch.testing.assert_close(metrics.aligned(a @ turn + shift, b), near)
    assert bool((near <= metrics.euclidean(a, b) / 7**0.5 + 1e-12).all())
    Rotation = pytest.importorskip("scipy.spatial.transform").Rotation
    for one, two, found in zip(a, b, near.tolist(), strict=True):
        _, root = Rotation.align_vectors(one - one.mean(dim=0), two - two.mean(dim=0))
        assert found == pytest.approx(root / 7**0.5, abs=1e-9)
    with pytest.raises(ValueError, match="same shape"):
        metrics.aligned(a, b[:, :5])
