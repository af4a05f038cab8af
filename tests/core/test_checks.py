"""Checks of arguments let through what is meant, and say what came and what was expected of the rest."""

from __future__ import annotations

import math

import pytest
import torch

from trimtab.core.checks import float_tensor, positive_number, whole_tensor, yes_or_no
from trimtab.core.errors import real_number, whole_number


def test_what_is_meant_goes_through():
    x, rows = torch.rand(4, 3), torch.arange(4)
    assert positive_number(2, "a radius") == 2.0
    assert yes_or_no(False, "check") is False
    assert float_tensor(x, "x", ("n", 3)) is x
    assert float_tensor(x * math.inf, "x", finite=False).shape == (4, 3)
    assert whole_tensor(rows, "rows", ("k",)) is rows


@pytest.mark.parametrize("value", [0, -1.5, math.inf, math.nan, True, "1", None, 1j, [1]])
def test_what_is_no_number_above_0_is_refused(value):
    with pytest.raises((TypeError, ValueError), match=r"a radius must be a (finite )?number"):
        positive_number(value, "a radius")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.rand(4, 2), r"x must have shape \(n, 3\): got \(4, 2\)"),
        (torch.rand(3), r"x must have shape \(n, 3\): got \(3,\)"),
        (torch.ones(4, 3).long(), "x must be floating-point numbers: got torch.int64"),
        (torch.full((4, 3), math.nan), "x must be finite numbers: got NaN or an infinity"),
        (torch.ones(4, 3, device="meta"), "without numbers"),
        ([[1.0, 2.0, 3.0]], "x must be a torch tensor: got .* of type list"),
    ],
)
def test_what_is_no_tensor_of_the_shape_is_refused(value, message):
    with pytest.raises((TypeError, ValueError), match=message):
        float_tensor(value, "x", ("n", 3))


def test_a_range_is_told_without_the_end_that_is_there_for_the_machine():
    with pytest.raises(ValueError, match="n must be a whole number of at least 1: got 0"):
        whole_number(0, "n")
    with pytest.raises(ValueError, match="n must be a whole number of at most 2147483647: got 2147483648"):
        whole_number(2**31, "n")
    with pytest.raises(ValueError, match="n must be a whole number from 0 to 5: got 6"):
        whole_number(6, "n", 0, 5)
    with pytest.raises(ValueError, match="q must be a number of at least 0: got -1"):
        real_number(-1, "q", 0)
