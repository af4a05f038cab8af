"""An identity sees every part of a problem, and nothing but its parts."""

import importlib
import pickle
import sys
import threading
from dataclasses import dataclass, field
from functools import partial
from random import Random, SystemRandom
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import trimtab as tt
from trimtab.core.identity import UnidentifiedError, fingerprint, identity, user_modules

LAYOUTS = {
    "empty, from numpy": (torch.from_numpy(np.empty((0, 3)).T), torch.empty(3, 0, dtype=torch.float64)),
    "empty, stride 0": (
        torch.from_numpy(np.lib.stride_tricks.as_strided(np.ones(1), (0,), (0,))),
        torch.zeros(0).double(),
    ),
    "empty, expanded": (torch.ones(1).expand(0), torch.empty(0)),
    "one element, stride 3": (torch.arange(3.0)[::3], torch.tensor([0.0])),
    "one element, stride 0": (torch.ones(()).expand(1), torch.ones(1)),
    "one element, (1, 1)": (torch.arange(6.0).reshape(2, 3)[:1, :1].T, torch.zeros(1, 1)),
    "transposed": (torch.arange(6.0).reshape(2, 3).T, torch.tensor([[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]])),
    "every second": (torch.arange(6.0)[::2], torch.tensor([0.0, 2.0, 4.0])),
    "scalar": (torch.arange(3.0)[1], torch.tensor(1.0)),
    "conjugated": (torch.tensor([1 + 2j]).conj(), torch.tensor([1 - 2j])),
    "half": (torch.ones(4, dtype=torch.bfloat16)[::2], torch.ones(2, dtype=torch.bfloat16)),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_only_the_numbers_count_and_not_how_they_lie_in_memory(name: str) -> None:
    lying, plain = LAYOUTS[name]
    assert fingerprint(lying) == fingerprint(plain)


def test_other_numbers_shapes_and_types_are_told_apart() -> None:
    things = [
        torch.zeros(2),
        torch.ones(2),
        torch.zeros(2, 1),
        torch.zeros(2).double(),
        torch.zeros(0),
        torch.zeros(0, 2),
    ]
    assert len({fingerprint(thing) for thing in things}) == len(things)


@dataclass
class Parts:
    """Something whose parts may be anything."""

    first: Any
    second: Any = None


def beginning_with(*values: int):
    def one(x):
        return x + values[0]

    return one


NESTED = {
    "lists": ([[1], 2], [[1, 2]]),
    "empty lists": ([[], []], [[[]]]),
    "dictionaries": ({"a": {"b": 1}, "c": 2}, {"a": {"b": 1, "c": 2}}),
    "data classes": (Parts(Parts(1, [2]), 3), Parts(Parts(1, [2, 3]))),
    "sets": ([{1}, "2"], [{1, 2}]),
    "partials": (partial(max, [1], 2), partial(max, [1, 2])),
    "objects": ([SimpleNamespace(a=1), "b", 2], [SimpleNamespace(a=1, b=2)]),
    "functions": ([beginning_with(1), 2], [beginning_with(1, 2)]),
}


@pytest.mark.parametrize("told", [fingerprint, identity])
@pytest.mark.parametrize("name", NESTED)
def test_what_is_within_an_object_is_told_from_what_comes_after_it(name: str, told) -> None:
    one, other = NESTED[name]
    assert told(one) == told(one) != told(other)
    assert told([one], other) != told([one, other])


SCRIPT = """
import logging
import math
import torch

LOG = logging.getLogger("a script")
SIDE, COUNT = 0.5, 0

class Box:
    corners = 4

    @property
    def area(self):
        return SIDE * self.corners

    def clamp(self, x):
        return x.clamp(-SIDE, SIDE)

def even(n):
    return n == 0 or odd(n - 1)

def odd(n):
    return n != 0 and even(n - 1)

def counted():
    global COUNT
    COUNT += 1

def twice(x):
    return 2 * x

def sample(schedule, seed):
    counted()
    LOG.debug("sampling")
    box = Box()
    return [box.clamp(twice(x)) for x in range(seed) if even(x)], box.area, math.pi

run = lambda schedule: sample(schedule, seed=1)
kind = Box
"""

EDITS = {
    "a constant": ("SIDE, COUNT = 0.5, 0", "SIDE, COUNT = 0.4, 0"),
    "a function that is called": ("2 * x", "3 * x"),
    "one that it calls itself": ("n == 0 or", "n == 1 or"),
    "one that calls back": ("n != 0 and", "n > 0 and"),
    "a method": ("x.clamp(-SIDE, SIDE)", "x.clamp(-SIDE, 2 * SIDE)"),
    "a property": ("SIDE * self.corners", "SIDE + self.corners"),
    "a constant of a class": ("corners = 4", "corners = 5"),
}


def of_script(text: str, name: str):
    space = {"__name__": "__main__"}
    exec(text, space)
    return space[name]


@pytest.mark.parametrize("told", [fingerprint, identity])
@pytest.mark.parametrize("edit", EDITS)
def test_what_a_function_of_a_script_reads_and_calls_counts(edit: str, told) -> None:
    before, after = EDITS[edit]
    assert SCRIPT.count(before) == 1
    assert told(of_script(SCRIPT, "run")) == told(of_script(SCRIPT, "run"))
    assert told(of_script(SCRIPT, "run")) != told(of_script(SCRIPT.replace(before, after), "run"))


@pytest.mark.parametrize("edit", ["a method", "a property", "a constant of a class"])
def test_a_class_of_a_script_counts_with_its_methods_before_there_is_one_of_it(edit: str) -> None:
    assert fingerprint(of_script(SCRIPT, "kind")) == fingerprint(of_script(SCRIPT, "kind"))
    edited = of_script(SCRIPT.replace(*EDITS[edit]), "kind")
    assert fingerprint(of_script(SCRIPT, "kind")) != fingerprint(edited)
    box = of_script(SCRIPT, "kind")
    assert fingerprint((box, box())) != fingerprint((edited, edited()))


def test_a_short_name_leaves_out_what_a_function_counts_itself_and_what_it_does_not_read() -> None:
    run = of_script(SCRIPT, "run")
    name, proof = fingerprint(run), identity(run)
    run.__globals__["unread"] = 5
    run.__globals__["LOG"].debug("which is remembered by the logger")
    assert identity(run) == proof
    run.__globals__["counted"]()
    assert fingerprint(run) == name
    assert identity(run) != proof  # a run may depend on it
    run.__globals__["SIDE"] = 0.1
    assert fingerprint(run) != name


class Slotted:
    """Something that keeps no dictionary."""

    __slots__ = ("__hidden", "radius")

    def __init__(self, radius: float, hidden: float = 0.0) -> None:
        self.radius, self.__hidden = radius, hidden


class SlottedBall(tt.Constraint):
    """Something that keeps a dictionary beside its slots."""

    __slots__ = ("radius",)

    def __init__(self, radius: float, name: str = "") -> None:
        self.radius, self.name = radius, name


@pytest.mark.parametrize("told", [fingerprint, identity])
def test_what_is_kept_in_slots_counts(told) -> None:
    things = [Slotted(1.0), Slotted(2.0), Slotted(1.0, 1.0), SlottedBall(1.0), SlottedBall(2.0), SlottedBall(1.0, "b")]
    assert len({str(told(thing)) for thing in things}) == len(things)
    assert told(Slotted(1.0)) == told(Slotted(1.0))
    assert told(SlottedBall(1.0)) == told(SlottedBall(1.0))


GENERATORS: dict[str, Any] = {
    "numpy": np.random.default_rng,
    "numpy, Mersenne twister": lambda seed: np.random.Generator(np.random.MT19937(seed)),
    "numpy, bits": np.random.PCG64,
    "numpy, old": np.random.RandomState,
    "torch": lambda seed: torch.Generator().manual_seed(seed),
    "random": Random,
}


@pytest.mark.parametrize("make", [*(partial(make, 0) for make in GENERATORS.values()), object])
def test_where_an_object_lies_is_no_part_of_it(make) -> None:
    one, other = make(), make()
    assert identity(Parts(one)) == identity(Parts(other))


@pytest.mark.parametrize("name", GENERATORS)
def test_a_generator_counts_with_its_state_in_a_proof_and_without_it_in_a_name(name: str) -> None:
    make = GENERATORS[name]
    first, second = Parts(make(1)), Parts(make(2))
    assert identity(first) != identity(second)
    assert fingerprint(first) == fingerprint(second)  # it belongs to the samples, as seeds do
    assert identity([make(1), make(2)]) != identity([make(2), make(1)])
    assert identity(pickle.loads(pickle.dumps(first))) == identity(first)


def test_a_generator_that_was_drawn_from_is_another_one() -> None:
    held = np.random.default_rng(0)

    def loop(x):
        return x + held.normal()

    before = identity(loop)
    loop(0.0)
    assert identity(loop) != before


@pytest.mark.parametrize("told", [fingerprint, identity])
def test_arrays_and_keys_of_jax_are_told_by_their_numbers(told) -> None:
    jax = pytest.importorskip("jax", reason="needs the jax extra")
    make = [
        jax.numpy.zeros,
        jax.numpy.ones,
        lambda n: jax.numpy.ones(n, jax.numpy.bfloat16),
        lambda n: jax.numpy.eye(n),
    ]
    make += [lambda n, seed=seed, key=key: key(seed) for seed in (0, 1) for key in (jax.random.key, jax.random.PRNGKey)]
    assert len({str(told(Parts(one(3)))) for one in make}) == len(make)
    for one in make:
        assert told(Parts(one(3))) == told(Parts(one(3)))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.float32, torch.float64),
        (range(3), range(4)),
        (torch.zeros_like, torch.ones_like),
        (torch.device("cpu"), torch.device("meta")),
        (np, torch),
        (slice(1, 2), slice(1, 3)),
    ],
    ids=["dtype", "range", "compiled function", "device", "module", "slice"],
)
def test_things_without_attributes_are_told_apart(one: object, other: object) -> None:
    assert fingerprint(one) == fingerprint(one) != fingerprint(other)
    assert fingerprint([one]) != fingerprint([other])


