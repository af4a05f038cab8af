"""Checks of arguments let through what is meant, and say what got and what was expected of the rest."""

from __future__ import annotations

import math

import pytest
import torch

from trimtab.core.checks import check_bool, check_floats, check_integer, check_number, check_positive


def test_what_is_meant_goes_through():
    x = torch.rand(4, 3)
    assert check_positive(2, "a radius") == 2.0
    assert check_bool(False, "check") is False
    assert check_floats(x, "x", ("n", 3)) is x
    assert check_floats(x * math.inf, "x", finite=False).shape == (4, 3)


@pytest.mark.parametrize("value", [0, -1.5, math.inf, math.nan, True, "1", None, 1j, [1]])
def test_what_is_no_number_above_0_is_refused(value):
    with pytest.raises((TypeError, ValueError), match=r"a radius must be a (finite )?number"):
        check_positive(value, "a radius")


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
        check_floats(value, "x", ("n", 3))


def test_a_range_is_told_without_the_end_that_is_there_for_the_machine():
    with pytest.raises(ValueError, match="n must be a whole number of at least 1: got 0"):
        check_integer(0, "n")
    with pytest.raises(ValueError, match="n must be a whole number of at most 2147483647: got 2147483648"):
        check_integer(2**31, "n")
    with pytest.raises(ValueError, match="n must be a whole number from 0 to 5: got 6"):
        check_integer(6, "n", 0, 5)
    with pytest.raises(ValueError, match="q must be a number of at least 0: got -1"):
        check_number(-1, "q", 0)
