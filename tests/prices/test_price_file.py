"""Files that hold something else than `load` reads: it says where to read them."""

from __future__ import annotations

import importlib

import pytest
import torch

import trimtab as tt
from trimtab.core.files import save_tensors


@pytest.mark.parametrize(
    ("kind", "reader"),
    [
        ("mean prices", "trimtab.prices.MeanPrices"),
        ("seconds", "trimtab.prices.seconds.TimedPrices"),
        ("stationary price", "trimtab.prices.stationary.StationaryPrice"),
        ("value", "trimtab.experimental.value.Value"),
        ("rollout", "trimtab.Rollout"),
    ],
)
def test_a_file_of_another_kind_is_told_where_it_is_read(kind, reader, tmp_path):
    path = tmp_path / "file.safetensors"
    save_tensors(path, kind, {"x": torch.zeros(1)}, {})
    with pytest.raises(ValueError, match=f"holds .*; read (it|them) with {reader}.load"):
        tt.load(path)
    room, _, name = reader.rpartition(".")
    with pytest.raises((KeyError, ValueError), match=r"usable|missing|levels"):  # it is its reader that refuses it
        getattr(importlib.import_module(room), name).load(path)
