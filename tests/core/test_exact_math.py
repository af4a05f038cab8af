"""The elementary functions made of exactly rounded operations: how accurate they are, and that they see no batch."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
import torch

from trimtab.core import steady

mpmath.mp.dps = 40


def _quantile(p):
    below = min(p, 1 - p)
    x = mpmath.sqrt(-2 * mpmath.log(below)) * mpmath.mpf("0.9")
    for _ in range(60):  # Newton's method on the logarithm of the tail
        tail = mpmath.erfc(x / mpmath.sqrt(2)) / 2
        density = mpmath.exp(-x * x / 2) / mpmath.sqrt(2 * mpmath.pi)
        step = mpmath.log(tail / below) * tail / density
        x += step
        if abs(step) < 1e-25:
            break
    return x if p > 0.5 else -x


# function, its exact values, arguments, and the error allowed, in units in the last place
CASES = {
    "exp": (steady.exp, mpmath.exp, (-700, 700), 2),
    "logistic": (steady.logistic, lambda x: 1 / (1 + mpmath.exp(-x)), (-30, 30), 2),
    "log": (steady.log, mpmath.log, (1e-12, 4), 2),
    "sine": (lambda x: steady.sin_cos(x)[0], mpmath.sin, (-6000, 6000), 3),
    "cosine": (lambda x: steady.sin_cos(x)[1], mpmath.cos, (-6000, 6000), 3),
    "quantile": (steady.normal_quantile, _quantile, (1e-12, 1 - 1e-12), 8),
}


@pytest.mark.parametrize("name", CASES)
def test_functions_are_accurate_to_a_few_units_in_the_last_place(name):
    function, exact, (low, high), allowed = CASES[name]
    x = torch.rand(400, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * (high - low) + low
    for argument, found in zip(x.tolist(), function(x).tolist(), strict=True):
        value = exact(mpmath.mpf(argument))
        assert abs(found - value) <= allowed * math.ulp(float(value)), argument


def test_quantiles_are_accurate_to_the_end_of_the_tails():
    p = 2.0 ** -torch.linspace(1.01, 53, 200, dtype=torch.float64)
    for argument, found in zip(p.tolist(), steady.normal_quantile(p).tolist(), strict=True):
        value = _quantile(mpmath.mpf(argument))
        assert abs(found - value) <= 8 * math.ulp(float(value)), argument


def test_the_quantile_is_odd():
    p = torch.arange(1, 1000, dtype=torch.float64) / 2048
    assert torch.equal(steady.normal_quantile(1 - p), -steady.normal_quantile(p))


def test_angles_are_accurate_in_every_direction():
    y, x = torch.randn(2, 400, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    y *= 10.0 ** torch.linspace(-9, 9, 400, dtype=torch.float64)
    for a, b, found in zip(y.tolist(), x.tolist(), steady.arctan2(y, x).tolist(), strict=True):
        value = mpmath.atan2(mpmath.mpf(a), mpmath.mpf(b))
        assert abs(found - value) <= 4 * math.ulp(float(value)), (a, b)
    corners = [(0.0, 1.0), (1.0, 0.0), (0.0, -1.0), (-1.0, 0.0), (0.0, 0.0)]
    found = steady.arctan2(*torch.tensor(corners, dtype=torch.float64).T)
    assert found.tolist() == [0, math.pi / 2, math.pi, -math.pi / 2, 0]


@pytest.mark.parametrize("n", [0, 1, 5, 4096, 4097, 10_000])
def test_numbers_do_not_depend_on_their_place(n):
    x = torch.rand(10_000, generator=torch.Generator().manual_seed(3), dtype=torch.float64) * 0.9 + 0.05
    for function, *_ in CASES.values():
        assert torch.equal(function(x[:n]), function(x)[:n])
        assert torch.equal(function(x[len(x) - n :]), function(x)[len(x) - n :])
    assert torch.equal(steady.arctan2(x[:n], 1 - x[:n]), steady.arctan2(x, 1 - x)[:n])


def test_shape_and_kind_are_those_of_the_argument():
    x = torch.rand(2, 3, generator=torch.Generator().manual_seed(4))
    assert steady.exp(x).dtype == torch.float32
    assert steady.sin_cos(x).shape == (2, 2, 3)
    assert torch.equal(steady.exp(x), torch.from_numpy(steady.exp(x.numpy())))
    assert steady.exp(torch.tensor(1.0)).shape == ()
    assert steady.exp(torch.tensor([torch.nan, torch.inf, -torch.inf])).isnan().tolist() == [True, False, False]


@pytest.mark.parametrize("d", [0, 1, 2, 3, 5, 8, 100, 1001])
def test_sums_of_rows_are_sums_and_see_one_row(d):
    x = torch.randn(40, d, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    found = steady.sum_rows(x)
    for row, total in zip(x.tolist(), found.tolist(), strict=True):
        assert abs(total - math.fsum(row)) <= 12 * math.ulp(1.0) * sum(map(abs, row))
    assert all(torch.equal(steady.sum_rows(x[i : i + 1]), found[i : i + 1]) for i in range(40))


def test_products_are_products():
    a, b = torch.randn(2, 5, 3, 3, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    found = steady.batch_first(steady.product(steady.batch_last(a), steady.batch_last(b)))
    assert np.allclose(found, a @ b, rtol=0, atol=1e-14)
