"""The books in C are the books in torch, bit for bit, and say the same of bad numbers."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import trimtab as tt
from trimtab.core.every_step import all_finite, compiled
from trimtab.core.ledger import Ledger, ledger_for
from trimtab.core.schedule import Moment, as_schedule
from trimtab.prices.own_scale import OwnScale

T, N, B = 12, 9, 5
needs_compiler = pytest.mark.skipif(compiled("look") is None, reason="there is no C compiler here")


@dataclass(frozen=True, eq=False)
class OneInThree:
    """A schedule that is no table."""

    budget: int = B

    def decide(self, now: Moment) -> Tensor:
        return (torch.arange(len(now.defect)) + now.t) % 3 == 0


def some_schedule(kind: str, generator: torch.Generator) -> tt.Schedule:
    if kind == "no table":
        return OneInThree()
    table = torch.rand(T, B + 1, generator=generator, dtype=torch.float64)
    table[torch.rand(T, B + 1, generator=generator) < 0.1] = -torch.inf
    table[:, 0] = torch.inf
    typical = torch.rand(T + 1, T, generator=generator, dtype=torch.float64) + 0.1
    own = OwnScale(typical, 2.5) if kind == "own scale" else None
    table = table.float() if kind == "single prices" else table
    budget = torch.randint(0, B + 1, (N,), generator=generator) if kind == "own budgets" else None
    return tt.Adaptive(tt.Thresholds(table, own_scale=own), budget)


def books(schedule: tt.Schedule, defects: Tensor, make: Callable[..., Ledger]) -> list[Tensor]:
    """Everything a ledger holds after a run on these defects in which every projection leaves a hundredth."""
    ledger = make(schedule, T, N, defects, None)
    for t in range(T):
        assert ledger.look(t, defects[t], defects[t])
        assert torch.equal(ledger.decide(t, ledger.seen[t], None), ledger.projected[t])
        rows = ledger.rows(t)
        assert torch.equal(rows, ledger.projected[t].nonzero().squeeze(1))
        ledger.keep(t, defects[t][rows] / 100, rows)
    return [ledger.defects, ledger.projected, ledger.left, ledger.last, ledger.residuals]


def compiled_ledger(schedule: tt.Schedule, n_steps: int, n: int, like: Tensor, seeds: None) -> Ledger:
    return ledger_for(schedule, n_steps, n, like, seeds, numbers=n)


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["prices", "own scale", "own budgets", "single prices", "no table"])
@given(seed=st.integers(0, 2**31))
def test_the_compiled_books_are_the_books(kind: str, dtype: torch.dtype, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    schedule = some_schedule(kind, generator)
    defects = (torch.rand(T, N, generator=generator, dtype=torch.float64) * 8).round() / 8  # some are 0, some equal
    plain = books(schedule, defects.to(dtype), Ledger)
    assert type(compiled_ledger(schedule, T, N, defects, None)) is not Ledger
    for ours, theirs in zip(books(schedule, defects.to(dtype), compiled_ledger), plain, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("make", [Ledger, compiled_ledger])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("defect_dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("row", [0, N - 1])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -1e-30])
def test_a_look_sees_bad_numbers(
    make: Callable[..., Ledger], dtype: torch.dtype, defect_dtype: torch.dtype, strided: bool, row: int, bad: float
) -> None:
    def like(dtype: torch.dtype) -> Tensor:
        return torch.ones(N, 2, dtype=dtype)[:, 0] if strided else torch.ones(N, dtype=dtype)

    ledger = make(tt.Periodic(1), T, N, torch.empty(0, dtype=dtype), None)
    x, defect = like(dtype), like(defect_dtype)
    assert ledger.look(0, x, defect)
    assert torch.equal(ledger.defects[0], torch.ones(N, dtype=dtype))
    x[row] = bad
    assert ledger.look(1, x, defect) == math.isfinite(bad)
    defect[row] = bad
    assert not ledger.look(2, torch.ones_like(x), defect)
    assert torch.equal(ledger.defects[2], defect.to(dtype)) or math.isnan(bad)


@needs_compiler
def test_a_schedule_derived_from_a_table_is_asked() -> None:
    class Contrary(tt.Adaptive):
        def decide(self, now: Moment) -> Tensor:
            return ~super().decide(now)

    generator = torch.Generator().manual_seed(0)
    table = some_schedule("prices", generator)
    assert isinstance(table, tt.Adaptive)
    defects = torch.rand(T, N, generator=generator, dtype=torch.float64)
    contrary = Contrary(table.thresholds)
    for ours, theirs in zip(books(contrary, defects, compiled_ledger), books(contrary, defects, Ledger), strict=True):
        assert torch.equal(ours, theirs)
    assert not torch.equal(books(contrary, defects, Ledger)[1], books(table, defects, Ledger)[1])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(1,), (7, 5), (3, 4, 33), (64, 64, 4)])
def test_all_finite(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x = torch.full(shape, torch.finfo(dtype).max, dtype=dtype)  # their sum is not finite
    assert all_finite(x)
    assert all_finite(x.mT if x.ndim > 1 else x)
    for bad in (math.nan, math.inf, -math.inf):
        for at in (0, x.numel() // 2, x.numel() - 1):
            y = x.clone()
            y.view(-1)[at] = bad
            assert not all_finite(y)
            assert not all_finite(y.mT if y.ndim > 1 else y)


@pytest.mark.parametrize("make", [Ledger, compiled_ledger])
@pytest.mark.parametrize("kind", ["table", "function"])
def test_decisions_rest_on_the_defects_that_are_booked(make: Callable[..., Ledger], kind: str) -> None:
    """Rounded to single precision this defect is below the price, and a replay of the record must see the same."""
    price, defect = 1 + 5e-10, torch.full((N,), 1 + 1e-9, dtype=torch.float64)
    table = torch.full((T, B + 1), price, dtype=torch.float64)
    table[:, 0] = torch.inf
    schedule = (
        tt.Adaptive(tt.Thresholds(table)) if kind == "table" else as_schedule(lambda now: now.defect.double() >= price)
    )
    ledger = make(schedule, T, N, torch.empty(0), None)
    assert ledger.look(0, torch.ones(N), defect)
    assert not ledger.decide(0, ledger.seen[0], None).any()
    near = tt.as_constraint(lambda x: x, lambda x: x[:, 0].double() * defect[0])
    corrector = tt.Corrector(near, schedule, T)
    for _ in range(T):
        corrector(torch.ones(N, 3))
    assert not corrector.rollout.projected.any()
    assert torch.equal(tt.replay(schedule, corrector.rollout), corrector.rollout.projected)


@needs_compiler
def test_prices_of_a_derived_kind_are_asked() -> None:
    class Never(tt.Thresholds):
        def price(self, now: Moment) -> Tensor:
            return torch.full_like(now.defect, torch.inf)

    table = torch.zeros(T, B + 1, dtype=torch.float64)
    table[:, 0] = torch.inf
    defects = torch.ones(T, N, dtype=torch.float64)
    assert books(tt.Adaptive(tt.Thresholds(table)), defects, compiled_ledger)[1].any()
    assert not books(tt.Adaptive(Never(table)), defects, compiled_ledger)[1].any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_record_in_half_precision_is_replayed(dtype: torch.dtype) -> None:
    problem = tt.domain("so3", n_steps=T).problem(range(N))
    run = tt.rollout(problem.sampler, problem.constraint, tt.Periodic(2), range(N))
    half = replace(run, defects=run.defects.to(dtype))
    exact = replace(run, defects=half.defects.double())
    schedule = tt.FixedThreshold(float(half.defects.median()), B)
    assert torch.equal(tt.replay(schedule, half), tt.replay(schedule, exact))