# ------------------------------------------------------------------ nothing is too private or too deep


def linear(change=lambda module: None) -> torch.nn.Module:
    module = torch.nn.Linear(2, 2)
    torch.nn.init.ones_(module.weight)
    torch.nn.init.zeros_(module.bias)
    module.register_buffer("table", torch.zeros(3), persistent=False)
    change(module)
    return module


def hooked(scale: float):
    return lambda module: module.register_forward_hook(lambda module, given, found: found * scale)


def five_closures_deep(value):
    def one():
        def two():
            def three():
                def four():
                    def five():
                        return value

                    return five

                return four()

            return three()

        return two()

    return one()


def objects_deep(depth: int, value):
    return SimpleNamespace(inner=objects_deep(depth - 1, value)) if depth else SimpleNamespace(value=value)


def objects_in_an_array(middle):
    found = np.array([{"k": k} for k in range(5000)], dtype=object)
    found[2500] = middle
    return found


def layers_of_script(text: str) -> torch.nn.Module:
    return torch.nn.Sequential(of_script(text, "Layer")(), torch.nn.ReLU())


LAYER = """
import torch

class Layer(torch.nn.Module):
    def forward(self, x):
        return 2 * x
"""

UNSEEN = {
    "a non-persistent buffer": (linear, lambda: linear(lambda module: module.table.add_(1))),
    "a private attribute": (linear, lambda: linear(lambda module: setattr(module, "_scale", 2.0))),
    "a forward hook": (linear, lambda: linear(hooked(1.0))),
    "the code of a forward hook": (lambda: linear(hooked(1.0)), lambda: linear(hooked(2.0))),
    "the training mode": (linear, lambda: linear(lambda module: module.eval())),
    "a script's class in a Sequential": (
        lambda: layers_of_script(LAYER),
        lambda: layers_of_script(LAYER.replace("2 * x", "3 * x")),
    ),
    "five closures deep": (lambda: five_closures_deep(1.0), lambda: five_closures_deep(2.0)),
    "four objects deep": (lambda: objects_deep(4, 1.0), lambda: objects_deep(4, 2.0)),
    "thirty objects deep": (lambda: objects_deep(30, 1.0), lambda: objects_deep(30, 2.0)),
    "the middle of a large array of objects": (
        lambda: objects_in_an_array({"k": 0}),
        lambda: objects_in_an_array({"k": 1}),
    ),
    "a sparse tensor": (lambda: torch.eye(3).to_sparse(), lambda: (2 * torch.eye(3)).to_sparse()),
    "a sparse tensor by rows": (lambda: torch.eye(3).to_sparse_csr(), lambda: (2 * torch.eye(3)).to_sparse_csr()),
    "an attribute of a tensor": (lambda: torch.zeros(2), lambda: labelled(torch.zeros(2))),
    "shared parts": (lambda: [torch.zeros(2)] * 2, lambda: [torch.zeros(2), torch.zeros(2)]),
}


