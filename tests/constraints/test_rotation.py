"""Nearest rotations: every kind of matrix, against rotations that are known."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from trimtab.constraints.rotation import nearest_rotation, rotation_angle, rotation_defect

EYE = torch.eye(3, dtype=torch.float64)


def rotations(n: int, seed: int) -> Tensor:
    """From unit quaternions, with no projection."""
    q = torch.randn(n, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    w, x, y, z = (q / q.norm(dim=1, keepdim=True)).unbind(1)
    rows = [
        torch.stack([1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)], dim=1),
        torch.stack([2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)], dim=1),
        torch.stack([2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)], dim=1),
    ]
    return torch.stack(rows, dim=1)


def stretched(values: tuple[float, float, float], n: int = 50, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Matrices U diag(values) Vᵀ and the rotations U Vᵀ, nearest to them if values[1] + values[2] > 0."""
    u, v = rotations(n, seed), rotations(n, seed + 1)
    s = torch.tensor(values, dtype=torch.float64)
    return (u * s) @ v.mT, u @ v.mT


def assert_rotations(r: Tensor, eps: float = 5e-15) -> None:
    assert (r.mT @ r - EYE.to(r)).abs().max() <= eps
    assert (torch.linalg.det(r) - 1).abs().max() <= eps


@pytest.mark.parametrize(
    "values",
    [(3, 2, 1), (3, 2, -1), (1, 1, 1), (1, 0.5, 0), (1, 0.5, 1e-9), (1, 0.5, -1e-9), (1.01, 1, 0.99), (5, 5, -1)],
    ids=str,
)
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_a_well_determined_rotation_is_found_to_the_last_digits(values, scale):
    a, expected = stretched(values)
    found = nearest_rotation(scale * a)
    assert_rotations(found)
    assert (found - expected).abs().max() <= 2e-14


@pytest.mark.parametrize(
    ("values", "gap"),
    [((1, 0.5, -0.499), 1e-3), ((1, 0.5, -0.5 + 1e-7), 1e-7), ((1, 1e-9, 1e-12), 1e-9), ((1e8, 1, 1e-8), 1e-8)],
    ids=str,
)
def test_where_the_answer_hangs_by_a_thread_the_error_is_that_of_the_input(values, gap):
    a, expected = stretched(values)
    found = nearest_rotation(a)
    assert_rotations(found)
    assert (found - expected).abs().max() <= 5e-15 / gap


@pytest.mark.parametrize("values", [(1, 0, 0), (0, 0, 0), (1, 1, -1), (1, 0.5, -0.5), (2, 2, -2)], ids=str)
def test_where_several_rotations_are_nearest_one_of_them_is_found(values):
    a, _ = stretched(values)
    found = nearest_rotation(a)
    assert_rotations(found)
    # the inner product with A is as large as it can be: the sum of the singular values, signed
    assert ((found * a).sum(dim=(1, 2)) - sum(values)).abs().max() <= 1e-14


@settings(max_examples=200)
@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=9, max_size=9))
def test_any_matrix_has_a_nearest_rotation(entries):
    a = torch.tensor(entries, dtype=torch.float64).reshape(1, 3, 3)
    found = nearest_rotation(a)
    assert_rotations(found)
    s = torch.linalg.svdvals(a)[0]
    best = s[0] + s[1] + torch.sign(torch.linalg.det(a))[0] * s[2]
    assert float((found * a).sum()) >= float(best) - 1e-12 * (1 + float(s[0]))


@pytest.mark.parametrize("scale", [1e-200, 1e-120, 1e120, 1e200])
def test_sizes_at_the_ends_of_the_range_are_right(scale):
    a, expected = stretched((3, 2, -1))
    found = nearest_rotation(scale * a)
    assert_rotations(found)
    assert (found - expected).abs().max() <= 5e-14


def test_float32_is_as_exact_as_float32_can_be():
    a, expected = stretched((3, 2, -1))
    found = nearest_rotation(a.float())
    assert found.dtype == torch.float32
    assert (found.double() - expected).abs().max() <= 5e-7


