"""Files that `load` does not read: it says why."""

from __future__ import annotations

import pytest
import torch

import trimtab as tt
from trimtab.core.files import save_tensors


def test_a_file_of_another_price_or_of_none_is_told_so(tmp_path):
    tt.prices.Plan(torch.tensor([[False], [True]])).save(tmp_path / "plan")
    with pytest.raises(ValueError, match="holds Plan, expected Thresholds"):
        tt.prices.Thresholds.load(tmp_path / "plan")
    for facts in ({}, {"is": "Corrector"}, {"is": "Plan", "masks": 3}):
        save_tensors(tmp_path / "odd", "price", {}, facts)
        with pytest.raises(ValueError, match="not a usable price"):
            tt.load(tmp_path / "odd")


def test_a_table_of_free_decisions_survives_its_file(tmp_path):
    price = tt.prices.Thresholds(torch.tensor([[torch.inf, 0.5]]), closing="paid", interval=torch.ones(2, 1, 2))
    price.save(tmp_path / "price")
    again = tt.load(tmp_path / "price")
    assert (again.n_steps, again.budget, again.closing) == (2, 2, "paid")
    assert torch.equal(again.table, price.table)
    assert torch.equal(again.interval, price.interval)