def labelled(tensor: torch.Tensor) -> torch.Tensor:
    tensor.label = "mine"
    return tensor


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("name", UNSEEN)
def test_every_part_counts(name: str) -> None:
    before, after = UNSEEN[name]
    assert identity(Parts(before())) == identity(Parts(before())) != identity(Parts(after()))


HELPER = """
GAIN = 1.0
def gained(x):
    return GAIN * x
"""
USER = """
import helper_of_user
from helper_of_user import gained

def by_name(x):
    return gained(x)

def by_module(x):
    return helper_of_user.gained(x)

def by_attribute(x):
    return helper_of_user.GAIN * x

def when_called(x):
    import helper_of_user as mine

    return mine.GAIN * x
"""


@pytest.fixture
def user(tmp_path, monkeypatch):
    (tmp_path / "helper_of_user.py").write_text(HELPER)
    (tmp_path / "module_of_user.py").write_text(USER)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("module_of_user")
    for name in ("helper_of_user", "module_of_user"):
        del sys.modules[name]


@pytest.mark.parametrize("told", [fingerprint, identity])
@pytest.mark.parametrize("name", ["by_name", "by_module", "by_attribute", "when_called"])
def test_globals_of_modules_that_change_at_run_time_count(name: str, told, user) -> None:
    before = told(getattr(user, name))
    assert told(getattr(user, name)) == before
    assert {module.__name__ for module in user_modules(getattr(user, name))} == {"helper_of_user", "module_of_user"}
    user.helper_of_user.GAIN = 2.0
    assert told(getattr(user, name)) != before
    user.helper_of_user.GAIN = 1.0
    assert told(getattr(user, name)) == before


