"""The books of a run: what was decided, what is left, and the one place where decisions are made."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from trimtab.record import Rollout
from trimtab.schedule import Moment, Schedule, as_schedule, corrections

__all__ = ["Ledger", "replay"]


class Ledger:
    """The running state of the decisions of one run, and the one place where they are made."""

    def __init__(self, schedule: Schedule, n_steps: int, n: int, like: Tensor, seeds: Tensor | None) -> None:
        """Start with the schedule's whole budget; `like` gives device and dtype of the defects."""
        budget = corrections(getattr(schedule, "budget", 1.0), n_steps)
        if isinstance(budget, Tensor) and len(budget) != n:
            raise ValueError(f"the schedule has budgets for {len(budget)} samples, but the batch has {n}")
        self.schedule = schedule.to(like.device) if hasattr(schedule, "to") else schedule
        self.n_steps = n_steps
        self.seeds = seeds
        self.left = torch.empty(n, dtype=torch.int64, device=like.device)
        self.left[:] = budget if isinstance(budget, Tensor) else int(budget)
        self.defects = torch.empty(n_steps, n, dtype=like.dtype, device=like.device)
        self.residuals = torch.empty_like(self.defects)
        self.projected = torch.zeros(n_steps, n, dtype=torch.bool, device=like.device)
        self.memory: dict[str, Tensor] = {}
        # On the host the books are kept through numpy views of the same memory: for so few numbers a call of torch
        # costs several times the work it does.
        self._host = like.device.type == "cpu"

    def decide(self, t: int, defect: Tensor, proposal: Tensor | None) -> Tensor:
        """Ask the schedule which samples to project after step t, and book what that spends.

        Returns:
            (n,) bool; never a sample with no budget left.
        """
        if self._host:
            self.defects.numpy()[t] = defect.numpy()
        else:
            self.defects[t] = defect
        record = (self.defects, self.projected)
        now = Moment(t, self.n_steps, defect, self.left, proposal, record, self.seeds, self.memory)
        chosen = self.schedule.decide(now)
        if not isinstance(chosen, Tensor) or chosen.dtype != torch.bool or chosen.shape != defect.shape:
            came = f"{tuple(chosen.shape)} of {chosen.dtype}" if isinstance(chosen, Tensor) else repr(chosen)
            raise ValueError(f"a schedule must decide with a ({len(defect)},) bool tensor: got {came} at t = {t}")
        if self._host:
            spent, left = self.projected.numpy()[t], self.left.numpy()
            np.logical_and(chosen.numpy(), left, out=spent)
            left -= spent
            return torch.from_numpy(spent)
        self.projected[t] = chosen & (self.left > 0)
        self.left.sub_(self.projected[t].view(torch.uint8))
        return self.projected[t]

    def keep(self, t: int, residual: Tensor) -> None:
        """Book the residuals of the states kept after step t, (n,)."""
        if self._host:
            self.residuals.numpy()[t] = residual.numpy()
        else:
            self.residuals[t] = residual

    def rows(self, t: int) -> Tensor:
        """The samples chosen at step t, as indices (k,)."""
        if self._host:
            return torch.from_numpy(self.projected.numpy()[t].nonzero()[0])
        return self.projected[t].nonzero().squeeze(1)


def replay(schedule: Schedule | Callable[[Moment], Tensor], record: Rollout) -> Tensor:
    """What the schedule decides on the defects of a recorded run, (T, n) bool.

    Equal to `record.projected` exactly if that schedule is the one that ran (for schedules that look at states, which
    a record does not hold, this cannot be told).
    """
    T, n = record.defects.shape
    ledger = Ledger(as_schedule(schedule), T, n, record.defects, record.seeds)
    for t in range(T):
        ledger.decide(t, record.defects[t], None)
    return ledger.projected
