"""Files that `load` does not read: it says why."""

from __future__ import annotations

import pytest
import torch

import trimtab as tt
from trimtab.core.files import save_tensors


@pytest.mark.parametrize("kind", ["thresholds", "plan", "race", "mean prices", "seconds", "stationary price", "value"])
def test_a_file_of_an_older_format_is_one_clear_sentence(kind, tmp_path):
    save_tensors(tmp_path / "old", kind, {"table": torch.zeros(1)}, {})
    for load in (tt.load, tt.prices.Thresholds.load):
        with pytest.raises(ValueError, match=rf"holds '{kind}' in a format that trimtab .* does not read; calibrate"):
            load(tmp_path / "old")


def test_a_file_of_another_price_or_of_none_is_told_so(tmp_path):
    tt.prices.Plan(torch.tensor([[False], [True]])).save(tmp_path / "plan")
    with pytest.raises(ValueError, match="holds Plan, expected Thresholds"):
        tt.prices.Thresholds.load(tmp_path / "plan")
    for facts in ({}, {"is": "Corrector"}, {"is": "Plan", "masks": 3}):
        save_tensors(tmp_path / "odd", "price", {}, facts)
        with pytest.raises(ValueError, match="not a usable price"):
            tt.load(tmp_path / "odd")
