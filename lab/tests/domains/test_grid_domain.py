"""The grid domain: its flow, its projection, its settings, and training that goes on where it stopped."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import free

pytest.importorskip("pandapower", reason="the grid domain needs pandapower: pip install 'trimtab-lab[grid]'")
pytest.importorskip("casadi", reason="the grid domain needs casadi: pip install 'trimtab[ipopt]'")

import trimtab as tt
from trimtab.core.noise import Noise, as_seeds
from trimtab_lab.domains import domain
from trimtab_lab.domains.grid.domain import cost_gap, line_profile
from trimtab_lab.domains.grid.model import (
    Model,
    load_model,
    operating_points,
    save_model,
    solved_points,
    standard,
    train,
)
from trimtab_lab.domains.grid.power import load_grid, parts, violations
from trimtab_lab.domains.learned import FlowMLP, flow_pair, velocity


@pytest.mark.parametrize("case", ["case14", "case30"])
def test_a_corrected_rollout_ends_feasible_with_the_demand_asked_for(case: str) -> None:
    made = domain("grid", case=case, n_steps=4)
    problem = made.problem(range(3))
    run = free.rollout(problem.sampler, problem.constraint, tt.Stepwise(), range(3))
    assert not run.failed.any()
    judged = made.quality(run.final, problem.constraint)  # type: ignore[misc]
    assert float(judged["violation"].max()) <= 1e-6
    assert float(judged["cost_gap"].min()) >= -1e-6
    grid = load_grid(case)
    asked = problem.constraint.demand  # type: ignore[attr-defined]
    torch.testing.assert_close(parts(grid, run.final[:, 0]).load.sum(dim=1), asked, rtol=0, atol=1e-6)


def test_an_uncorrected_step_is_eulers() -> None:
    sampler = domain("grid", n_steps=5).problem([0]).sampler
    noise = Noise(as_seeds([0]))
    x = sampler.start(noise)
    model: Model = sampler.model  # type: ignore[attr-defined]
    z = model.standardise(x[:, 1])
    for t in range(5):
        x = sampler.step(x, t, noise)
        z = z + model.velocity(z, t / 5) / 5
    torch.testing.assert_close(model.standardise(x[:, 0]), z, rtol=1e-4, atol=1e-4)  # the network is in float32


def test_the_projection_is_nearest_in_standard_units_and_leaves_the_noise_alone() -> None:
    problem = domain("grid").problem(range(4))
    constraint = problem.constraint
    grid = load_grid("case14")
    points = operating_points(grid, range(4))
    points = torch.where(
        torch.rand(points.shape, generator=torch.Generator().manual_seed(0)) < 0.5, points, 1.01 * points
    )
    x = torch.stack([points, torch.randn(points.shape, dtype=torch.float64)], dim=1)
    answer = constraint.project(x)
    assert answer.converged.all()  # type: ignore[union-attr]
    moved = answer.x  # type: ignore[union-attr]
    assert torch.equal(moved[:, 1], x[:, 1])
    assert float(constraint.defect(moved).max()) <= 1e-6
    again = constraint.project(moved).x  # type: ignore[union-attr]
    torch.testing.assert_close(again, moved, rtol=0, atol=1e-8)
    # no true point with the same demand, moved towards, is nearer: the gradient of the distance has no feasible descent
    made = domain("grid")
    near = made.distance(x, moved)
    for weight in (0.99, 0.999):
        between = constraint.project(torch.stack([torch.lerp(points, moved[:, 0], weight), x[:, 1]], dim=1))
        assert bool((made.distance(x, between.x) >= near - 1e-6).all())  # type: ignore[union-attr]


def test_rows_follow_their_demand_and_solve_alike_alone() -> None:
    problem = domain("grid", n_steps=3).problem(range(4))
    rows = torch.tensor([2, 0])
    some = free.rollout(problem.sampler, problem.constraint.take(rows), tt.Stepwise(), rows)
    whole = free.rollout(problem.sampler, problem.constraint, tt.Stepwise(), range(4))
    torch.testing.assert_close(some.final, whole.final[rows], rtol=0, atol=1e-4)  # matrix products of other shapes


def test_true_points_cannot_be_made_cheaper() -> None:
    grid = load_grid("case14")
    x = operating_points(grid, range(3))
    assert float(cost_gap(grid, x).abs().max()) <= 1e-6
    dearer = x.clone()
    dearer[:, grid.slices().generation] += 0.01
    assert float(cost_gap(grid, dearer).min()) > 1e-3


def test_lines_are_drawn_by_number_and_load() -> None:
    drawn = line_profile(domain("grid").problem([0]).sampler.start(Noise(as_seeds([0]))))
    assert drawn.shape == (1, 20, 2)
    assert drawn[0, :, 0].tolist() == list(range(1, 21))


@pytest.mark.parametrize("spread", [1.0, torch.tensor([1.0, 0.1, 0.003], dtype=torch.float64)])
def test_target_and_point_of_the_flow_belong_together(spread: torch.Tensor | float) -> None:
    generator = torch.Generator().manual_seed(0)
    noise, data = torch.randn(2, 5, 3, dtype=torch.float64, generator=generator)
    tau = torch.linspace(0.1, 0.9, 5, dtype=torch.float64)
    z, target = flow_pair(noise, data, tau, spread)
    torch.testing.assert_close(velocity(lambda *_: target, z, tau, spread), data - noise)


@pytest.mark.parametrize("spread", [1.0, torch.tensor([1.0, 0.1, 0.003], dtype=torch.float64)])
def test_targets_have_unit_variance_and_nothing_to_learn_if_the_data_are_normal(spread: torch.Tensor | float) -> None:
    generator = torch.Generator().manual_seed(0)
    noise, data = torch.randn(2, 40_000, 3, dtype=torch.float64, generator=generator)
    for tau in (0.0, 0.5, 0.99, 1.0):
        z, target = flow_pair(noise, spread * data, torch.full((len(noise),), tau, dtype=torch.float64), spread)
        torch.testing.assert_close(target.std(dim=0), torch.ones(3, dtype=torch.float64), rtol=0.05, atol=0)
        correlation = (target * z).mean(dim=0) / z.std(dim=0)
        assert float(correlation.abs().max()) < 0.05


def test_training_that_was_stopped_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    grid, config = load_grid("case14"), {"points": 6, "held_out": 2, "steps": 4, "batch": 4}
    whole = load_model(train(grid, tmp_path / "whole", **config, progress=_say_nothing))

    def stop(line: str) -> None:
        if line.startswith("step"):
            raise KeyboardInterrupt

    (tmp_path / "parts").mkdir()
    (tmp_path / "whole" / "case14.points.safetensors").rename(tmp_path / "parts" / "case14.points.safetensors")
    with pytest.raises(KeyboardInterrupt):
        train(grid, tmp_path / "parts", **config, progress=stop, checkpoint_every=2)
    assert (tmp_path / "parts" / "case14.training.safetensors").exists()
    again = load_model(train(grid, tmp_path / "parts", **config, progress=_say_nothing, checkpoint_every=2))
    for name, value in whole.flow.state_dict().items():
        torch.testing.assert_close(again.flow.state_dict()[name], value, rtol=1e-3, atol=1e-5)
    assert not (tmp_path / "parts" / "case14.training.safetensors").exists()


def _say_nothing(line: str) -> None:
    del line


def test_solving_points_goes_on_where_it_stopped(tmp_path: Path) -> None:
    grid, path, told = load_grid("case14"), tmp_path / "points.safetensors", []
    first = solved_points(grid, 2, path, told.append, chunk=2)
    more = solved_points(grid, 3, path, told.append, chunk=2)
    assert torch.equal(more[:2], first)
    assert [line.split()[0] for line in told] == ["2", "3"]
    with pytest.raises(ValueError, match="operating points of case14"):
        solved_points(load_grid("case30"), 3, path)


def test_weights_of_another_case_and_files_of_another_kind_are_refused(tmp_path: Path) -> None:
    flow = FlowMLP(59, 384, 3)
    save_model(
        tmp_path / "own.safetensors", Model("case14", flow, torch.zeros(59).double(), torch.ones(59).double(), {})
    )
    assert load_model(tmp_path / "own.safetensors").case == "case14"
    with pytest.raises(ValueError, match="weights for case14, but the grid is case30"):
        domain("grid", case="case30", model=str(tmp_path / "own.safetensors"))
    with pytest.raises(ValueError, match="n_steps must be a whole number"):
        domain("grid", n_steps=0)


def test_a_number_that_hardly_varies_does_not_weigh_without_bound() -> None:
    points = torch.tensor([[0.0, 0.0, 1.0], [1.0, 1.0, 1.0]], dtype=torch.float64)
    mean, scale = standard(points)
    assert mean.tolist() == [0.5, 0.5, 1.0]
    assert float(scale.min()) == pytest.approx(0.1 * 0.5**0.5)


def test_processes_give_what_one_process_gives() -> None:
    x = domain("grid").problem(range(2)).sampler.start(Noise(as_seeds(range(2))))
    alone = domain("grid").problem(range(2)).constraint.project(x)
    pooled = domain("grid", workers=2).problem(range(2)).constraint
    answer = pooled.project(x)
    pooled.program.close()  # type: ignore[attr-defined]
    assert torch.equal(answer.x, alone.x)  # type: ignore[union-attr]
    assert float(violations(load_grid("case14"), answer.x[:, 0], pooled.demand).max()) <= 1e-6  # type: ignore


@pytest.mark.parametrize("shape", [(4,), (4, 59), (4, 1, 59), (4, 2, 58), (4, 2, 59, 1)])
def test_states_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    constraint = domain("grid").problem(range(4)).constraint
    for call in (constraint.project, constraint.defect):
        with pytest.raises(ValueError, match=r"OperatingLimits takes states of shape \(n, 2, 59\).*: got"):
            call(torch.zeros(shape, dtype=torch.float64))
        with pytest.raises(ValueError, match="data for 4 samples but was given 1 states"):
            call(torch.zeros(1, 2, 59, dtype=torch.float64))
        with pytest.raises(TypeError, match="takes states as a torch tensor"):
            call([[0.0] * 59])