@pytest.mark.parametrize("n", [1, 2, 3, 7, 16, 33])
def test_a_matrix_has_the_same_rotation_in_any_batch(n):
    a = torch.randn(100, 3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    whole = nearest_rotation(a)
    torch.testing.assert_close(nearest_rotation(a[:n]), whole[:n], rtol=0, atol=1e-12)
    torch.testing.assert_close(nearest_rotation(a[-n:]), whole[-n:], rtol=0, atol=1e-12)


def test_matrices_near_and_far_in_one_batch_are_each_what_they_are_alone():
    a = rotations(64, 0) + 0.05 * torch.randn(64, 3, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    a[3], a[10], a[20] = -a[3], 40 * a[10], torch.zeros(3, 3, dtype=torch.float64)  # mirrored, far, singular
    a[30], a[40] = torch.nan, a[40] * torch.tensor([1.0, 1.0, 1e-9])
    found = nearest_rotation(a)
    assert found[30].isnan().all()
    alone = torch.cat([nearest_rotation(matrix[None]) for matrix in a])  # a batch of one takes a decomposition
    sound = torch.arange(64) != 30
    assert_rotations(found[sound])
    torch.testing.assert_close(found[sound], alone[sound], rtol=0, atol=1e-14)


def test_any_batch_shape():
    a, _ = stretched((3, 2, 1), n=6)
    torch.testing.assert_close(nearest_rotation(a.reshape(2, 3, 3, 3)), nearest_rotation(a).reshape(2, 3, 3, 3))
    assert nearest_rotation(a[0]).shape == (3, 3)
    assert nearest_rotation(a[:0]).shape == (0, 3, 3)
    torch.testing.assert_close(nearest_rotation(a.mT.contiguous().mT), nearest_rotation(a))


def test_other_shapes_are_refused():
    with pytest.raises(ValueError, match=r"\(…, 3, 3\): got \(4, 3\)"):
        nearest_rotation(torch.zeros(4, 3))


@settings(max_examples=50)
@given(angle=st.floats(0, math.pi), seed=st.integers(0, 1000))
def test_the_angle_is_exact_from_0_to_pi(angle, seed):
    c, s = math.cos(angle), math.sin(angle)
    turn = torch.tensor([[c, -s, 0], [s, c, 0], [0, 0, 1]], dtype=torch.float64)
    a, frame = rotations(1, seed), rotations(1, seed + 1)
    b = a @ frame @ turn @ frame.mT
    assert abs(float(rotation_angle(a, b)) - angle) <= 2e-15 * 10


def test_the_angle_of_equal_rotations_is_exactly_0():
    a = rotations(20, 3)
    assert (rotation_angle(a, a) == 0).all()


def test_the_defect_is_the_formula_of_the_paper():
    a = torch.randn(20, 3, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    expected = (a.mT @ a - EYE).flatten(1).norm(dim=1) + (torch.linalg.det(a) - 1).abs()
    assert torch.allclose(rotation_defect(a), expected, rtol=1e-13, atol=0)
    torch.testing.assert_close(rotation_defect(a.view(4, 5, 3, 3)), rotation_defect(a).view(4, 5))
    torch.testing.assert_close(rotation_defect(a[3]), rotation_defect(a)[3])


@pytest.mark.parametrize(("dtype", "largest"), [(torch.float32, 2e38), (torch.float64, 1e308)])
def test_a_defect_is_infinite_only_where_no_number_is_large_enough(dtype, largest):
    flat = torch.zeros(1, 3, 3, dtype=dtype)
    flat[0, 0] = size = largest**0.5 / 3  # of rank one: its determinant is 0, however large it is
    assert float(rotation_defect(flat)) == pytest.approx(largest / 3, rel=1e-5)
    assert float(rotation_defect(size * torch.eye(3, dtype=dtype))) == math.inf


def test_a_defect_can_be_measured_inside_of_vmap():
    a = torch.randn(4, 5, 3, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    torch.testing.assert_close(torch.func.vmap(rotation_defect)(a), rotation_defect(a))
