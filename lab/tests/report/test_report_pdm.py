from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from trimtab_lab.domains.pdm.domain import _positions
from trimtab_lab.domains.reaction_flow.domain import _last_profile
from trimtab_lab.obstacles import AvoidObstacles, Obstacles
from trimtab_lab.report.figures import colliding

CIRCLES = torch.tensor([[0.2, 0.1, 0.3], [-0.5, -0.5, 0.2]], dtype=torch.float64)


@given(st.integers(0, 10_000))
def test_a_path_has_colliding_segments_just_where_its_defect_says_so(seed):
    path = torch.rand(1, 2, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    outside = torch.tensor([[-0.9, 0.9]], dtype=torch.float64)
    avoid = AvoidObstacles(Obstacles(CIRCLES), outside, outside)
    for i in range(5):
        segment = path[:, :, i : i + 2]
        depth = float(avoid.violation(segment))
        if abs(depth - 1e-3) > 1e-9:
            assert bool(colliding(segment[0].T.numpy(), CIRCLES.numpy())[0]) == (depth > 1e-3)


def test_a_trajectory_is_drawn_as_its_positions_and_a_field_as_its_last_profile():
    x = torch.arange(2 * 4 * 5, dtype=torch.float64).reshape(2, 4, 5)
    assert torch.equal(_positions(x), torch.stack([x[:, 0], x[:, 1]], dim=2))
    pairs = torch.randn(3, 2, 6, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    drawn = _last_profile(pairs)
    assert torch.equal(drawn, _last_profile(pairs[:, 0]))
    assert torch.equal(drawn[..., 1], pairs[:, 0, -1])
    np.testing.assert_allclose(drawn[0, :, 0], (np.arange(8) + 0.5) / 8)
