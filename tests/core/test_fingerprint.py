"""A fingerprint tells problems apart by their numbers, however those lie in memory."""

import numpy as np
import pytest
import torch

from trimtab.core.fingerprint import fingerprint

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
