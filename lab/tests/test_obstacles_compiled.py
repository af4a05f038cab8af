"""The compiled search takes the same steps as torch, which does them where it was not built; and the defect."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from obstacle_cases import MAPS, SIGMAS, distance, proposals
from trimtab_lab.obstacles import AvoidObstacles, Obstacles
from trimtab_lab.obstacles import batched as obstacles_batched
from trimtab_lab.obstacles.batched import Effort, compiled_search, nearest_paths, search_paths

needs_build = pytest.mark.skipif(compiled_search() is None, reason="the package was built without a C compiler")


@pytest.fixture
def in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(obstacles_batched, "compiled_search", lambda: None)


def searched(name: str, level: int, effort: Effort) -> tuple[Tensor, tuple[Tensor, ...], tuple[Tensor, ...]]:
    x, avoid = proposals(MAPS[name], 24, SIGMAS[level], seed=level)
    q = x[:, :2].transpose(0, 1).clamp(-3, 3).contiguous()
    arguments = avoid.obstacles.to(q), q, q.clamp(-1, 1), 1e-4, 0.0, effort
    return q, nearest_paths(*arguments), search_paths(*arguments)


@needs_build
@pytest.mark.parametrize("name", list(MAPS))
@pytest.mark.parametrize("level", [2, 4, 6, 8, 9])
@pytest.mark.parametrize("leap", [0.7, torch.inf])
def test_both_take_the_same_steps(name: str, level: int, leap: float) -> None:
    _, (path, violation, rounds), (compiled, its_violation, its_rounds) = searched(name, level, Effort(leap=leap))
    same = ((path - compiled).abs().amax((0, 2)) < 1e-9) & (rounds == its_rounds)
    # Where a test falls on its limit, the last bit can decide, and a search goes another way.
    assert float(same.double().mean()) > 0.9
    torch.testing.assert_close(its_violation[same], violation[same], atol=1e-9, rtol=0)
    assert torch.equal(its_violation <= 1e-4, violation <= 1e-4)


@needs_build
def test_one_round_agrees_to_rounding() -> None:
    for name in MAPS:
        _, (path, violation, _), (compiled, its_violation, its_rounds) = searched(name, 5, Effort(rounds=1))
        torch.testing.assert_close(compiled, path, atol=1e-12, rtol=0)
        torch.testing.assert_close(its_violation, violation, atol=1e-12, rtol=0)
        assert int(its_rounds.max()) == 1


@st.composite
def looks(draw: st.DrawFn) -> tuple[AvoidObstacles, Tensor]:
    """Circles and boxes anywhere, and paths that jump, rest, touch and go through centres."""
    g = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    n, waypoints = draw(st.integers(1, 4)), draw(st.sampled_from([2, 3, 31, 32, 33, 34, 64, 65, 100]))
    circles = torch.rand(draw(st.integers(0, 5)), 3, generator=g, dtype=dtype) * torch.tensor([1.2, 1.2, 0.3]).to(dtype)
    circles += torch.tensor([-0.6, -0.6, 0.01]).to(dtype)
    corners = torch.rand(2, draw(st.integers(0, 4)), 2, generator=g, dtype=dtype) * 1.6 - 0.8
    boxes = torch.cat([corners.amin(0), corners.amax(0) + 0.01], dim=1)
    x = torch.randn(n, 4, waypoints, generator=g, dtype=dtype) * draw(st.sampled_from([0.3, 1.0, 30.0]))
    special = torch.cat([circles[:, :2], boxes[:, :2], boxes[:, 2:], torch.zeros(1, 2, dtype=dtype)])
    at = torch.randint(len(special), (n, waypoints), generator=g)
    chosen = torch.rand(n, waypoints, generator=g) < draw(st.sampled_from([0.0, 0.5, 1.0]))  # and repeated: length 0
    x[:, :2] = torch.where(chosen[:, None], special[at].movedim(2, 1), x[:, :2])
    free = torch.full((2,), -0.99, dtype=dtype)
    return AvoidObstacles(Obstacles(circles, boxes), free, free), x


@settings(max_examples=50)
@given(looks(), st.randoms(use_true_random=False))
def test_a_defect_depends_on_no_batch_and_no_layout(case: tuple[AvoidObstacles, Tensor], random: Any) -> None:
    avoid, x = case
    whole = avoid.defect(x)
    rows = random.choices(range(len(x)), k=3)
    same = [
        (x[rows], whole[rows]),
        (x[-1:].expand(5, -1, -1), whole[-1:].expand(5)),
        (x.movedim(1, 2).contiguous().movedim(2, 1), whole),
        (x.repeat_interleave(2, dim=2)[:, :, ::2], whole),
        (torch.cat([x, x, x])[len(x) : 2 * len(x), :2], whole),
    ]
    for other, expected in same:
        torch.testing.assert_close(avoid.defect(other), expected)


@pytest.mark.parametrize("name", list(MAPS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_defect_hides_a_waypoint_that_is_not_finite(name: str, dtype: torch.dtype) -> None:
    x, avoid = proposals(MAPS[name], 12, 0.3, seed=2, waypoints=40, dtype=dtype)
    before = avoid.defect(x)
    for k, bad in enumerate([torch.nan, torch.inf, -torch.inf]):
        x[k, 0, 17] = x[3 + k, 1, 39] = x[6 + k, 0, 0] = bad
        x[9, 2, 5] = bad  # no position
    defect = avoid.defect(x)
    assert bool(defect[:9].isnan().all())
    torch.testing.assert_close(defect[9:], before[9:])


def test_a_defect_has_the_derivatives_that_differences_show() -> None:
    x, avoid = proposals(MAPS["both"], 3, 0.1, seed=4, waypoints=8)
    direction = torch.randn(x.shape, generator=torch.Generator().manual_seed(0), dtype=x.dtype)
    slope = (avoid.defect(x + 1e-6 * direction) - avoid.defect(x - 1e-6 * direction)) / 2e-6
    assert bool((slope.abs() > 0.01).any())
    (gradient,) = torch.autograd.grad(avoid.defect(y := x.clone().requires_grad_()).sum(), y)
    torch.testing.assert_close((gradient * direction).sum((1, 2)), slope, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(torch.func.grad(lambda x: avoid.defect(x).sum())(x), gradient)


def test_a_defect_can_be_mapped() -> None:
    x, avoid = proposals(MAPS["both"], 3, 0.1, seed=4, waypoints=8)
    several = torch.stack([x, x + 0.01])
    torch.testing.assert_close(torch.func.vmap(avoid.defect)(several)[1], avoid.defect(several[1]))


@pytest.mark.usefixtures("in_torch")
@pytest.mark.parametrize("name", list(MAPS))
@pytest.mark.parametrize("level", [1, 5, 8])
def test_without_it_projections_are_free_too(name: str, level: int) -> None:
    x, avoid = proposals(MAPS[name], 8, SIGMAS[level], seed=level)
    answer = avoid.project(x)
    assert float(avoid.violation(answer.x).max()) <= avoid.tolerance
    assert float(distance(avoid.project(answer.x).x, answer.x).max()) <= avoid.tolerance
    rows = torch.tensor([5, 1])
    torch.testing.assert_close(avoid.take(rows).project(x[rows]).x, answer.x[rows], atol=1e-9, rtol=0)
