"""States of any size."""

from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict

import numpy as np
import pytest
import torch

import trimtab as tt
from trimtab.core.arrays import Form, all_finite, as_tensor, numbers_of
from trimtab.core.constraint import residual_norm
from trimtab.core.metrics import euclidean


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_a_large_number_is_finite_and_no_reason_to_warn(dtype):
    large = torch.full((3, 2), torch.finfo(dtype).max, dtype=dtype)
    assert all_finite((large, -large))
    assert not all_finite((large, large * 2))
    assert not all_finite((torch.tensor([[torch.nan]], dtype=dtype),))


@pytest.mark.parametrize("bad", [complex(float("nan"), 0), complex(0, float("inf"))])
def test_complex_numbers_are_looked_at_like_others(bad):
    x, z = torch.zeros(2, 1), torch.zeros(2, 1, dtype=torch.complex64)
    assert all_finite((x, z, torch.tensor([1, 2])))
    assert not all_finite((x, torch.full_like(z, bad)))
    corrector = tt.Corrector(tt.as_constraint(lambda s: s, lambda s: s["x"].abs().sum(dim=1)), tt.Stepwise(), 2)
    corrector({"x": x, "z": z}, 0)
    with pytest.raises(ValueError, match="the sampler proposed NaN or inf for 2 of 2 samples at step 1 of 2"):
        corrector({"x": x, "z": torch.full_like(z, bad)}, 1)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.complex64])
def test_a_numpy_array_is_read_whatever_its_strides(dtype):
    x = np.arange(6).reshape(3, 2).astype(dtype)
    field = np.zeros(3, dtype=[("flag", "u1"), ("x", dtype, (2,))])
    field["x"] = x
    for view in (x, x[::-1], x[:, ::-1], x.T, field["x"]):
        assert as_tensor(view).tolist() == view.tolist()


@pytest.mark.parametrize("dtype", [np.longdouble, object, "U3"])
def test_numbers_that_torch_has_not_are_refused(dtype):
    with pytest.raises(TypeError, match=r"of a kind that torch has, as float32 or float64: got a numpy array of "):
        as_tensor(np.ones((2, 3)).astype(dtype))


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32, np.uint64])
@pytest.mark.parametrize("event", [(), (2,)])
@pytest.mark.parametrize("policy", ["keep", "revert", "retry"])
def test_rows_with_unsigned_numbers_are_corrected_as_others_are(dtype, event, policy):
    """Keys of JAX's generators are of 32 bits, and a loop may keep one with each sample."""
    key = np.arange(4 * 2 ** len(event)).reshape(4, *event).astype(dtype)
    key[-1] = np.iinfo(dtype).max

    def project(state):
        near = {"x": np.clip(state["x"], -1, 1), "key": state["key"]}
        return tt.Projection(near, torch.from_numpy(state["x"][:, 0] < 4))

    constraint = tt.as_constraint(project, lambda state: (np.abs(state["x"]) - 1).clip(0).max(axis=1))
    corrector = tt.Corrector(constraint, lambda view: view.defect > 0, 3, closing="free", on_failure=policy)
    state = {"x": np.array([[0.0], [3.0], [5.0], [2.0]]), "key": key}
    for t in range(3):
        state = corrector(state, t)
        assert state["key"].dtype == dtype
        assert (state["key"] == key).all()
    assert state["x"].ravel().tolist() == [0.0, 1.0, 5.0 if policy == "revert" else 1.0, 1.0]


def test_keys_of_jax_are_refused_with_what_to_keep_instead():
    jax = pytest.importorskip("jax", reason="needs the jax extra")
    keys = jax.random.split(jax.random.key(0), 3)
    with pytest.raises(TypeError, match=r"an array of JAX's keys, key<fry>; keep jax\.random\.key_data\(keys\)"):
        as_tensor(keys)
    assert as_tensor(jax.random.key_data(keys)).shape == (3, 2)


class Own(dict):
    """A dictionary with a name."""


class Named(dict):
    """One that is made of its two arrays."""

    def __init__(self, x, v=None):
        super().__init__(x=x, v=v)


DICTIONARIES = {
    "ordered": OrderedDict,
    "default": lambda named: defaultdict(list, named),
    "own": Own,
    "of two arrays": lambda named: Named(**named),
}


@pytest.mark.parametrize("kind", DICTIONARIES)
def test_a_dictionary_of_a_kind_of_its_own_stays_one(kind):
    state = DICTIONARIES[kind]({"x": torch.ones(2, 3), "v": torch.zeros(2)})
    corrector = tt.Corrector(tt.as_constraint(lambda s: s, lambda s: s["v"].abs()), tt.Stepwise(), 3)
    for t in range(3):
        after = corrector(state, t)
        assert type(after) is type(state)
        assert list(after) == list(state)
        state = copy.copy(after)
        state["v"] = state["v"] + 1
    assert after["v"].tolist() == [2.0, 2.0]


def measured(before, after):
    """The two distances of one state with these leaves from another."""
    return residual_norm(before, after), euclidean(dict(enumerate(before)), dict(enumerate(after)))


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32, torch.int64, torch.complex64])
@pytest.mark.parametrize("shape", [(4,), (4, 3)])
def test_leaves_of_any_dtype_have_a_distance(dtype, shape):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 4, 2, generator=generator)
    other = torch.randint(0, 2, (2, *shape), generator=generator).to(dtype)
    before, after = ((x[i], other[i]) for i in (0, 1))
    whole = numbers_of(before) - numbers_of(after)
    for leaves in ((before, after), (before[1:], after[1:])):
        expected = whole.norm(dim=1) if len(leaves[0]) == 2 else whole[:, 2:].norm(dim=1)
        for found in measured(*leaves):
            assert found.is_floating_point()
            torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)


def test_a_projection_residual_is_had_of_a_state_with_flags():
    state = {"x": torch.full((2, 3), 2.0), "held": torch.tensor([True, False])}
    constraint = tt.as_constraint(lambda s: {"x": s["x"].clamp(max=1.0), "held": s["held"]})
    assert constraint.defect(state).tolist() == pytest.approx([3**0.5] * 2)


@pytest.mark.parametrize("state", [{"a.b": 0, "a": {"b": 1}}, {1: 0, "1": 1}])
def test_arrays_that_a_file_could_not_tell_apart_are_refused(state):
    def filled(part):
        return {key: filled(below) for key, below in part.items()} if isinstance(part, dict) else torch.zeros(2, 3)

    with pytest.raises(ValueError, match=r"two arrays of the state are both called (a\.b|1); give one of them another"):
        Form(filled(state))


def test_an_array_of_another_kind_is_refused_with_both_kinds():
    form = Form({"x": np.zeros((2, 3))})
    with pytest.raises(TypeError, match=r"as at the first step, x \(numpy\): got x \(torch\)"):
        form.leaves({"x": torch.zeros(2, 3)})
