from __future__ import annotations

import errno
import os

import pytest
import torch

import free
import trimtab as tt
from cases import Sphere, Walk
from trimtab.core import files
from trimtab.core.files import save_tensors
from trimtab.core.view import StepView
from trimtab.prices.sample_scale import SampleScale


@pytest.fixture
def prices():
    return free.calibrate(tt.Problem(Walk(), Sphere(), range(100, 108)), 0.5, method="paper", objective="path")


def test_prices_survive_their_file(prices, tmp_path):
    path = tmp_path / "prices.safetensors"
    prices.save(path)
    again = tt.prices.Thresholds.load(path)
    assert torch.equal(again.table, prices.table)
    facts = ("method", "seeds", "objective", "version", "n_steps", "budget", "notes")
    assert all(getattr(again, name) == getattr(prices, name) for name in facts)
    assert [p.name for p in tmp_path.iterdir()] == ["prices.safetensors"]


def test_foreign_truncated_and_other_files_are_refused(prices, tmp_path):
    path = tmp_path / "prices.safetensors"
    prices.save(path)
    whole = path.read_bytes()
    for cut in (0, 4, 50, len(whole) - 8):
        path.write_bytes(whole[:cut])
        with pytest.raises(ValueError, match="truncated"):
            tt.prices.Thresholds.load(path)
    path.write_bytes(b"\x80\x04\x95 a pickle")
    with pytest.raises(ValueError, match="not a trimtab"):
        tt.prices.Thresholds.load(path)
    from safetensors.torch import save_file

    save_file({"table": prices.table}, path, metadata={"format": "trimtab-99", "version": "9.1"})
    with pytest.raises(ValueError, match=r"written by trimtab 9\.1 in the format 'trimtab-99', which this version"):
        tt.prices.Thresholds.load(path)
    save_file({"table": prices.table}, path)
    with pytest.raises(ValueError, match="not one written by trimtab"):
        tt.prices.Thresholds.load(path)
    free.rollout(Walk(), Sphere(), tt.Terminal(), [1]).save(path)
    with pytest.raises(ValueError, match="holds the record of a run"):
        tt.prices.Thresholds.load(path)
    with pytest.raises(FileNotFoundError, match="expected a trimtab price file"):
        tt.prices.Thresholds.load(tmp_path / "nothing")


def test_a_failed_write_leaves_the_old_file(prices, tmp_path, monkeypatch):
    path = tmp_path / "price.safetensors"
    prices.save(path)
    before = path.read_bytes()

    def full_disk(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match=r"No space left on device: '.*price\.safetensors'"):
        prices.save(path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


INF, NAN = torch.inf, torch.nan
FACTS = {"is": "Thresholds", "method": "dp", "seeds": [], "objective": "path", "fingerprint": "", "notes": {}}


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ([[INF, 1.0]], "tensor of floats: got list"),
        (torch.zeros(3), r"\(T, B \+ 1\)"),
        (torch.zeros(0, 1), "T >= 1"),
        (torch.zeros(2, 2, dtype=torch.int64), "floats"),
        (torch.full((1, 3), INF), "B = 2 corrections does not fit T = 1"),
        (torch.tensor([[INF, NAN]]), "NaN, first at t = 0, b = 1"),
        (torch.tensor([[0.0, 1.0]]), "column 0"),
    ],
)
def test_tables_no_schedule_could_use_are_refused(table, message):
    with pytest.raises(ValueError, match=message):
        tt.prices.Thresholds(table)


def test_what_is_no_table_and_no_scale_is_told_so():
    with pytest.raises(ValueError, match="tensor of floats: got list"):
        tt.prices.Thresholds([[1.0]], unit="iteration")
    with pytest.raises(TypeError, match="sample_scale of prices must be of type SampleScale: got 3"):
        tt.prices.Thresholds(torch.tensor([[INF, 1.0]]), sample_scale=3)
    with pytest.raises(ValueError, match="of T = 1 steps, as the prices: got 3"):
        tt.prices.Thresholds(torch.tensor([[INF, 1.0]]), sample_scale=SampleScale(torch.ones(4, 3), 1.0))


def test_a_table_for_another_number_of_steps_or_a_smaller_budget_is_refused(prices):
    with pytest.raises(ValueError, match="calibrated for T = 12 steps and cannot be used for T = 9"):
        free.rollout(Walk(n_steps=9), Sphere(), tt.prices.Adaptive(prices), [1])
    with pytest.raises(ValueError, match="more than the 6 corrections"):
        tt.prices.Adaptive(prices, 7)


def test_a_place_that_no_file_can_have_is_named(prices, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no file can be made in .*missing.*: '.*missing/price\.safetensors'"):
        prices.save(tmp_path / "missing" / "price.safetensors")
    pipe = tmp_path / "pipe"

    def no_space(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match=r"No space left on device: '.*rows\.parquet'"):
        files.write_atomically(tmp_path / "rows.parquet", no_space)
    os.mkfifo(pipe)
    for place in (pipe, tmp_path):
        with pytest.raises(FileExistsError, match="not an ordinary file"):
            prices.save(place)
    assert pipe.is_fifo()
    assert [file.name for file in tmp_path.iterdir()] == ["pipe"]


@pytest.mark.parametrize("seeds", ["x", [1, "a"], None])
def test_seeds_that_are_none_are_refused_in_files(seeds, tmp_path):
    table = torch.tensor([[INF, 1.0], [INF, 1.0]])
    save_tensors(tmp_path / "prices.safetensors", "price", {"table": table}, FACTS | {"seeds": seeds})
    with pytest.raises(ValueError, match="not a usable price"):
        tt.prices.Thresholds.load(tmp_path / "prices.safetensors")


def test_the_mean_budget_of_a_batch_is_read_between_columns():
    table = torch.tensor([[INF, 4.0, 2.0, 1.0], [INF, 3.0, INF, -INF], [INF, 3.0, -INF, -INF], [INF, 3.0, 2.0, 1.0]])
    price = tt.prices.Thresholds(table.double())
    defects, projected = torch.ones(4, 2, dtype=torch.float64), torch.zeros(4, 2, dtype=torch.bool)
    rows = [StepView.of_record(t, defects, projected, 3) for t in range(3)]

    def read(step, *left):
        return price.threshold(rows[step], torch.tensor(left, dtype=torch.float64)).tolist()

    assert read(0, 1.0, 1.25, 2.0, 2.5, 3.0, 9.5) == [4.0, 3.5, 2.0, 1.5, 1.0, 1.0]
    # dear, but not closed, until there is nothing
    assert read(0, 0.5, 0.25, 0.0) == [8.0, 16.0, INF]
    # infinite entries are not mixed; after +inf, which is no budget, all are wanted and the pool rations them
    assert read(1, 1.25, 1.75, 2.25, 2.75) == [3.0, INF, -INF, -INF]
    typical = torch.ones(5, 4, dtype=torch.float64)
    scaled = tt.prices.Thresholds(table.double(), sample_scale=SampleScale(typical, 0.0))
    twice = StepView.of_record(0, torch.tensor([[1.0, 2.0]] * 4).double(), projected, 3)
    assert scaled.threshold(twice, torch.full((2,), 1.5).double()).tolist() == [3.0, 6.0]
