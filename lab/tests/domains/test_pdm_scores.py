"""Four scores of a trajectory: what each sees, and that one run gives path errors under all of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import free
import trimtab as tt
from trimtab.core.metrics import path_error
from trimtab.core.noise import Noise
from trimtab_lab.domains import domain
from trimtab_lab.domains.pdm import planner
from trimtab_lab.domains.pdm.domain import SCORES, load_map, path_errors, score
from trimtab_lab.domains.pdm.planner import shipped_map, start_goal_pairs
from trimtab_lab.obstacles import AvoidObstacles, Obstacles

FACTS = Path(__file__).parents[4] / "shared" / "pdm" / "facts.json"
DISC = Obstacles(torch.tensor([[0.0, 0.0, 0.3]], dtype=torch.float64))


def crossing(*points: tuple[float, float]) -> tuple[torch.Tensor, AvoidObstacles]:
    x = torch.tensor(points, dtype=torch.float64).T[None]
    return x, AvoidObstacles(DISC, x[:, :, 0], x[:, :, -1])


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        (((-0.9, 0.5), (0.0, 0.5), (0.9, 0.5)), (0.0, 0.0, 0.0)),
        (((-0.9, 0.1), (-0.5, 0.1), (0.5, 0.1), (0.9, 0.1)), (0.2, 0.0, 1.0)),  # between two waypoints
        (((-0.9, 0.1), (0.0, 0.1), (0.9, 0.1)), (0.4, 0.2, 2.0)),  # a waypoint inside, and both its segments
    ],
)
def test_each_score_of_a_path_past_a_disc(points: tuple[tuple[float, float], ...], expected: tuple[float, ...]) -> None:
    x, avoid = crossing(*points)
    found = [float(score(name, x, avoid)) for name in ("segment-depth", "waypoint-depth", "colliding-segments")]
    assert found == pytest.approx(expected, abs=1e-9)


def test_the_residual_is_how_far_the_projection_moves_positions() -> None:
    x, avoid = crossing((-0.9, 0.1), (0.0, 0.1), (0.9, 0.1))
    assert float(score("residual", x, avoid)) == pytest.approx(float((avoid.project(x).x - x).norm()))
    free, _ = crossing((-0.9, 0.1), (0.0, 0.9), (0.9, 0.1))
    assert float(score("residual", free, avoid)) == 0


@pytest.mark.parametrize("name", SCORES)
def test_what_a_run_records_is_its_path_error_under_its_own_score(name: str) -> None:
    made = domain("pdm", inner_steps=1, defect=name)
    problem = made.problem(range(2))
    run = free.rollout(problem.sampler, problem.constraint, tt.Periodic(0.5), range(2), keep_states=True)
    errors = path_errors(run, problem.constraint)  # type: ignore[arg-type]
    assert set(errors) == set(SCORES)
    torch.testing.assert_close(errors[name], path_error(run).double(), rtol=1e-4, atol=1e-5)
    assert made.settings["defect"] == name


def test_only_eligible_updates_are_counted() -> None:
    assert [
        domain("pdm", inner_steps=2, **more).problem([0]).sampler.n_steps for more in ({"eligible_from": 6}, {})
    ] == [
        8,
        20,
    ]


def test_before_it_takes_effect_a_projection_is_paid_for_and_changes_nothing() -> None:
    free = domain("pdm", inner_steps=1, eligible_from=0).problem([0])
    late = domain("pdm", inner_steps=1, eligible_from=0, effective_from=6).problem([0])
    nothing = free.rollout(tt.Terminal(), keep_states=True)
    everything = late.rollout(tt.Stepwise(), keep_states=True)
    assert int(everything.spent) == 10
    assert nothing.states is not None
    assert everything.states is not None
    assert torch.equal(everything.states[:7], nothing.states[:7])
    assert float(score("segment-depth", everything.states[7], free.constraint)) <= 0.01  # type: ignore[arg-type]


def test_an_unknown_defect_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="did you mean 'residual'"):
        domain("pdm", defect="residul").problem([0])


def test_runs_without_states_have_no_path_errors_under_other_scores() -> None:
    problem = domain("pdm", inner_steps=1).problem([0])
    run = free.rollout(problem.sampler, problem.constraint, tt.Terminal(), [0])
    with pytest.raises(ValueError, match="keep_states"):
        path_errors(run, problem.constraint)  # type: ignore[arg-type]


def test_a_planner_out_of_luck_gets_other_random_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planner fails for one seed whatever the pair; the others of its batch keep the pairs they had."""
    plan, circles = planner.rrt_connect, shipped_map()
    before = start_goal_pairs([6, 8], circles)

    def unlucky(noise: Noise, *others: Any, **more: Any) -> planner.Paths:
        found = plan(noise, *others, **more)
        return planner.Paths(found.points, found.solved & (noise.seeds != 7))

    monkeypatch.setattr(planner, "rrt_connect", unlucky)
    starts, goals = start_goal_pairs([6, 7, 8], circles)
    assert torch.equal(starts[[0, 2]], before[0])
    assert torch.equal(goals[[0, 2]], before[1])
    assert float((starts[1] - goals[1]).norm()) >= 1.2


@pytest.mark.skipif(not FACTS.is_file(), reason="the facts of the public checkpoint are not beside the project")
@pytest.mark.parametrize(("seed", "grown"), [(244, 0.0), (200, 0.01)])
def test_seeds_whose_planner_is_out_of_luck_find_a_pair(seed: int, grown: float, tmp_path: Path) -> None:
    (tmp_path / "map.json").write_text(json.dumps(json.loads(FACTS.read_text())["circles"]))
    circles = load_map(tmp_path / "map.json")
    circles[:, 2] += grown
    starts, goals = start_goal_pairs([seed - 1, seed], circles)
    alone = start_goal_pairs([seed], circles)
    assert torch.equal(starts[1:], alone[0])
    assert torch.equal(goals[1:], alone[1])
    assert float((starts - goals).norm(dim=1).min()) >= 1.2
