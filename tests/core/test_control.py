"""Control samples are drawn in batches of every size, from streams that do not start again."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trimtab.core.control import ControlStream


@given(st.lists(st.integers(1, 40), min_size=1, max_size=60), st.sampled_from([1, 2, 8, 32]), st.integers(0, 2**31))
def test_the_share_is_exact_to_one_sample_in_batches_of_any_size(sizes, one_in, seed):
    stream = ControlStream(seed)
    kept = sum(int(stream.draw(n, one_in)[0].sum()) for n in sizes)
    assert abs(kept - sum(sizes) / one_in) <= 1


@pytest.mark.parametrize("n", [1, 3, 4, 7])
def test_workers_with_small_batches_have_control_samples_together(n):
    streams = [ControlStream(0, f"worker {k}") for k in range(200)]
    kept = sum(int(stream.draw(n, 8)[0].sum()) for stream in streams)  # each has one batch only
    assert 0.5 * 200 * n / 8 < kept < 1.6 * 200 * n / 8


def test_every_row_has_its_turn():
    stream = ControlStream(3)
    counts = sum(stream.draw(16, 8)[0].long() for _ in range(800))
    assert int(counts.sum()) == 1600
    assert int(counts.min()) > 60
    assert int(counts.max()) < 140


def test_two_workers_draw_different_rows_and_so_does_the_next_batch():
    draws = [
        torch.stack([stream.draw(64, 8)[0] for _ in range(8)])
        for stream in map(ControlStream, (0, 0, 1), ("", "b", ""))
    ]
    assert len({tuple(rows.tolist()) for draw in draws for rows in draw}) == 24
    agree = float((draws[0] & draws[1]).sum()) / float(draws[0].sum())
    assert agree < 0.35  # an eighth, by chance


@pytest.mark.parametrize(
    "again", [copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s)), lambda s: s.from_state(s.state())]
)
def test_a_copy_goes_on_where_the_stream_is(again):
    stream = ControlStream(5, "worker")
    for n in (3, 9, 1):
        stream.draw(n, 8)
    other = again(stream)
    for n in (5, 1, 30):
        (mine, first), (theirs, second) = stream.draw(n, 8), other.draw(n, 8)
        assert torch.equal(mine, theirs)
        assert torch.equal(torch.rand(3, generator=first), torch.rand(3, generator=second))


def test_threads_share_a_stream_and_draw_each_batch_once():
    stream = ControlStream(0)
    with ThreadPoolExecutor(8) as pool:
        draws = list(pool.map(lambda _: stream.draw(20, 8), range(400)))
    assert stream.batches == 400
    assert abs(sum(int(rows.sum()) for rows, _ in draws) - 1000) <= 1
    assert len({generator.initial_seed() for _, generator in draws}) == 400


def test_the_global_generator_is_not_touched():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    ControlStream(0).draw(16, 8)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("state", [[0, "", -1, 0.5], [0, "", 3, 1.5], [0, "", 3, float("nan")]])
def test_an_impossible_state_is_refused(state):
    with pytest.raises(ValueError, match="not the state"):
        ControlStream.from_state(state)


def test_a_share_above_one_is_refused():
    with pytest.raises(ValueError, match="at least 1"):
        ControlStream(0).draw(4, 0.5)
