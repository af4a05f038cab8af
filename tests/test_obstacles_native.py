"""The compiled search: it takes the same steps as the one in torch, and does without where it cannot be had."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from test_obstacles import MAPS, SIGMAS, distance, proposals
from trimtab.constraints import obstacles_batched
from trimtab.constraints.obstacles_batched import Effort, nearest_paths
from trimtab.constraints.obstacles_native import compiled_search, search_paths

needs_compiler = pytest.mark.skipif(compiled_search() is None, reason="there is no C compiler")


@pytest.fixture
def anew() -> Iterator[None]:
    """Look for the compiler again, and once more when the test is over."""
    compiled_search.cache_clear()
    yield
    compiled_search.cache_clear()


@pytest.fixture
def in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(obstacles_batched, "compiled_search", lambda: None)


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
    x, avoid = proposals(MAPS["circles"], 2, 0.02, seed=1, waypoints=8)
    assert bool(avoid.free(avoid.project(x).x).all())


@pytest.mark.usefixtures("anew")
def test_a_cache_that_cannot_be_written_is_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "trimtab").write_text("a file where the directory should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert compiled_search() is None
