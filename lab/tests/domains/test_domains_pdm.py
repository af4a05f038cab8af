from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import free
import trimtab as tt
from cases import allowance
from trimtab.core.bound_constraint import ProjectionError
from trimtab_lab.domains import domain
from trimtab_lab.domains.pdm.domain import AnnealedLangevin, load_map, sample
from trimtab_lab.domains.pdm.model import load_model
from trimtab_lab.obstacles import AvoidObstacles, Obstacles

WALL = [[0.0, -1.0 + 0.1 * i, 0.08] for i in range(21)]


def test_a_seed_has_its_start_and_goal_wherever_it_stands() -> None:
    made = domain("pdm", inner_steps=1)
    once, twice = made.problem([3, 5]).sampler, made.problem([5, 3, 5]).sampler
    assert torch.equal(twice.starts, once.starts[[1, 0, 1]])  # type: ignore[attr-defined]
    assert torch.equal(twice.goals, once.goals[[1, 0, 1]])  # type: ignore[attr-defined]


def test_extra_circles_are_enforced_but_not_shown_to_the_model() -> None:
    problem = domain("pdm").problem([0])
    enforced, shown = problem.constraint.obstacles.circles, problem.sampler.circles  # type: ignore[attr-defined]
    assert len(enforced) == len(shown) + 6
    torch.testing.assert_close(enforced[: len(shown)], shown.float())


def test_a_map_that_its_obstacles_close_is_refused(tmp_path: Path) -> None:
    everywhere = [[0.3 * i - 0.9, 0.3 * j - 0.9, 0.22] for i in range(7) for j in range(7)]
    (tmp_path / "map.json").write_text(json.dumps(everywhere))
    with pytest.raises(ValueError, match="the map may be closed by its obstacles"):
        domain("pdm", circles=str(tmp_path / "map.json")).problem([0])


def test_a_checkpoint_of_another_shape_is_refused_by_name(tmp_path: Path) -> None:
    torch.save({"begin_conv.weight": torch.zeros(8, 3, 3, 3)}, tmp_path / "other.pt")
    with pytest.raises(ValueError, match=r"other\.pt"):
        domain("pdm", checkpoint=str(tmp_path / "other.pt"))


def test_samples_whose_projection_fails_are_counted_and_none_is_lost() -> None:
    """Two samples, one of them with a wall between start and goal: its projections cannot succeed."""
    starts, goals = torch.tensor([[-0.9, 0.0], [-0.9, 0.05]]), torch.tensor([[0.9, 0.0], [-0.4, 0.6]])
    walls = torch.tensor(WALL)
    sampler = AnnealedLangevin(load_model(), starts, goals, walls.double(), inner_steps=1)
    constraint = AvoidObstacles(Obstacles(walls), starts, goals)
    for policy in ("keep", "revert"):
        run = free.rollout(sampler, constraint, tt.Periodic(0.3), range(2), on_failure=policy)  # type: ignore[arg-type]
        assert run.spent.tolist() == [3, 3]  # a projection that failed was paid for
        assert run.failed.sum(dim=0).tolist() == [3, 0]
        assert bool(run.final.isfinite().all())
        assert constraint.free(run.final).tolist() == [False, True]
    with pytest.raises(ProjectionError, match="failed for 1 of 2"):
        free.rollout(sampler, constraint, tt.Periodic(0.3), range(2), on_failure="raise")
    alone = free.rollout(
        sampler.take(torch.tensor([1])), constraint.take(torch.tensor([1])), tt.Periodic(0.3), torch.tensor([1])
    )
    one = torch.tensor([1])
    allowed = allowance(sample(sampler, range(2))[1:], sample(sampler.take(one), one))
    torch.testing.assert_close(alone.final, run.final[1:], atol=allowed, rtol=0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"eligible_from": 20}, "eligible_from, a noise level, .* from 0 to 9: got 20"),
        ({"defect": "segment-dept"}, "did you mean 'segment-depth'"),
        ({"inner_steps": 0}, "inner_steps .* at least 1: got 0"),
        ({"effective_from": "a"}, "effective_from, a noise level, must be a whole number"),
        ({"checkpoint": 3}, "checkpoint must be the path of a file: got 3"),
        ({"backend": "ipop"}, "did you mean 'ipopt'"),
        ({"workers": -1}, "at least 0: got -1"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused_when_they_are_given(settings: dict, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        domain("pdm", **settings)


@pytest.mark.parametrize("text", ["[[0, 0]]", "[1, 2]", '{"a": 3}', "not json"])
def test_a_file_that_is_no_map_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "map.json").write_text(text)
    with pytest.raises(ValueError, match=r"map\.json"):
        load_map(tmp_path / "map.json")


def test_named_lists_of_circles_are_joined(tmp_path: Path) -> None:
    (tmp_path / "map.json").write_text(json.dumps({"map": [[0, 0, 0.1]], "extra": [{"x": 1, "y": 2, "r": 0.5}]}))
    assert load_map(tmp_path / "map.json").tolist() == [[1.0, 2.0, 0.5], [0.0, 0.0, 0.1]]
