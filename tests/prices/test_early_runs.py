from __future__ import annotations

import pytest
import torch

import trimtab as tt
from cases import Sphere


@pytest.mark.parametrize("options", [{}, {"objective": "path"}, {"method": "planned"}])
def test_prices_are_not_made_of_runs_that_ended_early(options):
    def run(schedule):
        generator, x = torch.Generator().manual_seed(0), torch.ones(8, 3)
        corrector = tt.Corrector(Sphere(), schedule, 12)
        for t in range(5):
            x = corrector(x + 0.1 * torch.randn(8, 3, generator=generator), t)
        corrector.stop(x)
        return corrector.rollout

    with pytest.raises(ValueError, match=r"run ended early, after 5 of 12 steps.*continue to their end"):
        tt.calibrate(run, budget=0.5, **options)