def test_the_source_of_an_imported_helper_counts(user, tmp_path) -> None:
    before = identity(user.by_name)
    (tmp_path / "helper_of_user.py").write_text(HELPER + "# edited")
    assert identity(user.by_name) != before


def test_weights_that_change_in_place_are_another_problem() -> None:
    model = linear()
    before = identity(lambda x: model(x))
    with torch.no_grad():
        model.weight.mul_(2)
    assert identity(lambda x: model(x)) != before


@dataclass(frozen=True)
class PerSample:
    radius: float
    starts: Any = field(metadata={"per_sample": True})


def test_what_belongs_to_the_samples_counts_in_a_proof_and_not_in_a_name() -> None:
    one, other = PerSample(1.0, torch.zeros(2)), PerSample(1.0, torch.ones(2))
    assert identity(one) != identity(other)
    assert fingerprint(one) == fingerprint(other) != fingerprint(PerSample(2.0, torch.zeros(2)))


def nested(depth: int) -> list:
    found: list = []
    for _ in range(depth):
        found = [found]
    return found


@pytest.mark.parametrize(
    "part",
    [threading.Lock(), SystemRandom(), (k for k in range(3)), nested(100_000)],
    ids=["lock", "generator of the system", "generator function", "too deep"],
)
def test_what_cannot_be_hashed_whole_has_no_identity(part) -> None:
    with pytest.raises(UnidentifiedError, match="hashed"):
        identity(Parts(part))
    assert fingerprint(Parts(part)) == fingerprint(Parts(part))


def test_an_object_that_holds_itself_comes_to_an_end() -> None:
    one, other = SimpleNamespace(value=1), SimpleNamespace(value=2)
    one.self, other.self = one, other
    assert identity(one) == identity(one) != identity(other)
