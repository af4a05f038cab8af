"""Projections that fail, raise, hang or answer NaN, under every policy: no sample lost, every failure counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from time import sleep
from typing import Any

import torch
from torch import Tensor

import trimtab as tt
from trimtab.constraints import TimeLimit
from trimtab.core.bound_constraint import Retry

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


def run(count: int, seed: int, progress: Callable[[str], None]) -> dict[str, Any]:
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
            progress(f"{fault}, {name}")
    hangs = hanging(max(1, count // 10), progress)
    return {
        "runs": count * len(FAULTS) * len(POLICIES),
        "share of projections that go wrong": SHARE,
        "outcomes": {name: dict(seen) for name, seen in outcomes.items()},
        "samples lost": lost + hangs["samples lost"],
        "runs whose failures were counted wrongly": uncounted + hangs["runs whose failures were counted wrongly"],
        "unclear": unclear + hangs.pop("unclear"),
        "hanging": hangs,
    }


# ------------------------------------------------------------------ projections that never return

FAR = 5.0
"""States that begin beyond this hang."""


class Hanging(tt.Constraint):
    """The unit ball, whose projection never returns if any of its states begins far out."""

    def defect(self, x: Tensor) -> Tensor:
        """Distance to the ball, (n, 3) to (n,)."""
        return (x.norm(dim=1) - 1).clamp(min=0)

    def project(self, x: Tensor) -> Tensor:
        """The nearest points of the ball, or no answer."""
        while bool((x[:, 0] > FAR).any()):
            sleep(3600)
        return x / x.norm(dim=1, keepdim=True).clamp(min=1)


def hanging(count: int, progress: Callable[[str], None], n: int = 4, seconds: float = 0.5) -> dict[str, Any]:
    """`count` runs of each policy in which one call of ten never returns, with a limit of time."""
    outcomes: dict[str, Counter[str]] = {}
    lost = uncounted = unclear = 0
    limited = TimeLimit(Hanging(), seconds)
    limited.project(torch.zeros(1, 3))  # the process is there
    for name, policy in POLICIES.items():
        seen = outcomes.setdefault(name, Counter())
        for i in range(count):
            corrector = tt.Corrector(limited, tt.Stepwise(), T, on_failure=policy)
            hangs_at, x = i % (T - 1), torch.zeros(n, 3)
            try:
                for t in range(T):
                    far = torch.tensor([2 * FAR, 0.0, 0.0]) * float(t == hangs_at)
                    x = corrector(x + 0.3 + far) - far  # the loop goes on from where it would have been
            except RuntimeError as error:
                seen["an error that says why"] += 1
                unclear += len(str(error)) < 20
                continue
            record = corrector.rollout
            seen["a whole run"] += 1
            lost += int((~record.final.isfinite()).any()) or int(record.final.shape != (n, 3))
            seen["failures"] += int(record.failed.sum() + record.closing_failed.sum())
            uncounted += record.failed[hangs_at].tolist() != [True] * n or int(record.failed.sum()) != n
        progress(f"hangs, {name}")
    limited.end()
    return {
        "runs": count * len(POLICIES),
        "calls that hang": "one of ten",
        "limit in seconds": seconds,
        "outcomes": {name: dict(seen) for name, seen in outcomes.items()},
        "samples lost": lost,
        "runs whose failures were counted wrongly": uncounted,
        "unclear": unclear,
    }
