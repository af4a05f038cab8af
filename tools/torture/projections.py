"""Projections that fail, raise or answer NaN, under every policy: no sample is lost and every failure is counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import trimtab as tt
from trimtab.core.applied import Retry

T, N, SHARE = 10, 200, 0.1
POLICIES: dict[str, Any] = {
    "keep": "keep",
    "revert": "revert",
    "raise": "raise",
    "retry": "retry",
    "Retry(3)": Retry(3),
}
FAULTS = ("fails", "answers NaN and says so", "answers NaN in silence", "raises")


class Unreliable(tt.Constraint):
    """The unit ball, whose projection goes wrong for a tenth of the samples it is given."""

    def __init__(self, fault: str, seed: int) -> None:
        """Wrong in one way."""
        self.fault, self.generator, self.wrong, self.calls = fault, torch.Generator().manual_seed(seed), 0, 0

    def defect(self, x: Tensor) -> Tensor:
        """Distance to the ball, (n, 3) to (n,)."""
        return (x.norm(dim=1) - 1).clamp(min=0)

    def project(self, x: Tensor) -> tt.Projection:
        """The nearest points of the ball, but for some."""
        self.calls += 1
        good = x / x.norm(dim=1, keepdim=True).clamp(min=1)
        bad = torch.rand(len(x), generator=self.generator) < SHARE
        self.wrong += int(bad.sum())
        if self.fault == "raises" and bool(bad.any()):
            raise RuntimeError("the solver gave up")
        if "NaN" in self.fault:
            good[bad] = torch.nan
        else:
            good[bad] = x[bad]
        return tt.Projection(good) if self.fault == "answers NaN in silence" else tt.Projection(good, converged=~bad)

    def take(self, rows: Tensor) -> Unreliable:
        """It has no data of its own."""
        return self


def run(count: int, seed: int, say: Callable[[str], None]) -> dict[str, Any]:
    """`count` runs of each policy with each fault."""
    outcomes: dict[str, Counter[str]] = {}
    lost = uncounted = unclear = 0
    for fault in FAULTS:
        for name, policy in POLICIES.items():
            seen = outcomes.setdefault(f"{fault}, {name}", Counter())
            for i in range(count):
                constraint = Unreliable(fault, seed + i)
                corrector = tt.Corrector(constraint, tt.Stepwise(), T, on_failure=policy)
                x = torch.zeros(N, 3)
                try:
                    for _ in range(T):
                        x = corrector(x + 0.3)
                except RuntimeError as error:
                    seen["an error that says why"] += 1
                    unclear += not str(error)
                    corrector.reset()
                    continue
                record = corrector.rollout
                seen["a whole run"] += 1
                lost += int((~record.final.isfinite()).any()) or int(record.final.shape != (N, 3))
                told = int(record.failed.sum() + record.closing_failed.sum())
                seen["failures"] += constraint.wrong
                seen["failures that were left"] += told
                # what a policy does not try again is counted one by one; what it tries again may succeed
                uncounted += told != constraint.wrong if name in ("keep", "revert") else told > constraint.wrong
            say(f"{fault}, {name}")
    return {
        "runs": count * len(FAULTS) * len(POLICIES),
        "share of projections that go wrong": SHARE,
        "outcomes": {name: dict(seen) for name, seen in outcomes.items()},
        "samples lost": lost,
        "runs whose failures were counted wrongly": uncounted,
        "unclear": unclear,
    }
