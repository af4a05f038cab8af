"""The statistics module: intervals that hold on heavy tails, or are not shown."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from trimtab.core.statistics import (
    Summary,
    count_signs,
    effective_n,
    paired,
    ratio,
    summarize,
    tail_share,
    verdict,
)

Draw = Callable[[int, torch.Generator], Tensor]
_SETS = 100


def _normal(n: int, g: torch.Generator) -> Tensor:
    return torch.randn(n, generator=g, dtype=torch.float64)


def _uniform(n: int, g: torch.Generator) -> Tensor:
    return torch.rand(n, generator=g, dtype=torch.float64)


def _exponential(n: int, g: torch.Generator) -> Tensor:
    return -_uniform(n, g).log()


def _lognormal(sigma: float) -> tuple[Draw, float]:
    return lambda n, g: (sigma * _normal(n, g)).exp(), math.exp(sigma**2 / 2)


def _pareto(alpha: float) -> tuple[Draw, float]:
    return lambda n, g: _uniform(n, g) ** (-1 / alpha), alpha / (alpha - 1)


def _mixture(sigma: float, rare: float = 0.01, share: float = 0.74) -> tuple[Draw, float]:
    """1% of the samples hold 74% of the sum; the others are log-normal."""
    bulk, mean = _lognormal(sigma)
    factor = (1 - rare) * share / (1 - share) / rare

    def draw(n: int, g: torch.Generator) -> Tensor:
        return torch.where(_uniform(n, g) < rare, factor * bulk(n, g), bulk(n, g))

    return draw, mean * (1 - rare) / (1 - share)


LIGHT: dict[str, tuple[Draw, float]] = {
    "normal": (_normal, 0.0),
    "uniform": (_uniform, 0.5),
    "exponential": (_exponential, 1.0),
}
HEAVY = {
    "lognormal 1": _lognormal(1.0),
    "lognormal 2": _lognormal(2.0),
    "pareto 1.5": _pareto(1.5),
    "pareto 2": _pareto(2.0),
    "pareto 3": _pareto(3.0),
    "mixture": _mixture(2.0),
}


def _shown_and_right(draw: Draw, truth: float, n: int) -> tuple[int, int]:
    """How many of the sets had an interval, and how many of those covered the truth."""
    generator = torch.Generator().manual_seed(n)
    found = [summarize(draw(n, generator)) for _ in range(_SETS)]
    shown = [one for one in found if one.reliable]
    return len(shown), sum(one.low <= truth <= one.high for one in shown)


@pytest.mark.parametrize("case", LIGHT)
def test_light_tails_have_intervals_that_cover(case: str) -> None:
    shown, right = _shown_and_right(*LIGHT[case], 64)
    assert shown >= 0.8 * _SETS
    assert right >= 0.93 * shown


@pytest.mark.parametrize("n", [64, 128])
def test_shown_intervals_cover_on_heavy_tails(n: int) -> None:
    """Over all heavy tails together at least 90%, and a wrong interval is rare for each of them."""
    counts = {case: _shown_and_right(*HEAVY[case], n) for case in HEAVY}
    for case, (shown, right) in counts.items():
        assert shown - right <= 0.1 * _SETS, case
    assert sum(right for _, right in counts.values()) >= 0.9 * sum(shown for shown, _ in counts.values())
    for case in ("lognormal 2", "mixture"):
        assert counts[case][0] <= 0.1 * _SETS, case


def test_a_ratio_is_not_shown_if_the_whole_has_a_rare_tail() -> None:
    """The part is light in most sets, because its rare samples were not drawn; the whole gives that away."""
    generator = torch.Generator().manual_seed(1)
    wrong, n = 0, 64
    truth = (0.99 * 0.1 + 0.01 * 30) / (0.9 * 1 + 0.1 * 30)
    for _ in range(_SETS):
        jumps, ends = _uniform(n, generator), 30 * _exponential(n, generator)
        whole = torch.where(jumps < 0.1, ends, _exponential(n, generator))
        part = torch.where(jumps < 0.01, ends, 0.1 * _exponential(n, generator))
        found = ratio(part, whole)
        wrong += found.reliable and not found.low <= truth <= found.high
    assert wrong <= 0.1 * _SETS


def test_ratios_cover() -> None:
    generator = torch.Generator().manual_seed(2)
    shown = right = 0
    for _ in range(_SETS):
        whole = _exponential(64, generator)
        found = ratio(0.2 * whole + 0.1 * _exponential(64, generator), whole)
        shown += found.reliable
        right += found.reliable and found.low <= 0.3 <= found.high
    assert shown >= 0.7 * _SETS
    assert right >= 0.9 * shown


def test_repeated_seeds_count_once() -> None:
    values = torch.tensor([1.0, 2.0] * 8)
    seeds = torch.tensor([5, 7] * 8)
    assert summarize(values, seeds).n == 2
    assert not summarize(values, seeds).reliable
    assert count_signs(values, torch.zeros(16), seeds)[:3] == (0, 2, 0)
    assert ratio(values, values, seeds).n == 2
    with pytest.raises(ValueError, match="one label per sample"):
        summarize(values, seeds[:3])


def test_one_sample_that_holds_the_sum_leaves_no_interval() -> None:
    found = summarize([0.1] * 63 + [50.0])
    assert math.isnan(found.low)
    assert math.isnan(found.high)
    assert found.top_share == 1.0
    assert verdict(found) == "undecided"
    assert "not known" in str(found)
    assert found.facts()["low"] is None


def test_nan_is_left_out_and_infinity_has_no_interval() -> None:
    values = torch.arange(20.0)
    assert summarize(torch.cat([values, torch.tensor([torch.nan])])) == summarize(values)
    assert math.isinf(summarize(torch.cat([values, torch.tensor([torch.inf])])).mean)
    assert summarize([]).n == 0
    assert math.isnan(ratio(values, -values).mean)


def test_equal_values_have_a_point() -> None:
    found = summarize([0.3] * 32)
    assert (found.low, found.high) == pytest.approx((0.3, 0.3))
    assert ratio(torch.zeros(32), torch.rand(32, generator=torch.Generator().manual_seed(0))).high == 0.0


def test_verdicts() -> None:
    assert verdict(paired(torch.zeros(32), torch.ones(32))) == "better"
    assert verdict(paired(torch.ones(32), torch.zeros(32))) == "worse"
    assert verdict(paired(torch.ones(32), torch.ones(32))) == "same"
    assert verdict(Summary(0.1, -0.5, 0.7), margin=0.2) == "undecided"


def test_tails_and_effective_numbers() -> None:
    assert tail_share(torch.ones(200)) == pytest.approx(0.01)
    assert effective_n(torch.ones(50)) == 50
    assert effective_n([0.0, 0.0, 3.0]) == 1


def test_the_global_generator_is_left_alone() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    first = summarize(torch.arange(40.0))
    assert torch.equal(torch.get_rng_state(), before)
    assert summarize(torch.arange(40.0)) == first
