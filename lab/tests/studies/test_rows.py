from __future__ import annotations

import io

import pytest
import torch

from study_runs import SMALL, SWEPT, finished, row_hashes
from trimtab.core.metrics import nepe
from trimtab_lab.studies.config import StudyError
from trimtab_lab.studies.rows import COLUMNS, SWEEP, parquet_bytes, read_rows, rows_in


@pytest.fixture
def small():
    return finished(SMALL)


@pytest.fixture
def swept():
    return finished(SWEPT)


def test_there_is_one_row_a_rollout_in_a_stated_order(small):
    rows = read_rows(small, "so3")
    wanted = [
        (key, budget, seed)
        for key, budgets in {
            "terminal": (0.0,),
            "stepwise": (1.0,),
            "periodic": SMALL.budgets,
            "adaptive:paper": SMALL.budgets,
        }.items()
        for budget in budgets
        for seed in range(SMALL.seeds)
    ]
    got = zip(rows["schedule"].tolist(), rows["budget"].tolist(), rows["seed"].tolist(), strict=True)
    assert list(got) == wanted


def test_nepe_is_that_of_the_paired_rollouts(small):
    rows = read_rows(small, "so3")
    ends = [rows.where(schedule=key).tensor("path_error") for key in ("stepwise", "terminal")]
    for key in ("periodic", "adaptive:paper"):
        some = rows.where(schedule=key, budget=0.25)
        assert torch.equal(some.tensor("nepe"), nepe(some.tensor("path_error"), *ends))
    assert rows.where(schedule="terminal")["nepe"].tolist() == [1.0] * SMALL.seeds
    assert rows.where(schedule="stepwise")["nepe"].tolist() == [0.0] * SMALL.seeds


def test_all_schedules_coincide_at_the_ends_of_the_grid(small):
    rows = read_rows(small, "so3")
    for end, budget in (("terminal", 0.0), ("stepwise", 1.0)):
        for key in ("periodic", "adaptive:paper"):
            for column in ("path_error", "endpoint", "projections"):
                there = rows.where(schedule=key, budget=budget)[column]
                assert there.tolist() == rows.where(schedule=end)[column].tolist()


def test_the_sweep_has_rows_of_its_own(swept):
    rows = read_rows(swept, SWEEP)
    assert rows.values("kappa") == [0.0, 0.5]
    assert rows.values("domain") == ["terrain-ridge"]
    assert rows.where(kappa=0.0, schedule="periodic").values("budget") == [0.25]
    assert set(row_hashes(swept)) == {"terrain.parquet", "terrain-ridge.parquet", "kappa-sweep.parquet"}


def test_writing_is_the_same_to_the_byte_and_missing_numbers_are_null():
    rows = [{"a": 1.5, "b": "x"}, {"b": "y"}]
    from pyarrow.parquet import read_table

    first, second = (parquet_bytes(rows, {"a": "float64", "b": "string"}) for _ in range(2))
    assert first == second
    assert read_table(io.BytesIO(first)).to_pydict() == {"a": [1.5, None], "b": ["x", "y"]}


def test_rows_of_an_unfinished_run_or_another_version_are_refused(tmp_path):
    with pytest.raises(StudyError, match="not finished"):
        read_rows(tmp_path, "so3")
    with pytest.raises(StudyError, match="missing"):
        rows_in(parquet_bytes([{"seed": 1}], {"seed": "int64"}), "so3.parquet")
    text = dict.fromkeys(COLUMNS, "string")
    with pytest.raises(StudyError, match="'kappa'"):
        rows_in(parquet_bytes([dict.fromkeys(COLUMNS, "a")], text), "so3.parquet")
