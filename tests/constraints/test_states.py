"""What a constraint is given: every shape, dtype and kind of tensor is taken as meant or refused, never read past."""

from __future__ import annotations

import re
from math import prod

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import free
import trimtab as tt
from constraint_cases import CASES, N, states
from trimtab.constraints import SE3, SO3, HalfSpaces
from trimtab.constraints.states import host_array
from trimtab.core.noise import Noise

every_case = pytest.mark.parametrize("name", CASES)
both_calls = pytest.mark.parametrize("call", ["project", "defect"])


class Wrapped(torch.Tensor):
    """A tensor subclass that holds no numbers of its own."""

    @staticmethod
    def __new__(cls, shape: tuple[int, ...]) -> Wrapped:
        return torch.Tensor._make_wrapper_subclass(cls, shape, dtype=torch.float64)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise NotImplementedError(f"{func} needs numbers")


@every_case
@both_calls
def test_states_of_another_kind_are_refused(name, call):
    case = CASES[name]
    constraint = case.make()
    for wrong in (torch.zeros(N, *case.event, dtype=torch.int64), torch.zeros(N, *case.event, dtype=torch.complex64)):
        with pytest.raises(ValueError, match="floating-point"):
            getattr(constraint, call)(wrong)
    for none in (None, [[0.0]], 3.0):
        with pytest.raises(TypeError, match="a torch tensor"):
            getattr(constraint, call)(none)


@every_case
@both_calls
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_states_in_half_precision_are_refused_outside_of_a_run(name, call, dtype):
    case = CASES[name]
    x = states(case, dtype)
    with pytest.raises(ValueError, match=rf"float32 or float64: got {dtype}; use x\.float\(\), as a corrector does"):
        getattr(case.make(), call)(x)
    if call == "project":
        corrected = tt.Corrector(case.make(), tt.Stepwise(), n_steps=1, on_failure="keep")(x, 0)
        assert corrected.dtype == dtype
        assert corrected.isfinite().all()


@every_case
@both_calls
def test_states_without_numbers_are_refused(name, call):
    case = CASES[name]
    constraint, shape = case.make(), (N, *case.event)
    hollow = [
        torch._efficientzerotensor(shape, dtype=torch.float64),
        torch.zeros(shape, device="meta"),
        torch.zeros(shape).to_sparse(),
    ]
    for x in hollow:
        with pytest.raises(ValueError, match="memory of their own"):
            getattr(constraint, call)(x)
    with pytest.raises((ValueError, NotImplementedError, RuntimeError)):  # an error of Python, not of the process
        getattr(constraint, call)(Wrapped(shape))


@every_case
@both_calls
@settings(max_examples=25)
@given(shape=st.lists(st.integers(0, 7), min_size=0, max_size=4).map(tuple))
def test_a_shape_is_taken_as_meant_or_refused(name, call, shape):
    """Either one number per row comes back, or a ValueError that shows the shape."""
    constraint = CASES[name].make()
    x = torch.full(shape, 0.3, dtype=torch.float64)
    try:
        answer = getattr(constraint, call)(x)
    except ValueError:
        shown = {shape, (prod(shape[:2]), *shape[2:])}  # Together hands its rows on
        said = "|".join(rf"{re.escape(str(each))}|given {(*each, None)[0]} states" for each in shown)
        with pytest.raises(ValueError, match=said):
            getattr(constraint, call)(x)
        return
    assert x.ndim >= 2
    if call == "defect":
        assert answer.shape == shape[:1]
    else:
        assert (answer if isinstance(answer, Tensor) else answer.x).shape == shape


@both_calls
def test_planes_of_another_dimension_are_refused_before_they_are_read(call):
    planes = HalfSpaces(torch.rand(4, 50) - 0.5, torch.rand(4))
    with pytest.raises(ValueError, match=r"with 50 numbers each.*got \(20000, 2\)"):
        getattr(planes, call)(torch.rand(20000, 2))


@both_calls
def test_offsets_of_other_samples_are_refused_before_they_are_read(call):
    planes = HalfSpaces(torch.rand(4, 3) - 0.5, torch.rand(7, 4))
    with pytest.raises(ValueError, match="data for 7 samples but was given 20000"):
        getattr(planes, call)(torch.rand(20000, 3))


def test_a_loop_that_measures_nothing_is_refused_as_well():
    class Sampler:
        n_steps = 3

        def start(self, noise: Noise) -> Tensor:
            return noise.normal(0, (2,))

        def step(self, x: Tensor, t: int, noise: Noise) -> Tensor:
            return x

    planes = HalfSpaces(torch.rand(4, 50) - 0.5, torch.rand(4))
    with pytest.raises(ValueError, match="with 50 numbers each"):
        free.rollout(Sampler(), planes, tt.Stepwise(), range(64), measure_defects=False)


@pytest.mark.parametrize(("constraint", "event"), [(SO3(), (3, 3)), (SE3(), (3, 4))])
@both_calls
def test_several_matrices_to_a_sample_are_refused(constraint, event, call):
    with pytest.raises(ValueError, match="one row per sample: got"):
        getattr(constraint, call)(torch.zeros(5, 2, *event))


def test_an_array_is_made_of_any_layout_and_dtype():
    x = states(CASES["ball"], torch.float32)
    negated = torch.complex(torch.zeros_like(x), -x).conj().imag
    for view in (x, x.T.contiguous().T, x.flip(0), x.expand(3, *x.shape)[1], x.clone().requires_grad_(), negated):
        array = host_array(view)
        assert array.flags.c_contiguous
        assert torch.equal(torch.from_numpy(array).float(), view.detach())
    assert host_array(negated.double()).tolist() == x.double().tolist()
    with pytest.raises(ValueError, match="a Wrapped"):
        host_array(Wrapped((2, 2)))
    with pytest.raises(ValueError, match=r"torch\.func"):
        torch.func.vmap(lambda row: torch.from_numpy(host_array(row)))(x)
