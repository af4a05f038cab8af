from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trimtab.core.noise import Noise, as_seeds

seed_lists = st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=40)


@given(seed_lists, st.integers(-1, 5000), st.integers(0, 3), st.randoms(use_true_random=False))
def test_noise_is_the_same_in_every_split_and_order(seeds, t, stream, shuffler):
    whole = Noise(as_seeds(seeds)).normal(t, (2, 3), stream)
    order = list(range(len(seeds)))
    shuffler.shuffle(order)
    cut = shuffler.randint(0, len(seeds))
    for rows in (order[:cut], order[cut:], order[:1]):
        if rows:
            part = Noise(as_seeds([seeds[i] for i in rows])).normal(t, (2, 3), stream)
            torch.testing.assert_close(part, whole[rows], rtol=1e-12, atol=1e-12)


def test_the_noise_of_the_start_has_a_name():
    noise = Noise(as_seeds([1, 2]))
    assert torch.equal(noise.start((3,), stream=1), noise.normal(-1, (3,), stream=1))


def test_the_numbers_are_those_of_earlier_versions():
    noise = Noise(as_seeds([0, 7, -3]))
    known = [-0.41582463924986274, 0.06206109144672322, 0.5219110551281001]
    torch.testing.assert_close(
        noise.normal(2, (2,), 1)[:, 1], torch.tensor(known, dtype=torch.float64), rtol=1e-12, atol=1e-12
    )


def test_noise_does_not_depend_on_the_order_of_the_calls():
    noise = Noise(as_seeds([1, 2]))
    ahead = [noise.normal(t, (4,)) for t in range(200)]
    for t in (150, 3, 64, 63, 199, 0):
        assert torch.equal(noise.normal(t, (4,)), ahead[t])


def test_changing_a_draw_in_place_does_not_change_the_noise():
    noise = Noise(as_seeds([1, 2]))
    first = noise.normal(3, (4,)).clone()
    noise.normal(3, (4,)).mul_(0)
    assert torch.equal(noise.normal(3, (4,)), first)


def test_normals_are_normal_and_uncorrelated():
    n = 40_000
    noise = Noise(as_seeds(range(n)))
    a, b = noise.normal(0, (2,)), noise.normal(1, (2,))
    columns = torch.stack([*a.T, *b.T, noise.normal(0, (), stream=1)])
    assert columns.mean(dim=1).abs().max() < 5 / n**0.5
    assert (columns.var(dim=1) - 1).abs().max() < 5 * (2 / n) ** 0.5
    assert ((columns**4).mean(dim=1) - 3).abs().max() < 5 * (96 / n) ** 0.5
    off_diagonal = columns.corrcoef() - torch.eye(5, dtype=torch.float64)
    assert off_diagonal.abs().max() < 5 / n**0.5
    neighbours = torch.stack([a[:-1, 0], a[1:, 0]]).corrcoef()[0, 1]  # seeds 0, 1, 2, … look unrelated
    assert neighbours.abs() < 5 / n**0.5


def test_uniforms_pass_a_chi_square_test_and_stay_inside():
    u = Noise(as_seeds(range(1000))).uniform(7, (100,))
    assert u.min() > 0
    assert u.max() < 1
    counts = torch.histc(u, 100, 0, 1)
    chi2 = ((counts - 1000) ** 2 / 1000).sum()
    assert 99 - 5 * (2 * 99) ** 0.5 < chi2 < 99 + 5 * (2 * 99) ** 0.5


@pytest.mark.parametrize(
    ("seeds", "message"),
    [
        ([], "empty"),
        ([0.5], "whole numbers"),
        ([True], "whole numbers"),
        (torch.rand(3), "whole numbers"),
        (7, r"whole numbers, one per sample: got 7 \(for one, \[7\]\)"),
        ([1, 2**63], "64 bits: got 9223372036854775808"),
        (np.array([1.0]), "whole numbers"),
    ],
)
def test_bad_seeds_are_refused(seeds, message):
    with pytest.raises(ValueError, match=message):
        as_seeds(seeds)


def test_seeds_of_numpy_are_seeds():
    assert as_seeds(np.arange(3)).tolist() == as_seeds(range(3)).tolist()
