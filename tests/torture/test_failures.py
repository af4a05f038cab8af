"""Projections that fail, raise or answer NaN, under every policy: no sample is lost and every failure is counted."""

from __future__ import annotations

import pytest
import torch

import trimtab as tt
from torture.scale import TIMES
from trimtab.core.bound_constraint import Retry

T, N, SHARE = 10, 50, 0.1
POLICIES = {"keep": "keep", "revert": "revert", "raise": "raise", "retry": "retry", "Retry(3)": Retry(3)}


class Unreliable(tt.Constraint):
    """The unit ball, whose projection goes wrong for a tenth of the samples."""

    def __init__(self, fault: str, seed: int) -> None:
        self.fault, self.generator, self.wrong = fault, torch.Generator().manual_seed(seed), 0

    def defect(self, x):
        return (x.norm(dim=1) - 1).clamp(min=0)

    def project(self, x):
        good = x / x.norm(dim=1, keepdim=True).clamp(min=1)
        bad = torch.rand(len(x), generator=self.generator) < SHARE
        self.wrong += int(bad.sum())
        if self.fault == "raises" and bool(bad.any()):
            raise RuntimeError("the solver gave up")
        good[bad] = torch.nan if "NaN" in self.fault else x[bad]
        return tt.Projection(good) if self.fault == "silent NaN" else tt.Projection(good, converged=~bad)

    def take(self, rows):
        return self


@pytest.mark.filterwarnings("ignore")  # a run that ends with infeasible samples may warn
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("fault", ["fails", "NaN", "silent NaN", "raises"])
def test_no_sample_is_lost_and_every_failure_is_counted(fault, policy):
    for seed in range(3 * TIMES):
        constraint = Unreliable(fault, seed)
        corrector = tt.Corrector(constraint, tt.Stepwise(), T, on_failure=POLICIES[policy])
        x = torch.zeros(N, 3)
        try:
            for _ in range(T):
                x = corrector(x + 0.3)
        except RuntimeError:
            assert fault != "fails" or policy == "raise"
            continue
        run = corrector.rollout
        assert bool(run.final.isfinite().all())
        failures = int(run.failed.sum() + run.closing_failed.sum())
        # a failure that is not tried again counts once; one that is tried again may succeed
        assert failures == constraint.wrong if policy in ("keep", "revert") else failures <= constraint.wrong
