"""Maps, the planner, data and training."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.cli.main import main
from trimtab.core.noise import Noise, as_seeds
from trimtab_lab.domains.pdm.domain import trajectory_quality
from trimtab_lab.domains.pdm.planner import (
    clearance,
    extra_circles,
    free_fraction,
    hits,
    plan,
    random_map,
    resample,
    rrt_connect,
    shipped_map,
    shipped_maps,
    start_goal_pairs,
    states_from_positions,
    timing,
)
from trimtab_lab.domains.pdm.train import (
    Trajectories,
    draw_batch,
    load_data,
    make_data,
    train,
)


def sampled_clearance(positions: torch.Tensor, circles: torch.Tensor) -> torch.Tensor:
    """Clearance of densely sampled segments, (n,): what the exact tests are checked against."""
    share = torch.linspace(0, 1, 201, dtype=positions.dtype)[:, None]
    a, b = positions[:, :-1, None], positions[:, 1:, None]
    points = (a + share * (b - a)).flatten(1, 2)
    return clearance(points, circles).amin(dim=1)


# ------------------------------------------------------------------ maps


@settings(max_examples=15)
@given(st.integers(0, 10**6))
def test_maps_leave_gaps(seed: int) -> None:
    circles = random_map(seed)
    assert torch.equal(circles, random_map(seed))
    apart = torch.cdist(circles[:, :2], circles[:, :2]) - circles[:, 2] - circles[:, 2:]
    apart.fill_diagonal_(torch.inf)
    assert circles.shape == (16, 3)
    assert apart.min() >= 0.14
    assert circles[:, :2].abs().max() <= 0.95


def test_shipped_maps_differ_and_wrong_ones_are_refused() -> None:
    maps = shipped_maps()
    assert maps.shape == (4, 16, 3)
    assert len(maps.unique(dim=0)) == 4
    with pytest.raises(ValueError, match="0 to 3"):
        shipped_map(4)
    with pytest.raises(ValueError, match="fewer or smaller"):
        random_map(0, count=60)
    with pytest.raises(ValueError, match="radius must be"):
        random_map(0, radius=(0.2, 0.1))


@settings(max_examples=10)
@given(st.integers(0, 3), st.integers(0, 10**6))
def test_extra_circles_stand_in_free_space(index: int, seed: int) -> None:
    circles = shipped_map(index)
    extra = extra_circles(circles, seed, count=4)
    everything = torch.cat([circles, extra])
    apart = torch.cdist(everything[:, :2], everything[:, :2]) - everything[:, 2] - everything[:, 2:]
    apart.fill_diagonal_(torch.inf)
    assert extra.shape == (4, 3)
    assert apart.min() >= 0.1
    start_goal_pairs(range(3), everything)


def test_pairs_are_clear_apart_and_their_own() -> None:
    circles = shipped_map(1)
    starts, goals = start_goal_pairs(range(40), circles)
    assert clearance(torch.stack([starts, goals], dim=1), circles).min() >= 0.05
    assert (starts - goals).norm(dim=1).min() >= 1.2
    alone = start_goal_pairs([17], circles)
    assert torch.equal(alone[0][0], starts[17])
    assert torch.equal(alone[1][0], goals[17])


def test_closed_maps_give_no_pairs() -> None:
    wall = torch.stack([torch.zeros(21), torch.linspace(-1.2, 1.2, 21), torch.full((21,), 0.1)], dim=1).double()
    with pytest.raises(ValueError, match="closed by its obstacles"):
        start_goal_pairs([0], wall, apart=1.99, extent=1.0)
    with pytest.raises(ValueError, match=r"\(m, 3\)"):
        start_goal_pairs([0], torch.zeros(2, 2))


# ------------------------------------------------------------------ geometry of the planner


@settings(max_examples=25)
@given(st.integers(0, 2**31))
def test_exact_collisions_agree_with_sampled_ones(seed: int) -> None:
    draw = torch.rand(30, 2, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 2 - 1
    circles = shipped_map()
    deep, found = sampled_clearance(draw, circles), hits(draw, circles)[:, 0]
    fraction = free_fraction(draw[:, 0], draw[:, 1], circles.expand(30, -1, -1))
    sure = deep.abs() > 1e-3  # sampling misses a graze
    assert torch.equal(found[sure], deep[sure] < 0)
    assert torch.equal((fraction == 1)[sure], deep[sure] > 0)
    stops = torch.stack([draw[:, 0], draw[:, 0] + fraction[:, None] * (draw[:, 1] - draw[:, 0])], dim=1)
    outside = fraction > 0
    assert sampled_clearance(stops, circles)[outside].min() > -1e-9


def test_resample_keeps_ends_and_spacing() -> None:
    corner = torch.tensor([[[0.0, 0], [0, 0], [1, 0], [1, 3]]], dtype=torch.float64)
    even = resample(corner, torch.linspace(0, 1, 9, dtype=torch.float64))
    assert torch.equal(even[:, [0, -1]], corner[:, [0, -1]])
    torch.testing.assert_close(even.diff(dim=1).norm(dim=2), torch.full((1, 8), 0.5, dtype=torch.float64))


def test_timing_starts_and_ends_at_rest() -> None:
    share = timing(64)
    speed = share.diff()
    assert share[0] == 0
    torch.testing.assert_close(share[-1].item(), 1.0)
    assert (speed > 0).all()
    assert speed[0] < 0.1 * speed.max()
    torch.testing.assert_close(share + share.flip(0), torch.ones(64, dtype=torch.float64))


# ------------------------------------------------------------------ planning


def test_tree_paths_are_free_and_join_the_ends() -> None:
    circles = shipped_map(2)
    starts, goals = start_goal_pairs(range(50), circles)
    found = rrt_connect(Noise(as_seeds(range(50))), starts, goals, circles.expand(50, -1, -1), 0.02)
    assert found.solved.float().mean() > 0.95
    points = found.points[found.solved]
    assert torch.equal(points[:, 0], starts[found.solved])
    assert torch.equal(points[:, -1], goals[found.solved])
    assert sampled_clearance(points, circles).min() > 0.02 - 1e-6


def test_planned_trajectories_are_free_smooth_and_their_own() -> None:
    circles = shipped_map()
    starts, goals = start_goal_pairs(range(60), circles)
    planned = plan(Noise(as_seeds(range(60))), starts, goals, circles)
    assert planned.solved.float().mean() > 0.9
    points = planned.points[planned.solved]
    assert torch.equal(points[:, 0], starts[planned.solved])
    assert torch.equal(points[:, -1], goals[planned.solved])
    assert points.abs().max() <= 1
    assert sampled_clearance(points, circles).min() > 0.004
    quality = trajectory_quality(points, circles)
    assert quality.collides.sum() == 0
    assert quality.roughness.max() < 0.2
    alone = plan(Noise(as_seeds([33])), starts[33:34], goals[33:34], circles)
    torch.testing.assert_close(alone.points[0], planned.points[33], rtol=0, atol=1e-9)


def test_a_start_inside_an_obstacle_is_unsolved() -> None:
    circles = shipped_map()
    starts, goals = start_goal_pairs(range(2), circles)
    starts[0] = circles[0, :2]
    assert plan(Noise(as_seeds(range(2))), starts, goals, circles).solved.tolist() == [False, True]


def test_velocities_are_differences_at_rest_at_the_ends() -> None:
    line = torch.linspace(-1, 1, 64, dtype=torch.float64)[None, :, None].expand(1, 64, 2)
    states = states_from_positions(line)
    assert states.shape == (1, 4, 64)
    assert (states[:, 2:, [0, -1]] == 0).all()
    torch.testing.assert_close(states[:, 2:, 1:-1], torch.full((1, 2, 62), 0.5, dtype=torch.float64))  # 2 in 4 units


# ------------------------------------------------------------------ quality


def test_quality_of_known_trajectories() -> None:
    circles = torch.tensor([[0.0, 0.0, 0.3]], dtype=torch.float64)
    along = torch.linspace(-1, 1, 21, dtype=torch.float64)
    through = torch.stack([along, torch.zeros(21, dtype=torch.float64)], dim=1)
    above = through + torch.tensor([0.0, 0.5])
    right_angles = torch.tensor([[-1.0, 0.9], [0, 0.9], [0, 0.5], [1, 0.5]], dtype=torch.float64)
    straight = trajectory_quality(torch.stack([through, above]), circles)
    assert straight.collides.tolist() == [1, 0]
    torch.testing.assert_close(straight.hit_share.tolist(), [6 / 20, 0.0])
    torch.testing.assert_close(straight.length.tolist(), [2.0, 2.0])
    torch.testing.assert_close(straight.jump.tolist(), [0.1, 0.1])
    assert straight.roughness.max() < 1e-6
    torch.testing.assert_close(trajectory_quality(right_angles[None], circles).roughness.item(), torch.pi / 2)


# ------------------------------------------------------------------ data and training


@pytest.fixture(scope="module")
def data() -> Trajectories:
    return make_data(maps=2, per_map=12)


def test_data_is_free_and_a_function_of_its_configuration(data: Trajectories, tmp_path: Path) -> None:
    assert sampled_clearance(data.positions.double(), data.circles[data.map_index].double()).min() > 0
    file = tmp_path / "data.safetensors"
    again = make_data(file, **data.recipe)
    loaded = load_data(file)
    for one in (again, loaded):
        assert torch.equal(one.positions, data.positions)
        assert torch.equal(one.circles, data.circles)
    assert loaded.recipe == data.recipe
    assert not torch.equal(make_data(**data.recipe | {"seed": 1}).circles, data.circles)


def test_training_maps_are_not_the_shipped_ones(data: Trajectories) -> None:
    assert not any(torch.equal(a, b) for a in data.circles for b in shipped_maps().float())


def test_turned_and_mirrored_batches_stay_free(data: Trajectories) -> None:
    states, circles = draw_batch(data, 64, torch.Generator().manual_seed(0))
    positions = states[:, :2].transpose(1, 2)
    assert sampled_clearance(positions.double(), circles.double()).min() > 0
    assert len(circles.unique(dim=0)) > 8
    torch.testing.assert_close(states, states_from_positions(positions))


def test_resumed_training_ends_with_the_same_weights(data: Trajectories, tmp_path: Path) -> None:
    config = {"steps": 4, "batch": 4, "features": 2, "save_every": 2}
    before = torch.get_rng_state()
    whole = train(data, tmp_path / "whole", **config)

    def stop(line: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(data, tmp_path / "parts", stop, **config)
    lines: list[str] = []
    parts = train(data, tmp_path / "parts", lines.append, **config)
    assert torch.equal(torch.get_rng_state(), before)
    assert [line.split()[1] for line in lines[1:]] == ["4/4"]
    for a, b in zip(whole.network.state_dict().values(), parts.network.state_dict().values(), strict=True):
        assert torch.equal(a, b)
    assert parts.about["steps_done"] == 4


def test_training_lowers_the_loss(data: Trajectories, tmp_path: Path) -> None:
    lines: list[str] = []
    train(data, tmp_path, lines.append, steps=24, batch=16, features=4, save_every=12)
    first, second = (float(line.split()[3]) for line in lines)
    assert second < first


def test_another_training_in_the_folder_is_refused(data: Trajectories, tmp_path: Path) -> None:
    config = {"steps": 1, "batch": 2, "features": 2}
    train(data, tmp_path, **config)
    with pytest.raises(ValueError, match="belongs to another training"):
        train(data, tmp_path, **config | {"batch": 3})


def test_bad_configurations_are_refused(data: Trajectories, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="batch must be"):
        train(data, tmp_path, batch=0)
    with pytest.raises(ValueError, match="maps must be"):
        make_data(maps=0)


def test_the_command_does_it_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = ["--folder", str(tmp_path), "--maps", "1", "--per-map", "4", "--steps", "1", "--batch", "2"]
    few += ["--inner-steps", "1", "--threads", "1", "--pairs", "1"]
    assert main(["train-pdm", "all", *few]) == 0
    told = capsys.readouterr().out
    table = json.loads(told[told.index("{") : told.rindex("}") + 1])
    assert set(table) == {"samples", "planned", "straight"}
    assert table["planned"]["collides"] == 0
    threads = torch.get_num_threads()
    assert main(["train-pdm", "validate", "--folder", str(tmp_path / "none"), "--threads", str(threads + 1)]) == 2
    assert "no model file" in capsys.readouterr().err
    assert torch.get_num_threads() == threads


def test_planning_tells_how_far_it_is_and_where_it_wrote(tmp_path):
    lines = []
    make_data(tmp_path / "data.safetensors", lines.append, maps=2, per_map=1, waypoints=8)
    assert [line.split(":")[0] for line in lines] == ["map 1/2", "map 2/2", f"wrote {tmp_path / 'data.safetensors'}"]
