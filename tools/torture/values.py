"""Values that cannot be meant, of every kind that a public function takes."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

T, N = 6, 4
Bad = Callable[[random.Random], Any]


class Thing:
    """An object of a kind that nothing takes."""

    def __repr__(self) -> str:
        """Short."""
        return "Thing()"


def not_a_number(r: random.Random) -> Any:
    """What is no number at all."""
    return r.choice(["x", "0.5", b"1", None, [], {}, Thing(), (1, 2), 1j, set(), object, len, ...])


def whole(r: random.Random) -> Any:
    """What is no whole number of at least 1."""
    many = [0, -1, -r.randint(2, 10**9), r.random() * 9 + 0.01, math.nan, math.inf, -math.inf, True, False]
    return r.choice([*many, not_a_number(r), not_a_number(r)])


def steps(r: random.Random) -> Any:
    """What cannot be a number of steps."""
    return r.choice([whole(r), whole(r), 2**31, 2**40, 10**30])


def budget(r: random.Random) -> Any:
    """What is neither a share of the steps nor a number of at most T corrections."""
    numbers = [-1, -r.randint(2, 10**9), T + r.randint(1, 10**6), 1 + r.random() + 1e-6, -r.random() - 1e-6]
    odd = [math.nan, math.inf, -math.inf, 2**70, 1e300, True]
    tensors = [torch.tensor([-1] * N), torch.tensor([math.nan] * N), torch.full((N,), T + 5), torch.ones(N + 1).long()]
    return r.choice([*numbers, *odd, *tensors, torch.ones(2, 2).long(), not_a_number(r), not_a_number(r)])


def seeds(r: random.Random) -> Any:
    """What are no seeds of samples."""
    listed = [["a"], [1, "b"], [1.5], [None], [[1, 2]], [math.nan], [2**70], [True], [Thing()], {"a": 1}]
    tensors = [torch.ones(3), torch.ones(2, 2).long(), torch.tensor(3), torch.tensor([True]), np.array(["a"])]
    return r.choice([*listed, *tensors, "abc", 3, 1.5, None, Thing(), len])


def state(r: random.Random) -> Any:
    """What is no batch of states of N samples in R^3."""
    shape = r.choice([(), (0,), (0, 3), (N, 0)])
    n = r.randint(0, N - 1)
    spoiled = torch.rand(N, 3)
    spoiled[r.randrange(N), r.randrange(3)] = r.choice([math.nan, math.inf, -math.inf])
    tensors = [
        torch.zeros(shape),
        spoiled,
        torch.ones(N, 3, dtype=torch.int64),
        torch.ones(N, 3, dtype=torch.complex64),
    ]
    odd = [
        torch.ones(N, 3, dtype=torch.bool),
        torch.ones(N, 3, device="meta"),
        torch.eye(3).to_sparse(),
        torch.tensor(1.0),
    ]
    others = ["x", None, 3, 1.5, [1, 2], [[1.0]], {}, Thing(), np.array(["a", "b"]), np.array([object()]), len]
    return r.choice([*tensors, *odd, *others, torch.rand(n, 3)[:0]])


def later_state(r: random.Random) -> Any:
    """What cannot follow a batch of N states of three float32."""
    wrong = [torch.rand(N + 1, 3), torch.rand(N - 1, 3), torch.rand(N, 4), torch.rand(N), torch.rand(N, 3).double()]
    return r.choice([state(r), *wrong, torch.rand(N, 3).half(), torch.rand(N, 3).numpy(), [torch.rand(N, 3)]])


def function(r: random.Random) -> Any:
    """What is no function."""
    return r.choice([None, 3, "f", [], {}, Thing(), 1.5, torch.ones(2), (1,)])


def word(r: random.Random) -> Any:
    """What is no name of anything."""
    return r.choice(["", "dP", "pathh", "x" * r.randint(1, 50), None, 3, 1.5, [], {}, Thing(), b"dp", ("dp",)])


def but_none(value: Any) -> Any:
    """Where None has a meaning of its own."""
    return "x" if value is None else value


def mask(r: random.Random) -> Any:
    """What is no mask."""
    return r.choice(
        [torch.ones(T), torch.ones(0).bool(), torch.ones(1, 1, 1).bool(), [True], None, "x", 3, np.ones(T, bool),
         torch.ones(T, dtype=torch.int64), torch.ones(0, 3).bool(), Thing(), {}]
    )  # fmt: skip


def table(r: random.Random) -> Any:
    """What is no table of prices."""
    spoiled = torch.full((T, 3), 1.0)
    spoiled[:, 0] = torch.inf
    spoiled[r.randrange(T), 1 + r.randrange(2)] = math.nan
    wrong = [torch.ones(T), torch.ones(T, 3), torch.ones(0, 3), torch.ones(T, 0), torch.ones(2, 2, 2), torch.ones(2, 9)]
    return r.choice([spoiled, *wrong, torch.ones(T, 3).long(), None, "x", [[1.0]], np.ones((2, 2)), Thing(), 3])


def matrix(r: random.Random) -> Any:
    """What is no matrix of finite numbers with three columns."""
    spoiled = torch.rand(2, 3)
    spoiled[0, 0] = r.choice([math.nan, math.inf])
    return r.choice([spoiled, torch.rand(3), torch.rand(2, 2, 3), "x", None, [["a"]], Thing(), 3])


def place(r: random.Random) -> Any:
    """What is no file of ours."""
    return r.choice(["", "no/such/file", "/", "/dev/null", "\0", "x" * 5000, None, 3.5, [], {}, Thing(), b"\xff"])


def level(r: random.Random) -> Any:
    """What is no number of at least 0."""
    return r.choice([-1.0, -r.random() - 1e-9, math.nan, -math.inf, True, not_a_number(r), not_a_number(r)])


def quantile(r: random.Random) -> Any:
    """What is no number from 0 to 1."""
    return r.choice([-r.random() - 1e-9, 1 + r.random() + 1e-9, math.nan, math.inf, True, not_a_number(r)])


def above_zero(r: random.Random) -> Any:
    """What is no finite number above 0."""
    return r.choice([0, 0.0, math.inf, level(r), level(r)])


def spoiled(shape: tuple[int, ...], r: random.Random) -> torch.Tensor:
    """Numbers of a shape, of which one is none."""
    values = torch.rand(shape)
    values.view(-1)[r.randrange(values.numel())] = r.choice([math.nan, math.inf, -math.inf])
    return values


def one_of(*values: Any) -> Bad:
    """Any of these."""
    return lambda r: r.choice(values)


def no_tensor(shape: tuple[int, ...], *, numbers: bool = True) -> Bad:
    """What is no floating-point tensor of this shape; with `numbers`, also one with a NaN or an infinity in it."""

    def bad(r: random.Random) -> Any:
        longer = (*shape[:-1], shape[-1] + 1)
        wrong = [torch.rand(longer), torch.rand(*shape, 1), torch.rand(()), torch.ones(shape, dtype=torch.int64)]
        odd = [torch.ones(shape, dtype=torch.complex64), torch.ones(shape, device="meta"), torch.rand(shape).numpy()]
        others = ["x", None, 3, 1.5, [[1.0]], {}, Thing(), len]
        return r.choice([*wrong, *odd, *others, *([spoiled(shape, r), spoiled(shape, r)] if numbers else [])])

    return bad
