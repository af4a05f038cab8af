"""The compiled search and defect: the same steps as in torch, which does them where there is no compiler."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from obstacle_cases import MAPS, SIGMAS, distance, proposals
from trimtab.constraints.obstacles import AvoidObstacles, Obstacles
from trimtab.constraints.obstacles import batched as obstacles_batched
from trimtab.constraints.obstacles import native as obstacles_native
from trimtab.constraints.obstacles.batched import Effort, nearest_paths
from trimtab.constraints.obstacles.native import compiled_depths, compiled_search, search_paths

needs_compiler = pytest.mark.skipif(compiled_search() is None, reason="there is no C compiler")


@pytest.fixture
def anew() -> Iterator[None]:
    """Look for the compiler again, and once more when the test is over."""
    compiled_search.cache_clear(), compiled_depths.cache_clear()
    yield
    compiled_search.cache_clear(), compiled_depths.cache_clear()


@pytest.fixture
def in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(obstacles_batched, "compiled_search", lambda: None)
    monkeypatch.setattr(obstacles_native, "compiled_depths", lambda _: None)


def defect_in_torch(avoid: AvoidObstacles, x: Tensor) -> Tensor:
    """States that autograd follows are looked at in torch."""
    return avoid.defect(x.clone().requires_grad_()).detach()


def searched(name: str, level: int, effort: Effort) -> tuple[Tensor, tuple[Tensor, ...], tuple[Tensor, ...]]:
    x, avoid = proposals(MAPS[name], 24, SIGMAS[level], seed=level)
    q = x[:, :2].transpose(0, 1).clamp(-3, 3).contiguous()
    arguments = avoid.obstacles.to(q), q, q.clamp(-1, 1), 1e-4, 0.0, effort
    return q, nearest_paths(*arguments), search_paths(*arguments)


@needs_compiler
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


@needs_compiler
def test_one_round_agrees_to_rounding() -> None:
    for name in MAPS:
        _, (path, violation, _), (compiled, its_violation, its_rounds) = searched(name, 5, Effort(rounds=1))
        torch.testing.assert_close(compiled, path, atol=1e-12, rtol=0)
        torch.testing.assert_close(its_violation, violation, atol=1e-12, rtol=0)
        assert int(its_rounds.max()) == 1


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_not_one_bit_depends_on_the_batch(dtype: torch.dtype) -> None:
    x, avoid = proposals(MAPS["both"], 12, 0.05, seed=3, dtype=dtype)
    whole = avoid.project(x)
    rows = torch.tensor([7, 2, 11])
    part = avoid.take(rows).project(x[rows])
    assert part.x.dtype == dtype
    assert torch.equal(part.x, whole.x[rows])
    assert part.iterations is not None
    assert whole.iterations is not None
    assert torch.equal(part.iterations, whole.iterations[rows])


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
    outside = draw(st.booleans())
    return AvoidObstacles(Obstacles(circles, boxes), free, free, defect_counts_outside=outside), x


@needs_compiler
@settings(deadline=None, max_examples=200)
@given(looks())
def test_both_defects_agree_to_rounding(case: tuple[AvoidObstacles, Tensor]) -> None:
    avoid, x = case
    defect = avoid.defect(x)
    assert defect.dtype == x.dtype
    assert defect.shape == (len(x),)
    # Subtracting coordinates of size s loses their last bits, on each of the segments and obstacles.
    size = (1 + float(x[:, :2].abs().max())) * x.shape[2] * (1 + len(avoid.obstacles))
    torch.testing.assert_close(defect, defect_in_torch(avoid, x), atol=4 * torch.finfo(x.dtype).eps * size, rtol=0)


@needs_compiler
@settings(deadline=None, max_examples=50)
@given(looks(), st.randoms(use_true_random=False))
def test_not_one_bit_of_a_defect_depends_on_batch_or_layout(case: tuple[AvoidObstacles, Tensor], random: Any) -> None:
    avoid, x = case
    whole = avoid.defect(x)
    rows = random.choices(range(len(x)), k=3)
    assert torch.equal(avoid.defect(x[rows]), whole[rows])
    assert torch.equal(avoid.defect(x[-1:].expand(5, -1, -1)), whole[-1:].expand(5))
    assert torch.equal(avoid.defect(x.movedim(1, 2).contiguous().movedim(2, 1)), whole)
    assert torch.equal(avoid.defect(x.repeat_interleave(2, dim=2)[:, :, ::2]), whole)
    assert torch.equal(avoid.defect(torch.cat([x, x, x])[len(x) : 2 * len(x), :2]), whole)


@pytest.mark.parametrize("name", list(MAPS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("look", [AvoidObstacles.defect, defect_in_torch])
def test_no_defect_hides_a_waypoint_that_is_not_finite(name: str, dtype: torch.dtype, look: Any) -> None:
    x, avoid = proposals(MAPS[name], 12, 0.3, seed=2, waypoints=40, dtype=dtype)
    before = look(avoid, x)
    for k, bad in enumerate([torch.nan, torch.inf, -torch.inf]):
        x[k, 0, 17] = x[3 + k, 1, 39] = x[6 + k, 0, 0] = bad
        x[9, 2, 5] = bad  # no position
    defect = look(avoid, x)
    assert bool(defect[:9].isnan().all())
    assert torch.equal(defect[9:], before[9:])


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


def test_a_dtype_it_is_not_compiled_for_is_looked_at_in_torch() -> None:
    x, avoid = proposals(MAPS["both"], 4, 0.1, seed=1)
    defect = avoid.defect(x.bfloat16())
    assert defect.dtype == torch.bfloat16
    torch.testing.assert_close(defect.double(), avoid.defect(x), rtol=0.1, atol=0.1)


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


@needs_compiler
@pytest.mark.usefixtures("anew")
def test_it_is_compiled_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert compiled_search() is not None
    (made,) = (tmp_path / "trimtab").iterdir()  # and nothing else is left there
    before = made.stat().st_mtime_ns
    compiled_search.cache_clear()
    assert compiled_search() is not None
    assert made.stat().st_mtime_ns == before


@pytest.mark.usefixtures("anew")
@pytest.mark.parametrize(
    ("name", "value"), [("TRIMTAB_NATIVE", "0"), ("CC", "no-such-compiler"), ("CC", "false"), ("CC", "true")]
)
def test_it_does_without(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, value: str) -> None:
    if value in ("true", "false") and shutil.which(value) is None:
        pytest.skip(f"there is no command {value}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv(name, value)
    assert compiled_search() is None
    assert compiled_depths(torch.float64) is None
    x, avoid = proposals(MAPS["circles"], 2, 0.02, seed=1, waypoints=8)
    assert torch.equal(avoid.defect(x), defect_in_torch(avoid, x))
    assert bool(avoid.free(avoid.project(x).x).all())


@needs_compiler
@pytest.mark.usefixtures("anew")
def test_a_compiler_may_be_given_with_options(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CC", f"{os.environ.get('CC') or 'cc'} -g")
    assert compiled_search() is not None


@pytest.mark.usefixtures("anew")
def test_a_cache_that_cannot_be_written_is_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "trimtab").write_text("a file where the directory should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert compiled_search() is None


@pytest.mark.usefixtures("anew")
def test_a_user_without_a_home_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    assert compiled_search() is None
