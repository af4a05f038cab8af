"""Laws of the obstacle constraint: what its defect means and what its projections keep."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from obstacle_cases import MAPS, SIGMAS, distance, free_points, proposals
from trimtab.core.bound_constraint import checked_projection
from trimtab.core.constraint import Constraint
from trimtab_lab.obstacles import AvoidObstacles, Obstacles, scattered_circles
from trimtab_lab.obstacles.geometry import contacts, gaps, penetration
from trimtab_lab.obstacles.roadmap import route

FACTS = Path(__file__).parents[3] / "shared" / "pdm" / "facts.json"


# ---------------------------------------------------------------- geometry

coordinate = st.floats(-2, 2, allow_nan=False, width=32)


@settings(max_examples=60)
@given(st.tuples(coordinate, coordinate, coordinate, coordinate), st.booleans())
def test_penetration_is_the_shortest_move_out(ends: tuple[float, ...], is_box: bool) -> None:
    obstacles = (
        Obstacles(torch.zeros(0, 3).double(), torch.tensor([[-0.5, -0.3, 0.4, 0.6]]).double())
        if is_box
        else Obstacles(torch.tensor([[0.1, -0.2, 0.5]]).double())
    )
    a, b = torch.tensor(ends, dtype=torch.float64).view(2, 2, 1)
    depth = float(penetration(obstacles, a, b))
    turn = torch.linspace(0, 2 * math.pi, 1441, dtype=torch.float64)
    directions = torch.stack([turn.cos(), turn.sin()])
    # Dense points of the segment, moved out by slightly more than the depth in the best direction, are all outside.
    inside = 0.0 if depth == 0 else depth + 1e-5
    moved_a, moved_b = a + inside * directions, b + inside * directions
    assert float(penetration(obstacles, moved_a, moved_b).min()) <= 1e-5
    # No shorter move, in any direction, takes it out.
    if depth > 1e-3:
        short = depth * 0.98
        assert float(penetration(obstacles, a + short * directions, b + short * directions).min()) > 0
    s = torch.linspace(0, 1, 401, dtype=torch.float64)
    points = a + (b - a) * s
    touching = float(gaps(obstacles, points, points).min()) < -1e-9
    assert not touching or depth > 0


@settings(max_examples=60)
@given(st.tuples(coordinate, coordinate, coordinate, coordinate), st.integers(0, 1))
def test_half_plane_of_a_contact_has_the_gap_as_slack(ends: tuple[float, ...], which: int) -> None:
    obstacles = Obstacles(torch.tensor([[0.1, -0.2, 0.5]]).double(), torch.tensor([[-0.5, -0.3, 0.4, 0.6]]).double())
    a, b = torch.tensor(ends, dtype=torch.float64).view(2, 2, 1)
    c = contacts(obstacles, torch.tensor([which]), a, b)
    p = (1 - c.t) * a + c.t * b
    torch.testing.assert_close(c.nx * p[0] + c.ny * p[1] - c.edge, c.gap, atol=1e-6, rtol=0)
    torch.testing.assert_close(c.nx**2 + c.ny**2, torch.ones(1).double(), atol=1e-6, rtol=0)
    torch.testing.assert_close(c.gap, gaps(obstacles, a, b)[which], atol=1e-9, rtol=0)


def test_a_segment_through_a_centre_and_a_point_have_a_direction() -> None:
    obstacles = Obstacles(torch.tensor([[0.0, 0.0, 0.5]]).double())
    a = torch.tensor([[-1.0, 0.0], [0.0, 0.0]]).double()
    b = torch.tensor([[1.0, 0.0], [0.0, 0.0]]).double()
    c = contacts(obstacles, torch.tensor([0, 0]), a, b)
    torch.testing.assert_close(c.gap, torch.full((2,), -0.5).double())
    torch.testing.assert_close(c.nx**2 + c.ny**2, torch.ones(2).double())


def test_defect_adds_up_depths_and_is_zero_off_obstacles() -> None:
    obstacles = Obstacles(torch.tensor([[0.0, 0.0, 0.3], [0.0, 0.1, 0.2]]).double())
    x = torch.tensor([[[-0.9, 0.9], [0.1, 0.1]], [[-0.9, 0.9], [0.9, 0.9]]]).double()
    avoid = AvoidObstacles(obstacles, x[:, :, 0], x[:, :, -1])
    torch.testing.assert_close(avoid.defect(x), torch.tensor([0.2 + 0.2, 0.0]).double())
    torch.testing.assert_close(avoid.violation(x), torch.tensor([0.2, 0.0]).double())
    assert avoid.free(x).tolist() == [False, True]


def test_outside_does_not_count_and_is_corrected() -> None:
    x = torch.tensor([[[0.0, 1.3, 0.0], [0.0, 1.4, 0.0]]]).double()
    nothing = Obstacles(torch.zeros(0, 3))
    ends = {"start": x[:, :, 0], "goal": x[:, :, -1]}
    avoid = AvoidObstacles(nothing, **ends)
    assert float(avoid.defect(x)) == 0
    torch.testing.assert_close(avoid.project(x).x, x.clamp(-1, 1))


# ---------------------------------------------------------------- laws of the projection


@pytest.mark.parametrize("name", list(MAPS))
@pytest.mark.parametrize("level", range(10))
def test_projection_is_free_and_keeps_what_it_must(name: str, level: int) -> None:
    x, avoid = proposals(MAPS[name], 16, SIGMAS[level], seed=level)
    answer = checked_projection(avoid, x)
    assert answer.converged is not None
    assert bool(answer.converged.all())
    assert float(avoid.violation(answer.x).max()) <= avoid.tolerance
    assert torch.equal(answer.x[:, :2, 0], avoid.start)
    assert torch.equal(answer.x[:, :2, -1], avoid.goal)
    assert torch.equal(answer.x[:, 2:], x[:, 2:])
    assert float(answer.x[:, :2].abs().max()) <= 1
    again = avoid.project(answer.x)
    assert float(distance(again.x, answer.x).max()) <= avoid.tolerance


def test_a_free_trajectory_comes_back_as_it_was() -> None:
    x, avoid = proposals(MAPS["circles"], 16, 0.02, seed=11)
    free = avoid.project(x).x
    assert torch.equal(avoid.project(free).x, free)


@settings(max_examples=25)
@given(st.integers(0, 10_000), st.sampled_from([3, 8, 33]), st.sampled_from(list(MAPS)))
def test_projection_of_anything_is_finite_and_free(seed: int, waypoints: int, name: str) -> None:
    obstacles = MAPS[name]
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(4, 2, waypoints, generator=g) * torch.rand(4, 1, 1, generator=g) * 3
    x[0] = 0  # every segment of length 0
    start, goal = free_points(obstacles, 4, g), free_points(obstacles, 4, g)
    if waypoints == 3:  # two segments may not be enough to get round everything: begin and end in one place
        goal = start
    avoid = AvoidObstacles(obstacles, start, goal)
    answer = avoid.project(x)
    assert bool(answer.x.isfinite().all())
    assert answer.converged is not None
    assert torch.equal(answer.converged, avoid.free(answer.x))
    assert bool(answer.converged.all())


def test_the_way_round_one_disc_is_the_known_nearest() -> None:
    """One inner waypoint inside a disc goes to the nearest point of the circle if its segments allow it."""
    disc = Obstacles(torch.tensor([[0.0, 0.0, 0.3]]).double())
    x = torch.tensor([[[0.0, 0.05, 0.0], [0.9, 0.1, 0.9]]]).double()
    answer = AvoidObstacles(disc, x[:, :, 0], x[:, :, -1]).project(x)
    nearest = torch.tensor([0.05, 0.1]).double()
    nearest = 0.3 * nearest / nearest.norm()
    torch.testing.assert_close(answer.x[0, :, 1], nearest, atol=0.02, rtol=0)
    known = (nearest - x[0, :, 1]).norm()
    torch.testing.assert_close(distance(answer.x, x)[0], known, atol=1e-3, rtol=0.01)


def test_batch_of_nothing_and_two_waypoints() -> None:
    avoid = AvoidObstacles(MAPS["circles"], torch.zeros(0, 2), torch.zeros(0, 2))
    assert avoid.project(torch.zeros(0, 2, 8)).x.shape == (0, 2, 8)
    blocked = Obstacles(torch.tensor([[0.0, 0.0, 0.3]]))
    two = AvoidObstacles(blocked, torch.tensor([-0.9, 0.0]), torch.tensor([0.9, 0.0]))
    answer = two.project(torch.tensor([[[-0.9, 0.9], [0.0, 0.0]]]))
    assert answer.converged is not None
    assert answer.converged.tolist() == [False]


def test_float32_in_float32_out_and_the_shared_start_follows_any_batch() -> None:
    avoid = AvoidObstacles(MAPS["circles"], torch.tensor([-0.9, -0.9]), torch.tensor([0.9, 0.9]))
    assert isinstance(avoid, Constraint)
    x = torch.rand(5, 2, 32, generator=torch.Generator().manual_seed(0)) * 2 - 1
    answer = avoid.take(torch.arange(5)).project(x)
    assert answer.x.dtype == torch.float32
    assert bool(avoid.free(answer.x).all())
    assert answer.x[:, :, 0].tolist() == torch.tensor([-0.9, -0.9]).expand(5, 2).tolist()


# ---------------------------------------------------------------- what cannot be done


def test_a_closed_map_is_reported_not_chased() -> None:
    wall = torch.stack([torch.zeros(21), torch.linspace(-1, 1, 21), torch.full((21,), 0.08)], dim=1)
    avoid = AvoidObstacles(
        Obstacles(wall), torch.tensor([[-0.9, 0.0], [-0.9, 0.0]]), torch.tensor([[0.9, 0.0], [-0.5, 0.5]])
    )
    t = torch.linspace(0, 1, 32)
    x = avoid.start[:, :, None] * (1 - t) + avoid.goal[:, :, None] * t
    answer = avoid.project(x)
    assert answer.converged is not None
    assert answer.converged.tolist() == [False, True]
    assert bool(answer.x.isfinite().all())


def test_a_proposal_that_is_not_finite_fails_alone() -> None:
    x, avoid = proposals(MAPS["circles"], 4, 0.1, seed=2)
    want = avoid.project(x)
    bad = x.clone()
    bad[1, 0, 5], bad[2, 1, 9] = torch.nan, torch.inf
    answer = avoid.project(bad)
    assert answer.converged is not None
    assert answer.converged.tolist() == [True, False, False, True]
    torch.testing.assert_close(answer.x[[0, 3]], want.x[[0, 3]], atol=1e-9, rtol=0)
    huge = x * 1e30
    huge[:, :2, 0], huge[:, :2, -1] = x[:, :2, 0], x[:, :2, -1]
    assert bool(avoid.project(huge.clamp(-3e38, 3e38).float()).x[:, :2].isfinite().all())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"start": torch.tensor([[0.0, 0.0], [0.9, 0.9]])}, r"start is inside an obstacle for sample 0 .*circle 0"),
        ({"goal": torch.tensor([[0.9, 0.9], [0.5, 0.5]])}, r"goal is inside an obstacle for sample 1 .*box 0"),
        ({"start": torch.tensor([[1.2, 0.0], [0.9, 0.9]])}, r"start must be in \[-1, 1\]².*sample 0"),
        ({"start": torch.tensor([[math.nan, 0.0], [0.9, 0.9]])}, r"start must be in"),
        ({"start": torch.zeros(3, 2)}, "the same shape"),
        ({"start": torch.zeros(2, 3), "goal": torch.zeros(2, 3)}, r"\(n, 2\) or \(2,\)"),
        ({"backend": "batchd"}, "did you mean 'batched'"),
        ({"tolerance": 0.0}, "tolerance must be a finite number above 0"),
    ],
)
def test_bad_arguments_are_named(change: dict[str, object], message: str) -> None:
    arguments: dict[str, object] = {
        "obstacles": Obstacles(torch.tensor([[0.0, 0.0, 0.3]]), torch.tensor([[0.4, 0.4, 0.6, 0.6]])),
        "start": torch.tensor([[-0.9, 0.9], [0.9, 0.9]]),
        "goal": torch.tensor([[0.9, -0.9], [-0.9, -0.9]]),
    }
    with pytest.raises(ValueError, match=message):
        AvoidObstacles(**(arguments | change))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("circles", "boxes", "message"),
    [
        (torch.zeros(2, 2), torch.zeros(0, 4), r"circles must be .*\(m, 3\)"),
        (torch.tensor([[0.0, 0.0, -1.0]]), torch.zeros(0, 4), "radius above 0"),
        (torch.tensor([[0.0, math.inf, 1.0]]), torch.zeros(0, 4), "finite"),
        (torch.zeros(0, 3), torch.tensor([[0.0, 0.0, -1.0, 1.0]]), "xmin < xmax"),
    ],
)
def test_bad_obstacles_are_named(circles: Tensor, boxes: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Obstacles(circles, boxes)


def test_bad_states_are_named() -> None:
    x, avoid = proposals(MAPS["circles"], 4, 0.1, seed=2)
    with pytest.raises(ValueError, match=r"4 samples but was given 3 .*take"):
        avoid.project(x[:3])
    with pytest.raises(ValueError, match=r"\(n, C, W\)"):
        avoid.defect(x[:, 0])
    nothing = AvoidObstacles(Obstacles(torch.zeros(0, 3)), torch.zeros(2), torch.ones(2))
    for call in (nothing.defect, nothing.violation, nothing.free):
        with pytest.raises(ValueError, match=r"\(n, C, W\)"):
            call(torch.zeros(3))


def test_a_map_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        scattered_circles(500, seed=0)


@pytest.mark.parametrize("count", [2.5, "3", True, -1])
def test_a_number_of_circles_that_cannot_be_is_refused_before_any_is_drawn(count: object) -> None:
    with pytest.raises((TypeError, ValueError), match=r"the count of circles must be a whole number.*: got"):
        scattered_circles(count, seed=0)  # type: ignore[arg-type]


# ---------------------------------------------------------------- roadmap


@pytest.mark.parametrize("name", list(MAPS))
def test_a_route_is_free_at_any_noise(name: str) -> None:
    for sigma in (5.0, 0.3):
        x, avoid = proposals(MAPS[name], 8, sigma, seed=4, dtype=torch.float32)
        path, found = route(avoid.obstacles, x[:, :2].transpose(0, 1))
        assert bool(found.all())
        assert float(avoid.violation(path.transpose(0, 1)).max()) == 0


def test_a_map_without_a_free_point_of_the_roadmap_fails_its_samples_only() -> None:
    walls = [[-1.1, -1.1, 0.53, 1.1], [0.59, -1.1, 1.1, 1.1], [0.5, -1.1, 0.8, 0.53], [0.0, 0.59, 0.7, 1.1]]
    chamber = Obstacles(torch.zeros(0, 3), torch.tensor(walls))  # smaller than the grid of points
    avoid = AvoidObstacles(chamber, torch.tensor([0.55, 0.56]), torch.tensor([0.57, 0.56]))
    answer = avoid.project(torch.stack([torch.full((2, 6), -0.9), torch.full((2, 6), 0.56)]))
    assert answer.converged.tolist() == [False, True]


# ---------------------------------------------------------------- the public map


@pytest.mark.skipif(not FACTS.exists(), reason="the facts about the public sampler are not beside this checkout")
def test_every_noise_level_of_the_public_map_is_solved() -> None:
    known = json.loads(FACTS.read_text())["circles"]
    circles = torch.tensor([[c["x"], c["y"], c["r"]] for part in known.values() for c in part])
    for level, sigma in enumerate(SIGMAS):
        x, avoid = proposals(Obstacles(circles), 32, sigma, seed=100 + level, dtype=torch.float32)
        answer = avoid.project(x)
        assert answer.converged is not None
        assert bool(answer.converged.all())
        assert float(avoid.violation(answer.x).max()) <= 1e-3


def test_a_search_that_settles_sooner_takes_fewer_rounds() -> None:
    x, avoid = proposals(MAPS["circles"], 8, 0.15, seed=31)
    sooner = AvoidObstacles(avoid.obstacles, avoid.start, avoid.goal, settled=0.5).project(x)
    assert int(sooner.iterations.sum()) < int(avoid.project(x).iterations.sum())
    assert bool(sooner.converged.all())
