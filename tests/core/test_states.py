"""States of any size."""

from __future__ import annotations

import pytest
import torch

from trimtab.core.states import all_finite


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_a_large_number_is_finite_and_no_reason_to_warn(dtype):
    large = torch.full((3, 2), torch.finfo(dtype).max, dtype=dtype)
    assert all_finite((large, -large))
    assert not all_finite((large, large * 2))
    assert not all_finite((torch.tensor([[torch.nan]], dtype=dtype),))
